"""A run on parallel text from beginning to end; its translations, and their score."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
import sacrebleu
import toy_text

from jaxreg import models, train
from jaxreg.train import cli
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data import text
from jaxreg.train.finished.restore import restore_run
from jaxreg.train.jobs.summary import summary
from jaxreg.train.jobs.translate import make_decode

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def run(text_folder, tmp_path_factory):
  """Of two steps: what it says is all but random."""
  workdir = tmp_path_factory.mktemp("translate") / "run"
  config = toy_text.make_config(text_folder)
  with pytest.MonkeyPatch.context() as patch:
    runs.on_devices(patch, 2)
    yield config, workdir, train.train(config, workdir)


@pytest.fixture(scope="module")
def workdir(run):
  return run[1]


def test_a_run(run):
  config, workdir, results = run
  assert results["step"] == 2
  assert {"val/error", "test/nll", "test/ece"} <= set(results)
  assert all(np.isfinite(number) for number in results.values())
  first = runs.records(workdir)[0]
  assert first["train/learning_rate"] == pytest.approx(50**-0.5 * 100**-1.5)
  assert {file.name for file in (workdir / "figures").iterdir()} == {"curves.png", "reliability.png"}
  count = runs.table(workdir / "reliability.json")["count"]
  test = load_data(config).test
  assert sum(count) == (test.labels >= 0).sum()


def test_evaluation_and_predictions_are_those_of_the_run(run):
  config, workdir, results = run
  evaluation = toy_text.make_config(config.data.parallel_text.path, {"job": "evaluate"})
  assert train.evaluate(evaluation, workdir)["test/nll"] == results["test/nll"]
  test = load_data(config).test
  log_probs = np.asarray(train.load(workdir)(test.inputs), np.float64)
  assert log_probs.shape == (*test.labels.shape, 60)
  nll = -np.take_along_axis(log_probs, np.maximum(test.labels, 0)[..., None], -1)[..., 0]
  assert nll[test.labels >= 0].mean() == pytest.approx(results["test/nll"], rel=1e-5)
  with pytest.raises(ValueError, match="inputs must be int32, as the data source stores them, got int64"):
    train.load(workdir)(test.inputs.astype(np.int64))


@pytest.fixture(scope="module")
def translated(text_folder, workdir):
  config = toy_text.make_config(text_folder, {"job": "translate", "translate.beam_size": 2})
  return config, train.translate(config, workdir)


def test_the_files(text_folder, workdir, translated):
  config, results = translated
  saved = json.loads((workdir / "translate.json").read_text())
  assert saved["split"] == "test"
  assert (saved["beam_size"], saved["length_penalty"]) == (2, 0.6)
  assert "nrefs:1" in saved["signature"]
  blocks = (workdir / "translations.txt").read_text(encoding="utf-8").split("\n\n")
  sources, targets = toy_text.lines("test_2016_flickr")
  found = {name: [] for name in ("source", "reference", "greedy", "beam")}
  for block in blocks:
    for line in block.rstrip("\n").split("\n"):
      found[line[:11].strip()].append(line[11:])
  assert (found["source"], found["reference"]) == (sources, targets)
  for name in ("greedy", "beam"):
    expected = sacrebleu.corpus_bleu(found[name], [targets]).score
    assert results[f"{name}/bleu"] == saved[f"{name}/bleu"] == pytest.approx(expected)
    assert saved["replicas"][name] == [results[f"{name}/bleu"]]
  assert len(set(found["greedy"])) > 1
  assert "greedy BLEU" in summary(results, config, workdir)


def test_greedy_is_the_argmax_of_the_whole_model(text_folder, workdir):
  """One token at a time, each time by the whole network, as in training."""
  config = toy_text.make_config(text_folder)
  program, state, _ = restore_run(workdir, "latest", 0)
  options, lines = config.data.parallel_text, load_data(config)
  inputs = lines.test.inputs
  search = functools.partial(models.beam_decode, beam_size=1, length_penalty=0.0)
  decode = make_decode(program, search, lines, beam_size=1)
  found = np.asarray(jax.jit(decode)(state, jnp.asarray(inputs), 0))
  apply = jax.jit(lambda x: program.apply_fn(state.params, {}, x, key=None, train=False)[0]["logits"])
  prefix = np.zeros((len(inputs), options.target_length + 1), np.int32)
  prefix[:, 0] = text.BEGIN
  ended = np.zeros(len(inputs), bool)
  for position in range(options.target_length):
    x = np.concatenate([inputs[:, : options.source_length], prefix[:, :-1]], axis=1)
    logits = np.array(apply(x))[:, position]
    logits[:, [text.PAD, text.BEGIN]] = -np.inf
    chosen = np.where(ended, text.PAD, logits.argmax(-1))
    prefix[:, position + 1] = chosen
    ended |= chosen == text.END
  np.testing.assert_array_equal(found, prefix[:, 1:])
  assert len({tuple(row) for row in found}) > 1


def test_a_beam_sees_the_source_of_its_sequence(text_folder, workdir):
  """A beam of one is greedy, and one of three is for one sequence what it is among others."""
  program, state, _ = restore_run(workdir, "latest", 0)
  lines = load_data(toy_text.make_config(text_folder))
  inputs = jnp.asarray(lines.test.inputs)

  def search(next_log_probs, batch_size, **options):
    return models.beam_decode(next_log_probs, batch_size, beam_size=3, **options)

  decode = jax.jit(make_decode(program, search, lines, beam_size=3))
  together = np.asarray(decode(state, inputs, 0))
  alone = np.asarray(decode(state, jnp.roll(inputs, 2, axis=0), 0))
  np.testing.assert_array_equal(np.roll(together, 2, axis=0), alone)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"data.name": "digits"}, "job: translate needs data.name=parallel_text and model.name=Transformer"),
    ({"model.name": "MLP"}, "got 'parallel_text' and 'MLP'"),
    ({"seed": 3}, "belongs to another configuration: seed was 0, is 3"),
  ],
)
def test_mistakes_are_told(text_folder, workdir, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.translate(toy_text.make_config(text_folder, {"job": "translate", **fields}), workdir)


def test_without_a_config_it_takes_that_of_the_run(workdir):
  arguments = ["--config.job=translate", f"--workdir={workdir}", "--config.translate.beam_size=3"]
  config = cli.parse(arguments, runs.ROOT / "configs").config
  assert (config.job, config.model.name, config.translate.beam_size) == ("translate", "Transformer", 3)
  assert config.data.parallel_text.vocab_size == 60

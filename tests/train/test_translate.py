"""A run on parallel text from beginning to end, and the example that translates with it."""

import importlib.util

import numpy as np
import pytest
import runs
import toy_text

from jaxreg import train
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data.text import BEGIN, END, PAD

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
  assert {file.name for file in (workdir / "figures").iterdir()} == {
    "curves.png",
    "goodput.png",
    "reliability.png",
  }
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
def example():
  spec = importlib.util.spec_from_file_location("translate", runs.ROOT / "examples/translate.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_the_example_takes_the_most_probable_token_at_each_position(example, workdir):
  """One pass over whole translations has the same argmax everywhere, because positions see no later ones."""
  predict = train.load(workdir)
  text = predict.dataset
  sources = text.test.inputs[:, : text.source_length]
  tokens = example.decode(predict, sources, text.target_length)
  begin = np.full((len(tokens), 1), BEGIN, np.int32)
  log_probs = np.array(predict(np.concatenate([sources, begin, tokens[:, :-1]], axis=1)))
  log_probs[..., [PAD, BEGIN]] = -np.inf
  before_end = np.cumsum(tokens == END, axis=1) - (tokens == END) == 0
  np.testing.assert_array_equal(tokens, np.where(before_end, log_probs.argmax(axis=-1), PAD))
  assert len({tuple(row) for row in tokens}) > 1


def test_the_example_translates_all_lines_of_the_test_split(example, workdir, monkeypatch):
  lines = example.translate(workdir)
  assert [line[:2] for line in lines] == list(zip(*toy_text.lines("test_2016_flickr"), strict=True))
  assert len({translation for _, _, translation in lines}) > 1
  monkeypatch.setattr(example, "BATCH_SIZE", 3)
  assert example.translate(workdir) == lines

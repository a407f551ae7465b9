"""The job `merge`: a run made of runs, against means and evaluations of the trained networks themselves."""

import json
import os

import jax
import numpy as np
import pytest
import runs
from etils import epath

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.jobs import merge as merging
from jaxreg.train.jobs.merge import lines, merge
from jaxreg.train.summary import summary

SOFTMAX = {"epochs": 2, "eval_every": 2, "method.name": "softmax", "model.MLP.dropout_rate": 0.0}
STEPS = 2 * runs.STEPS_PER_EPOCH


@pytest.fixture(scope="module")
def trained(tmp_path_factory, light_module):
  """A run, and two that go on from its backbone by steps so small that their errors are equal."""
  del light_module
  top = tmp_path_factory.mktemp("trained")
  train.train(runs.make_config({**SOFTMAX, "epochs": 6}), top / "start")
  fine = {**SOFTMAX, "pretrained.workdir": str(top / "start")}
  for name, rate in {"slow": 1e-5, "fast": 2e-5}.items():
    train.train(runs.make_config({**fine, "optimizer.learning_rate": rate}), top / name)
  return top


@pytest.fixture(scope="module")
def seeds(trained):
  train.train(runs.make_config({**SOFTMAX, "seed": 5, "replicas": 2}), trained / "seeds")
  return trained / "seeds"


def call(*arguments):
  """The results of the command `jaxreg merge`, and what it prints."""
  parsed = cli.parse(["merge", *map(str, arguments)], runs.ROOT / "configs")
  results = merge(parsed.config, parsed.workdir)
  return results, summary(results, parsed.config, parsed.workdir)


def leaves(workdir, replica=0):
  return jax.tree.map(lambda leaf: leaf[replica], runs.final_state(workdir)["params"])


def error(predict, split):
  return float((np.asarray(predict(split.inputs)).argmax(-1) != split.labels).mean())


def test_a_merge_is_a_run_whose_weights_are_the_mean(trained, tmp_path):
  """Load and evaluation agree with the mean of the two networks, which NumPy takes."""
  out = tmp_path / "out"
  results, told = call(trained / "slow", trained / "fast", "--workdir", out)
  rows = results["merge"]["ingredients"]
  assert [row["taken"] for row in rows] == [True, True]
  assert rows[0]["score"] <= rows[1]["score"]
  assert results["val/error"] == rows[1]["with_it"] <= rows[0]["score"]
  mean = jax.tree.map(
    lambda a, b: (a.astype(np.float64) + b) / 2, leaves(trained / "slow"), leaves(trained / "fast")
  )
  runs.assert_near(leaves(out), mean, 1e-6)

  predict = train.load(out)
  assert predict.step == STEPS
  for split in ("val", "test"):
    assert abs(error(predict, getattr(predict.dataset, split)) - results[f"{split}/error"]) < 1e-6
  again = train.evaluate(cli.parse(["evaluate", "--workdir", str(out)], runs.ROOT / "configs").config, out)
  assert {name: results[name] for name in again} == pytest.approx(again, rel=1e-6)
  assert train.load(out, checkpoint="best").step == STEPS
  assert runs.table(out / "results.json")["test/error"] == results["test/error"]

  assert "merge of 2" in told
  assert "taken" in told
  assert str(out / "figures" / "connectivity.png") in told
  line = json.loads((out / "merge.json").read_text())["lines"][0]
  assert len(line["values"]["val/nll"]) == 11
  np.testing.assert_allclose(line["values"]["val/nll"][5], results["val/nll"], rtol=1e-5)  # the middle


@pytest.mark.thorough
def test_a_report_takes_a_merge(trained, tmp_path):
  call(trained / "slow", trained / "fast", "--workdir", tmp_path / "out")
  flags = ["--config.report.sections=('errors','calibration')", "--config.report.minutes=0.1"]
  report = cli.parse(["report", "--workdir", str(tmp_path / "out"), *flags], runs.ROOT / "configs")
  results = train.report(report.config, report.workdir)
  assert (results["sections"], results["missing"]) == (2, {})


@pytest.mark.thorough
def test_networks_of_other_starts_are_not_taken_and_a_worse_mean_is_refused(trained, seeds, tmp_path):
  """Each seed of a run is a network. Their mean is worse, so greedy keeps the best and uniform ends."""
  best, other = trained / "start", seeds
  by_nll = "--config.checkpoint.best=val/nll"
  results, told = call(best, other, "--workdir", tmp_path / "greedy", by_nll)
  rows = results["merge"]["ingredients"]
  assert rows[0]["name"] == str(best)
  assert {row["name"] for row in rows[1:]} == {f"{other}, seed 5", f"{other}, seed 6"}
  assert [row["taken"] for row in rows] == [True, False, False]
  assert all(row["with_it"] > rows[0]["score"] for row in rows[1:])
  assert all(line["barriers"]["val/nll"] >= 0 for line in results["merge"]["lines"])
  assert "the merge is a copy of it" in told
  runs.assert_bitwise({"p": [leaves(tmp_path / "greedy")] * 2}, {"p": [leaves(best)] * 2})
  assert results["val/nll"] == rows[0]["score"]

  with pytest.raises(train.RunError, match=r"the uniform mean has val/nll .*, worse than .*start; nothing"):
    call(best, other, "--workdir", tmp_path / "uniform", by_nll, "--config.merge.recipe=uniform")
  assert not (tmp_path / "uniform").exists()


@pytest.mark.thorough
def test_the_seeds_of_one_run_can_be_merged(seeds, tmp_path):
  results, _ = call(seeds, "--workdir", tmp_path / "out", "--config.checkpoint.best=val/ece")
  assert len(results["merge"]["ingredients"]) == 2
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert (config["replicas"], config["ensemble"], config["job"]) == (1, 1, "train")
  train.load(tmp_path / "out")


@pytest.mark.thorough
def test_other_networks_data_and_methods_are_refused(trained, tmp_path, light_runs):
  """In one line, which names the field; nothing is written."""
  others = {
    "model": {"model.MLP.widths": (4,)},
    "activation": {"model.MLP.activation": "tanh"},
    "data": {"data.subset.limit": 96},
    "method": {"method.name": "focal"},
  }
  for name, fields in others.items():
    train.train(runs.make_config({**SOFTMAX, "epochs": 1, **fields}), tmp_path / name)
  wanted = {
    "model": r"model.MLP.widths was \[4\], is \[8\]",
    "activation": "model.MLP.activation was 'tanh', is 'relu'",
    "data": "data.subset.limit was 96, is 128",
    "method": "method.name was 'focal', is 'softmax'",
  }
  for name, told in wanted.items():
    with pytest.raises(train.RunError, match=f"merge.runs: .*{name} has another network.*{told}") as refused:
      call(trained / "slow", tmp_path / name, "--workdir", tmp_path / "out")
    assert "\n" not in str(refused.value)
  start = str(trained / "start")
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "notes.txt").write_text("mine")
  for arguments, told in (
    ([start, str(tmp_path / "absent")], "merge.runs: .*absent has no config.json"),
    ([str(tmp_path / "absent"), start], "^merge.runs: .*absent has no config.json"),
    ([start], "merge.runs: must be at least two runs"),
    ([start, start], "merge.runs: each must be named once"),
    ([start, f"{trained}/../{trained.name}/start"], "merge.runs: must be different runs"),
    (
      [start, str(trained / "slow"), "--config.evaluate.checkpoint=best", "--workdir", start],
      "is a run already",
    ),
    ([start, str(trained / "slow"), "--workdir", str(tmp_path / "full")], "holds other files, such as notes"),
    (
      [start, str(trained / "slow"), "--config.checkpoint.best=val/rmse"],
      "checkpoint.best: must be auto or",
    ),
  ):
    with pytest.raises(train.RunError, match=told):
      call(*arguments, *([] if "--workdir" in arguments else ["--workdir", tmp_path / "out"]))
  for arguments in (["--workdir", "out"], [start, str(trained / "slow")]):
    with pytest.raises(train.RunError, match="merge: needs runs and a folder"):
      call(*arguments)
  assert not (tmp_path / "out").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["saved", "written", "described"])
def test_a_merge_that_is_killed_leaves_no_run(trained, tmp_path, monkeypatch, at):
  """The process ends before the last file; nothing reads the folder, and the same command makes the run."""

  class Killed(BaseException):
    pass

  def kill(*_, **__):
    raise Killed

  out, command = tmp_path / "out", (trained / "slow", trained / "fast")
  with monkeypatch.context() as patch:
    place = {"saved": "Checkpoints", "written": "write_figures"}
    if at == "described":
      patch.setattr(merging.workdirs, "describe", kill)
    else:
      patch.setattr(merging, place[at], kill)
    with pytest.raises(Killed):
      call(*command, "--workdir", out)
  assert {each.name for each in out.iterdir()} >= {"lock", "merge.json"}
  with pytest.raises(train.RunError, match="nothing was trained there"):
    train.load(out)
  with pytest.raises(train.RunError, match="is a merge of runs and is not trained"):
    train.train(runs.make_config(SOFTMAX), out)
  call(*command, "--workdir", out)
  train.load(out)
  with pytest.raises(train.RunError, match="is a merge of runs and is not trained"):
    train.train(runs.make_config(SOFTMAX), out)


@pytest.mark.slow
def test_a_real_kill_leaves_no_run(trained, tmp_path):
  """SIGKILL at the first file of the merge."""
  out = tmp_path / "out"
  child = runs.start(["merge", trained / "slow", trained / "fast", "--workdir", out], tmp_path)
  while not (out / "merge.json").exists():
    assert child.poll() is None
  os.kill(child.pid, 9)
  child.wait()
  if not (out / "config.json").exists():
    with pytest.raises(train.RunError, match="nothing was trained there"):
      train.load(out)
    status, _, err = runs.run(["merge", trained / "slow", trained / "fast", "--workdir", out], tmp_path)
    assert status == 0, err
  train.load(out)


@pytest.mark.thorough
def test_the_statistics_of_batch_norm_are_estimated_again(tmp_path, monkeypatch):
  """Against the mean over the batches of their statistics, which a pass from zeros and the momentum give.

  The batches are the first 64 examples of a permutation, of a file that has its classes one after the other.
  """
  runs.on_devices(monkeypatch, 1)
  monkeypatch.setattr(merging, "MOST_EXAMPLES", 64)
  monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])
  fields = {"method.name": "softmax", "model.name": "CifarResNet", "model.CifarResNet.depth": 8, "epochs": 1}
  x = np.random.default_rng(0).normal(size=(160, 8, 8, 1))
  y = np.arange(128) // 64
  arrays = {"x_train": x[:128] + y[:, None, None, None], "y_train": y}
  np.savez(tmp_path / "sorted.npz", **arrays, x_test=x[128:], y_test=y[::4])
  fields |= {"data.name": "npz", "data.npz.path": str(tmp_path / "sorted.npz")}
  train.train(runs.make_config(fields), tmp_path / "run")
  predict = train.load(tmp_path / "run")
  variables = {"params": predict.state.params, "model_state": predict.state.model_state}
  got = merging.Merger(predict.config).completed(variables["params"], variables)
  examples = predict.dataset.train
  order = np.random.Generator(np.random.Philox(key=[0, 0])).permutation(len(examples))[:64]
  images = examples.inputs[order] / predict.scale
  sums = None
  for batch in np.split(np.float32(images), 2):
    zeros = jax.tree.map(np.zeros_like, predict.state.model_state)
    key = jax.random.key(0)  # this network draws nothing
    _, moved = predict.program.apply_fn(predict.state.params, zeros, batch, key=key, train=True)
    half = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) / 0.1 / 2, moved)  # its momentum is 0.9
    sums = half if sums is None else jax.tree.map(np.add, sums, half)
  assert len(jax.tree.leaves(sums)) > 10
  runs.assert_near(got["model_state"], sums, 1e-4)


@pytest.mark.thorough
def test_a_merge_in_a_bucket_is_that_of_a_disk(bucket, trained, tmp_path):
  for name in ("slow", "fast"):
    for file in (trained / name).rglob("*"):
      if file.is_file() and file.name != "lock":
        path = epath.Path(f"{bucket}/{name}") / str(file.relative_to(trained / name))
        path.write_bytes(file.read_bytes())
  here, _ = call(trained / "slow", trained / "fast", "--workdir", tmp_path / "out")
  there, _ = call(f"{bucket}/slow", f"{bucket}/fast", "--workdir", f"{bucket}/out")
  assert {name: there[name] for name in there if "/" in name} == {
    name: here[name] for name in here if "/" in name
  }
  images = np.zeros((1, 8, 8, 1), np.uint8)
  np.testing.assert_array_equal(train.load(f"{bucket}/out")(images), train.load(tmp_path / "out")(images))


def test_lines_say_what_was_found():
  rows = [
    {"name": "a", "score": 0.1, "taken": True, "with_it": None},
    {"name": "bb", "score": 0.2, "taken": False, "with_it": 0.4},
  ]
  found = {
    "metric": "val/error",
    "ingredients": rows,
    "lines": [{"to": "bb", "barriers": {"val/error": 0.25}}],
  }
  told = lines({"merge": found, "val/error": 0.1, "test/error": 0.3, "workdir": "out"}).split("\n")
  assert told[:2] == ["a   val/error 10.00%  taken", "bb  val/error 20.00%  not taken: 40.00% with it"]
  assert told[2] == "merge of 1  val/error 10.00%  test/error 30.00%"
  assert told[4] == "barrier to bb: val/error 25.00%"

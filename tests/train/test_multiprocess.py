"""Two processes with two devices each train as one does: same results, killed or not, and stop together."""

import json
import signal
import socket
import time

import jax
import numpy as np
import pytest
import runs

from jaxreg.train import checkpoint

pytestmark = pytest.mark.multiprocess

EPOCHS, STEPS_PER_EPOCH = 40, 4
ARGUMENTS = [
  f"--config.epochs={EPOCHS}",
  "--config.batch_size=32",
  "--config.data.limit=128",
  "--config.eval_batch_size=48",
  "--config.eval_every=5",
  "--config.model.MLP.widths=(8,)",
  "--config.model.MLP.dropout_rate=0.2",
  "--config.optimizer.learning_rate=1e-2",
  "--config.log_every=1",
]
TIMEOUT = 240


class Pair:
  """Two processes of `run.py` with the same arguments; leaves none of them behind."""

  def __init__(self, arguments, cwd, *, second=(), changes=None):
    with socket.socket() as probe:
      probe.bind(("localhost", 0))
      port = probe.getsockname()[1]
    common = ["--coordinator", f"localhost:{port}", "--num_processes", "2"]
    self.processes = [
      runs.start(
        [*arguments, *common, "--process_id", number, *(second if number else ())],
        cwd,
        optimised=False,
        devices=2,
        changes=changes if number else None,
      )
      for number in range(2)
    ]

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    for process in self.processes:
      process.kill()
      process.communicate()

  def finish(self):
    """Status of both, stdout of the first, stderr of both; the second has nothing to say on stdout."""
    (out, err), (none, other) = (process.communicate(timeout=TIMEOUT) for process in self.processes)
    # Of the library that connects processes on CPUs.
    out, none = ("".join(x for x in text.splitlines(True) if "[Gloo]" not in x) for text in (out, none))
    assert none == ""
    assert "Traceback" not in err + other
    return [process.returncode for process in self.processes], out, [err, other]

  def wait_for(self, workdir, step):
    """Until a checkpoint of that step or a later one is whole."""
    deadline = time.monotonic() + TIMEOUT
    while max(checkpoint.good_steps(workdir), default=0) < step:
      assert all(process.poll() is None for process in self.processes), self.finish()
      assert time.monotonic() < deadline
      time.sleep(0.02)


def train(arguments, workdir, **options):
  with Pair([*ARGUMENTS, *arguments, "--workdir", workdir], workdir.parent, **options) as pair:
    status, out, err = pair.finish()
  assert status == [0, 0], err
  assert "step " not in err[1]
  return json.loads((workdir / "results.json").read_text()), out, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An uninterrupted run of two processes: not to be changed."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  _, out, err = train([], workdir)
  assert "test  error" in out
  assert f"step {EPOCHS * STEPS_PER_EPOCH}/" in err[0]
  return workdir


def results_of(workdir):
  return json.loads((workdir / "results.json").read_text())


def assert_same(workdir, whole):
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(whole))
  assert results_of(workdir) == results_of(whole)
  assert runs.records(workdir) == runs.records(whole)


def assert_close(workdir, whole):
  """What another number of processes gives: sums in another order."""
  ours, theirs = results_of(workdir), results_of(whole)
  assert ours.keys() == theirs.keys()
  for name, value in theirs.items():
    np.testing.assert_allclose(ours[name], value, atol=1e-5, err_msg=name)
  for one, other in zip(
    jax.tree.leaves(runs.final_state(workdir)["params"]),
    jax.tree.leaves(runs.final_state(whole)["params"]),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_first_process_logs_and_every_step_is_logged_once(whole):
  steps = [record["step"] for record in runs.records(whole) if "train/loss" in record]
  assert steps == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
  assert json.loads((whole / "environment.json").read_text())["processes"] == 2
  assert len(list((whole / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize("devices", [1, 4])
def test_one_process_gives_the_same(whole, tmp_path, devices):
  workdir = tmp_path / "run"
  status, _, err = runs.run([*ARGUMENTS, "--workdir", workdir], tmp_path, optimised=False, devices=devices)
  assert status == 0, err
  assert_close(workdir, whole)


def test_killed_in_turn_and_relaunched_they_end_bitwise_equal(whole, tmp_path):
  workdir = tmp_path / "run"
  arguments = [*ARGUMENTS, "--workdir", workdir]
  for number, step in ((1, 20), (0, 80)):
    with Pair(arguments, tmp_path) as pair:
      pair.wait_for(workdir, step)
      pair.processes[number].kill()
      pair.processes[number].wait(TIMEOUT)
      # The other notices by itself; how it ends is not promised here.
      pair.processes[1 - number].wait(TIMEOUT)
      assert pair.processes[1 - number].returncode != 0
    assert not (workdir / "results.json").exists()
    assert max(checkpoint.good_steps(workdir)) < EPOCHS * STEPS_PER_EPOCH
  train([], workdir)
  assert_same(workdir, whole)


def test_told_to_stop_one_they_both_stop_at_the_same_step(whole, tmp_path):
  workdir = tmp_path / "run"
  with Pair([*ARGUMENTS, "--workdir", workdir], tmp_path) as pair:
    pair.wait_for(workdir, 20)
    pair.processes[1].send_signal(signal.SIGTERM)
    status, out, err = pair.finish()
  assert status == [143, 143]
  assert out == ""
  step = max(checkpoint.good_steps(workdir))
  assert 20 <= step < EPOCHS * STEPS_PER_EPOCH
  for text in err:
    assert runs.own_lines(text) == [
      f"run.py: stopped at step {step} and saved; the same command continues from there"
    ]
  train([], workdir)
  assert_same(workdir, whole)


def test_a_run_saved_by_one_goes_on_under_two_and_back(whole, tmp_path):
  workdir = tmp_path / "run"
  arguments = [*ARGUMENTS, "--workdir", workdir]

  def interrupt(process, step):
    while max(checkpoint.good_steps(workdir), default=0) < step:
      assert process.poll() is None, process.communicate()
      time.sleep(0.02)
    process.send_signal(signal.SIGTERM)

  process = runs.start(arguments, tmp_path, optimised=False)
  try:
    interrupt(process, 20)
    process.communicate(timeout=TIMEOUT)
  finally:
    process.kill()
  assert process.returncode == 143
  with Pair(arguments, tmp_path) as pair:
    interrupt(pair.processes[0], 80)
    status, _, err = pair.finish()
  assert status == [143, 143], err
  status, _, err = runs.run(arguments, tmp_path, optimised=False)
  assert status == 0, err
  assert f"of {EPOCHS * STEPS_PER_EPOCH} steps" in err
  assert "resuming at step" in err
  assert_close(workdir, whole)


def test_replicas_and_evaluation(tmp_path):
  """Two replicas under two processes are those of one, and so is what a later evaluation says."""
  arguments = ["--config.replicas=2", "--config.epochs=5"]
  several, _, _ = train(arguments, tmp_path / "two")
  status, _, err = runs.run(
    [*ARGUMENTS, *arguments, "--workdir", tmp_path / "one"], tmp_path, optimised=False
  )
  assert status == 0, err
  one = results_of(tmp_path / "one")
  assert several["replicas"]["seed"] == one["replicas"]["seed"] == [0, 1]
  for name, values in one["replicas"].items():
    np.testing.assert_allclose(several["replicas"][name], values, atol=1e-5, err_msg=name)
  with Pair(
    [*ARGUMENTS, *arguments, "--config.job=evaluate", "--workdir", tmp_path / "two"], tmp_path
  ) as pair:
    status, out, err = pair.finish()
  assert status == [0, 0], err
  assert f"test  error {100 * several['test/error']:.2f} ± " in out


def test_different_flags_are_told_by_both(tmp_path):
  with Pair([*ARGUMENTS, "--workdir", tmp_path / "run"], tmp_path, second=["--config.seed=1"]) as pair:
    status, _, err = pair.finish()
  assert status == [1, 1]
  for text in err:
    assert runs.own_lines(text) == [
      "run.py: error: config: of process 1 differs from that of process 0; start all alike"
    ]
  assert not (tmp_path / "run" / "config.json").exists()


def test_what_one_lacks_is_told_by_both(tmp_path, data_dir):
  arguments = [*ARGUMENTS, "--workdir", tmp_path / "run", "--config.data.name=tfds"]
  arguments += ["--config.data.tfds.name=mnist:9.9.9"]
  (tmp_path / "empty").mkdir()
  with Pair(arguments, tmp_path, changes={"TFDS_DATA_DIR": str(tmp_path / "empty")}) as pair:
    status, _, err = pair.finish()
  assert status == [1, 1]
  assert all(len(runs.own_lines(text)) == 1 for text in err)


def test_pmap_is_for_one_process(tmp_path):
  with Pair([*ARGUMENTS, "--workdir", tmp_path / "run", "--config.parallel=pmap"], tmp_path) as pair:
    status, _, err = pair.finish()
  assert status == [1, 1]
  assert "parallel: pmap runs in one process, here are 2; give parallel=jit" in runs.own_lines(err[0])[0]

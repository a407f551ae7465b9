"""Two processes with two devices each train as one does: same results, killed or not, and stop together."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import chex
import drawn
import jax
import numpy as np
import pytest
import runs
from image_files import make_folder, noise
from PIL import Image

from jaxreg import train
from jaxreg.train.build.saved import restore_config
from jaxreg.train.run import manifest

pytestmark = pytest.mark.multiprocess

EPOCHS, STEPS_PER_EPOCH = 40, 4
STEPS = EPOCHS * STEPS_PER_EPOCH
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
# JAX needs up to 100 s to notice that a process other than the first is gone; who relaunches does not wait.
GRACE = 15


class Pair:
  """Two processes of `run.py` with the same arguments; leaves none of them behind.

  The second one may have `more` arguments, or work in another folder.
  """

  def __init__(self, arguments, cwd, *, more=(), elsewhere=None):
    with socket.socket() as probe:
      probe.bind(("localhost", 0))
      port = probe.getsockname()[1]
    common = [*arguments, "--coordinator", f"localhost:{port}", "--num_processes", "2", "--process_id"]
    self.processes = [
      runs.start([*common, number, *extra], where, optimised=False, devices=2)
      for number, extra, where in ((0, (), cwd), (1, more, elsewhere or cwd))
    ]

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    for process in self.processes:
      process.kill()
      process.communicate()

  def finish(self):
    """Status of both, stdout of the first, stderr of both; the second has nothing to say on stdout."""
    outs, errs = zip(*(process.communicate(timeout=TIMEOUT) for process in self.processes))
    assert "Traceback" not in "".join(errs)
    out, none = (without_gloo(out) for out in outs)
    assert none == ""
    return [process.returncode for process in self.processes], out, errs


def without_gloo(out):
  """Stdout without what the library that connects processes on CPUs says there, from several threads."""
  # It writes its line in these pieces and the numbers between them, which threads mingle.
  pieces = r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : "
  lines = re.sub(pieces, "", out).splitlines(keepends=True)
  return "".join(line for line in lines if not re.fullmatch(r"[\d\s]*", line))


def wait_for(workdir, step, *processes):
  """Until a checkpoint of that step or a later one is whole; the processes are to be at work till then."""
  deadline = time.monotonic() + TIMEOUT
  while max(manifest.good_steps(workdir), default=0) < step:
    assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
    assert time.monotonic() < deadline
    time.sleep(0.02)


def children(process):
  """The numbers of the processes that it has started."""
  found = []
  for file in Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):  # gone in the meantime
      if int(file.read_text().rpartition(")")[2].split()[1]) == process.pid:
        found.append(int(file.parent.name))
  return found


def is_alive(number):
  with contextlib.suppress(OSError):
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
  return False


def train_two(arguments, workdir):
  """To the end; results, stdout of the first process, stderr of both."""
  with Pair([*ARGUMENTS, *arguments, "--workdir", workdir], workdir.parent) as pair:
    status, out, errs = pair.finish()
  assert status == [0, 0], errs
  return results_of(workdir), out, errs


def train_one(arguments, workdir, **options):
  status, _, err = runs.run(
    [*ARGUMENTS, *arguments, "--workdir", workdir], workdir.parent, optimised=False, **options
  )
  assert status == 0, err
  return results_of(workdir), err


@pytest.fixture(scope="module")
def said(tmp_path_factory):
  """An uninterrupted run of two processes: its work directory, what was said."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  return workdir, *train_two([], workdir)[1:]


@pytest.fixture(scope="module")
def whole(said):
  """The work directory of that run: not to be changed."""
  before = runs.snapshot(said[0])
  yield said[0]
  assert runs.snapshot(said[0]) == before, "a test changed the shared run"


def results_of(workdir):
  return runs.table(workdir / "results.json")


def assert_same(workdir, whole):
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(whole))
  assert results_of(workdir) == results_of(whole)
  assert runs.records(workdir) == runs.records(whole)


def assert_close(workdir, whole):
  """What another number of processes gives: sums in another order."""
  ours, theirs = results_of(workdir), results_of(whole)
  assert ours.keys() == theirs.keys()
  for name, value in theirs.items():
    np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-5, err_msg=name)
  ours, theirs = runs.final_state(workdir), runs.final_state(whole)
  assert ours["step"] == theirs["step"] == STEPS
  for one, other in zip(*(jax.tree.leaves(state["params"]) for state in (ours, theirs)), strict=True):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_the_first_process_alone_logs_and_every_step_once(said):
  workdir, out, (err, other) = said
  assert f"training {STEPS} steps" in err
  assert f"step {STEPS}/{STEPS}" in err
  assert "test  error" in out
  for words in ("training", "step ", "run.py"):
    assert words not in other
  records = runs.records(workdir)
  assert [record["step"] for record in records if "train/loss" in record] == list(range(1, STEPS + 1))
  every = 5 * STEPS_PER_EPOCH
  assert [record["step"] for record in records if "val/error" in record] == [*range(every, STEPS + 1, every)]
  assert [record["step"] for record in records if "test/error" in record] == [STEPS]
  assert results_of(workdir)["step"] == STEPS
  assert runs.table(workdir / "environment.json")["processes"] == 2
  assert len(list((workdir / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_one_process_gives_the_same(whole, tmp_path, devices):
  workdir = tmp_path / "run"
  train_one([], workdir, devices=devices)
  assert_close(workdir, whole)


def test_killed_in_turn_and_relaunched_they_end_bitwise_equal(whole, tmp_path):
  workdir = tmp_path / "run"
  random = np.random.default_rng()
  stopped = [0]
  for number in (1, 0):
    with Pair([*ARGUMENTS, "--workdir", workdir], tmp_path) as pair:
      wait_for(workdir, stopped[-1] + 20, *pair.processes)
      time.sleep(random.uniform(0, 0.2))  # anywhere: in a step, in a save
      pair.processes[number].kill()
      # The other one may wait for it, and is then killed too; it cannot have gone on to the end.
      with contextlib.suppress(subprocess.TimeoutExpired):
        pair.processes[1 - number].wait(GRACE)
    assert [process.returncode for process in pair.processes][number] == -signal.SIGKILL
    assert not (workdir / "results.json").exists()
    stopped.append(max(manifest.good_steps(workdir)))
    assert stopped[-2] < stopped[-1] < STEPS
  _, _, (err, _) = train_two([], workdir)
  assert f"resuming at step {stopped[-1]} of {STEPS}" in err
  assert_same(workdir, whole)


def test_images_of_a_folder_go_on_bitwise_after_kills(tmp_path):
  """Each process decodes what its devices hold; no state of the input is saved. Once with workers."""
  root = make_folder(tmp_path / "images", splits={"train": 64, "val": 10})
  for number, file in enumerate(sorted((root / "train").rglob("*.*"))):
    Image.fromarray(noise(number, 12, 9)).save(file)  # it shows how it was cut
  images = ["--config.data.name=image_folder", f"--config.data.image_folder.path={root}"]
  images += [
    "--config.data.stream.size=6",
    "--config.data.stream.resize=8",
    "--config.data.limit=96",
    "--config.eval_every=20",
  ]
  train_two(images, tmp_path / "whole")
  total = results_of(tmp_path / "whole")["step"]
  workdir, stopped = tmp_path / "run", [0]
  for number, workers in ((1, 0), (0, 1)):
    more = [*images, f"--config.data.stream.workers={workers}", "--workdir", workdir]
    with Pair([*ARGUMENTS, *more], tmp_path) as pair:
      wait_for(workdir, stopped[-1] + 12, *pair.processes)
      started = children(pair.processes[number])
      pair.processes[number].kill()
      with contextlib.suppress(subprocess.TimeoutExpired):
        pair.processes[1 - number].wait(3)
    assert pair.processes[number].returncode == -signal.SIGKILL
    assert len(started) >= workers
    deadline = time.monotonic() + TIMEOUT
    while any(map(is_alive, started)):
      assert time.monotonic() < deadline, "a killed run leaves its workers behind"
      time.sleep(0.1)
    stopped.append(max(manifest.good_steps(workdir)))
    assert stopped[-2] < stopped[-1] < total
  _, _, (err, _) = train_two(images, workdir)
  assert f"resuming at step {stopped[-1]} of {total}" in err
  assert_same(workdir, tmp_path / "whole")


@pytest.mark.slow
def test_what_two_processes_draw_is_bitwise_what_one_draws(tmp_path):
  """Data order, augmentation and masks by position in the global batch: here on 8 devices, there on 2 x 2."""
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    coordinator = f"localhost:{probe.getsockname()[1]}"
  script = [
    sys.executable,
    runs.ROOT / "tests" / "train" / "drawn.py",
    tmp_path / "drawn.npz",
    coordinator,
    "2",
  ]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
  environment |= {"PYTHONPATH": str(runs.ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
  processes = [subprocess.Popen([*script, str(number)], env=environment) for number in range(2)]
  try:
    assert [process.wait(TIMEOUT) for process in processes] == [0, 0]
  finally:
    for process in processes:
      process.kill()
  theirs = np.load(tmp_path / "drawn.npz")
  assert jax.device_count() == 8
  ours = drawn.drawn()
  assert sorted(ours) == sorted(theirs)
  for name, value in ours.items():
    assert value.tobytes() == theirs[name].tobytes(), name
  for step in (0, 4):
    assert 0.4 < (ours[f"layer, {step}, True"] == 0).mean() < 0.6
    assert ours[f"images, {step}, True"].tobytes() == ours[f"images, {step}, False"].tobytes()
  assert ours["indices, 0, True"].tobytes() != ours["indices, 4, True"].tobytes()


@pytest.mark.slow
def test_a_state_split_over_two_processes(tmp_path):
  """Each saves its shards; one process without a mesh goes on from them."""
  mesh = ["--config.mesh.model=2", "--config.mesh.shard=('head','fsdp')", "--config.mesh.min_size=64"]
  constant = "--config.optimizer.schedule.name=constant"
  train_two(["--config.epochs=3", constant, *mesh], tmp_path / "split")
  split, err = train_one(["--config.epochs=5", constant], tmp_path / "split")
  assert "resuming at step 12 of 20" in err
  whole, _ = train_one(["--config.epochs=5", constant], tmp_path / "whole")
  for name, value in whole.items():
    np.testing.assert_allclose(split[name], value, rtol=0, atol=1e-5, err_msg=name)
  ours, theirs = (runs.final_state(tmp_path / name)["params"] for name in ("split", "whole"))
  chex.assert_trees_all_close(ours, theirs, rtol=0, atol=1e-5)


def test_told_to_stop_one_they_both_stop_at_the_same_step(whole, tmp_path):
  workdir = tmp_path / "run"
  with Pair([*ARGUMENTS, "--workdir", workdir], tmp_path) as pair:
    # Early: JAX looks for the signal once a second, and the run is to be at work then.
    wait_for(workdir, STEPS_PER_EPOCH, *pair.processes)
    pair.processes[1].send_signal(signal.SIGTERM)
    status, out, errs = pair.finish()
  assert status == [143, 143], errs
  assert out == ""
  step = max(manifest.good_steps(workdir))
  assert STEPS_PER_EPOCH <= step < STEPS
  for err in errs:
    assert runs.own_lines(err) == [
      f"run.py: stopped at step {step} and saved; the same command continues from there"
    ]
  assert runs.records(workdir)[-1]["step"] == step
  _, _, (err, _) = train_two([], workdir)
  assert f"resuming at step {step} of {STEPS}" in err
  assert_same(workdir, whole)


@pytest.mark.slow
def test_told_to_stop_they_stop_with_several_steps_a_dispatch_too(tmp_path):
  """JAX's service says yes to one step only, which may lie within a dispatch."""
  workdir = tmp_path / "run"
  arguments = [*ARGUMENTS, "--config.steps_per_dispatch=3", "--workdir", workdir]
  with Pair(arguments, tmp_path) as pair:
    wait_for(workdir, STEPS_PER_EPOCH, *pair.processes)
    pair.processes[0].terminate()
    pair.processes[0].terminate()
    status, _, errs = pair.finish()
  assert status == [143, 143], errs
  assert STEPS_PER_EPOCH <= max(manifest.good_steps(workdir)) < STEPS


@pytest.mark.slow
def test_a_run_saved_by_one_goes_on_under_two_and_back(whole, tmp_path):
  workdir = tmp_path / "run"
  arguments = [*ARGUMENTS, "--workdir", workdir]
  process = runs.start(arguments, tmp_path, optimised=False)
  try:
    wait_for(workdir, STEPS_PER_EPOCH, process)
    process.terminate()
    process.communicate(timeout=TIMEOUT)
  finally:
    process.kill()
  assert process.returncode == 143
  first = max(manifest.good_steps(workdir))
  with Pair(arguments, tmp_path) as pair:
    wait_for(workdir, first + 1, *pair.processes)
    pair.processes[0].terminate()
    status, _, errs = pair.finish()
  assert status == [143, 143], errs
  assert f"resuming at step {first} of {STEPS}" in errs[0]
  second = max(manifest.good_steps(workdir))
  assert first < second < STEPS
  _, err = train_one([], workdir)
  assert f"resuming at step {second} of {STEPS}" in err
  assert_close(workdir, whole)


@pytest.mark.slow
def test_replicas_and_evaluation(tmp_path):
  """Replicas under two processes are those of one, and so is what a later evaluation says."""
  arguments = ["--config.replicas=2", "--config.epochs=5"]
  several, _, _ = train_two(arguments, tmp_path / "two")
  one, _ = train_one(arguments, tmp_path / "one")
  assert several["replicas"]["seed"] == one["replicas"]["seed"] == [0, 1]
  assert several["replicas"].keys() == one["replicas"].keys()
  for name, values in one["replicas"].items():
    np.testing.assert_allclose(several["replicas"][name], values, rtol=0, atol=1e-5, err_msg=name)

  # The first of them alone, with data that stay on the host and several steps a dispatch.
  arguments = ["--config.epochs=5", "--config.data.resident_gib=0", "--config.steps_per_dispatch=3"]
  alone, _, _ = train_two(arguments, tmp_path / "alone")
  for name in alone.keys() - {"step"}:
    np.testing.assert_allclose(alone[name], one["replicas"][name][0], rtol=0, atol=1e-5, err_msg=name)

  evaluation = ["--config.job=evaluate", "--config.evaluate.split=val", "--workdir", tmp_path / "two"]
  with Pair(evaluation, tmp_path) as pair:
    status, out, errs = pair.finish()
  assert status == [0, 0], errs
  config = restore_config(train.base_config(), tmp_path / "two", {"job": "evaluate", "evaluate.split": "val"})
  expected = train.report(train.evaluate(config, tmp_path / "two"), config, tmp_path / "two")
  assert out == f"{expected}\n"
  assert f"val   error {100 * one['val/error']:.2f} ± " in out


def test_different_flags_are_told_by_both(tmp_path):
  with Pair([*ARGUMENTS, "--workdir", tmp_path / "run"], tmp_path, more=["--config.seed=1"]) as pair:
    status, out, errs = pair.finish()
  assert status == [1, 1]
  assert out == ""
  for err in errs:
    assert runs.own_lines(err) == [
      "run.py: error: config: of process 1 differs from that of process 0; start all alike"
    ]
  assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("missing", [True, False])
def test_other_data_in_one_process_are_told_by_both(tmp_path, missing):
  """The same relative path, in two folders."""
  parts = ("train", "val", "test")
  arrays: dict = {f"x_{name}": np.full((8, 2), i, np.float32) for i, name in enumerate(parts)}
  arrays |= {f"y_{name}": np.arange(8) % 2 for name in parts}
  for number in range(2):
    (tmp_path / str(number)).mkdir()
    if number == 0 or not missing:
      arrays["x_test"][-1] = number
      np.savez(tmp_path / str(number) / "data.npz", **arrays)
  arguments = ["--config.data.name=npz", "--config.data.npz.path=data.npz", "--workdir", tmp_path / "run"]
  with Pair(arguments, tmp_path / "0", elsewhere=tmp_path / "1") as pair:
    status, out, errs = pair.finish()
  assert status == [1, 1]
  assert out == ""
  (first,), (second,) = map(runs.own_lines, errs)
  if missing:
    assert second.startswith("run.py: error: data.npz.path: ")
    assert first == second.replace("error: ", "error: process 1: ", 1)
  else:
    assert first == second
    assert first == "run.py: error: data: of process 1 differs from that of process 0; start all alike"
  assert not (tmp_path / "run" / "config.json").exists()


def test_work_directories_that_are_not_shared_are_told_by_both(tmp_path):
  """The same relative path, in two folders: the first save would wait for ever."""
  for number in range(2):
    (tmp_path / str(number)).mkdir()
  with Pair([*ARGUMENTS, "--workdir", "run"], tmp_path / "0", elsewhere=tmp_path / "1") as pair:
    status, out, errs = pair.finish()
  assert status == [1, 1], errs
  assert out == ""
  (first,), (second,) = map(runs.own_lines, errs)
  assert second == (
    "run.py: error: --workdir: run is not the folder of process 0; all need one on a disk that they share"
  )
  assert first == second.replace("error: ", "error: process 1: ", 1)


def test_a_peer_killed_in_a_save_ends_the_other_at_once(tmp_path):
  workdir = tmp_path / "run"
  with Pair([*ARGUMENTS, "--workdir", workdir], tmp_path) as pair:
    wait_for(workdir, 2 * STEPS_PER_EPOCH, *pair.processes)
    deadline = time.monotonic() + TIMEOUT
    while not any("tmp" in folder.name for folder in (workdir / "checkpoints").iterdir()):
      assert time.monotonic() < deadline
    pair.processes[1].kill()
    began = time.monotonic()
    _, err = pair.processes[0].communicate(timeout=TIMEOUT)
  assert time.monotonic() - began < 10
  assert pair.processes[0].returncode == 1, err
  assert runs.own_lines(err) == [
    "run.py: error: process 1 is gone; the same commands continue from the last checkpoint"
  ]


def test_pmap_is_for_one_process(tmp_path):
  with Pair([*ARGUMENTS, "--workdir", tmp_path / "run", "--config.parallel=pmap"], tmp_path) as pair:
    status, _, errs = pair.finish()
  assert status == [1, 1]
  for err in errs:
    assert runs.own_lines(err) == [
      "run.py: error: parallel: pmap runs in one process, here are 2; give parallel=jit"
    ]

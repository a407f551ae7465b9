"""Two processes with two devices each train as one does: same results, killed or not, and stop together."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import buckets
import chex
import children
import jax
import numpy as np
import pytest
import runs
from etils import epath
from image_files import make_noisy_folder

from jaxreg import train
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.run import manifest
from jaxreg.train.summary import summary

pytestmark = pytest.mark.multiprocess

EPOCHS, STEPS_PER_EPOCH = 10, 4
STEPS = EPOCHS * STEPS_PER_EPOCH
ARGUMENTS = [*runs.FLAGS, f"--config.epochs={EPOCHS}", "--config.eval_every=5"]
TIMEOUT = 120
GRACE = 60  # seconds for a process to notice that the other one is gone
NOTICED = ["--peer_timeout", 10]
PAUSE = 0.1  # seconds a step, where JAX has to see a signal, for which it looks once a second, before the end


class Launcher:
  """Starts `run.py`, forked from a process that has imported everything."""

  def __init__(self, folder):
    self.folder, self.count = folder, 0
    self.context = children.forkserver(folder / "compiled")

  def start(self, arguments, cwd, *, common=ARGUMENTS, pause=0, **options):
    self.count += 1
    said = self.folder / f"said{self.count}"
    return children.Child(self.context, [*common, *arguments], said, cwd=cwd, pause=pause, **options)

  @contextlib.contextmanager
  def pair(
    self,
    arguments,
    cwd,
    *,
    by="flags",
    numbers=(0, 1),
    more=(),
    elsewhere=None,
    second=None,
    environment=None,
    **options,
  ):
    """Two processes with the same arguments, of which none is left behind.

    They learn their `numbers` by flags or by the variables of a launcher. The second one may have `more`
    arguments and other options, or work in another folder.
    """
    port = runs.free_port()
    pair = []
    for number, extra, where, other in zip(
      numbers, ((), more), (cwd, elsewhere or cwd), ({}, second or {}), strict=True
    ):
      flags = ["--coordinator", f"localhost:{port}", "--num_processes", 2, "--process_id", number]
      variables = launcher_variables(by, port, number)
      given = [*arguments, *(() if variables else flags), *extra]
      variables |= environment or {}
      pair.append(self.start(given, where, devices=2, environment=variables, **options, **other))
    try:
      yield pair
    finally:
      for child in pair:
        child.process.kill()
        child.process.join()

  def two(self, arguments, workdir, **options):
    """Trains with two processes to the end: results, what each said on stdout and on stderr."""
    with self.pair([*arguments, "--workdir", workdir], workdir.parent, **options) as pair:
      status, out, errs = finish(pair)
    assert status == [0, 0], errs
    return results_of(workdir), out, errs

  def one(self, arguments, workdir, **options):
    child = self.start([*arguments, "--workdir", workdir], workdir.parent, **options)
    status, err = child.finish(TIMEOUT)
    assert status == 0, err
    return results_of(workdir), err


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
  return Launcher(tmp_path_factory.mktemp("launcher"))


def launcher_variables(by, port, number):
  """What a launcher of two processes tells one of them; empty for flags."""
  if by == "flags":
    return {}
  mine, given = {
    "SLURM": (
      {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": str(number)},
      ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID"),
    ),
    "Open MPI": (
      {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_LOCAL_RANK": str(number)},
      ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ),
  }[by]
  return {"JAX_COORDINATOR_PORT": str(port), **mine, **dict(zip(given, ("2", "2", str(number))))}


def finish(pair):
  """Status of both, stdout of the first, stderr of both; the second has nothing to say on stdout."""
  status, errs = zip(*(child.finish(TIMEOUT) for child in pair))
  assert "Traceback" not in "".join(errs)
  out, none = (without_gloo(child.out) for child in pair)
  assert none == ""
  return list(status), out, errs


def without_gloo(out):
  """Stdout without what the library that connects processes on CPUs says there, from several threads."""
  # It writes its line in these pieces and the numbers between them, which threads mingle.
  pieces = r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : "
  lines = re.sub(pieces, "", out).splitlines(keepends=True)
  return "".join(line for line in lines if not re.fullmatch(r"[\d\s]*", line))


def wait_for(workdir, step, *running):
  """Until a checkpoint of that step or a later one is whole; the processes must be at work till then."""
  deadline = time.monotonic() + TIMEOUT
  while max(manifest.good_steps(workdir), default=0) < step:
    assert all(child.alive() for child in running), [child.said.read_text() for child in running]
    assert time.monotonic() < deadline
    time.sleep(0.02)


def workers_of(child):
  """The numbers of the processes that it has started."""
  found = []
  for file in Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):  # gone in the meantime
      if int(file.read_text().rpartition(")")[2].split()[1]) == child.process.pid:
        found.append(int(file.parent.name))
  return found


def is_alive(number):
  with contextlib.suppress(OSError):
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
  return False


@pytest.fixture(scope="module")
def said(tmp_path_factory, launcher):
  """An uninterrupted run of two processes: its work directory, what was said."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  return workdir, *launcher.two([], workdir)[1:]


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
def test_one_process_gives_the_same(whole, launcher, tmp_path, devices):
  workdir = tmp_path / "run"
  launcher.one([], workdir, devices=devices)
  assert_close(workdir, whole)


def kill(pair, number):
  """Kills one of two; the other one notices it, and cannot have gone on to the end."""
  pair[number].signal(signal.SIGKILL)
  pair[1 - number].process.join(GRACE)
  assert pair[number].finish()[0] == -signal.SIGKILL
  assert not pair[1 - number].alive()


def test_killed_in_turn_and_relaunched_they_end_bitwise_equal(whole, launcher, tmp_path):
  workdir = tmp_path / "run"
  random = np.random.default_rng()
  stopped = [0]
  for number in (1, 0):
    with launcher.pair(["--workdir", workdir, *NOTICED], tmp_path, pause=0.02) as pair:
      wait_for(workdir, stopped[-1] + 8, *pair)
      time.sleep(random.uniform(0, 0.2))  # anywhere: in a step, in a save
      kill(pair, number)
    assert not (workdir / "results.json").exists()
    stopped.append(max(manifest.good_steps(workdir)))
    assert stopped[-2] < stopped[-1] < STEPS
  _, _, (err, _) = launcher.two([], workdir)
  assert f"resuming at step {stopped[-1]} of {STEPS}" in err
  assert_same(workdir, whole)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_on_a_bucket_killed_and_relaunched_they_end_bitwise_equal(whole, launcher, bucket, tmp_path, number):
  """The run of a disk is the oracle. The next process waits for the lease of a killed first one."""
  workdir = epath.Path(f"{bucket}/killed-{number}/run")
  options = {"environment": {name: os.environ[name] for name in buckets.settings("")}, "lease": 10.0}
  with launcher.pair(["--workdir", workdir, *NOTICED], tmp_path, pause=0.02, **options) as pair:
    wait_for(workdir, 8, *pair)
    kill(pair, number)
  assert not (workdir / "results.json").exists()
  stopped = max(manifest.good_steps(workdir))
  assert 8 <= stopped < STEPS
  with launcher.pair(["--workdir", workdir], tmp_path, **options) as pair:
    status, _, (err, _) = finish(pair)
  assert status == [0, 0], err
  assert f"resuming at step {stopped} of {STEPS}" in err
  assert_same(workdir, whole)


def test_images_of_a_folder_go_on_bitwise_after_a_kill(launcher, tmp_path):
  """Each process decodes what its devices hold; no state of the input is saved. Killed with workers."""
  root = make_noisy_folder(tmp_path / "images", splits={"train": 64, "val": 10})
  images = ["--config.data.name=image_folder", f"--config.data.image_folder.path={root}"]
  images += [
    "--config.data.stream.size=6",
    "--config.data.subset.limit=96",
    "--config.eval_every=20",
    "--config.epochs=6",
  ]
  launcher.two(images, tmp_path / "whole")
  total = results_of(tmp_path / "whole")["step"]
  workdir = tmp_path / "run"
  more = [*images, "--config.data.stream.workers=1", "--workdir", workdir, *NOTICED]
  with launcher.pair(more, tmp_path, pause=0.02) as pair:
    wait_for(workdir, 4, *pair)
    started = workers_of(pair[0])
    kill(pair, 0)
  assert started
  deadline = time.monotonic() + TIMEOUT
  while any(map(is_alive, started)):
    assert time.monotonic() < deadline, "a killed run leaves its workers behind"
    time.sleep(0.1)
  stopped = max(manifest.good_steps(workdir))
  assert stopped < total
  _, _, (err, _) = launcher.two(images, workdir)
  assert f"resuming at step {stopped} of {total}" in err
  assert_same(workdir, tmp_path / "whole")


@pytest.mark.slow
def test_a_state_split_over_two_processes(launcher, tmp_path):
  """Each saves its shards; one process without a mesh goes on from them."""
  mesh = ["--config.mesh.model=2", "--config.mesh.shard=('head','fsdp')", "--config.mesh.min_size=64"]
  constant = "--config.optimizer.schedule.name=constant"
  launcher.two(["--config.epochs=3", constant, *mesh], tmp_path / "split")
  split, err = launcher.one(["--config.epochs=5", constant], tmp_path / "split")
  assert "resuming at step 12 of 20" in err
  whole, _ = launcher.one(["--config.epochs=5", constant], tmp_path / "whole")
  for name, value in whole.items():
    np.testing.assert_allclose(split[name], value, rtol=0, atol=1e-5, err_msg=name)
  ours, theirs = (runs.final_state(tmp_path / name)["params"] for name in ("split", "whole"))
  chex.assert_trees_all_close(ours, theirs, rtol=0, atol=1e-5)


def test_told_to_stop_one_they_both_stop_at_the_same_step(whole, launcher, tmp_path):
  workdir = tmp_path / "run"
  with launcher.pair(["--workdir", workdir], tmp_path, pause=PAUSE) as pair:
    wait_for(workdir, STEPS_PER_EPOCH, *pair)
    pair[1].signal(signal.SIGTERM)
    status, out, errs = finish(pair)
  assert status == [143, 143], errs
  assert out == ""
  step = max(manifest.good_steps(workdir))
  assert STEPS_PER_EPOCH <= step < STEPS
  for err in errs:
    assert runs.own_lines(err) == [
      f"run.py: stopped at step {step} and saved; the same command continues from there"
    ]
  assert runs.records(workdir)[-1]["step"] == step
  _, _, (err, _) = launcher.two([], workdir)
  assert f"resuming at step {step} of {STEPS}" in err
  assert_same(workdir, whole)


@pytest.mark.slow
def test_a_run_saved_by_one_goes_on_under_two_and_back(whole, launcher, tmp_path):
  workdir = tmp_path / "run"
  arguments = ["--workdir", workdir]
  alone = launcher.start(arguments, tmp_path, pause=PAUSE)
  wait_for(workdir, STEPS_PER_EPOCH, alone)
  alone.signal(signal.SIGTERM)
  assert alone.finish()[0] == 143
  first = max(manifest.good_steps(workdir))
  with launcher.pair(arguments, tmp_path, pause=PAUSE) as pair:
    wait_for(workdir, first + 1, *pair)
    pair[0].signal(signal.SIGTERM)
    status, _, errs = finish(pair)
  assert status == [143, 143], errs
  assert f"resuming at step {first} of {STEPS}" in errs[0]
  second = max(manifest.good_steps(workdir))
  assert first < second < STEPS
  _, err = launcher.one([], workdir)
  assert f"resuming at step {second} of {STEPS}" in err
  assert_close(workdir, whole)


@pytest.mark.slow
def test_replicas_and_evaluation(launcher, tmp_path):
  """Replicas under two processes are those of one, and so is what a later evaluation says."""
  arguments = ["--config.replicas=2", "--config.epochs=5"]
  several, _, _ = launcher.two(arguments, tmp_path / "two")
  one, _ = launcher.one(arguments, tmp_path / "one")
  assert several["replicas"]["seed"] == one["replicas"]["seed"] == [0, 1]
  assert several["replicas"].keys() == one["replicas"].keys()
  for name, values in one["replicas"].items():
    np.testing.assert_allclose(several["replicas"][name], values, rtol=0, atol=1e-5, err_msg=name)

  # The first of them alone, with data that stay on the host and several steps a dispatch.
  arguments = ["--config.epochs=5", "--config.data.resident_gib=0", "--config.steps_per_dispatch=3"]
  alone, _, _ = launcher.two(arguments, tmp_path / "alone")
  for name in alone.keys() - {"step"}:
    np.testing.assert_allclose(alone[name], one["replicas"][name][0], rtol=0, atol=1e-5, err_msg=name)

  evaluation = ["--config.job=evaluate", "--config.evaluate.split=val", "--workdir", tmp_path / "two"]
  with launcher.pair(evaluation, tmp_path, common=()) as pair:
    status, out, errs = finish(pair)
  assert status == [0, 0], errs
  config = restore_config(train.base_config(), tmp_path / "two", {"job": "evaluate", "evaluate.split": "val"})
  expected = summary(train.evaluate(config, tmp_path / "two"), config, tmp_path / "two")
  assert out == f"{expected}\n"
  assert f"val   error {100 * one['val/error']:.2f} " in out


def test_different_flags_are_told_by_both(launcher, tmp_path):
  with launcher.pair(["--workdir", tmp_path / "run"], tmp_path, more=["--config.seed=1"]) as pair:
    status, out, errs = finish(pair)
  assert status == [1, 1]
  assert out == ""
  for err in errs:
    assert runs.own_lines(err) == [
      "run.py: error: config: process 1 has another value than process 0; start all processes alike"
    ]
  assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("missing", [True, False])
def test_other_data_in_one_process_are_told_by_both(launcher, tmp_path, missing):
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
  with launcher.pair(arguments, tmp_path / "0", elsewhere=tmp_path / "1", common=()) as pair:
    status, out, errs = finish(pair)
  assert status == [1, 1]
  assert out == ""
  (first,), (second,) = map(runs.own_lines, errs)
  if missing:
    assert second.startswith("run.py: error: data.npz.path: ")
    assert first == second.replace("error: ", "error: process 1: ", 1)
  else:
    assert first == second
    assert (
      first == "run.py: error: data: process 1 has another value than process 0; start all processes alike"
    )
  assert not (tmp_path / "run" / "config.json").exists()


def test_work_directories_that_are_not_shared_are_told_by_both(launcher, tmp_path):
  """The same relative path, in two folders: the first save would wait for ever."""
  for number in range(2):
    (tmp_path / str(number)).mkdir()
  with launcher.pair(["--workdir", "run"], tmp_path / "0", elsewhere=tmp_path / "1") as pair:
    status, out, errs = finish(pair)
  assert status == [1, 1], errs
  assert out == ""
  (first,), (second,) = map(runs.own_lines, errs)
  assert second == (
    "run.py: error: --workdir: run is not the folder of process 0; "
    "give all processes one folder on a shared disk"
  )
  assert first == second.replace("error: ", "error: process 1: ", 1)


@pytest.mark.parametrize("by", ["SLURM", pytest.param("Open MPI", marks=pytest.mark.slow)])
def test_a_peer_killed_in_a_save_ends_the_other(launcher, tmp_path, by):
  """By an error of an operation that they share, or by JAX's service, which aborts."""
  workdir = tmp_path / "run"
  with launcher.pair(["--workdir", workdir, *NOTICED], tmp_path, by=by, pause=0.02) as pair:
    wait_for(workdir, 2 * STEPS_PER_EPOCH, *pair)
    deadline = time.monotonic() + TIMEOUT
    while not any("tmp" in folder.name for folder in (workdir / "checkpoints").iterdir()):
      assert time.monotonic() < deadline
    pair[1].signal(signal.SIGKILL)
    status, err = pair[0].finish(TIMEOUT)
  assert status in (1, -signal.SIGABRT), err
  if status == 1:
    (line,) = runs.own_lines(err)
    assert line.startswith("run.py: error: another process is gone; the same commands continue from the")


@pytest.mark.parametrize("by", ["Open MPI", pytest.param("SLURM", marks=pytest.mark.slow)])
def test_a_number_that_a_launcher_gives_twice(launcher, tmp_path, by):
  arguments = ["--workdir", tmp_path / "run", "--start_timeout", 5]
  with launcher.pair(arguments, tmp_path, by=by, numbers=(1, 1)) as pair:
    status, out, errs = finish(pair)
  assert (status, out) == ([1, 1], "")
  for err in errs:
    (line,) = runs.own_lines(err)
    assert line.startswith("run.py: error: --num_processes: not all processes came within 5 seconds")


def test_the_clock_of_the_first_process_makes_saves_due(launcher, tmp_path):
  """That of the second stands still: if it were asked too, the first would wait for it in a save."""
  minutes = ["--config.checkpoint.every=100", "--config.checkpoint.every_minutes=1e-4"]
  keep = ["--config.checkpoint.keep=20"]
  workdir = tmp_path / "run"
  launcher.two([*minutes, *keep, "--config.epochs=3"], workdir, pause=0.01, second={"stopped_clock": True})
  saved = sorted(manifest.good_steps(workdir))
  assert saved[-1] == 3 * STEPS_PER_EPOCH
  assert len(saved) > 2


def test_pmap_is_for_one_process(launcher, tmp_path):
  with launcher.pair(["--workdir", tmp_path / "run", "--config.parallel=pmap"], tmp_path) as pair:
    status, _, errs = finish(pair)
  assert status == [1, 1]
  for err in errs:
    assert runs.own_lines(err) == [
      "run.py: error: parallel: pmap runs in one process, here are 2; give parallel=jit"
    ]

"""When a run saves: by steps, by the clock, on signals and errors; and not where its folder is no more."""

import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest
import runs

from jaxreg import train
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import batches
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.run import checkpoint, dispatch, manifest
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.health import Watchdog
from jaxreg.train.run.signals import SIGNALS, requeue

pytestmark = pytest.mark.usefixtures("light_runs")

DATA = DataSpec((2,), "float32", 2, {"train": 128})
SELDOM = {"checkpoint.every": 100, "epochs": 2}  # 8 steps


def before_step(monkeypatch, step, call):
  """Calls while the batch of that step is made."""
  original = batches.batch_indices

  def batch_indices(seed, index, **options):
    if index == step - 1:
      call()
    return original(seed, index, **options)

  monkeypatch.setattr(batches, "batch_indices", batch_indices)


@pytest.mark.thorough
def test_by_steps(tmp_path, monkeypatch):
  saved = []
  save = checkpoint.Checkpoints.save
  monkeypatch.setattr(
    checkpoint.Checkpoints, "save", lambda self, step, *rest: (saved.append(step), save(self, step, *rest))
  )
  train.train(runs.make_config({**SELDOM, "checkpoint.every_steps": 3}), tmp_path / "run")
  assert saved == [3, 6, 8]


@pytest.mark.parametrize("seconds", [0.01, 1.0, 7.0, 50.0, 100.0])
def test_by_minutes_one_step_late_at_most_and_with_few_looks(monkeypatch, seconds):
  """Steps that take so long, three times faster after the first save; the first process alone has a clock."""
  now, looks, saves = [0.0], [], []
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  monkeypatch.setattr(dispatch, "first", lambda look: looks.append(1) or list(look()))
  minutes, since = dispatch.SaveClock(1, 100), 0.0
  for step in range(101, 100 + int(1000 / seconds)):
    now[0] += seconds if not saves else seconds / 3
    if minutes.due(step):
      saves.append(now[0] - since)
      since = now[0]
      minutes.saved(step)
  assert len(saves) >= 2
  assert all(60 <= passed < 60 + seconds + 1e-6 for passed in saves)
  assert len(looks) <= 20 * (len(saves) + 1)


def test_not_by_minutes(monkeypatch):
  monkeypatch.setattr(dispatch, "first", lambda look: pytest.fail("nothing is to be asked"))
  assert not any(dispatch.SaveClock(0, 0).due(step) for step in range(1, 100))


@pytest.mark.thorough
def test_the_clock_makes_a_run_save(tmp_path):
  """As often as after each step, with a tiny part of a minute."""
  config = runs.make_config({**SELDOM, "checkpoint.every_minutes": 1e-9, "checkpoint.keep": 20})
  train.train(config, tmp_path / "run")
  assert sorted(manifest.good_steps(tmp_path / "run")) == list(range(1, 9))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_on_signals(tmp_path, monkeypatch, number):
  runs.interrupt_at(monkeypatch, 5, number)
  with pytest.raises(train.Interrupted, match=r"^stopped at step 5 and saved") as stopped:
    train.train(runs.make_config(SELDOM), tmp_path / "run")
  assert stopped.value.status == 128 + number
  assert max(manifest.good_steps(tmp_path / "run")) == 5


@pytest.mark.thorough
def test_an_error_of_the_loop_saves_the_state_before(finished_run, tmp_path, monkeypatch):
  def fail():
    raise ZeroDivisionError("of a user's data")

  with monkeypatch.context() as patch:
    before_step(patch, 7, fail)
    with pytest.raises(ZeroDivisionError, match="of a user's data"):
      train.train(runs.make_config({"checkpoint.every": 100}), tmp_path / "run")
  assert list(manifest.good_steps(tmp_path / "run")) == [6]
  train.train(runs.make_config({"checkpoint.every": 100}), tmp_path / "run")
  runs.assert_bitwise(runs.final_state(tmp_path / "run"), runs.final_state(finished_run))


@pytest.mark.thorough
def test_an_error_after_a_state_that_is_not_finite_saves_nothing(tmp_path, monkeypatch):
  config = runs.make_config({**SELDOM, "optimizer.name": "sgd", "optimizer.learning_rate": 1e30})

  def fail():
    raise ZeroDivisionError

  before_step(monkeypatch, 3, fail)
  with pytest.raises((ZeroDivisionError, train.RunError)):
    train.train(config, tmp_path / "run")
  assert not manifest.good_steps(tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "moved"), [(2, True), pytest.param(6, False, marks=pytest.mark.thorough)])
def test_a_folder_that_is_removed_or_moved_ends_the_run(tmp_path, monkeypatch, step, moved):
  """Before the first save and after it; the same command can begin anew, and a moved run goes on."""
  workdir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
  config = runs.make_config({"epochs": 2})
  with monkeypatch.context() as patch:
    before_step(patch, step, lambda: workdir.rename(elsewhere) if moved else shutil.rmtree(workdir))
    with pytest.raises(train.RunError, match=r"^--workdir: .*run was removed or moved under this run"):
      train.train(config, workdir)
  assert not workdir.exists()
  if moved:
    assert train.train(config, elsewhere)["step"] == 8
  else:
    assert train.train(config, workdir)["step"] == 8


@pytest.mark.thorough
def test_a_folder_that_is_removed_in_a_save_is_not_made_anew(tmp_path, monkeypatch):
  workdir = tmp_path / "run"
  response = type("Response", (), {"result": lambda self: None})

  def save(self, step, *_, **__):
    shutil.rmtree(workdir)
    (workdir / "checkpoints" / str(step) / "state").mkdir(parents=True)  # as Orbax does
    return response()

  monkeypatch.setattr(checkpoint.ocp.training.Checkpointer, "save_checkpointables_async", save)
  with pytest.raises(train.RunError, match=r"was removed or moved under this run"):
    train.train(runs.make_config({"epochs": 2}), workdir)
  assert not workdir.exists()


def test_what_a_save_leaves_of_a_removed_folder_is_in_nobodys_way(tmp_path):
  """Orbax may go on to write after it has failed."""
  workdir, config = tmp_path / "run", runs.make_config({"epochs": 2})
  (workdir / "checkpoints" / "8.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
  assert workdirs.claim(workdir, flatten(config), DATA, 8) is None
  shutil.rmtree(workdir)
  (workdir / "checkpoints" / "8").mkdir(parents=True)
  with pytest.raises(train.RunError, match="has results of another program"):
    workdirs.claim(workdir, flatten(config), DATA, 8)


def test_the_stacks_of_a_step_that_hangs(tmp_path):
  file = tmp_path / "stacks.txt"

  def hang():  # till its own line is written: the stacks come in pieces
    deadline = time.monotonic() + 10
    while "in hang\n" not in file.read_text() and time.monotonic() < deadline:
      time.sleep(0.01)

  with Watchdog(file, minutes=0.1 / 60) as watchdog:
    for _ in range(10):
      time.sleep(0.03)
      watchdog.alive()
    assert not file.stat().st_size
    hang()
  assert "in hang\n" in file.read_text()
  file.unlink()
  with Watchdog(file):
    assert file.exists()
  assert not file.exists()


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
  """A program of that name on the path, which writes its arguments and ends with `answer`."""
  program, heard = tmp_path / "scontrol", tmp_path / "heard"

  def make(answer):
    program.write_text(f'#!/bin/sh\necho "$@" >> {heard}\necho "no such job" >&2\nexit {answer}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return heard

  monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
  monkeypatch.setenv("SLURM_JOB_ID", "4711")
  return make


def test_slurm_is_asked_to_requeue(scontrol, monkeypatch):
  heard = scontrol(0)
  assert requeue(signal.SIGTERM) is None
  assert not heard.exists()
  assert requeue(signal.SIGUSR1) == "SLURM was asked to requeue job 4711"
  assert heard.read_text() == "requeue 4711\n"
  scontrol(1)
  assert requeue(signal.SIGUSR1) == "SLURM does not requeue job 4711 (no such job)"
  monkeypatch.setenv("PATH", "")
  assert requeue(signal.SIGUSR1).startswith("SLURM does not requeue job 4711 (")
  monkeypatch.delenv("SLURM_JOB_ID")
  assert requeue(signal.SIGUSR1) is None


@pytest.mark.parametrize(("rank", "asked"), [("0", "requeue 4711\n"), ("1", "")])
def test_slurm_is_asked_once_where_usr1_ends_the_program_at_once(scontrol, monkeypatch, rank, asked):
  """The end of the time follows while SLURM is asked: SIGTERM, and SIGUSR1 once more."""
  heard = scontrol(0)
  heard.touch()
  program = heard.with_name("scontrol")
  program.write_text(program.read_text() + "kill -TERM $PPID\nkill -USR1 $PPID\n")
  monkeypatch.setenv("SLURM_PROCID", rank)
  code = "import signal; from jaxreg import command; command._end(signal.SIGUSR1, None)"
  ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert (ended.returncode, heard.read_text()) == (128 + signal.SIGUSR1, asked)
  assert ("SLURM was asked to requeue job 4711" in ended.stderr) == bool(asked)


@pytest.mark.thorough
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_the_import_of_jax_is_told_and_requeues(scontrol, monkeypatch, tmp_path, number):
  heard = scontrol(0)
  heard.touch()
  (tmp_path / "jax.py").write_text(f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  started = [sys.executable, runs.ROOT / "run.py"]
  ended = subprocess.run(started, capture_output=True, text=True, check=False)
  asked = number == signal.SIGUSR1
  lines = ["run.py: interrupted; the same command continues from the last checkpoint"]
  lines += ["run.py: SLURM was asked to requeue job 4711"] * asked
  assert (ended.returncode, ended.stderr.splitlines()) == (128 + number, lines)
  assert heard.read_text() == "requeue 4711\n" * asked


@pytest.mark.thorough
@pytest.mark.parametrize(("first", "asked"), [(signal.SIGUSR1, "requeue 4711\n"), (signal.SIGTERM, "")])
def test_signals_after_a_stop_change_nothing(scontrol, first, asked):
  """More signals come once the run is saved, and while SLURM is asked."""
  heard = scontrol(0)
  heard.touch()
  program = heard.with_name("scontrol")
  program.write_text(program.read_text() + "kill -TERM $PPID\nkill -USR1 $PPID\n")
  code = f"""
import signal, sys
from jaxreg import command
from jaxreg.train.run.interrupt import Interrupt, Interrupted

def job(config, workdir):
  try:
    with Interrupt() as interrupt:
      signal.raise_signal({int(first)})
      raise Interrupted(interrupt.received, 7)
  finally:
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGUSR1)

command.find_job = lambda name: job
command.main()
"""
  ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert (ended.returncode, heard.read_text()) == (128 + first, asked)
  _, *lines = ended.stderr.splitlines()  # without the one about the start
  expected = ["run.py: stopped at step 7 and saved; the same command continues from there"]
  assert lines == expected + ["run.py: SLURM was asked to requeue job 4711"] * bool(asked)

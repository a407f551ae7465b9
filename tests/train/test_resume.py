"""A run that was stopped and continued is the run that was not, bit by bit; other runs are kept out."""

import errno
import fcntl
import os
import signal
import time

import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import batches, sources
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.jobs import train as training
from jaxreg.train.run import checkpoint, evaluation, loop, manifest
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.lock import locked

pytestmark = pytest.mark.usefixtures("light_runs")

STEPS = 6 * runs.STEPS_PER_EPOCH


def test_stopped_and_continued_equals_one_go(finished_run, tmp_path, monkeypatch, capsys):
  """At the first step, at an epoch's end and within an epoch."""
  workdir, stops = tmp_path / "run", (1, 12, 23)
  for stop in stops:
    undo = runs.interrupt_at(monkeypatch, stop)
    with pytest.raises(train.Interrupted, match=f"stopped at step {stop} and saved") as stopped:
      train.train(runs.make_config(), workdir)
    undo()
    assert stopped.value.status == 143
    assert max(manifest.good_steps(workdir)) == stop
    assert not (workdir / "results.json").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  capsys.readouterr()
  results = train.train(runs.make_config(), workdir)
  assert f"resuming at step {stops[-1]} of {STEPS}" in capsys.readouterr().err

  assert max(manifest.good_steps(workdir)) == STEPS
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(finished_run))
  assert results == runs.table(finished_run / "results.json")
  assert results == runs.table(workdir / "results.json")
  ours, theirs = runs.records(workdir), runs.records(finished_run)
  assert [r["step"] for r in ours if "train/loss" in r] == list(range(1, STEPS + 1))
  assert ours == theirs


@pytest.mark.thorough
def test_told_while_it_waits_for_a_save_it_makes_no_step_more(tmp_path, monkeypatch):
  write_manifest, written = checkpoint.write_manifest, []

  def told(workdir, step, *rest):
    written.append(step)
    os.kill(os.getpid(), signal.SIGTERM)
    write_manifest(workdir, step, *rest)

  monkeypatch.setattr(checkpoint, "write_manifest", told)
  step = runs.STEPS_PER_EPOCH
  with pytest.raises(train.Interrupted, match=f"stopped at step {step} and saved"):
    train.train(runs.make_config(), tmp_path / "run")
  assert written == [step]
  assert runs.records(tmp_path / "run")[-1]["step"] == step


@pytest.mark.thorough
def test_ctrl_c_saves_too(tmp_path, monkeypatch):
  runs.interrupt_at(monkeypatch, 2, signal.SIGINT)
  with pytest.raises(train.Interrupted) as stopped:
    train.train(runs.make_config(), tmp_path / "run")
  assert stopped.value.status == 130
  assert list(manifest.good_steps(tmp_path / "run")) == [2]


@pytest.mark.thorough
@pytest.mark.parametrize("wait", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_step_waits_for_the_checkpoint_before_it(finished_run, tmp_path, monkeypatch, wait):
  """A kill then loses no more than the steps between two saves; beside the training, up to twice as many."""
  workdir, there = tmp_path / "run", {}
  write_manifest = checkpoint.write_manifest
  monkeypatch.setattr(checkpoint, "write_manifest", lambda *what: time.sleep(0.2) or write_manifest(*what))

  class Recorder(loop.Recorder):
    def add(self, steps, metrics):
      there[steps[-1]] = max(manifest.good_steps(workdir), default=0)
      super().add(steps, metrics)

  monkeypatch.setattr(loop, "Recorder", Recorder)
  undo = runs.interrupt_at(monkeypatch, 14)
  with pytest.raises(train.Interrupted):
    train.train(runs.make_config({"checkpoint.wait": wait}), workdir)
  undo()
  assert set(there) == set(range(1, 15))
  due = {step: (step - 1) // runs.STEPS_PER_EPOCH * runs.STEPS_PER_EPOCH for step in there}
  assert all(there[step] <= due[step] for step in there)
  assert (there == due) == wait
  # How it is saved is no part of what the run is.
  train.train(runs.make_config(), workdir)
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(finished_run))


@pytest.mark.parametrize(
  "average",
  [
    pytest.param("none", marks=pytest.mark.slow),
    pytest.param("early_stopping", marks=pytest.mark.thorough),
  ],
)
def test_stopped_in_an_evaluation_it_begins_with_it(tmp_path, monkeypatch, average):
  """Of a run of two epochs: in the first, in the last, in those of the end; each is cut after a batch."""
  config = runs.make_config({"epochs": 2, "average.name": average})
  train.train(config, tmp_path / "whole")
  made, original = 0, evaluation.batches

  def batches(*arguments):
    nonlocal made
    for number, batch in enumerate(original(*arguments)):
      made += 1
      if number == 0 and made in signals:
        os.kill(os.getpid(), signal.SIGTERM)
      yield batch

  monkeypatch.setattr(evaluation, "batches", batches)
  # An evaluation has three batches; one that is cut has one, and is made again.
  signals, steps = (1, 5, 9), []
  for _ in signals:
    with pytest.raises(train.Interrupted) as stopped:
      train.train(config, tmp_path / "run")
    assert stopped.value.status == 143
    steps.append(max(manifest.good_steps(tmp_path / "run")))
    assert not (tmp_path / "run" / "results.json").exists()
  assert steps == [4, 8, 8]
  train.train(config, tmp_path / "run")
  runs.assert_bitwise(runs.final_state(tmp_path / "run"), runs.final_state(tmp_path / "whole"))
  assert runs.records(tmp_path / "run") == runs.records(tmp_path / "whole")
  assert manifest.good_steps(tmp_path / "run") == manifest.good_steps(tmp_path / "whole")
  results = [runs.table(tmp_path / name / "results.json") for name in ("run", "whole")]
  assert results[0] == results[1]


@pytest.mark.parametrize(
  ("fields", "stops"),
  [
    ({}, (5,)),
    pytest.param({}, (1, 2, 6, 7), marks=pytest.mark.thorough),
    pytest.param({"replicas": 2}, (4,), marks=pytest.mark.thorough),
    # Its metrics have a unit.
    pytest.param(
      {"data.name": "diabetes", "method.name": "gaussian_nll", "data.subset.num_train": 128},
      (5,),
      marks=pytest.mark.thorough,
    ),
  ],
  ids=["within a record", "four times", "replicas", "numbers"],
)
def test_a_record_that_a_stop_interrupts_is_the_mean_over_all_its_steps(tmp_path, monkeypatch, fields, stops):
  every = runs.make_config({"epochs": 2, **fields})
  config = runs.make_config({"log_every": 3, "epochs": 2, **fields})
  train.train(config, tmp_path / "whole")
  for stop in stops:
    undo = runs.interrupt_at(monkeypatch, stop)
    with pytest.raises(train.Interrupted):
      train.train(config, tmp_path / "stopped")
    undo()
  train.train(config, tmp_path / "stopped")
  records = runs.records(tmp_path / "stopped")
  assert records == runs.records(tmp_path / "whole")
  # The oracle: a run that records each step.
  train.train(every, tmp_path / "every")
  losses = {r["step"]: r["train/loss"] for r in runs.records(tmp_path / "every") if "train/loss" in r}
  means = {r["step"]: r["train/loss"] for r in records if "train/loss" in r}
  assert means.keys() == {3, 6, 8}
  for step, mean in means.items():
    steps = range(step - (step - 1) % 3, step + 1)
    np.testing.assert_allclose(mean, np.mean([losses[each] for each in steps]), rtol=1e-6)


@pytest.mark.thorough
def test_a_record_goes_on_after_a_fault_and_in_a_longer_run(tmp_path, monkeypatch):
  """The last record of the shorter run, of step 8, is none of the longer run."""
  longer = runs.make_config({"log_every": 3, "epochs": 3})
  train.train(longer, tmp_path / "whole")
  config, original = runs.make_config({"log_every": 3, "epochs": 2}), batches.batch_indices

  def batch_indices(seed, index, **options):
    if index == 4:
      raise OSError("the disk is gone")
    return original(seed, index, **options)

  monkeypatch.setattr(batches, "batch_indices", batch_indices)
  with pytest.raises(OSError, match="the disk is gone"):
    train.train(config, tmp_path / "run")
  monkeypatch.setattr(batches, "batch_indices", original)
  train.train(config, tmp_path / "run")
  assert [r["step"] for r in runs.records(tmp_path / "run") if "train/loss" in r] == [3, 6, 8]
  train.train(longer, tmp_path / "run")
  assert runs.records(tmp_path / "run") == runs.records(tmp_path / "whole")


@pytest.mark.thorough
def test_more_epochs_continue_as_one_go_and_say_so(finished_run, tmp_path, capsys):
  workdir = tmp_path / "run"
  train.train(runs.make_config({"epochs": 3}), workdir)
  assert max(manifest.good_steps(workdir)) == 12
  capsys.readouterr()
  results = train.train(runs.make_config(), workdir)
  said = capsys.readouterr().err
  assert "continuing under the new schedule: epochs was 3, is 6" in said
  assert "resuming at step 12 of 24" in said
  assert results == runs.table(finished_run / "results.json")
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(finished_run))
  assert runs.records(workdir) == runs.records(finished_run)
  assert runs.table(workdir / "config.json")["epochs"] == 6


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("field", "old", "new"),
  [
    ("seed", 0, 1),
    ("method.name", "dropmax", "softmax"),
    ("model.MLP.widths", [8], (9,)),
    ("checkpoint.keep", 2, 3),
  ],
)
def test_another_configuration_is_refused_with_the_difference(finished_run, field, old, new):
  before = runs.snapshot(finished_run)
  with pytest.raises(train.RunError) as refused:
    train.train(runs.make_config({field: new}), finished_run)
  shown = list(new) if isinstance(new, tuple) else new
  assert f"{field} was {old!r}, is {shown!r}" in str(refused.value)
  assert str(finished_run) in str(refused.value)
  assert runs.snapshot(finished_run) == before


def test_a_shorter_run_than_what_is_there_is_refused(finished_run):
  before = runs.snapshot(finished_run)
  with pytest.raises(train.RunError, match=r"epochs: .* is at step 24 already, past the 12 asked for"):
    train.train(runs.make_config({"epochs": 3}), finished_run)
  assert runs.snapshot(finished_run) == before


def test_the_same_command_again_gives_the_same_results_without_training(finished_run, monkeypatch, capsys):
  def forbidden(*_, **__):
    raise AssertionError("it should not train")

  monkeypatch.setattr(training, "Checkpoints", forbidden)
  monkeypatch.setattr(training, "make_run", forbidden)
  before = runs.snapshot(finished_run)
  results = train.train(runs.make_config(), finished_run)
  assert results == runs.table(finished_run / "results.json")
  assert results["step"] == STEPS
  said = capsys.readouterr().err
  assert f"nothing left to do: {finished_run} has its results; to start over, remove it" in said
  assert runs.snapshot(finished_run) == before


@pytest.mark.thorough
def test_other_data_is_refused(tmp_path):
  digits = sources.digits().limited(128)
  arrays = {f"x_{name}": split.inputs.copy() for name, split in digits.splits().items()}
  arrays |= {f"y_{name}": split.labels.copy() for name, split in digits.splits().items()}
  file = tmp_path / "data.npz"
  np.savez(file, **arrays)
  fields = {"data.name": "npz", "data.npz.path": str(file), "data.npz.scale": 16.0, "epochs": 1}
  config = runs.make_config(fields)
  train.train(config, tmp_path / "run")
  before = runs.snapshot(tmp_path / "run")

  for name, array in arrays.items():
    # The smallest change there is, in the last example.
    changed = array.copy()
    changed[-1] ^= 1
    np.savez(file, **{**arrays, name: changed})
    with pytest.raises(train.RunError) as refused:
      train.train(config, tmp_path / "run")
    assert "was made with other data" in str(refused.value)
    assert f"crc32.{name[2:]} was " in str(refused.value)
    assert "crc32" not in str(refused.value).replace(f"crc32.{name[2:]}", "")
    assert runs.snapshot(tmp_path / "run") == before

  np.savez(file, **arrays)
  assert train.train(config, tmp_path / "run")["step"] == 4


def test_checkpoints_without_a_configuration_are_not_taken_over(tmp_path):
  (tmp_path / "run" / "checkpoints").mkdir(parents=True)
  with pytest.raises(train.RunError, match=r"has results of another program, and no config\.json"):
    train.train(runs.make_config(), tmp_path / "run")


def test_a_run_at_work_keeps_its_files(tmp_path):
  """Even before its first checkpoint, and against another configuration."""
  workdir = tmp_path / "run"
  config, other = runs.make_config(), runs.make_config({"seed": 5})
  data = DataSpec((2,), "float32", 2, {"train": 128})
  workdirs.claim(workdir, flatten(config), data, 24)
  before = (workdir / "config.json").read_text()
  with (
    locked(workdir),
    pytest.raises(train.RunError, match="another run is at work"),
  ):
    workdirs.claim(workdir, flatten(other), data, 24)
  assert (workdir / "config.json").read_text() == before
  workdirs.claim(workdir, flatten(other), data, 24)
  assert (workdir / "config.json").read_text() != before


@pytest.mark.parametrize(
  ("number", "message"),
  [
    (errno.EWOULDBLOCK, "another run is at work in"),
    (errno.ENOLCK, "cannot be locked .*No locks available.*give another"),
  ],
)
def test_why_there_is_no_lock_is_told(tmp_path, monkeypatch, number, message):
  def flock(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(fcntl, "flock", flock)
  with pytest.raises(train.RunError, match=message), locked(tmp_path):
    pass

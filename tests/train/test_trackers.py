"""Trackers get what `metrics.jsonl` gets, and one that fails costs a line."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
import runs
from tensorboardX.proto import event_pb2

from jaxreg import train
from jaxreg.train.run import trackers
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.run.trackers import Place, Trackers, find_trackers

FIELDS = {"epochs": 2, "model.name": "MLP", "method.name": "softmax"}


@pytest.fixture
def mine(monkeypatch):
  """A module of a user, with trackers that keep what they get, fail, and take other arguments."""
  module = types.ModuleType("my_trackers")
  module.seen, module.failed = [], 0

  def keep(step, metrics, figures):
    module.seen.append((step, dict(metrics), {name: file.read_bytes() for name, file in figures.items()}))

  def fail(step, metrics, figures):
    del step, metrics, figures
    module.failed += 1
    raise OSError("no network")

  module.keep, module.fail, module.odd = keep, fail, lambda step: None
  monkeypatch.setitem(sys.modules, "my_trackers", module)
  return module


@pytest.mark.thorough
def test_a_tracker_gets_each_record_and_the_figures(tmp_path, mine, light_runs):
  fields = {**FIELDS, "log.trackers": ("my_trackers:keep",)}
  train.train(runs.make_config(fields), tmp_path)
  records = read_records(tmp_path)
  names = ("step", "epoch")
  expected = [(r["step"], {name: value for name, value in r.items() if name not in names}) for r in records]
  assert [each[:2] for each in mine.seen[:-1]] == expected
  step, metrics, figures = mine.seen[-1]
  written = {file.stem: file.read_bytes() for file in (tmp_path / "figures").glob("*.png")}
  assert (step, metrics, figures) == (expected[-1][0], {}, written)
  assert not (tmp_path / "tensorboard").exists()


@pytest.mark.thorough
def test_a_tracker_that_fails_is_told_once_and_costs_no_step(tmp_path, mine, light_runs, capsys):
  plain = train.train(runs.make_config(FIELDS), tmp_path / "plain")
  fields = {**FIELDS, "log.trackers": ("my_trackers:fail", "my_trackers:keep")}
  assert train.train(runs.make_config(fields), tmp_path / "run") == plain
  lines = [line for line in capsys.readouterr().err.splitlines() if "log.trackers" in line]
  assert lines == [
    "warning: log.trackers: my_trackers:fail failed (OSError: no network); the run goes on without it"
  ]
  assert mine.failed == 1
  assert len(mine.seen) == len(read_records(tmp_path / "run")) + 1


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("mlfow", r"^log\.trackers: got 'mlfow', .* did you mean 'mlflow'\?$"),
    (
      "my_trackers:odd",
      r"^log\.trackers: my_trackers:odd must be a function of \(step, metrics, figures\), got",
    ),
    ("my_trackers:none", r"^log\.trackers: the module my_trackers has no none"),
    ("wandb", r"^log\.trackers: wandb needs wandb: pip install .*\[wandb\]'$"),
  ],
)
def test_trackers_that_cannot_be(tmp_path, mine, monkeypatch, name, message):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(train.RunError, match=message):
    train.train(runs.make_config({**FIELDS, "log.trackers": (name,)}), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_one_that_fails_at_its_end_does_not_hide_the_error_of_the_run(tmp_path):
  said = []

  class Broken:
    def __enter__(self):
      return lambda *_: None

    def __exit__(self, kind, *_):
      said.append(kind)
      raise RuntimeError("cannot close")

  with (
    pytest.raises(train.RunError, match="diverged"),
    Trackers({"broken": lambda place: Broken()}, Place(tmp_path, {}, 0, said.append)),
  ):
    raise train.RunError("diverged")
  assert said[0] is train.RunError
  assert said[1].startswith("warning: log.trackers: broken failed (RuntimeError: cannot close)")


@pytest.mark.parametrize("place", ["start", "record", "end"])
def test_one_that_hangs_is_dropped_after_a_time(tmp_path, monkeypatch, place):
  monkeypatch.setattr(trackers, "LIMIT", 0.2)
  said, records, never = [], [], threading.Event()

  @contextlib.contextmanager
  def hanging(_):
    if place == "start":
      never.wait()
    yield lambda *_: never.wait() if place == "record" else None
    if place == "end":
      never.wait()

  opens = {
    "hanging": hanging,
    "other": lambda _: contextlib.nullcontext(lambda step, *_: records.append(step)),
  }
  start = time.monotonic()
  with Trackers(opens, Place(tmp_path, {}, 0, said.append)) as track:
    track(1, {"train/loss": 1.0})
    track(2, {"train/loss": 0.5})
  assert time.monotonic() - start < 2
  assert records == [1, 2]
  why = "TimeoutError: no answer in 0.2 seconds"
  assert said == [f"warning: log.trackers: hanging failed ({why}); the run goes on without it"]


@pytest.mark.parametrize("place", ["record", "end"])
def test_one_that_hangs_is_dropped_soon_after_a_signal(tmp_path, monkeypatch, place):
  monkeypatch.setattr(trackers, "RECORD_AFTER_SIGNAL", 0.3 if place == "record" else 50)
  monkeypatch.setattr(trackers, "END_AFTER_SIGNAL", 0.3 if place == "end" else 50)
  said, never, received = [], threading.Event(), threading.Event()

  @contextlib.contextmanager
  def hanging(_):
    yield lambda *_: never.wait() if place == "record" else None
    never.wait()

  start = time.monotonic()
  with Trackers({"hanging": hanging}, Place(tmp_path, {}, 0, said.append), received.is_set) as track:
    threading.Timer(0.2, received.set).start()
    track(1, {"train/loss": 1.0})
  assert 0.4 < time.monotonic() - start < 2
  assert len(said) == 1
  assert re.match(r"warning: log.trackers: hanging failed \(TimeoutError: no answer in 0\.[5-9]", said[0])


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_whose_tracker_hangs(tmp_path, number):
  (tmp_path / "hanging.py").write_text(
    "import pathlib, time\n"
    "def track(step, metrics, figures):\n"
    "  pathlib.Path(__file__).with_suffix('.txt').touch()\n"
    "  time.sleep(1000)\n"
  )
  code = "from jaxreg.command import main; main()"
  command = [sys.executable, "-c", code, "train", "--config.log.trackers=hanging:track"]
  command += ["--config.model.name=MLP", "--config.method.name=softmax", "--config.log_every=1"]
  command += ["--config.epochs=1000", f"--workdir={tmp_path / 'run'}"]
  environment = {**os.environ, "PYTHONPATH": f"{runs.ROOT}{os.pathsep}{tmp_path}"}
  process = subprocess.Popen(command, cwd=runs.ROOT, env=environment, stderr=subprocess.PIPE, text=True)
  for _ in range(600):
    if (tmp_path / "hanging.txt").exists() or process.poll() is not None:
      break
    time.sleep(0.1)
  process.send_signal(number)
  _, said = process.communicate(timeout=30)
  assert process.returncode == 128 + number, said
  assert "hanging:track failed (TimeoutError: no answer in " in said
  assert "and saved; the same command continues from there" in said


def test_events_that_are_removed_under_the_run_are_told_and_go_on(tmp_path):
  said = []
  with Trackers(find_trackers(("tensorboard",)), Place(tmp_path, {}, 0, said.append)) as track:
    track(1, {"train/loss": 1.0})
    shutil.rmtree(tmp_path / "tensorboard")
    track(2, {"train/loss": 0.5})
    track(3, {"val/error": 0.25})
  (line,) = said
  assert line.startswith(
    f"warning: {tmp_path / 'tensorboard'} was removed under this run: records up to step 1 "
  )
  (file,) = (tmp_path / "tensorboard").iterdir()
  assert b"val/error" in file.read_bytes()


def events(workdir):
  """The events of a run, by the format of TFRecord: length, its checksum, content, its checksum."""
  (file,) = (workdir / "tensorboard").iterdir()
  content, at = file.read_bytes(), 0
  while at < len(content):
    length = int.from_bytes(content[at : at + 8], "little")
    yield event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
    at += 16 + length


def test_tensorboard_has_the_numbers_and_the_figures(tmp_path):
  (tmp_path / "curves.png").write_bytes(b"an image")
  with Trackers(find_trackers(("tensorboard",)), Place(tmp_path, {}, 0, pytest.fail)) as track:
    track(1, {"train/loss": 2.0})
    track(2, {"train/loss": 1.0, "val/error": 0.5})
    track(2, {}, {"curves": tmp_path / "curves.png"})
  found = {(event.step, each.tag): each for event in events(tmp_path) for each in event.summary.value}
  assert found.pop((2, "curves")).image.encoded_image_string == b"an image"
  numbers = {at: each.simple_value for at, each in found.items()}
  assert numbers == {(1, "train/loss"): 2.0, (2, "train/loss"): 1.0, (2, "val/error"): 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_mlflow_continues_a_run(tmp_path, monkeypatch, named):
  mlflow = pytest.importorskip("mlflow")
  pytest.importorskip("sqlalchemy")
  store = tmp_path / ("store.db" if named else "mlflow.db")
  monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
  if named:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
  monkeypatch.chdir(tmp_path)
  for start in (0, 2):
    place = Place(tmp_path / "run", {"seed": 0}, start, pytest.fail)
    with Trackers(find_trackers(("mlflow",)), place) as track:
      track(start + 1, {"train/loss": 1.0 / (start + 1)})
  client = mlflow.MlflowClient(f"sqlite:///{store}")
  (run,) = client.search_runs([client.get_experiment_by_name("jaxreg").experiment_id])
  history = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "train/loss")]
  assert (run.info.status, run.data.params, history) == ("FINISHED", {"seed": "0"}, [(1, 1.0), (3, 1 / 3)])


@pytest.mark.slow
def test_wandb_writes_a_run_offline(tmp_path, monkeypatch):
  pytest.importorskip("wandb")
  monkeypatch.setenv("WANDB_MODE", "offline")
  (tmp_path / "run").mkdir()
  for start in (0, 2):
    place = Place(tmp_path / "run", {"seed": 0}, start, pytest.fail)
    with Trackers(find_trackers(("wandb",)), place) as track:
      track(start + 1, {"train/loss": 1.0})
  files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
  assert len({file.stem for file in files}) == 1
  file = files[0]
  for _ in range(100):  # a process of its own writes
    if b"train/loss" in file.read_bytes():
      return
    time.sleep(0.1)
  pytest.fail(f"{file} has no train/loss")

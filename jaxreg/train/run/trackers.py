"""Trackers: further places for the records and the figures of a run.

A tracker is one function `(step, metrics, figures)`: the step, numbers by name, and image files by name. It
is called with each record, and at the end with the figures. A user's own is named as `module:NAME`.

tensorboardX's own `SummaryWriter` writes from a second thread. On a full disk that thread dies with a
traceback, and the next events wait for it for ever. So events are written at once, by `RecordWriter`.
"""

import contextlib
import functools
import importlib.util
import io
import os
import queue
import socket
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, Self

from etils.epath import Path

from jaxreg._atomic_files import absolute, in_bucket, write_bytes
from jaxreg._extras import install
from jaxreg.train.devices.processes import is_first
from jaxreg.train.entries import Options, parameters, shown
from jaxreg.train.errors import RunError, one_line, unknown
from jaxreg.train.sealed_tables import run_token
from jaxreg.train.user_modules import imported, is_yours

FIELD = "log.trackers"
FLUSH_SECONDS = 30
LIMIT = 60.0  # seconds that a tracker may take for a record, for its start or for its end
# The same after a signal for a record, which delays the save, and for the end. Schedulers kill 30 s later.
RECORD_AFTER_SIGNAL, END_AFTER_SIGNAL = 1.0, 10.0
SLICE = 0.1  # seconds between two looks for a signal
DATABASE = "sqlite:///mlflow.db"  # MLflow's own default, too, except for versions that keep files
MOST_CHARACTERS = 500  # of a parameter in MLflow
WANDB_ID = 32  # characters of a run's token; W&B allows 128
Tracker = Callable[[int, Mapping[str, float], Mapping[str, Path]], object]


class Place(NamedTuple):
  """What a tracker is opened for."""

  workdir: Path
  fields: Options  # the flat configuration
  start: int  # the step at which the run begins or continues
  say: Callable[[str], None]  # shows a line to people


@contextlib.contextmanager
def tensorboard(place: Place) -> Iterator[Tracker]:
  """Writes event files in `workdir/tensorboard`, which hide earlier files' events after `start`.

  A bucket cannot append: there, each flush ends a file, and the next events begin another one. It is written
  in a temporary folder first: tensorboardX's own writer for buckets uploads a file again when it is
  collected, and waits two minutes for a bucket that is gone.
  """
  from tensorboardX.record_writer import RecordWriter
  from tensorboardX.summary import scalar

  event = importlib.import_module("tensorboardX.proto.event_pb2")  # a type checker knows no class of it
  summary = importlib.import_module("tensorboardX.proto.summary_pb2")
  folder, files = place.workdir / "tensorboard", 0
  bucket = in_bucket(folder)

  def opened(start: int, scratch: str | None) -> tuple[Path, RecordWriter]:
    nonlocal files
    if not bucket:
      folder.mkdir(exist_ok=True)  # without parents: the work directory may have been removed
    # TensorBoard reads the files of a folder in the order of their names.
    path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{files:06d}"
    files += 1
    writer = RecordWriter(str(path) if scratch is None else os.path.join(scratch, path.name))
    add(writer, file_version="brain.Event:2")
    add(writer, step=start + 1, session_log=event.SessionLog(status=event.SessionLog.START))
    return path, writer

  def add(writer: RecordWriter, **content: object) -> None:
    writer.write(event.Event(wall_time=time.time(), **content).SerializeToString())

  def finish(path: Path, writer: RecordWriter, scratch: str | None) -> None:
    writer.close()
    if scratch is not None:
      write_bytes(path, Path(scratch, path.name).read_bytes())

  with tempfile.TemporaryDirectory() if bucket else contextlib.nullcontext() as scratch:
    path, writer = opened(place.start, scratch)
    flushed, last = time.monotonic(), place.start

    def track(step: int, metrics: Mapping[str, float], figures: Mapping[str, Path]) -> None:
      nonlocal path, writer, flushed, last
      if not bucket and not path.is_file():
        place.say(
          f"warning: {folder} was removed under this run: records up to step {last} are lost, and a new file "
          "has the next ones"
        )
        writer.close()
        path, writer = opened(last, scratch)
      for name, value in metrics.items():
        add(writer, step=step, summary=scalar(name, value))
      for name, file in figures.items():
        image = summary.Summary.Image(encoded_image_string=file.read_bytes())
        add(writer, step=step, summary=summary.Summary(value=[summary.Summary.Value(tag=name, image=image)]))
      last = step
      if time.monotonic() > flushed + FLUSH_SECONDS:
        flushed = time.monotonic()
        if bucket:
          finish(path, writer, scratch)
          path, writer = opened(last, scratch)
        else:
          writer.flush()

    try:
      yield track
    finally:
      finish(path, writer, scratch)


@contextlib.contextmanager
def mlflow(place: Place) -> Iterator[Tracker]:
  """Opens a run of MLflow's experiment `jaxreg`; a resumed run continues it.

  It is at `MLFLOW_TRACKING_URI`, or at the URI that a program has set. By default, it is in the database
  `mlflow.db` of the current folder.
  """
  import mlflow  # pyright: ignore[reportMissingImports]
  from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]

  client = mlflow.MlflowClient(None if mlflow.is_tracking_uri_set() else DATABASE)
  here = str(absolute(place.workdir))
  name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "jaxreg")
  experiment = client.get_experiment_by_name(name)
  number = experiment.experiment_id if experiment else client.create_experiment(name)
  earlier = client.search_runs([number], f"tags.workdir = '{here}'", max_results=1) if place.start else []
  if earlier:
    run = earlier[0].info.run_id
  else:
    run = client.create_run(number, run_name=place.workdir.name).info.run_id
    params = [Param(field, str(value)[:MOST_CHARACTERS]) for field, value in place.fields.items()]
    client.log_batch(run, params=params[:100], tags=[RunTag("workdir", here)])
    for start in range(100, len(params), 100):
      client.log_batch(run, params=params[start : start + 100])

  def track(step: int, metrics: Mapping[str, float], figures: Mapping[str, Path]) -> None:
    now = int(time.time() * 1000)
    client.log_batch(run, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])
    with tempfile.TemporaryDirectory() as folder:  # MLflow takes files of this machine only
      for file in figures.values():
        Path(folder, file.name).write_bytes(file.read_bytes())
        client.log_artifact(run, os.path.join(folder, file.name), "figures")

  status = "FAILED"
  try:
    yield track
    status = "FINISHED"
  finally:
    client.set_terminated(run, status)


@contextlib.contextmanager
def wandb(place: Place) -> Iterator[Tracker]:
  """Opens a run of Weights & Biases by its environment variables; a resumed run continues it."""
  import wandb  # pyright: ignore[reportMissingImports]
  from PIL import Image

  # Its own files stay on this machine. The token of the run names it, wherever the run goes on.
  run = wandb.init(
    project=os.environ.get("WANDB_PROJECT", "jaxreg"),
    id=run_token(place.workdir)[:WANDB_ID],
    name=place.workdir.name,
    resume="allow",
    config=dict(place.fields),
    dir=tempfile.mkdtemp(prefix="jaxreg-wandb-") if in_bucket(place.workdir) else str(place.workdir),
    reinit="create_new",
    settings=wandb.Settings(silent=True, console="off"),
  )

  def track(step: int, metrics: Mapping[str, float], figures: Mapping[str, Path]) -> None:
    images = {name: wandb.Image(Image.open(io.BytesIO(file.read_bytes()))) for name, file in figures.items()}
    run.log({**metrics, **images}, step=step)

  status = 1
  try:
    yield track
    status = 0
  finally:
    run.finish(exit_code=status)


Open = Callable[[Place], contextlib.AbstractContextManager[Tracker]]
TRACKERS: dict[str, Open] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


def find_trackers(names: Sequence[str]) -> dict[str, Open]:
  """Finds the function that opens each tracker; a user's own is `module:NAME`."""
  return {name: _find(name) for name in names}


def _find(name: str) -> Open:
  if not is_yours(name):
    if name not in TRACKERS:
      raise unknown(FIELD, name, TRACKERS, others=" or MODULE:NAME")
    package = "tensorboardX" if name == "tensorboard" else name
    if importlib.util.find_spec(package) is None:
      raise RunError(f"{FIELD}: {name} needs {package}: {install('train' if package != name else name)}")
    return TRACKERS[name]
  own = imported(name, FIELD)
  if len(parameters(own)) != 3:
    raise RunError(f"{FIELD}: {name} must be a function of (step, metrics, figures), got {shown(own)}")

  def open_own(place: Place) -> contextlib.AbstractContextManager[Tracker]:
    del place
    return contextlib.nullcontext(own)

  return open_own


class _Thread:
  """Runs calls in a thread of its own, and waits `LIMIT` seconds for each, because other programs may hang.

  It waits less after a signal, which `signalled` tells. The process does not wait for the thread at its end.
  """

  def __init__(self, signalled: Callable[[], bool]) -> None:
    self._signalled = signalled
    self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[object, ...]]]
    self._calls, self.hangs = queue.SimpleQueue(), False
    threading.Thread(target=self._run, name="tracker", daemon=True).start()

  def _run(self) -> None:
    while True:
      future, call, arguments = self._calls.get()
      try:
        future.set_result(call(*arguments))
      except BaseException as error:
        future.set_exception(error)

  def __call__(self, call: Callable[..., Any], *arguments: object, after_signal: float) -> Any:
    """Returns the result of `call(*arguments)`, or raises its error, or a TimeoutError."""
    future: Future[Any] = Future()
    self._calls.put((future, call, arguments))
    began, limit = time.monotonic(), LIMIT
    while (left := began + limit - time.monotonic()) > 0 and not future.done():
      wait([future], min(left, SLICE))
      if limit == LIMIT and self._signalled():
        limit = min(LIMIT, time.monotonic() - began + after_signal)
    if not future.done():
      self.hangs = True
      raise TimeoutError(f"no answer in {limit:.2g} seconds")
    return future.result()


class Trackers:
  """A context manager that passes each record to all trackers; one that fails is reported and dropped."""

  def __init__(self, opens: Mapping[str, Open], place: Place, signalled: Callable[[], bool] = lambda: False):
    self._opens, self._place, self._signalled = (opens if is_first() else {}), place, signalled
    self._held, self._trackers = contextlib.ExitStack(), dict[str, tuple[_Thread, Tracker]]()

  def __enter__(self) -> Self:
    for name, opened in self._opens.items():
      with self._told(name):
        thread, inside = _Thread(self._signalled), opened(self._place)
        self._trackers[name] = thread, thread(inside.__enter__, after_signal=RECORD_AFTER_SIGNAL)
        self._held.push(functools.partial(self._close, name, thread, inside))
    return self

  def __exit__(self, *exception: Any) -> None:
    self._held.__exit__(*exception)

  def __call__(
    self, step: int, metrics: Mapping[str, float], figures: Mapping[str, Path] | None = None
  ) -> None:
    """Passes a record, or the figures at the end, to each tracker."""
    for name, (thread, tracker) in [*self._trackers.items()]:
      with self._told(name):
        thread(tracker, step, metrics, figures or {}, after_signal=RECORD_AFTER_SIGNAL)

  def _close(
    self,
    name: str,
    thread: _Thread,
    inside: contextlib.AbstractContextManager[Tracker],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    """Passes a tracker the error that ends the run, if any; closing may fail, too."""
    if not thread.hangs:
      with self._told(name, error):
        thread(inside.__exit__, kind, error, trace, after_signal=END_AFTER_SIGNAL)

  @contextlib.contextmanager
  def _told(self, name: str, ours: BaseException | None = None) -> Iterator[None]:
    """Reports the error of a tracker, and drops the tracker; `ours` is the run's own error."""
    try:
      yield
    except Exception as error:  # a tracker is another program: it may fail in any way
      self._trackers.pop(name, None)
      if error is not ours:
        self._place.say(
          f"warning: {FIELD}: {name} failed ({type(error).__name__}: {one_line(error)}); the run goes on "
          "without it"
        )

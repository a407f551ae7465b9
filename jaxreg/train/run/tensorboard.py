"""TensorBoard's events, written at once in the calling thread.

tensorboardX's own `SummaryWriter` writes from a second thread. On a full disk that thread dies with a
traceback, and the next events wait for it for ever.
"""

import socket
import time
from pathlib import Path
from typing import Any

from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

proto: Any = event_pb2  # The import creates its classes, which a type checker cannot know.
FLUSH_SECONDS = 30


class Board:
  """An event file in `folder`; TensorBoard hides the events of earlier files after the step `start`.

  Attributes:
    path: the file.
  """

  def __init__(self, folder: Path, *, start: int):
    folder.mkdir(parents=True, exist_ok=True)
    self.path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    self._file = RecordWriter(str(self.path))
    self._flushed = time.monotonic()
    self._add(proto.Event(file_version="brain.Event:2"))
    self._add(proto.Event(step=start + 1, session_log=proto.SessionLog(status=proto.SessionLog.START)))

  def write(self, step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      self._add(proto.Event(step=step, summary=scalar(name, value)))
    if time.monotonic() > self._flushed + FLUSH_SECONDS:
      self._file.flush()
      self._flushed = time.monotonic()

  def close(self) -> None:
    self._file.close()

  def _add(self, event: Any) -> None:
    event.wall_time = time.time()
    self._file.write(event.SerializeToString())

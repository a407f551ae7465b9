"""A terminal of 80 columns and 24 lines, and what stays on it, as `pyte` draws it."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading

import pyte

# The end of the file may never come, because a helper process of multiprocessing can keep the terminal open.
END = b"\0"


class Terminal:
  """A context manager; `file` takes the place of `sys.stderr`, and at the end `lines` has what stays.

  Attributes:
    output: the bytes that were written.
    lines: the lines that stay, also above the screen's first one, without empty lines at the end.
  """

  def __enter__(self) -> "Terminal":
    self._ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    self.file, self.output = open(theirs, "w", buffering=1), b""
    self._reader = threading.Thread(target=self._read)
    self._reader.start()
    return self

  def _read(self) -> None:
    while not self.output.endswith(END):
      self.output += os.read(self._ours, 65536)
    self.output = self.output.removesuffix(END)

  def __exit__(self, *exception: object) -> None:
    self.file.write(END.decode())
    self.file.close()
    self._reader.join()
    os.close(self._ours)
    screen = pyte.HistoryScreen(80, 24, history=1000, ratio=1)
    pyte.ByteStream(screen).feed(self.output)
    above = ["".join(row[column].data for column in range(80)) for row in screen.history.top]
    self.lines = [line.rstrip() for line in [*above, *screen.display]]
    while self.lines and not self.lines[-1]:
      self.lines.pop()


def run(command: list, **options) -> tuple[int, list[str]]:
  """The command's exit status, and the lines that it leaves on a terminal."""
  with Terminal() as shown:
    status = subprocess.call(command, stdin=shown.file, stdout=shown.file, stderr=shown.file, **options)
  return status, shown.lines

"""A terminal of 80 columns and 24 lines that commands run on, as `pyte` draws it."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import termios

import pyte


def lines(output: bytes) -> list[str]:
  """What stays on the terminal after this output, also above its first line."""
  screen = pyte.HistoryScreen(80, 24, history=1000, ratio=1)
  pyte.ByteStream(screen).feed(output)
  above = ["".join(row[column].data for column in range(80)) for row in screen.history.top]
  found = [line.rstrip() for line in [*above, *screen.display]]
  while found and not found[-1]:
    found.pop()
  return found


class Terminal(io.StringIO):
  """Takes the place of `sys.stdout` and `sys.stderr`."""

  def isatty(self) -> bool:
    return True

  @property
  def lines(self) -> list[str]:
    return lines(self.getvalue().replace("\n", "\r\n").encode())


def run(command: list, **options) -> tuple[int, list[str]]:
  """The command's exit status, and its lines."""
  ours, theirs = pty.openpty()
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
  process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **options)
  os.close(theirs)
  output = bytearray()
  while True:
    try:
      output += os.read(ours, 65536)
    except OSError:  # the other end is closed
      break
  os.close(ours)
  return process.wait(), lines(bytes(output))

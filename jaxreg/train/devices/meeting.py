"""How several processes meet, and hear at once that one of them is gone: each has a line to the first one.

JAX's own service aborts the program over a launch mistake, and hears of a killed process by a clock only. So
the processes meet here first, at the coordinator's port before the service takes it, and keep their
connections. The kernel closes those of a process that ends, whatever ended it.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxreg.train.errors import RunError

LONGEST = 4096  # bytes of a message
GRACE = 5  # seconds in which a process may end by itself after another said that it failed


def meet(coordinator: str, num_processes: int, process_id: int, *, timeout: float, silence: int) -> "Lines":
  """Waits until all processes are there.

  Args:
    coordinator: `host:port` of process 0.
    num_processes: how many are expected.
    process_id: which of them this is.
    timeout: seconds to wait.
    silence: seconds without a sign of life after which a machine counts as lost.

  Raises:
    RunError: if some do not come, one id comes twice, or they disagree on their number.
  """
  host, _, port = coordinator.rpartition(":")
  deadline = time.monotonic() + timeout
  if process_id == 0:
    port = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", port).rpartition(":")[2]
    lines = _gather(int(port), num_processes, deadline, timeout)
  else:
    lines = {0: _join(host.strip("[]"), int(port), num_processes, process_id, deadline, timeout)}
  for line in lines.values():
    line.settimeout(None)
    _keep_alive(line, silence)
  return Lines(process_id, lines)


def _gather(port: int, number: int, deadline: float, timeout: float) -> dict[int, socket.socket]:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  try:
    listener = socket.create_server(("", port), family=family, backlog=number + 8, dualstack_ipv6=both)
  except OSError as error:
    raise RunError(
      f"--coordinator: port {port} cannot be used ({error.strerror}); is another process 0 at work?"
    ) from error
  lines: dict[int, socket.socket] = {}
  fault = None
  with listener:
    while len(lines) < number - 1 and fault is None:
      try:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        line, _ = listener.accept()
      except TimeoutError:
        missing = ", ".join(str(i) for i in range(1, number) if i not in lines)
        fault = f"--num_processes={number}: in {timeout:g} seconds nothing came of process {missing}"
        break
      line.settimeout(2)
      hello = _receive(line)
      if hello is None or not isinstance(hello.get("id"), int):
        line.close()  # no process of ours
        continue
      if hello.get("of") != number:
        fault = f"--num_processes: of process {hello['id']} is {hello.get('of')}, of process 0 {number}"
      elif hello["id"] in lines:
        fault = f"--process_id: {hello['id']} is given twice; start all with different ones"
      lines[-1 - len(lines) if fault else hello["id"]] = line
  for line in lines.values():
    _send(line, {"fault": fault})
  if fault is not None:
    raise RunError(fault)
  return lines


def _join(host: str, port: int, of: int, number: int, deadline: float, timeout: float) -> socket.socket:
  reason = "nobody answers"
  while (left := deadline - time.monotonic()) > 0:
    try:
      line = socket.create_connection((host, port), timeout=left)
    except OSError as error:
      reason = error.strerror or str(error) or reason
      time.sleep(min(0.2, left))
      continue
    line.settimeout(max(0.01, deadline - time.monotonic()))
    _send(line, {"id": number, "of": of})
    verdict = _receive(line)
    if verdict is not None and "fault" in verdict:
      if verdict["fault"] is not None:
        line.close()
        raise RunError(str(verdict["fault"]))
      return line
    line.close()
    reason = "it waits for others, or is at work with another process of this --process_id"
    time.sleep(min(0.2, left))
  raise RunError(
    f"--coordinator: process 0 at {host}:{port} did not begin with this one in {timeout:g} seconds ({reason})"
  )


class Lines:
  """The open connections of this process: of the first one to all others, of each other to the first.

  A thread listens. Where a process is gone without a word, or has failed and this one does not end by itself,
  the thread says one line and ends this process with status 1.
  """

  end: Callable[[int], Any] = staticmethod(os._exit)

  def __init__(self, process_id: int, lines: dict[int, socket.socket]):
    self._id, self._lines = process_id, lines
    self._speaking = threading.Lock()
    self._left = False  # this process has said its last word
    self._alone = threading.Event()  # all lines have ended, or the first process says that it leaves
    threading.Thread(target=self._listen, daemon=True).start()

  def leave(self, failure: str | None = None) -> None:
    """Tells the others that this process ends, and of what it fails; it acts on no loss from now on."""
    with self._speaking:
      self._left = True
      self._tell({"left": self._id, "failure": failure and failure[:1000]})

  def wait(self, seconds: float = 2 * GRACE) -> None:
    """Waits until the others have gone, so that JAX's service tears none away before it has said why."""
    self._alone.wait(seconds)

  def _listen(self) -> None:
    excused = set()
    with selectors.DefaultSelector() as selector:
      for number, line in self._lines.items():
        selector.register(line, selectors.EVENT_READ, number)
      while selector.get_map():
        for key, _ in selector.select():
          number, line = key.data, self._lines[key.data]
          message = _receive(line)
          if message is None:
            selector.unregister(line)
            if number not in excused:
              self._lost(f"process {number} is gone; the same commands continue from the last checkpoint")
          elif "lost" in message:
            self._lost(str(message["lost"]))
          elif "left" in message:
            who = message["left"]
            if who == number:
              excused.add(number)
            if who == 0:
              self._alone.set()
            if message.get("failure") is not None:
              self._tell(message, besides=number)
              later = threading.Timer(GRACE, self._lost, [f"process {who}: {message['failure']}"])
              later.daemon = True
              later.start()
    self._alone.set()

  def _lost(self, words: str) -> None:
    with self._speaking:
      if self._left:
        return
      self._left = True
      self._tell({"lost": words})
      print(f"run.py: error: {words}\n", end="", file=sys.stderr, flush=True)
      self.end(1)

  def _tell(self, message: dict[str, Any], *, besides: int | None = None) -> None:
    for number, line in self._lines.items():
      if number != besides:
        _send(line, message)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
  with contextlib.suppress(OSError):  # who listens hears of the end of the line
    line.sendall(json.dumps(message).encode() + b"\n")


def _receive(line: socket.socket) -> dict[str, Any] | None:
  """The next message; None at the end of the line, or for what is no message."""
  read = bytearray()
  try:
    while not read.endswith(b"\n"):
      byte = line.recv(1)
      if not byte or len(read) > LONGEST:
        return None
      read += byte
    message = json.loads(read)
  except (OSError, ValueError):
    return None
  return message if isinstance(message, dict) else None


def _keep_alive(line: socket.socket, silence: int) -> None:
  """Firewalls forget connections that say nothing, and a machine without power says no end."""
  line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  interval = max(1, min(15, silence // 3))
  times = {"TCP_KEEPIDLE": interval, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": max(1, silence // interval)}
  for option, value in times.items():
    if hasattr(socket, option):
      line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

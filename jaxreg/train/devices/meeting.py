"""Connects several processes: each has a connection to the first, and learns at once that another is gone.

JAX's own service aborts the program over a launch mistake, and notices a killed process only by a timeout. So
the processes meet here first, at the coordinator's port before the service takes it, and keep their
connections. When a process ends for any reason, the kernel closes its connections.
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

from jaxreg.train.errors import RunError, program

LONGEST = 4096  # bytes of the longest message
GRACE = 5  # seconds for a process to end by itself after another process reported a failure


def meet(coordinator: str, num_processes: int, process_id: int, *, timeout: float, silence: int) -> "Lines":
  """Waits until all processes are there.

  Args:
    coordinator: `host:port` of process 0.
    num_processes: the number of processes.
    process_id: the number of this process.
    timeout: seconds to wait.
    silence: seconds without a sign of life after which a machine counts as lost.
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
        fault = f"--num_processes={number}: in {timeout:g} seconds nothing came from process {missing}"
        break
      line.settimeout(2)
      hello = _receive(line)
      if hello is None or not isinstance(hello.get("id"), int):
        line.close()  # not one of our processes
        continue
      if hello.get("of") != number:
        fault = f"--num_processes: process {hello['id']} has {hello.get('of')}, process 0 has {number}"
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
    f"--coordinator: process 0 at {host}:{port} did not meet this one within {timeout:g} seconds ({reason})"
  )


class Lines:
  """The open connections of this process: the first process has one to each other, the others one to it.

  A thread listens. It ends this process with one line and status 1 in two cases: another process is gone
  without a message, or another process has failed and this one does not end by itself.
  """

  end: Callable[[int], Any] = staticmethod(os._exit)

  def __init__(self, process_id: int, lines: dict[int, socket.socket]):
    self._id, self._lines = process_id, lines
    self._speaking = threading.Lock()
    self._left = False  # this process has sent its last message
    self._alone = threading.Event()  # all connections have ended, or the first process says that it leaves
    threading.Thread(target=self._listen, daemon=True).start()

  def leave(self, failure: str | None = None) -> None:
    """Tells the others that this process ends, and why it fails; later losses no longer end this process."""
    with self._speaking:
      self._left = True
      self._tell({"left": self._id, "failure": failure and failure[:1000]})

  def wait(self, seconds: float = 2 * GRACE) -> None:
    """Waits until the others are gone, so that JAX's service ends none before it has told its reason."""
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
      print(f"{program()}: error: {words}\n", end="", file=sys.stderr, flush=True)
      self.end(1)

  def _tell(self, message: dict[str, Any], *, besides: int | None = None) -> None:
    for number, line in self._lines.items():
      if number != besides:
        _send(line, message)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
  with contextlib.suppress(OSError):  # the listening thread notices a closed connection
    line.sendall(json.dumps(message).encode() + b"\n")


def _receive(line: socket.socket) -> dict[str, Any] | None:
  """The next message; None if the connection has ended, or for bytes that are not a message."""
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
  """Turns on TCP's keepalive: firewalls drop silent connections, and a machine without power closes none."""
  line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  interval = max(1, min(15, silence // 3))
  times = {"TCP_KEEPIDLE": interval, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": max(1, silence // interval)}
  for option, value in times.items():
    if hasattr(socket, option):
      line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

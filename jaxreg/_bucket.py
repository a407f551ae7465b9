"""Google Cloud Storage below `etils.epath`: requests that are tried again, and conditional writes."""

import asyncio
import base64
import email.utils
import functools
import hashlib
import importlib.util
import inspect
import json
import logging
import os
import re
import sys
import time
import urllib.parse
from typing import Any, NamedTuple

from jaxreg._extras import install

PATIENCE = 300.0  # seconds for which a request that fails is tried again
WAITED = 4.0  # the pause between two tries, in seconds, from which on a line says that the bucket is silent
CONNECT = 20.0  # seconds after which a connection counts as failed
BOUNDARY = b"part-of-an-upload"
SILENCE = 60.0  # seconds after which a server that sends nothing counts as failed


class Stored(NamedTuple):
  """An object of a bucket: its bytes, its generation, and its age in seconds by the server's clock."""

  content: bytes
  generation: str
  age: float


def bucket_path(path: Any) -> Any:
  """Returns the `epath.Path` of `gs://BUCKET/FOLDER`."""
  if not all(map(importlib.util.find_spec, ("etils", "gcsfs"))):
    raise ModuleNotFoundError(f"{path}: a bucket needs gcsfs: {install('gcs')}")
  file_system()
  from etils import epath

  return epath.Path(path)


@functools.cache
def file_system() -> Any:
  """Returns the file system of gcsfs that `epath` uses from here on, for Orbax's files, too."""
  # With TensorFlow installed, `epath` would read through TensorFlow, which has other errors and no retries.
  os.environ.setdefault("EPATH_USE_TF", "false")
  for name in ("gcsfs", "google.auth"):  # they log errors that they also raise, with the traceback
    logging.getLogger(name).setLevel(logging.CRITICAL)
  import aiohttp
  import fsspec
  import gcsfs
  from gcsfs.retry import is_retriable

  once = inspect.unwrap(gcsfs.GCSFileSystem._request)  # without gcsfs's own six tries

  class PatientFileSystem(gcsfs.GCSFileSystem):
    """gcsfs that tries again for `PATIENCE` seconds, raises OSError, and asks for each listing."""

    said = -float("inf")  # when a line last told that the bucket does not answer

    def __init__(self, *args: Any, **options: Any):
      silence = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE)
      super().__init__(*args, **{"use_listings_cache": False, "requests_timeout": silence, **options})

    async def _request(self, method: str, path: str, *args: Any, **options: Any) -> Any:
      end, pause = time.monotonic() + PATIENCE, 1.0
      if isinstance(options.get("data"), memoryview):  # a lost request would keep the buffer in use
        options["data"] = bytes(options["data"])
      reason: BaseException | None = None
      while True:
        try:
          return await once(self, method, path, *args, **options)
        except Exception as error:  # gcsfs, aiohttp and google.auth have types of their own
          if reason is not None and isinstance(error, FileNotFoundError):
            # An earlier try may have done it, and its answer was lost.
            if method == "DELETE":
              return 204, {}, None, b""
            if "upload_id=" in path:
              answer = await once(self, "GET", "b/{}/o/{}", *_uploaded_name(path))
              if json.loads(answer[3])["md5Hash"] == _md5(options.get("data") or b""):
                return answer
          if not isinstance(error, TimeoutError) and not is_retriable(error):
            if isinstance(error, FileNotFoundError):
              raise FileNotFoundError(_not_there(str(error))) from error
            if isinstance(error, OSError):  # such as a condition that does not hold
              raise
            raise OSError(f"the bucket refuses a request ({_one_line(error)})") from error
          reason = error
        now = time.monotonic()
        if pause >= WAITED and now > self.said + PATIENCE:
          type(self).said = now
          line = f"the bucket does not answer ({_one_line(reason)}); trying again for {end - now:.0f} s"
          print(line, file=sys.stderr, flush=True)
        if now + pause > end:
          raise OSError(f"the bucket has not answered for {PATIENCE:.0f} s ({_one_line(reason)})") from reason
        await asyncio.sleep(pause)
        pause = min(2 * pause, 30.0)

  for name in ("gs", "gcs"):
    fsspec.register_implementation(name, PatientFileSystem, clobber=True)
  return fsspec.filesystem("gcs", finalize_on_close=True)  # as `epath` asks for it


def _not_there(request: str) -> str:
  """Says what is missing, from the request of gcsfs: `b/BUCKET/o/NAME`, or an address that ends so."""
  match = re.search(r"(?:^|/)b/([^/?]+)(?:/o(?:/([^?]+))?)?(?:\?.*)?$", request)
  if match is None:
    return request
  bucket, name = match[1], urllib.parse.unquote(match[2] or "")
  return f"gs://{bucket}/{name} is not there" if name else f"there is no bucket gs://{bucket}"


class Listed(NamedTuple):
  """An object in a listing: its whole name, its generation, its size and its CRC32C in base64."""

  name: str
  generation: str
  size: int
  crc32c: str


def listing(path: Any) -> dict[str, Listed]:
  """Lists an object, under the name "", or the objects below a folder, by their path from there."""
  name = "/".join(_split(path))
  found = file_system().find(name, detail=True)
  return {
    each.removeprefix(name).removeprefix("/"): Listed(each, info["generation"], info["size"], info["crc32c"])
    for each, info in found.items()
    if not each.endswith("/")
  }


def read_range(stored: Listed, start: int, end: int) -> bytes:
  """Reads bytes of a listed object, of the generation that was listed."""
  span = {"Range": f"bytes={start}-{end - 1}"}
  _, content = file_system().call(
    "GET", "b/{}/o/{}", *_split(stored.name), alt="media", headers=span, generation=stored.generation
  )
  return content


def object_names(folder: Any) -> list[str]:
  """Returns the names of the objects below a folder, without the folder's own name."""
  bucket, key = _split(folder)
  prefix = f"{bucket}/{key.rstrip('/')}/"
  names = file_system().find(prefix)
  return [name.removeprefix(prefix) for name in names if name != prefix and not name.endswith("/")]


def read_stored(file: Any) -> Stored | None:
  """Reads an object with its generation and its age; None if there is none."""
  try:
    headers, content = file_system().call("GET", "b/{}/o/{}", *_split(file), alt="media")
  except FileNotFoundError:
    return None
  now, then = (_seconds(headers[name]) for name in ("Date", "Last-Modified"))
  return Stored(bytes(content), headers["X-Goog-Generation"], now - then)


def write_if(file: Any, content: bytes, generation: str) -> str | None:
  """Writes an object if its generation is still this one, `0` for none; returns the new generation.

  Returns None if another writer was faster.
  """
  bucket, key = _split(file)
  system = file_system()
  address = system.base.replace("/storage/", "/upload/storage/", 1) + "b/{}/o"
  metadata = json.dumps({"name": key}).encode()
  parts = (b"application/json", metadata), (b"application/octet-stream", content)
  body = b"".join(b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (BOUNDARY, *part) for part in parts)
  options = {"data": body + b"--%s--" % BOUNDARY, "uploadType": "multipart", "ifGenerationMatch": generation}
  options["headers"] = {"Content-Type": f"multipart/related; boundary={BOUNDARY.decode()}"}
  try:
    _, answer = system.call("POST", address, bucket, **options)
    return json.loads(answer)["generation"]
  except FileExistsError:  # perhaps an earlier try of this call was stored, and its answer was lost
    stored = read_stored(file)
    return stored.generation if stored is not None and stored.content == content else None


def _split(path: Any) -> tuple[str, str]:
  bucket, _, key = os.fspath(path).removeprefix("gs://").partition("/")
  return bucket, key


def _uploaded_name(address: str) -> tuple[str, str]:
  """Returns the bucket and the name of the object that an address of a resumable upload writes."""
  parts = urllib.parse.urlsplit(address)
  bucket = parts.path.rpartition("/b/")[2].partition("/")[0]
  return bucket, urllib.parse.parse_qs(parts.query)["name"][0]


def _md5(content: bytes) -> str:
  return base64.b64encode(hashlib.md5(content).digest()).decode()


def _seconds(date: str) -> float:
  return email.utils.parsedate_to_datetime(date).timestamp()


def _one_line(error: BaseException) -> str:
  return " ".join(str(error).split())[:200] or type(error).__name__

"""The cache of the machine's user: kept outside of runs, because a run may come from other people."""

import hashlib
import importlib.metadata
import os
import platform
import re
import warnings
from pathlib import Path

import jax


def user_cache() -> Path:
  """Returns jaxreg's folder in `$XDG_CACHE_HOME`, or in `~/.cache`."""
  cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
  # A relative path is invalid by the XDG specification, and must be ignored.
  return (cache if cache.is_absolute() else Path.home() / ".cache") / "jaxreg"


def keep_compiled_programs(kind: str = "compiled") -> None:
  """Lets JAX keep compiled programs in the user's cache; a folder that the user has set stays in use.

  Compiled programs are native code that JAX loads and runs. So they lie in a folder that only its owner may
  read and write, by versions and by device, in the folder `kind` of the user's cache. Without such a folder
  nothing is kept. Call this after `processes.start`, because it asks for the devices.
  """
  if own := jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
    if odd := _no_file(Path(own)):
      jax.config.update("jax_compilation_cache_dir", None)
      warnings.warn(f"{odd} is not a file: no compiled programs are kept in this folder", stacklevel=2)
    return
  try:
    folder = user_cache() / kind / _machine()
    # From the outside in: whoever can write to one of these folders can replace the folders below it.
    for place in (folder.parent.parent, folder.parent, folder):
      place.mkdir(mode=0o700, parents=True, exist_ok=True)
      info = place.stat()
      if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        return
    odd = _no_file(folder)
  except (OSError, RuntimeError):  # the home cannot be written, or is not known
    return
  if odd:
    warnings.warn(f"{odd} is not a file: no compiled programs are kept in this folder", stacklevel=2)
    return
  jax.config.update("jax_compilation_cache_dir", str(folder))
  # Programs with calls of oneDNN cannot be kept.
  warnings.filterwarnings("ignore", "Error writing persistent compilation cache entry .*bad_alloc")
  # By default JAX keeps what took it a second to compile: few programs of a small network do.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _no_file(folder: Path) -> Path | None:
  """Returns an entry of a folder that is not a file, such as a pipe, on which JAX would hang."""
  if not folder.is_dir():  # JAX makes it, or it is in a bucket
    return None
  with os.scandir(folder) as entries:
    return next((Path(entry.path) for entry in entries if not (entry.is_file() or entry.is_dir())), None)


def _machine() -> str:
  """Returns the versions and the device, as the name of a folder."""
  device = jax.local_devices()[0]
  parts = [f"jax-{jax.__version__}", f"jaxlib-{importlib.metadata.version('jaxlib')}", device.device_kind]
  if device.platform == "cpu":  # one home may serve machines whose instructions differ
    parts.append(hashlib.sha256(_instructions()).hexdigest()[:8])
  return re.sub(r"[^\w.-]+", "_", "-".join(parts))


def _instructions() -> bytes:
  """Returns bytes that differ between processors that cannot run each other's programs."""
  try:
    lines = Path("/proc/cpuinfo").read_bytes().splitlines()
  except OSError:
    lines = []
  flags = [line for line in lines if line.startswith((b"flags", b"Features"))]
  return b"".join([platform.machine().encode(), *flags[:1]])

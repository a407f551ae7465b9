"""Eight fake CPU devices, fast compilation and the strict modes of JAX, before its first use; real data."""

import contextlib
import gc
import os
import pathlib
import runpy

_REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_LARGEST = 2**28  # bytes of compiled programs that later runs of the tests find

_shared = _FOLDER not in os.environ
if _shared:
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jaxlib.version  # noqa: E402

# XLA's older code generator compiles in half the time, and a program in one part takes a fifth less processor
# time than in many. Newer versions may lack these flags, and stop at an unknown one.
if jaxlib.version.__version__.startswith("0.10."):
  _flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flags}"

# Where in Python an operation was written is in no program that is run, and costs a tenth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
# Compiling is what most tests spend their time on; whole runs of `run.py` are of fully optimised programs.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
flags.FLAGS.mark_as_parsed()

# Looking for cycles took a tenth of the processor time, and a third of that of the collection of the tests.
# Reference counts free almost everything: the largest memory is the same.
gc.set_threshold(100_000, 20, 100)


def pytest_collection_finish():
  gc.freeze()  # modules and tests stay to the end


def _prune(folder: pathlib.Path) -> None:
  """Removes empty files, which a kill leaves, and the longest unused programs if all are too large.

  `jax_compilation_cache_max_size` would read the whole folder at each compilation, under a lock.
  """
  files = []
  for file in os.scandir(folder):
    with contextlib.suppress(OSError):  # another run of the tests removed it
      info = file.stat()
      files.append((max(info.st_atime, info.st_mtime), info.st_size, file.path))
  excess = sum(size for _, size, _ in files) - _LARGEST
  for _, size, path in sorted(files):
    if size == 0 or excess > 0:
      pathlib.Path(path).unlink(missing_ok=True)
      excess -= size


# All clones and later runs share what is compiled, and so do workers and subprocesses. The module of the
# trainer is run by its path, because the tests of the functions do not import the trainer.
if _shared:
  runpy.run_path(str(_REPOSITORY / "jaxreg" / "train" / "user_cache.py"))["keep_compiled_programs"]("tests")
  if jax.config.jax_compilation_cache_dir:
    os.environ[_FOLDER] = jax.config.jax_compilation_cache_dir
    _prune(pathlib.Path(os.environ[_FOLDER]))


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
  """The folder of real data: `JAXREG_TEST_DATA`, else `../shared/data` beside the repository, else a skip."""
  named = os.environ.get("JAXREG_TEST_DATA")
  folder = pathlib.Path(named) if named else _REPOSITORY.parent / "shared" / "data"
  if not folder.is_dir():
    if named:
      pytest.fail(f"JAXREG_TEST_DATA={named} is not a folder")
    pytest.skip("no real data: JAXREG_TEST_DATA is not set and there is no ../shared/data")
  return folder

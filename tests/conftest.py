"""Eight fake CPU devices, fast compilation and the strict modes of JAX, before its first use; real data."""

import os
import pathlib

_REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# A second run of the tests compiles next to nothing; subprocesses and workers share what is compiled.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_REPOSITORY / ".cache" / "jax")
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jaxlib.version  # noqa: E402

# XLA's older code generator compiles in half the time. Newer versions lack it, and stop at the unknown flag.
if jaxlib.version.__version__.startswith("0.10."):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402
from ml_collections import ConfigDict  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
# Compiling is what most tests spend their time on; whole runs of `run.py` are of fully optimised programs.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
flags.FLAGS.mark_as_parsed()
# The flag of a config prints it twice, as YAML: half the time of reading a command line.
ConfigDict.__str__ = object.__repr__


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

"""A tiny finished run to copy, and a cache that compiles each program of these tests once."""

import shutil
import signal

import jax
import pytest
import runs
from jax.experimental.compilation_cache import compilation_cache

from jaxreg import train

COMPILING = {
  "jax_persistent_cache_min_compile_time_secs": 0,
  "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(scope="package", autouse=True)
def compile_once(tmp_path_factory):
  """Every call of `train` compiles anew; here, the same program comes from a cache that starts empty."""
  settings = {**COMPILING, "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled"))}
  # Some settings are attributes, the others only to be read by name.
  read = lambda name: getattr(jax.config, name) if hasattr(jax.config, name) else jax.config.read(name)
  before = {name: read(name) for name in settings}
  for name, value in settings.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()
  yield
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


@pytest.fixture(scope="package", autouse=True)
def hung_up():
  """Under nohup a run ignores SIGHUP, and so would the tests of it."""
  before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
  yield
  signal.signal(signal.SIGHUP, before)


@pytest.fixture
def no_figures(monkeypatch):
  """Figures take longer than these runs; `test_log.py` draws them once."""
  monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])


@pytest.fixture(scope="package")
def finished_run(tmp_path_factory, compile_once):
  """The work directory of an uninterrupted run of 6 epochs, with figures: not to be changed."""
  workdir = tmp_path_factory.mktemp("finished") / "run"
  train.train(runs.make_config(), workdir)
  before = runs.snapshot(workdir)
  yield workdir
  assert runs.snapshot(workdir) == before, "a test changed the shared run"


@pytest.fixture
def finished_copy(finished_run, tmp_path):
  """The same, to be changed."""
  return shutil.copytree(finished_run, tmp_path / "run")

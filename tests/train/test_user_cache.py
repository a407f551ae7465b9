"""Compiled programs are native code: they are loaded only from a folder that nobody else can write to."""

import os
import stat
from pathlib import Path

import jax
import pytest

from jaxreg.train.user_cache import keep_compiled_programs, user_cache


@pytest.fixture
def no_cache():
  before = jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", None)
  yield
  jax.config.update("jax_compilation_cache_dir", before)


def test_compiled_programs_lie_in_a_private_folder_of_the_user(no_cache, monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  keep_compiled_programs()
  (folder,) = (tmp_path / "jaxreg" / "compiled").iterdir()
  assert jax.config.jax_compilation_cache_dir == str(folder)
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  assert folder.name.startswith(f"jax-{jax.__version__}-")
  assert "-cpu-" in folder.name


def test_the_folder_that_the_user_named_is_kept(no_cache, monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))  # what the environment variable does
  keep_compiled_programs()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shared", ["jaxreg", "jaxreg/compiled"])
def test_a_folder_that_others_can_write_to_is_not_used(no_cache, monkeypatch, tmp_path, shared):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  (tmp_path / shared).mkdir(parents=True)
  (tmp_path / shared).chmod(0o777)
  keep_compiled_programs()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_home_that_cannot_be_written_costs_time_only(no_cache, monkeypatch, tmp_path):
  (tmp_path / "file").touch()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  keep_compiled_programs()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_relative_cache_home_is_ignored(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", "here")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert user_cache() == tmp_path / ".cache" / "jaxreg"


@pytest.mark.parametrize("named", [True, False])
def test_a_pipe_among_the_compiled_programs_is_not_waited_for(no_cache, monkeypatch, tmp_path, named):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  keep_compiled_programs()
  folder = Path(jax.config.jax_compilation_cache_dir)
  os.mkfifo(folder / "jit_f-0123-cache")
  if not named:
    jax.config.update("jax_compilation_cache_dir", None)
  with pytest.warns(UserWarning, match="jit_f-0123-cache is not a file: no compiled programs are kept"):
    keep_compiled_programs()
  assert jax.config.jax_compilation_cache_dir is None

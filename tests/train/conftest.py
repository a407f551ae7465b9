"""A tiny finished run to copy, and signals as a terminal has them."""

import shutil
import signal

import buckets
import pytest
import runs
import toy_text

from jaxreg import train

bucket = buckets.bucket


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
def kept():
  return runs.Kept()


def lighten(patch, kept):
  runs.on_devices(patch, 2)
  kept.apply(patch)
  patch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])


@pytest.fixture
def light_runs(monkeypatch, kept):
  """Runs on two devices, which share what is traced and compiled, and draw no figures."""
  lighten(monkeypatch, kept)


@pytest.fixture(scope="module")
def light_module(kept):
  """The same for the runs of a module's fixtures."""
  with pytest.MonkeyPatch.context() as patch:
    lighten(patch, kept)
    yield


@pytest.fixture(scope="package")
def asked_figures():
  """The arguments with which `finished_run` would have drawn its figures."""
  return []


@pytest.fixture(scope="package")
def finished_run(tmp_path_factory, kept, asked_figures):
  """The work directory of an uninterrupted run of 6 epochs, without figures: not to be changed."""
  workdir = tmp_path_factory.mktemp("finished") / "run"
  with pytest.MonkeyPatch.context() as patch:
    lighten(patch, kept)
    patch.setattr("jaxreg.train.run.results.save_figures", lambda *given: asked_figures.append(given))
    train.train(runs.make_config(), workdir)
  before = runs.snapshot(workdir)
  yield workdir
  assert runs.snapshot(workdir) == before, "a test changed the shared run"


@pytest.fixture(scope="package")
def text_folder(tmp_path_factory):
  return toy_text.write(tmp_path_factory.mktemp("text"))


@pytest.fixture
def finished_copy(finished_run, tmp_path):
  """The same, to be changed."""
  return shutil.copytree(finished_run, tmp_path / "run")

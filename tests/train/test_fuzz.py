"""Whatever is wrong with what a run is given, one line says it: broken input of many kinds, from a seed."""

import shutil
import zlib

import fuzz_cases
import jax
import numpy as np
import pytest
import runs
from jax.experimental.compilation_cache import compilation_cache

from jaxreg import command
from jaxreg.train.jobs import evaluate as job
from jaxreg.train.jobs import train as training


class Accepted(BaseException):
  """A case that is not refused: the work itself begins."""


@pytest.fixture
def main(monkeypatch):
  """The program, in which no work is done."""

  def accepted(*_, **__):
    raise Accepted

  for where, name in (
    (training, "make_run"),
    (job, "make_evaluate"),
    (jax.distributed, "initialize"),
  ):
    monkeypatch.setattr(where, name, accepted)
  monkeypatch.setattr("sys.dont_write_bytecode", True)  # of a configuration, beside it
  before = jax.config.jax_compilation_cache_dir
  yield command.run
  jax.config.update("jax_compilation_cache_dir", before)
  compilation_cache.reset_cache()


def fault(main, capsys, arguments):
  """What is wrong with how this ends; None if it ends well."""
  capsys.readouterr()
  try:
    status = main(arguments)
  except Accepted:
    return "it was accepted"
  except BaseException as error:
    return f"it raised {error!r}"
  out, err = capsys.readouterr()
  if status != 1 or out:
    return f"status {status}, said {out!r}"
  said = [line for line in err.splitlines() if not line.startswith("starting: ")]
  if len(said) != 1 or not said[0].startswith("run.py: error: "):
    return f"not one line: {err!r}"
  if len(err) > 1500 or any(word in err for word in ("Traceback", "NoneType", "object at 0x")):
    return f"unclear: {err!r}"
  print(f"{arguments[-3:]}: {err}")
  return None


@pytest.mark.usefixtures("finished_run")  # made before nothing can be trained any more
@pytest.mark.parametrize("kind", fuzz_cases.KINDS)
@pytest.mark.parametrize(
  "cases", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(20, marks=pytest.mark.slow)]
)
def test_every_case_of_a_kind_is_refused(kind, cases, main, capsys, monkeypatch, tmp_path, request):
  wrong, lines = [], []
  for number in range(cases):
    folder = tmp_path / str(number)
    folder.mkdir()
    if kind in fuzz_cases.OF_RUNS:
      run = request.getfixturevalue("finished_run")
      shutil.copytree(run, folder / "run", ignore=shutil.ignore_patterns("figures", "tensorboard"))
    random = np.random.default_rng([zlib.crc32(kind.encode()), number])
    arguments = fuzz_cases.KINDS[kind](random, folder)
    monkeypatch.chdir(folder)
    before = runs.snapshot(folder)
    found = fault(main, capsys, arguments)
    lines.append(capsys.readouterr().out)
    if found is None and runs.snapshot(folder) != before:
      found = "it changed a file"
    if found is not None:
      wrong.append(f"case {number}, {found}: {arguments}")
    shutil.rmtree(folder)
  print("".join(lines))
  assert not wrong, "\n".join([f"{len(wrong)} of {cases}:", *wrong])

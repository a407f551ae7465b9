"""The versions with which CI installs, and the interpreter that it takes."""

import shutil
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-3.11.txt"])
def test_every_requirement_has_a_version_that_it_allows(name):
  lines = [line for line in (ROOT / name).read_text().splitlines() if line[0] != "#"]
  pinned = {package: version for package, version in (line.split("==") for line in lines)}
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = ("data", "report", "text", "train", "test", "docs", "dev")
  asked = project["dependencies"] + [r for extra in extras for r in project["optional-dependencies"][extra]]
  requirements = [each for each in map(Requirement, asked) if each.name != "jaxreg"]
  assert len(requirements) > 20
  for each in requirements:
    assert each.specifier.contains(pinned[each.name.lower().replace("_", "-")]), each


FAKE = """#!/bin/bash
case "$1" in
  -c) exit {status} ;;
  -m) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "PATH=$3/bin:$PATH" > "$3/bin/activate" ;;
  --version) echo "Python {version}" ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
  """A machine without pip: `add` adds an interpreter, `run` calls `.ci/run` and returns its output."""
  tools = tmp_path / "tools"
  tools.mkdir()
  for name in ("bash", "cat", "cp", "dirname", "grep", "mkdir", "mktemp", "rm", "sort"):
    (tools / name).symlink_to(shutil.which(name))
  (tmp_path / "data/mnist").mkdir(parents=True)

  def add(name, version, status=0):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE.format(version=version, status=status))
    path.chmod(0o755)

  def run(*arguments, **variables):
    environment = {
      "PATH": f"{tmp_path}/bin:{tools}",
      "PYENV_ROOT": str(tmp_path / "pyenv"),
      "HOME": str(tmp_path),
    }
    environment |= {"JAXREG_TEST_DATA": str(tmp_path / "data")} | variables
    call = [tools / "bash", ROOT / ".ci/run", *arguments]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode != 0  # for want of pip
    return (done.stdout + done.stderr).replace(f"{tmp_path}/", "")

  return SimpleNamespace(add=add, run=run)


def test_ci_takes_the_newest_interpreter_that_runs(machine):
  assert "there is no interpreter of Python 3.14 3.13 3.12 3.11" in machine.run()
  machine.add("bin/python3.11", "3.11.7")
  assert "Python 3.11.7, bin/python3.11, constraints-3.11.txt" in machine.run()
  machine.add("pyenv/versions/3.13.9/bin/python", "3.13.9")
  machine.add("pyenv/versions/3.13.10/bin/python", "3.13.10")
  machine.add("pyenv/versions/3.13.10t/bin/python", "3.13.10t")
  machine.add("pyenv/versions/3.8.18/bin/python", "3.8.18")
  machine.add("bin/python3.13", "3.13", status=127)  # a shim
  machine.add("bin/python3.14", "3.14", status=1)  # without venv
  assert "Python 3.13.10, pyenv/versions/3.13.10/bin/python, constraints.txt" in machine.run()
  machine.add("bin/python3.14", "3.14.2")
  assert "Python 3.14.2, bin/python3.14, constraints.txt" in machine.run()


def test_ci_takes_the_interpreter_that_is_named(machine):
  machine.add("bin/python3.11", "3.11.7")
  machine.add("bin/python3.14", "3.14.2")
  assert "Python 3.11.7, python3.11, constraints-3.11.txt" in machine.run(PYTHON="python3.11")


def test_the_thorough_set_needs_the_oldest_interpreter_at_its_start(machine):
  machine.add("bin/python3.14", "3.14.2")
  printed = machine.run("thorough")
  assert "there is no interpreter of Python 3.11" in printed
  assert "3.14.2" not in printed

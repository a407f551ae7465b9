"""The functional core imports JAX, Optax and NumPy, and nothing of what trains or plots."""

import inspect
import json
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import jaxreg
from jaxreg import _extras

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("flax", "orbax", "grain", "tensorflow_datasets", "matplotlib", "chex", "sklearn", "equinox")


# In one process, because each costs a second: what is loaded after each statement.
STATEMENTS = (
  "import jaxreg",
  "jaxreg.losses.softmax_cross_entropy, jaxreg.noise.dropout",
  "from jaxreg import losses, noise, penalties, constraints, reparam, calibration, paths, typing",
  "from jaxreg import averaging, ensembles, optim, symmetry, augment, adversarial, flatness",
  "from jaxreg import models",
  "models.NNXNoise",
)
# `(statement, the package that is missing, the extra that has it)`.
MISSING = (
  ("from jaxreg import models", "flax", "train"),
  ("from jaxreg import plots", "matplotlib", "train"),
  ("import jaxreg; jaxreg.train.base_config", "flax", "train"),
)


def run(code: str, **options) -> list:
  """What a plain interpreter prints, a JSON value a line."""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **options)
  return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.thorough
def test_imports_load_nothing_more():
  code = "import json, sys\n"
  code += "".join(f"{statement}\nprint(json.dumps([*sys.modules]))\n" for statement in STATEMENTS)
  bare, on_use, *core, models, nnx = map(set, run(code))
  assert {name for name in bare if name.startswith("jaxreg.")} == set()
  assert {"jaxreg.losses", "jaxreg.noise"} <= on_use
  assert "jaxreg.flatness" not in on_use
  for loaded in (bare, on_use, *core):
    assert not loaded & {*HEAVY, "ml_collections"}
  assert "jaxreg.flatness" in core[-1]
  assert "flax" in models
  assert "flax.nnx" not in models
  assert "flax.nnx" in nnx


@pytest.mark.thorough
def test_what_is_not_installed_is_named_with_its_extra():
  code = "import json, sys\n"
  code += "".join(f"sys.modules[{missing!r}] = None\n" for _, missing, _ in MISSING)
  for statement, *_ in MISSING:
    code += f"try:\n  {statement}\nexcept ModuleNotFoundError as error:\n  print(json.dumps(str(error)))\n"
  for said, (_, missing, extra) in zip(run(code, cwd="/"), MISSING, strict=True):
    assert f"needs {missing}" in said
    assert said.endswith(f"pip install -e '{ROOT}[{extra}]'")


@pytest.mark.thorough
def test_help_and_mistakes_import_no_program():
  """What trains or draws takes seconds to import, and is needed by no answer of the command line."""
  code = f"import json, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
  code += "from jaxreg.command import run as main\nsys.stdout = sys.stderr\n"
  for arguments in (["--list"], ["--help"], ["--version"], ["--config.epoch=3"], ["--config", "dropmx"]):
    code += f"main({arguments})\n"
  code += "print(json.dumps([*sys.modules]), file=sys.__stdout__)"
  (loaded,) = run(code, cwd="/")
  heavy = {*HEAVY, "tensorboardX", "torch", "scipy", "PIL", "jaxreg.plots", "jaxreg.train.jobs"} - {
    "flax",
    "chex",
  }
  assert not heavy & {*loaded}


@pytest.mark.parametrize("url", [None, "file:///a/jaxreg-1-py3-none-any.whl"])
def test_an_extra_is_installed_from_where_jaxreg_came(monkeypatch, tmp_path, url):
  monkeypatch.chdir(ROOT)
  assert _extras.install("train") == "pip install -e '.[train]'"
  monkeypatch.setattr(_extras, "ROOT", tmp_path)  # not a clone
  text = url and json.dumps({"url": url})
  found = types.SimpleNamespace(read_text=lambda name: {"direct_url.json": text}[name])
  monkeypatch.setattr("importlib.metadata.distribution", lambda name: found)
  assert _extras.install("train") == f"pip install 'jaxreg[train]{f' @ {url}' if url else ''}'"


@pytest.mark.thorough
@pytest.mark.parametrize(
  "missing",
  ["absl", "jax", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("flax", "ml_collections"))],
)
def test_the_program_without_its_packages_says_so_in_one_line(missing):
  """As after `pip install -e .`, which installs the functions alone."""
  code = f"import runpy, sys\nsys.modules[{missing!r}] = None\nsys.argv = ['run.py', '--list']\n"
  code += f"sys.path.insert(0, {str(ROOT)!r})\nrunpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
  line = f"run.py: error: the trainer needs {missing}: pip install -e '{ROOT}[train]'\n"
  assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.thorough
def test_the_default_run_needs_no_package_of_data_or_text(tmp_path):
  data = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
  names = [re.match(r"[\w-]+", need)[0].replace("-", "_") for need in (*data["data"], *data["text"])]
  csv = tmp_path / "table.csv"
  csv.write_text("length,kind\n" + "1,a\n2,b\n" * 20)
  # Not None in `sys.modules`, which scikit-learn takes for a package that is there.
  code = "import sys\nclass Missing:\n  def find_spec(self, name, *_):\n"
  code += f"    if name.partition('.')[0] in {names}: raise ModuleNotFoundError(name, name=name)\n"
  code += f"sys.meta_path.insert(0, Missing())\nsys.path.insert(0, {str(ROOT)!r})\n"
  code += "from jaxreg.command import run as main\nsys.exit(main(sys.argv[1:]))"
  arguments = ["--config", str(ROOT / "configs/softmax_digits.py"), "--config.epochs=1"]
  call = lambda *flags: subprocess.run(
    [sys.executable, "-c", code, *arguments, *flags], capture_output=True, text=True, cwd=tmp_path
  )
  done = call("--workdir", "run")
  assert done.returncode == 0, done.stderr
  done = call("--workdir", "other", "--config.data.name=csv", f"--config.data.csv.path={csv}")
  assert done.returncode == 1
  assert done.stderr.strip().endswith(f"pip install -e '{ROOT}[data]'"), done.stderr


def test_a_wrong_name_is_answered_with_the_right_ones():
  with pytest.raises(AttributeError, match="looses") as error:
    _ = jaxreg.looses
  assert all(name in str(error.value) for name in jaxreg.__all__)
  assert {"losses", "noise", "calibration", "paths"} <= set(jaxreg.__all__) <= set(dir(jaxreg))


def test_the_package_imports_nothing_of_the_papers():
  files = {file: file.read_text() for file in (ROOT / "jaxreg").rglob("*.py")}
  assert len(files) > 100
  back = re.compile(r"^\s*(?:from|import) (?:papers|benchmarks|tests)\b", re.MULTILINE)
  assert [file for file, text in files.items() if back.search(text)] == []


@pytest.mark.parametrize("name", jaxreg.__all__)
def test_public_names_are_functions_classes_and_values(name):
  module = getattr(jaxreg, name)
  assert len(set(module.__all__)) == len(module.__all__)
  assert not [each for each in module.__all__ if each[0] == "_" or inspect.ismodule(getattr(module, each))]


@pytest.mark.parametrize(
  "name", sorted(set(jaxreg.__all__) - {"conformance", "paths", "symmetry", "train", "typing"})
)
def test_all_that_a_folder_imports_from_its_files_is_public(name):
  module = getattr(jaxreg, name)
  own = {
    each
    for each, value in vars(module).items()
    if getattr(value, "__module__", "").startswith(f"jaxreg.{name}._")
  }
  assert own - set(module.__all__) == set()


@pytest.mark.parametrize("name", sorted(set(jaxreg.__all__) - {"models", "plots", "reports", "train"}))
def test_help_shows_the_names_of_types(name):
  """A module whose functions take `ArrayLike` begins with `from __future__ import annotations`."""
  module = getattr(jaxreg, name)
  functions = [getattr(module, each) for each in module.__all__ if inspect.isfunction(getattr(module, each))]
  assert functions or name == "typing"
  unions = {each.__name__ for each in functions if "numpy.bool" in str(inspect.signature(each))}
  assert unions == set()

"""The functional core imports JAX, Optax and NumPy, and nothing of what trains or plots."""

import inspect
import subprocess
import sys

import pytest

import jaxreg

HEAVY = ("flax", "orbax", "grain", "tensorflow_datasets", "matplotlib", "chex", "sklearn", "equinox")


def modules_after(statement: str) -> set[str]:
  code = f"import sys\n{statement}\nprint('\\n'.join({{name.split('.')[0] for name in sys.modules}}))"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  return set(done.stdout.split())


@pytest.mark.parametrize(
  "statement",
  [
    "import jaxreg",
    "from jaxreg import losses, noise, penalties, constraints, reparam, calibration, theory, paths, typing",
    "from jaxreg import averaging, ensembles, optim, sparse, symmetry",
    "from jaxreg import augment, adversarial, flatness",
  ],
)
def test_core_imports_nothing_heavy(statement):
  loaded = modules_after(statement)
  assert "jaxreg" in loaded
  assert not loaded & set(HEAVY)


def test_linen_models_load_no_nnx():
  code = "import sys; from jaxreg import models; print('flax.nnx' in sys.modules, models.NNXNoise.__name__)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.split() == ["False", "NNXNoise"]


def test_importing_jaxreg_loads_no_subpackage():
  code = "import sys, jaxreg\nprint([name for name in sys.modules if name.startswith('jaxreg.')])"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "[]"


def test_subpackages_load_on_first_use():
  code = "import jaxreg\nprint(jaxreg.losses.softmax_cross_entropy.__name__, jaxreg.noise.dropout.__name__)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.split() == ["softmax_cross_entropy", "dropout"]


@pytest.mark.parametrize(
  ("statement", "missing", "extra"),
  [
    ("from jaxreg import models", "flax", "train"),
    ("from jaxreg import plots", "matplotlib", "train"),
    ("import jaxreg; jaxreg.train", "flax", "train"),
    (
      "import jax; from jaxreg import flatness; "
      "flatness.operator_trace(lambda v: v, jax.numpy.ones(2), key=jax.random.key(0))",
      "matfree",
      "flatness",
    ),
  ],
)
def test_what_is_not_installed_is_named_with_its_extra(statement, missing, extra):
  hide = f"import sys\nsys.modules['{missing}'] = None"
  done = subprocess.run([sys.executable, "-c", f"{hide}\n{statement}"], capture_output=True, text=True)
  last = done.stderr.splitlines()[-1]
  assert last.startswith("ModuleNotFoundError: ")
  assert f"needs {missing}" in last
  assert last.endswith(f"pip install 'jaxreg[{extra}]'")


@pytest.mark.parametrize(
  ("module", "wrong", "hint"),
  [
    ("losses", "drop_max", "did you mean dropmax"),
    ("losses", "cross_entropy", "did you mean softmax_cross_entropy"),
    ("noise", "Dropout", "did you mean dropout"),
    ("augment", "qqq", "it has .*mixup"),
    ("theory", "__wrapped__", "$"),
  ],
)
def test_a_wrong_name_in_a_subpackage_is_answered_with_what_is_close(module, wrong, hint):
  with pytest.raises(AttributeError, match=rf"'jaxreg.{module}' has no attribute '{wrong}'.*({hint})"):
    getattr(getattr(jaxreg, module), wrong)


def test_every_subpackage_of_the_core_suggests_names():
  for name in set(jaxreg.__all__) - {"models", "plots", "train", "paths", "symmetry", "typing"}:
    module = getattr(jaxreg, name)
    with pytest.raises(AttributeError, match="did you mean"):
      getattr(module, module.__all__[0] + "x")


def test_a_wrong_name_is_answered_with_the_right_ones():
  with pytest.raises(AttributeError, match="looses") as error:
    _ = jaxreg.looses
  assert all(name in str(error.value) for name in jaxreg.__all__)
  assert {"losses", "noise", "calibration", "theory", "paths"} <= set(jaxreg.__all__) <= set(dir(jaxreg))


@pytest.mark.parametrize("name", jaxreg.__all__)
def test_public_modules_show_public_names_only(name):
  module = getattr(jaxreg, name)
  shown = dir(module)
  assert sorted(shown) == sorted(module.__all__)
  assert not [each for each in shown if each.startswith("_") or inspect.ismodule(getattr(module, each))]


@pytest.mark.parametrize("name", sorted(set(jaxreg.__all__) - {"models", "plots", "train"}))
def test_help_shows_the_names_of_types(name):
  """A module whose functions take `ArrayLike` begins with `from __future__ import annotations`."""
  module = getattr(jaxreg, name)
  functions = [getattr(module, each) for each in module.__all__ if inspect.isfunction(getattr(module, each))]
  assert functions or name == "typing"
  unions = {each.__name__ for each in functions if "numpy.bool" in str(inspect.signature(each))}
  assert unions == set()

"""The examples in the docstrings of the functional core and of the papers run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxreg

pytestmark = pytest.mark.thorough

SUBPACKAGES = (
  "losses",
  "noise",
  "penalties",
  "constraints",
  "reparam",
  "ensembles",
  "optim",
  "averaging",
  "augment",
  "adversarial",
  "calibration",
  "flatness",
  "objective",
)


def core_modules():
  yield jaxreg
  for name in ("typing", "paths", "symmetry", *SUBPACKAGES):
    module = importlib.import_module(f"jaxreg.{name}")
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
      yield importlib.import_module(f"jaxreg.{name}.{found.name}")
  for file in sorted((Path(__file__).resolve().parent.parent / "papers").glob("*/_*.py")):
    yield importlib.import_module(f"papers.{file.parent.name}.{file.stem}")


def examples():
  finder = doctest.DocTestFinder(exclude_empty=True)
  for module in core_modules():
    for test in finder.find(module, extraglobs={"jax": jax, "jnp": jnp, "optax": optax}):
      if test.examples:
        yield test


EXAMPLES = {test.name: test for test in examples()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
  # The examples are written for plain use, as a reader would type them.
  with jax.numpy_rank_promotion("allow"):
    runner = doctest.DocTestRunner(verbose=False)
    report: list[str] = []
    result = runner.run(EXAMPLES[name], out=report.append, clear_globs=False)
  assert result.attempted > 0
  assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_every_public_function_has_an_example(subpackage):
  module = importlib.import_module(f"jaxreg.{subpackage}")
  functions = [f for name in module.__all__ if inspect.isfunction(f := getattr(module, name))]
  without = [f.__name__ for f in functions if f"{f.__module__}.{f.__qualname__}" not in EXAMPLES]
  assert not without

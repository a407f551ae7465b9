"""The defaults of every public function and module and of the configuration: a change shows here.

python tests/test_defaults.py     writes `tests/defaults.txt` again
"""

import importlib
import inspect
from pathlib import Path

import jaxreg
from jaxreg import train
from jaxreg.train.step.optimizer import ALIASES

LINEN = ("parent", "name")  # of every module
FILE = Path(__file__).with_name("defaults.txt")


def lines():
  """A line for each public name whose call has defaults that are values, and for each field."""
  for folder in sorted({*jaxreg.__all__} - {"train", "typing"}):
    module = importlib.import_module(f"jaxreg.{folder}")
    for name in sorted(getattr(module, "__all__", ())):
      found = getattr(module, name)
      if not (inspect.isfunction(found) or inspect.isclass(found)):
        continue
      parameters = inspect.signature(found).parameters.values()
      # Fields that a module inherits, and options of Optax, are others' to choose.
      own = inspect.get_annotations(found) if inspect.isclass(found) else {p.name for p in parameters}
      given = [p for p in parameters if p.default is not p.empty and p.name in own and p.name not in LINEN]
      values = [f"{p.name}={getattr(p.default, '__name__', repr(p.default))}" for p in given]
      if values:
        yield f"{folder}.{name}: {', '.join(values)}"
  for field, value in train.flatten(train.base_config()).items():
    if not (field.startswith("optimizer.") and field.split(".")[1] in ALIASES):
      yield f"config.{field} = {value!r}"


def test_the_defaults_are_those_that_are_written_down():
  """`test_recipe.py` asks for the lines of new functions."""
  written = FILE.read_text().splitlines()
  known = {line.partition(" ")[0] for line in written}
  assert [line for line in lines() if line.partition(" ")[0] in known] == written


if __name__ == "__main__":
  FILE.write_text("".join(f"{line}\n" for line in lines()))

"""What a new loss or penalty needs beside its file, asked for all at once."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from test_contract import CASES, ELSEWHERE

from jaxreg.train.registry import KINDS, REGISTRY, infer

ROOT = Path(__file__).resolve().parent.parent
TOOLBOX = (ROOT / "configs/toolbox_digits.py").read_text()
GROUPS = {"losses": "method", "penalties": "regularizers"}
FIRST = {"losses": ("logits", "labels"), "penalties": ("params",)}
# The names of rows and of their functions, which wrappers keep.
ROWS = {
  group: set(REGISTRY[group])
  | {getattr(entry.function, "loss", entry.function).__name__ for entry in REGISTRY[group].values()}
  for group in GROUPS.values()
}
OWN_LEAVES = {"lora_l2"}  # penalties of leaves that none of our networks has
TESTED = {case.function for case in CASES} | set(" ".join(ELSEWHERE.values()).split())


def written(folder):
  """The functions that are exported, and those whose names their files have."""
  exported = importlib.import_module(f"jaxreg.{folder}").__all__
  for path in sorted((ROOT / "jaxreg" / folder).glob("_[a-z]*.py")):
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    yield from (node for node in found if node.name == path.stem[1:] or node.name in exported)


def missing(folder, function):
  """What a function still needs, a line each."""
  name, module = function.name, importlib.import_module(f"jaxreg.{folder}")
  arguments = tuple(argument.arg for argument in function.args.args)
  if name not in module.__all__:
    yield f"jaxreg/{folder}/__init__.py: import it, and list it in `__all__`"
  if f"{folder}.{name}" not in TESTED:
    yield f"tests/cases_{folder}.py: a Case with an oracle in NumPy"
  if arguments[: len(FIRST[folder])] != FIRST[folder] or name in OWN_LEAVES:
    return  # what the trainer reaches in another way
  if name not in ROWS[GROUPS[folder]]:
    yield {
      "losses": "jaxreg/train/methods: a row, such as that of a loss of logits in softmax.py",
      "penalties": "jaxreg/train/registry.py: a row in the group regularizers",
    }[folder]
  if folder == "penalties" and not re.search(rf'"{name}"', TOOLBOX):
    yield "configs/toolbox_digits.py: an entry of TOOLBOX with a weight"


@pytest.mark.parametrize("folder", GROUPS)
def test_what_is_written_is_complete(folder):
  lines = [
    f"{folder}.{function.name}: {need}" for function in written(folder) for need in missing(folder, function)
  ]
  assert not lines, "\n".join([f"{folder} lack:", *lines, "Also needed: a line in CHANGELOG.md."])


@pytest.mark.parametrize("group", sorted({kind.group for kind in KINDS.values()}))
def test_a_row_declares_what_is_inferred_of_an_object_from_outside(group):
  """Except a term's labels, and the held-out part, an option of sources from outside.

  The trainer's decay goes around the optimizers of `optax.contrib`, which have a decay of their own.
  """
  for name, entry in REGISTRY[group].items():
    inferred = infer(group, entry.function, name)
    needs = inferred.needs if entry.kind in ("term", "source") else entry.needs
    if getattr(entry.function, "__module__", "").startswith("optax.contrib"):
      needs = {*needs, *({"weight_decay", "mask"} & set(inferred.needs))}
    assert (inferred.kind, set(inferred.needs)) == (entry.kind, set(needs)), name

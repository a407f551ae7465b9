"""The rooms of the trainer: who may import whom, and who sees a configuration."""

import ast
from pathlib import Path

import runs

TRAINER = runs.ROOT / "jaxreg" / "train"
# From the bottom to the top: a room imports from itself and from the rooms before it.
ROOMS = (
  *("errors", "keys", "entries", "user_modules", "user_cache", "staged", "user_paths", "sealed_tables"),
  *("modules", "methods", "data", "step", "registry", "devices", "config", "run", "assemble"),
  *("finished", "jobs", "estimator", "summary", "cli"),
)
SEE_CONFIGS = ("config", "assemble", "finished", "jobs", "estimator", "summary", "cli")


def room(file):
  return file.relative_to(TRAINER).parts[0].removesuffix(".py")


def imports(file):
  """Each module of the trainer that a file imports, with the names taken from it."""
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxreg.train"):
      for alias in node.names:
        yield f"{node.module}.{alias.name}".split(".")[2:], alias.name


def test_a_room_imports_from_the_rooms_below_it():
  files = [file for file in TRAINER.rglob("*.py") if file.name != "__init__.py" or file.parent != TRAINER]
  assert {room(file) for file in files} == set(ROOMS)
  backwards = [
    f"{file.relative_to(TRAINER)} imports {'.'.join(path)}"
    for file in files
    for path, _ in imports(file)
    if ROOMS.index(path[0]) > ROOMS.index(room(file))
  ]
  assert not backwards


def test_only_the_door_and_what_is_above_it_see_a_configuration():
  files = [file for file in TRAINER.rglob("*.py") if file.parent != TRAINER and room(file) not in SEE_CONFIGS]
  assert len(files) > 40
  assert not [file for file in files if any(name == "Config" for _, name in imports(file))]


def test_no_file_name_occurs_twice():
  names = [file.name for file in TRAINER.rglob("*.py") if file.name != "__init__.py"]
  assert sorted(names) == sorted(set(names))


def test_no_module_has_the_name_of_a_public_function():
  from jaxreg import train

  top = {Path(name).stem for name in TRAINER.glob("*.py")} | {
    folder.name for folder in TRAINER.iterdir() if folder.is_dir()
  }
  assert not top & set(train.__all__)


def test_every_stream_of_random_numbers_has_its_name_in_keys():
  """No other file folds anything into a key of the run or makes a key from its seed."""
  found = [
    str(file.relative_to(TRAINER))
    for file in TRAINER.rglob("*.py")
    if file.name != "keys.py" and "fold_in(" in file.read_text()
  ]
  assert not found

"""The command `jaxreg`: runs `run.py` and its configs, which the wheel carries as they are."""

import sys
import types
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSTALLED = PACKAGE / "_program"  # where the wheel has them; see pyproject.toml


def main() -> None:
  """Becomes `python run.py` with the same arguments; the program's exit status is the command's."""
  folder = INSTALLED if INSTALLED.is_dir() else PACKAGE.parent
  sys.path.insert(0, str(folder))  # as for a script, whose configs import from their folder
  script = folder / "run.py"
  program = sys.modules["__main__"] = types.ModuleType("__main__")
  program.__file__ = str(script)
  exec(compile(script.read_text(), script, "exec"), vars(program))

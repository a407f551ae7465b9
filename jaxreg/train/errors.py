"""Errors that are reported in one line, such as mistakes of the person who runs the program."""

import difflib
import sys
from pathlib import Path


class RunError(Exception):
  """An error that `run.py` prints as one line before it exits with a non-zero status."""


class NothingToSave(RunError):
  """A fault that leaves no good state, or no place to save one."""


def program() -> str:
  """The name that the messages begin with: `jaxreg` for the installed command, otherwise `run.py`."""
  return "jaxreg" if Path(sys.argv[0]).stem == "jaxreg" else "run.py"


def one_line(error: BaseException, limit: int = 300) -> str:
  """The message of an error from another library, as one line of at most `limit` characters."""
  return shortened(" ".join(str(error).split()) or type(error).__name__, limit)


def shortened(text: str, limit: int) -> str:
  """The first `limit` characters, with dots for the rest."""
  return text if len(text) <= limit else f"{text[:limit]}..."


def printable(text: str) -> str:
  """The text with escapes for characters that a terminal would act on: control, and changes of direction.

  Names of files, fields and classes come from other people. Ends of lines are escaped, too.
  """
  return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def of_another_run(group: str, workdir: str, error: RunError) -> RunError:
  """The error of restoring the run in `workdir`, which `group`, a group of fields, names."""
  field = str(error).partition(":")[0]
  where = f"{group}." if field in ("workdir", "checkpoint", "replica") else f"{group}.workdir: {workdir}: "
  return RunError(f"{where}{error}")


def unknown(kind: str, given: object, allowed, *, others: str = "") -> RunError:
  """An error with the given value and the allowed names; `others` ends the list of the names."""
  allowed = sorted(allowed)
  near = difflib.get_close_matches(
    str(given).lower(), {name.lower(): name for name in allowed}, n=1, cutoff=0.5
  )
  hint = next((f"; did you mean {name!r}?" for name in allowed if near and name.lower() == near[0]), "")
  return RunError(f"{kind}: got {given!r}, allowed are {', '.join(allowed)}{others}{hint}")

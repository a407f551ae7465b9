"""Errors that the program reports in one line, such as mistakes of the person who runs it."""

import contextlib
import difflib
import sys
from collections.abc import Generator, Iterable
from pathlib import Path

from jaxreg import _errors

MANY = 12  # longer lists of names hide a suggestion behind them


class RunError(Exception):
  """An error that `run.py` prints as one line before it exits with a non-zero status."""


class ArgumentError(RunError, _errors.ArgumentError):
  """The library's error with the message `ARGUMENT: PROBLEM`, which the program reports in one line."""

  def __str__(self) -> str:
    return ": ".join(filter(None, (self.argument, self.problem)))


def field_error(section: str, error: _errors.ArgumentError) -> RunError:
  """Returns the error of the field `section.ARGUMENT`, for arguments that are the fields of a section."""
  return RunError(f"{section}{'.' if error.argument else ''}{error.argument}: {error.problem}")


@contextlib.contextmanager
def naming(field: str) -> Generator[None]:
  """Names the field of a folder in errors about it, which functions for any run call `workdir`."""
  try:
    yield
  except ArgumentError as error:
    if error.argument != "workdir":
      raise
    raise ArgumentError(field, error.problem) from error


class NothingToSave(RunError):
  """A fault that leaves no good state, or no place to save one."""


def program() -> str:
  """Returns the name that messages begin with: `jaxreg` for the installed command, otherwise `run.py`."""
  return "jaxreg" if Path(sys.argv[0]).stem == "jaxreg" else "run.py"


def one_line(error: BaseException, limit: int = 300) -> str:
  """Returns the message of another library's error as one line of at most `limit` characters."""
  return shortened(" ".join(str(error).split()) or type(error).__name__, limit)


def first_line(error: BaseException, limit: int = 300) -> str:
  """Returns the first line of an error's message, at most `limit` characters."""
  lines = str(error).strip().splitlines()
  return shortened(lines[0] if lines else type(error).__name__, limit)


def shortened(text: str, limit: int) -> str:
  """Returns the first `limit` characters, and dots for the rest."""
  return text if len(text) <= limit else f"{text[:limit]}..."


def printable(text: str) -> str:
  """Escapes characters that a terminal acts on, because other people choose the names of files."""
  return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def unknown(argument: str, name: object, allowed: Iterable[object], *, others: str = "") -> RunError:
  """Returns the error of a name that is not allowed; `others` ends the list of the allowed names."""
  allowed = sorted(map(str, allowed))
  lower = {each.lower(): each for each in allowed}
  near = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
  hint = f"; did you mean {lower[near[0]]!r}?" if near else ""
  got, names = f"got {shortened(repr(name), 80)}", f"allowed are {', '.join(allowed)}{others}"
  # The suggestion comes first where the list would hide it.
  first = hint and len(allowed) > MANY
  return ArgumentError(argument, f"{got}{hint} {names}" if first else f"{got}, {names}{hint}")

"""Mistakes of the person who runs the program, told in one line."""

import difflib


class RunError(Exception):
  """What `run.py` prints as one line before it exits with a non-zero status."""


class NothingToSave(RunError):
  """A fault that leaves no good state, or no place to save one."""


def one_line(error: BaseException, limit: int = 300) -> str:
  """The message of an error of somebody else's, made one line of at most `limit` characters."""
  message = " ".join(str(error).split()) or type(error).__name__
  return message if len(message) <= limit else f"{message[:limit]}..."


def unknown(kind: str, given: object, allowed) -> RunError:
  """Names what was given and what is allowed, the nearest first."""
  allowed = sorted(allowed)
  near = difflib.get_close_matches(
    str(given).lower(), {name.lower(): name for name in allowed}, n=1, cutoff=0.5
  )
  hint = next((f"; did you mean {name!r}?" for name in allowed if near and name.lower() == near[0]), "")
  return RunError(f"{kind}: got {given!r}, allowed are {', '.join(allowed)}{hint}")

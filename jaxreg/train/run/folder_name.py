"""The default work directory of a command, named after its config and its overrides."""

import hashlib
import json
from pathlib import PurePath

from etils.epath import Path

from jaxreg.train.config.fields import row_of
from jaxreg.train.entries import Options
from jaxreg.train.user_paths import split_variant

# Scopes of fields in which two calls on a work directory may differ: a training, an evaluation.
TRAINS = frozenset({"call"})
PREDICTS = TRAINS | {"prediction"}
EVALUATES = PREDICTS | {"place"}


def default_workdir(config_path: str, overrides: Options) -> Path:
  """Names the default folder: `runs/<config>`, with `-<hash>` if fields were overridden.

  An evaluation looks for the existing folder of a run with the same overrides, where overrides that belong to
  the evaluation do not count.
  """
  if overrides.get("job") not in ("evaluate", "predict", "export", "report"):
    return _named(config_path, overrides, TRAINS)
  folders = [_named(config_path, overrides, free) for free in (TRAINS, PREDICTS, EVALUATES)]
  return next((folder for folder in folders if (folder / "config.json").is_file()), folders[-1])


def _named(config_path: str, overrides: Options, free: frozenset[str]) -> Path:
  path, _, argument = split_variant(config_path)
  name = PurePath(path).stem + (f"-{argument}" if argument else "")
  if overrides.get("job") == "compare":
    name += "-compare"  # next to the run that the same config trains alone
  changed = {field: value for field, value in sorted(overrides.items()) if row_of(field).scope not in free}
  return Path("runs") / _one_folder(f"{name}-{short_hash(changed)}" if changed else name)


def _one_folder(name: str) -> str:
  """Makes `name` the name of one folder; a hash tells apart names with replaced characters."""
  safe = "".join(c if c.isprintable() and c not in "/\\*?[" else "_" for c in name)[:150]
  if safe != name or not safe.strip("."):
    safe += f"-{short_hash(name)}"
  return safe


def short_hash(value: object) -> str:
  """Hashes a value, such as a table of fields, to eight digits."""
  return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]

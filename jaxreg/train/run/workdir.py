"""The work directory: which run it belongs to, and the files that describe that run."""

import contextlib
import functools
import importlib.metadata
import json
import platform
import secrets
import sys

import jax
from etils.epath import Path

import jaxreg
from jaxreg._atomic_files import make_folder, read_bytes, write_json
from jaxreg.train.config.choices import add_options, base_config, flatten, relevant
from jaxreg.train.config.fields import row_of
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.errors import ArgumentError, RunError, one_line, printable, shortened
from jaxreg.train.run.folder_name import TRAINS
from jaxreg.train.run.lock import locked
from jaxreg.train.run.log import progress, say
from jaxreg.train.run.manifest import check_path, good_steps
from jaxreg.train.sealed_tables import Table, parse_table, run_token, sealed

SHOWN = 8  # differences in a message
MERGE = "merge.json"  # the first file of `job = merge`
FORMAT = 6  # of a work directory; a change that an older or newer version cannot read gets the next number


def claim(workdir: Path, fields: Table, data: DataSpec, num_steps: int) -> str | None:
  """Claims `workdir` for a flat configuration, or checks that it belongs to it.

  Returns a remark if the run continues with another length or wrapping, or in another environment.
  """
  check_path(workdir)
  if workdir.exists() and not workdir.is_dir():
    raise RunError(f"--workdir: {workdir} is a file; give a folder")
  if (workdir / MERGE).is_file():
    raise RunError(
      f"--workdir: {workdir} is a merge of runs and is not trained; give another, and start there from its "
      "backbone by pretrained.workdir"
    )
  remark, begun, run = None, (workdir / "config.json").is_file(), secrets.token_hex(16)
  if begun and not _is_untouched(workdir):
    changed = check_same(workdir, fields, data)
    if not changed:
      return "; ".join(filter(None, [_moved(workdir, fields), _other_environment(workdir)])) or None
    latest = max(good_steps(workdir), default=0)
    if latest > num_steps:
      raise RunError(f"epochs: {workdir} is at step {latest} already, past the {num_steps} asked for")
    other, run = changed.keys() == {"parallel"}, run_token(workdir)
    if other and (workdir / "results.json").is_file():
      raise RunError(f"--workdir: {workdir} belongs to a finished run: {_show(changed)}; give another")
    remark = f"continuing under the new {'wrapping' if other else 'schedule'}: {_show(changed)}"
    remark = "; ".join(filter(None, [remark, _moved(workdir, fields), _other_environment(workdir)]))
  elif not begun and _holds_results(workdir):
    raise RunError(f"--workdir: {workdir} has results of another program, and no config.json; give another")
  try:
    make_folder(workdir)
    # The lock protects the files of a run at work here, which may not have saved a checkpoint yet.
    with locked(workdir, say):
      (workdir / "results.json").unlink(missing_ok=True)
      describe(workdir, fields, data, run)
  except OSError as error:
    raise RunError(f"--workdir: {workdir} cannot be written ({error}); give another") from error
  return remark


def claim_and_lock(
  workdir: Path,
  fields: Table,
  data: DataSpec,
  num_steps: int,
  held: contextlib.ExitStack,
  *,
  part: str = "",
) -> Table:
  """Claims `workdir` and locks it until `held` ends.

  Returns the `results` of a finished run, or a `remark`, the `run`'s token and the `lock`'s, and the `start`.
  """
  remark = claim(workdir, fields, data, num_steps)
  if (workdir / "results.json").exists():
    results = read(workdir, "results.json")
    results.pop("goodput", None)  # times are not results: they differ between equal runs
    again = "to start over, remove it or give another --workdir"
    tell = progress if part else functools.partial(print, file=sys.stderr)
    tell(f"nothing left to do: {printable(str(workdir))} has its results; {again}")
    return {"results": results}
  lock = held.enter_context(locked(workdir, say))
  if check_same(workdir, fields, data):  # another run claimed it before it was locked
    raise RunError(f"--workdir: another run has begun in {workdir}; give another")
  start = max(good_steps(workdir), default=0)
  return {"remark": remark, "run": run_token(workdir), "lock": lock, "start": start}


def describe(
  workdir: Path, fields: Table, data: DataSpec, run: str, *, missing_only: bool = False
) -> list[str]:
  """Writes the files that say which run this is; the last one marks the folder. Returns their names.

  `run` is the token of the run, which `config.json` holds and the seals of the other files cover.
  """
  tables = {
    "data.json": data.table(),
    "environment.json": _environment(),
    "config.json": {"format": FORMAT, "run": run, **fields},
  }
  written = [name for name in tables if not (missing_only and (workdir / name).exists())]
  for name in written:
    write_json(workdir / name, sealed(tables[name], "" if name == "config.json" else run))
  return written


def check_same(
  workdir: Path, fields: Table, data: DataSpec, free: frozenset[str] = TRAINS
) -> dict[str, tuple[object, object]]:
  """Checks that `workdir` belongs to this data and to this configuration, except for fields of these scopes.

  Returns the fields of the scope `length` that differ, with their old and new values. Data with the same
  checksums may lie at another place.
  """
  difference = _differences(_saved(workdir, fields), relevant(fields), free)
  other_data = _differences(flatten(read_data(workdir).table()), flatten(data.table()), free)
  if data.crc32 and not other_data:
    difference = {field: pair for field, pair in difference.items() if row_of(field).scope != "place"}
  length = [field for field in difference if row_of(field).scope == "length"]
  changed = {field: difference.pop(field) for field in length}
  if difference:
    raise ArgumentError(
      "workdir", f"{workdir} belongs to another configuration: {_show(difference)}; give another"
    )
  if other_data:
    raise ArgumentError("workdir", f"{workdir} was made with other data: {_show(other_data)}; give another")
  return changed


def check_mergeable(workdir: Path, fields: Table, data: DataSpec) -> None:
  """Checks that the run in `workdir` has the network, data and method of a configuration."""
  place = frozenset({"call", "prediction", "place", "length"})
  groups = ("data.", "model.", "method.")
  old, new = (
    {field: value for field, value in each.items() if field.startswith(groups)}
    for each in (_saved(workdir, fields), relevant(fields))
  )
  difference = _differences(old, new, place)
  difference |= _differences(flatten(read_data(workdir).table()), flatten(data.table()), place)
  if difference:
    raise ArgumentError(
      "workdir",
      f"{workdir} has another network, data or method: {_show(difference)}; give runs that differ in their "
      "training only",
    )


def _saved(workdir: Path, fields: Table) -> Table:
  """Reads the fields that `workdir` was trained with; fields added since then take their default."""
  return relevant({**flatten(add_options(base_config(), fields)), **read_config(workdir)})


def _moved(workdir: Path, fields: Table) -> str:
  """Returns a remark if the same data lie at another place than when the run began, or ""."""
  moved = _differences(_saved(workdir, fields), relevant(fields), TRAINS)
  moved = {field: pair for field, pair in moved.items() if row_of(field).scope == "place"}
  return f"the same data are at another place: {_show(moved)}" if moved else ""


def read(workdir: Path, name: str) -> Table:
  """Reads a JSON file of the work directory."""
  file = workdir / name
  again = "remove it, and the same command makes it again"
  hint = again if name == "results.json" else "give another"
  try:
    if name == "config.json":  # people may edit it, and then remove its seal
      return parse_table(read_bytes(file))
    return parse_table(read_bytes(file), run=run_token(workdir), required=True)
  except (FileNotFoundError, NotADirectoryError):
    problem = f"{workdir} has no {name}: nothing was trained there; train, or give another"
    raise ArgumentError("workdir", problem) from None
  except ValueError as error:
    raise ArgumentError("workdir", f"{file} is damaged ({one_line(error)}); {hint}") from error
  except OSError as error:
    raise ArgumentError("workdir", f"{file} cannot be read ({one_line(error)}); {hint}") from error


def read_config(workdir: Path) -> Table:
  """Reads the flat configuration that `workdir` was trained with."""
  fields = read(workdir, "config.json")
  if (version := fields.pop("format", None)) != FORMAT:
    raise ArgumentError(
      "workdir",
      f"{workdir} is of another version of jaxreg (format {version}, and this version reads "
      f"{FORMAT}); give another",
    )
  if not isinstance(fields.pop("run", None), str):
    raise ArgumentError("workdir", f"{workdir / 'config.json'} is damaged (it has no run); give another")
  return fields


def read_data(workdir: Path) -> DataSpec:
  """Reads the description of the data that `workdir` was trained with."""
  table = read(workdir, "data.json")
  try:
    return DataSpec.from_table(table)
  except KeyError as error:
    problem = f"{workdir / 'data.json'} is damaged (it has no {error.args[0]}); give another"
    raise ArgumentError("workdir", problem) from error


def _holds_results(workdir: Path) -> bool:
  """Tells whether there are results or checkpoints; a removed folder may leave unfinished ones."""
  results, checkpoints = workdir / "results.json", workdir / "checkpoints"
  if not checkpoints.is_dir():
    return results.exists() or checkpoints.exists()
  left = list(checkpoints.iterdir())
  unfinished = bool(left) and all(".orbax-checkpoint-tmp" in entry.name for entry in left)
  return results.exists() or not unfinished


def _is_untouched(workdir: Path) -> bool:
  """Tells whether the run that began here has saved nothing, so that another run may take the folder."""
  checkpoints = workdir / "checkpoints"
  return not (workdir / "results.json").exists() and not (checkpoints.is_dir() and any(checkpoints.iterdir()))


def _differences(old: Table, new: Table, free: frozenset[str]) -> dict[str, tuple[object, object]]:
  old, new = json.loads(json.dumps([old, new]))  # where tuples are lists
  fields = [field for field in sorted({*old, *new}) if row_of(field).scope not in free]
  return {field: (old.get(field), new.get(field)) for field in fields if old.get(field) != new.get(field)}


def _show(differences: dict[str, tuple[object, object]]) -> str:
  # The other fields often differ because a name does.
  first = sorted(differences.items(), key=lambda item: not item[0].endswith(".name"))
  shown = [
    f"{field} was {shortened(repr(old), 80)}, is {shortened(repr(new), 80)}"
    for field, (old, new) in first[:SHOWN]
  ]
  more = len(differences) - len(shown)
  return ", ".join(shown) + (f", and {more} more differ" if more else "")


def _other_environment(workdir: Path) -> str | None:
  """Says in one line how the environment differs from the run's first; None if it does not."""
  if not (workdir / "environment.json").exists():
    return None
  try:
    before = read(workdir, "environment.json")
  except RunError as error:
    return f"{str(error).partition(';')[0]}: whether the versions are the same is not known"
  differ = [
    f"{name} was {printable(_in_words(before[name]))}, is {_in_words(now)}"
    for name, now in _environment().items()
    if name in before and before[name] != now
  ]
  return f"the run began in another environment: {', '.join(differ)}" if differ else None


def _in_words(value: object) -> str:
  return f"{len(value)} times {value[0]}" if isinstance(value, list) and value else str(value)


def _environment() -> Table:
  packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
  return {
    "jaxreg": jaxreg.__version__,
    "python": platform.python_version(),
    **{name: importlib.metadata.version(name) for name in packages},
    "devices": [str(device) for device in jax.devices()],
    "processes": jax.process_count(),
  }

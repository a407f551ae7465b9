"""Manifests: each one shows that a checkpoint is complete, with the SHA-256 of every file.

Orbax restores a flipped bit without an error. So each committed step gets `<step>.json` in the folder
`manifests`: the digests, the metrics of the step, and the sums of the training record that it interrupts. A
checkpoint that does not match, or that belongs to another run, is not used.
"""

import concurrent.futures
import hashlib
import math
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsIndex

from etils.epath import Path

from jaxreg._atomic_files import (
  absolute,
  check_no_pipe,
  files_below,
  move_folder,
  read_bytes,
  remove,
  sync_all,
  write_json,
)
from jaxreg.train.errors import ArgumentError
from jaxreg.train.sealed_tables import Json, Table, parse_table, run_token, sealed
from jaxreg.train.step.metrics import chosen_metric


def folders(workdir: Path) -> tuple[Path, Path]:
  """Returns the folder of the checkpoints and the folder of their manifests."""
  workdir = absolute(workdir)
  return workdir / "checkpoints", workdir / "manifests"


def check_path(workdir: Path, characters: str = "*?[\\") -> None:
  """Checks that no character of the path makes Orbax write or read another folder, or none.

  Orbax looks for the parts of a checkpoint by a glob of its whole path; TensorStore takes a backslash for a
  slash, and paths in UTF-8 only.
  """
  path = str(absolute(workdir))
  if any("\ud800" <= letter <= "\udfff" for letter in path):  # Python's form of other bytes
    raise ArgumentError("--workdir", f"{path!r} is not UTF-8 text, and no checkpoint can be saved there")
  if wrong := [character for character in characters if character in path]:
    raise ArgumentError(
      "--workdir",
      f"Orbax reads {' and '.join(wrong)} in {path} in its own way, and no checkpoint could be read again; "
      f"give a path without {' '.join(characters)}",
    )


def good_steps(workdir: Path) -> dict[int, dict[str, float] | None]:
  """Returns the steps with good checkpoints and their metrics; it only reads, so a training may go on."""
  return {step: seen.metrics for step, seen in _inspected(workdir).items() if seen.fault is None}


def saved_sums(workdir: Path, step: int) -> Json:
  """Returns the sums that were saved with a good checkpoint."""
  return _read_manifest(folders(workdir)[1] / f"{step}.json", run_token(workdir))["sums"]


def pick_step(workdir: Path, checkpoint: str | int, metric: str) -> int:
  """Returns the step of the `latest` good checkpoint, of the `best` one by a metric, or a step itself."""
  inspected = _inspected(workdir)
  steps = {step: seen.metrics for step, seen in inspected.items() if seen.fault is None}
  if isinstance(checkpoint, SupportsIndex) and not isinstance(checkpoint, bool):
    checkpoint = int(checkpoint)
    if checkpoint not in steps:
      kept = ", ".join(map(str, sorted(steps))) or "none"
      problem = f"{workdir} has no good checkpoint of step {checkpoint}; there is {kept}"
      raise ArgumentError("checkpoint", problem)
    return checkpoint
  if checkpoint == "best":
    values = {step: metrics or {} for step, metrics in steps.items()}
    chosen = {step: each.get(chosen_metric(metric, each)) for step, each in values.items()}
    measured = {step: value for step, value in chosen.items() if value is not None}
    if measured:
      best = min(measured, key=lambda step: (measured[step], -step))  # the later of equals
      name, most = chosen_metric(metric, steps[best] or {}), measured[best]
      lost = [step for step, seen in inspected.items() if seen.fault and seen.at_most(name, most)]
      _warn_of(workdir, inspected, lost, best)
      return best
    if steps:
      problem = f"{workdir} has no checkpoint yet that was measured on the val split; give 'latest'"
      raise ArgumentError("checkpoint", problem)
  elif checkpoint != "latest":
    raise ArgumentError("checkpoint", f"must be 'latest', 'best' or a step, got {checkpoint!r}")
  if not steps:
    faults = f": {_unusable(inspected, [*inspected])}; train again" if inspected else "; train first"
    raise ArgumentError("workdir", f"{workdir} has no good checkpoint{faults}, or give another")
  latest = max(steps)
  _warn_of(workdir, inspected, [step for step in inspected if step > latest], latest)
  return latest


def _warn_of(workdir: Path, inspected: "dict[int, _Inspected]", lost: list[int], used: int) -> None:
  """Warns of the steps `lost`, which would or might have been picked."""
  if lost:
    warnings.warn(f"{workdir}: {_unusable(inspected, lost)}; step {used} is used", stacklevel=4)


def _unusable(inspected: "dict[int, _Inspected]", lost: list[int]) -> str:
  """Says which of the checkpoints `lost` is the last one, and what is wrong with it."""
  others = f", and {len(lost) - 1} more," if len(lost) > 1 else ""
  return f"the checkpoint of step {max(lost)}{others} cannot be used ({inspected[max(lost)].fault})"


def write_manifest(
  workdir: Path, step: int, metrics: dict[str, float] | None, sums: Json = None, run: str = ""
) -> None:
  """Writes the manifest of a checkpoint on disk, and removes the manifests of deleted checkpoints.

  `sums` are JSON that a run which continues gets back; `run` is the token of the run.
  """
  root, manifests = folders(workdir)
  folder = root / str(step)
  sync_all(folder)
  digests = _digests(files_below(folder))
  # Sealed, so that a flipped bit in the manifest cannot pass for a better metric.
  write_json(manifests / f"{step}.json", sealed({"files": digests, "metrics": metrics, "sums": sums}, run))
  kept = {folder.name for folder in _step_folders(root)}
  for manifest in manifests.glob("*.json"):
    if manifest.stem not in kept:
      manifest.unlink(missing_ok=True)


def clean(workdir: Path, run: str) -> dict[int, dict[str, float] | None]:
  """Removes checkpoints that a kill left half saved or deleted; sets damaged ones aside with a warning.

  Checkpoints of another `run` are damaged ones. Returns the steps of the good ones, with their metrics.
  """
  (root, manifests), set_aside = folders(workdir), workdir / "damaged_checkpoints"
  inspected = {folder: _inspect(folder, manifests, run) for folder in _step_folders(root)}
  good = {int(folder.name): seen.metrics for folder, seen in inspected.items() if seen.fault is None}
  newest_good = max(good, default=None)
  for folder, (fault, _) in inspected.items():
    if fault is None:
      continue
    # A kill leaves the newest checkpoint without manifest, or an older one half deleted; neither is a loss.
    of_a_kill = fault == NO_MANIFEST or (fault == FILES_MISSING and int(folder.name) < (newest_good or 0))
    if newest_good is not None and of_a_kill:
      remove(folder)
      continue
    target = set_aside / folder.name
    move_folder(folder, target)
    warnings.warn(f"checkpoint {folder.name} is damaged ({fault}); moved to {target}, not used", stacklevel=3)
  return good


STEP = "0|[1-9][0-9]*"  # the name of a checkpoint
NO_MANIFEST, FILES_MISSING = "it has no manifest", "files of it are missing"


class _Inspected(NamedTuple):
  """The fault of a checkpoint, None for a good one; and its manifest, None where it cannot be read."""

  fault: str | None
  manifest: Table | None = None

  @property
  def metrics(self) -> dict[str, float] | None:
    """The metrics saved with the checkpoint, None if it was not measured."""
    return None if self.manifest is None else self.manifest["metrics"]

  def at_most(self, metric: str, value: float) -> bool:
    """Tells whether a metric may have been at most this value."""
    return self.manifest is None or (self.metrics or {}).get(metric, math.inf) <= value


def _inspected(workdir: Path) -> dict[int, _Inspected]:
  """Inspects the checkpoint of each step that has one, or that has a manifest."""
  root, manifests = folders(workdir)
  run, names = run_token(workdir), {folder.name for folder in _step_folders(root)}
  names |= {file.stem for file in manifests.glob("*.json") if re.fullmatch(STEP, file.stem)}
  return {int(name): _inspect(root / name, manifests, run) for name in names}


def _inspect(folder: Path, manifests: Path, run: str) -> _Inspected:
  """Returns what is wrong with a checkpoint, if anything."""
  manifest = None
  try:
    manifest = _read_manifest(manifests / f"{folder.name}.json", run)
    expected = manifest["files"]
    files = files_below(folder)
    if expected.keys() - files.keys():
      return _Inspected(FILES_MISSING, manifest)
    if files.keys() - expected.keys():
      return _Inspected("it has files that were not saved", manifest)
    wrong = [name for name, digest in _digests(files).items() if digest != expected[name]]
  except FileNotFoundError:
    return _Inspected(NO_MANIFEST if manifest is None else FILES_MISSING, manifest)
  except (OSError, ValueError) as error:
    what = "its manifest" if manifest is None else "it"
    return _Inspected(f"{what} cannot be read: {error}", manifest)
  return _Inspected(f"{wrong[0]} does not match its checksum" if wrong else None, manifest)


def _read_manifest(file: Path, run: str) -> Table:
  """Reads a manifest; raises ValueError if the file is damaged or is not one."""
  manifest = parse_table(read_bytes(file), run=run, required=True)
  files, metrics = manifest.get("files"), manifest.get("metrics")
  metrics = {} if metrics is None else metrics
  tables = isinstance(files, dict) and isinstance(metrics, dict)
  if not tables or not all(isinstance(value, int | float) for value in metrics.values()):
    raise ValueError("it is not a table of files and metrics")
  return manifest


def _step_folders(root: Path) -> list[Path]:
  try:
    steps = [folder for folder in root.iterdir() if re.fullmatch(STEP, folder.name)]
  except (FileNotFoundError, NotADirectoryError):
    return []
  return sorted((folder for folder in steps if folder.is_dir()), key=lambda folder: -int(folder.name))


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
  """Returns the SHA-256 of each file by its name; a bucket serves several files at once faster."""
  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    return dict(zip(files, threads.map(_sha256, files.values()), strict=True))


def _sha256(file: Path) -> str:
  stream: Any  # epath gives it no type that `file_digest` takes
  check_no_pipe(file)
  with file.open("rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()

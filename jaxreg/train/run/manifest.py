"""Manifests: each one shows that a checkpoint is complete, with the SHA-256 of every file.

Orbax restores a flipped bit without an error. So each committed step gets `<step>.json` in the folder
`manifests`, with the digests and the metrics of the step. A checkpoint that does not match is not used.
"""

import hashlib
import re
import shutil
import warnings
from pathlib import Path
from typing import SupportsIndex

from jaxreg._atomic_files import sync_all, write_json
from jaxreg.train.errors import ArgumentError
from jaxreg.train.sealed_tables import Table, digest, parse_table, sealed
from jaxreg.train.step.metrics import chosen_metric


def folders(workdir: Path) -> tuple[Path, Path]:
  """Returns the folder of the checkpoints and the folder of their manifests."""
  workdir = Path(workdir).absolute()
  return workdir / "checkpoints", workdir / "manifests"


def good_steps(workdir: Path) -> dict[int, dict[str, float] | None]:
  """Returns the steps with good checkpoints and their metrics; it only reads, so a training may go on."""
  root, manifests = folders(workdir)
  inspected = {int(folder.name): _inspect(folder, manifests) for folder in _step_folders(root)}
  return {step: metrics for step, (fault, metrics) in inspected.items() if fault is None}


def pick_step(workdir: Path, checkpoint: str | int, metric: str) -> int:
  """Returns the step of the `latest` good checkpoint, of the `best` one by a metric, or a step itself."""
  steps = good_steps(workdir)
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
      return min(measured, key=lambda step: (measured[step], -step))  # the later of equals
    if steps:
      problem = f"{workdir} has no checkpoint yet that was measured on the val split; give 'latest'"
      raise ArgumentError("checkpoint", problem)
  elif checkpoint != "latest":
    raise ArgumentError("checkpoint", f"must be 'latest', 'best' or a step, got {checkpoint!r}")
  if not steps:
    raise ArgumentError("workdir", f"{workdir} has no good checkpoint; train first, or give another")
  return max(steps)


def seal(workdir: Path, step: int) -> str:
  """Returns the digest of a good checkpoint with its metrics, which identifies the training."""
  return digest(_read_manifest(folders(workdir)[1] / f"{step}.json"))


def write_manifest(workdir: Path, step: int, metrics: dict[str, float] | None) -> None:
  """Writes the manifest of a checkpoint on disk, and removes the manifests of deleted checkpoints."""
  root, manifests = folders(workdir)
  folder = root / str(step)
  sync_all(folder)
  digests = {str(file.relative_to(folder)): _sha256(file) for file in _files(folder)}
  # Sealed, so that a flipped bit in the manifest cannot pass for a better metric.
  write_json(manifests / f"{step}.json", sealed({"files": digests, "metrics": metrics}))
  for manifest in manifests.glob("*.json"):
    if not (root / manifest.stem).is_dir():
      manifest.unlink()


def clean(workdir: Path) -> None:
  """Removes checkpoints that a kill left half saved or deleted; sets damaged ones aside with a warning."""
  (root, manifests), set_aside = folders(workdir), workdir / "damaged_checkpoints"
  inspected = [(folder, *_inspect(folder, manifests)) for folder in _step_folders(root)]
  newest_good = max((int(folder.name) for folder, fault, _ in inspected if fault is None), default=None)
  for folder, fault, _ in inspected:
    if fault is None:
      continue
    # A kill leaves the newest checkpoint without manifest, or an older one half deleted; neither is a loss.
    of_a_kill = fault == NO_MANIFEST or (fault == FILES_MISSING and int(folder.name) < (newest_good or 0))
    if newest_good is not None and of_a_kill:
      shutil.rmtree(folder)
      continue
    set_aside.mkdir(exist_ok=True)
    target = set_aside / folder.name
    if target.exists():
      shutil.rmtree(target)
    folder.rename(target)
    warnings.warn(f"checkpoint {folder.name} is damaged ({fault}); moved to {target}, not used", stacklevel=3)


NO_MANIFEST, FILES_MISSING = "it has no manifest", "files of it are missing"


def _inspect(folder: Path, manifests: Path) -> tuple[str | None, dict[str, float] | None]:
  """Returns the fault of a checkpoint, None for a good one, and the metrics saved with it."""
  try:
    manifest = _read_manifest(manifests / f"{folder.name}.json")
    expected = manifest["files"]
    files = {str(file.relative_to(folder)): file for file in _files(folder)}
    if expected.keys() - files.keys():
      return FILES_MISSING, None
    if files.keys() - expected.keys():
      return "it has files that were not saved", None
    wrong = [name for name, file in files.items() if _sha256(file) != expected[name]]
  except FileNotFoundError as error:
    return (NO_MANIFEST if str(error.filename).endswith(".json") else FILES_MISSING), None
  except (OSError, ValueError) as error:
    return f"its manifest cannot be read: {error}", None
  return (f"{wrong[0]} does not match its checksum" if wrong else None), manifest["metrics"]


def _read_manifest(file: Path) -> Table:
  """Reads a manifest; raises ValueError if the file is damaged or is not one."""
  if file.exists() and not file.is_file():
    raise ValueError("it is not a file")  # a pipe would be waited for
  manifest = parse_table(file.read_bytes(), required=True)
  files, metrics = manifest.get("files"), manifest.get("metrics")
  metrics = {} if metrics is None else metrics
  tables = isinstance(files, dict) and isinstance(metrics, dict)
  if not tables or not all(isinstance(value, int | float) for value in metrics.values()):
    raise ValueError("it is not a table of files and metrics")
  return manifest


def _step_folders(root: Path) -> list[Path]:
  if not root.is_dir():
    return []
  steps = (folder for folder in root.iterdir() if re.fullmatch("0|[1-9][0-9]*", folder.name))
  return sorted((folder for folder in steps if folder.is_dir()), key=lambda folder: -int(folder.name))


def _files(folder: Path) -> list[Path]:
  return sorted(file for file in folder.rglob("*") if file.is_file())


def _sha256(file: Path) -> str:
  with open(file, "rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()

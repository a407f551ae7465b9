"""Checkpoints that are known to be whole: Orbax writes them, a SHA-256 of every file vouches for them.

Orbax restores a flipped bit without a word. So each committed step gets a manifest, `<step>.json` in the
folder beside it, with the digest of every file and the metrics of that step; what does not match is not used.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1

from jaxreg.train.errors import RunError
from jaxreg.train.processes import first, is_first

ocp: Any = v1  # Its classes do not satisfy its own protocols for a type checker.


class Checkpoints:
  """The checkpoints of a work directory, open for writing; a context manager that finishes the last save.

  Opening it removes what a kill left half saved or half deleted, and sets aside damaged ones, with a warning,
  so that what remains is good. Of several processes all save, and the first one vouches.

  Attributes:
    latest: the last step saved, or None.
    measured: whether it was saved with metrics.
  """

  def __init__(self, workdir: Path, *, keep: int, best: str):
    self._root, self._manifests = _folders(workdir)
    first(lambda: _clean(self._root, self._manifests, workdir / "damaged_checkpoints"))
    policies = ocp.training.preservation_policies
    by_best = policies.BestN(
      get_metric_fn=lambda metrics: metrics[best], reverse=True, n=1, keep_checkpoints_without_metrics=False
    )
    try:
      self._orbax = ocp.training.Checkpointer(
        self._root,
        save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
        preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), by_best]),
        cleanup_tmp_directories=True,
      )
    except Exception as error:  # Orbax raises many kinds here, of a folder that it cannot make sense of.
      raise RunError(
        f"{self._root}: the checkpoints cannot be opened ({error}); move that folder away"
      ) from error
    there = first(lambda: list(good_steps(workdir).items()))  # in JSON, no keys are numbers
    self.latest, metrics = max(there, default=(None, None), key=lambda item: item[0])
    self.measured = metrics is not None
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._saving: concurrent.futures.Future | None = None

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
    at_once = kind is KeyboardInterrupt  # what is half written has no manifest, and will be removed
    try:
      if not at_once:
        self.wait()
    except KeyboardInterrupt:
      at_once = True
      raise
    finally:
      self._thread.shutdown(wait=not at_once, cancel_futures=at_once)
      # After a failed save it fails once more, over the error that tells why.
      with contextlib.suppress(Exception):
        if not at_once:
          self._orbax.close()

  def save(self, step: int, state: Any, metrics: dict[str, float] | None) -> None:
    """Starts saving `state`, which may be donated right after; does nothing if that step is there.

    One that is there without metrics is replaced when they are known.
    """
    again = step == self.latest
    if again and (self.measured or metrics is None):
      return
    self.wait()
    self.latest, self.measured = step, metrics is not None
    if again and is_first():
      (self._manifests / f"{step}.json").unlink(missing_ok=True)
    try:
      response = self._orbax.save_checkpointables_async(
        step, {"state": state}, force=True, overwrite=again, metrics=metrics
      )
    except Exception as error:
      raise self._cannot_save(error) from error

    def finish() -> None:
      if response is not None:
        response.result()
      if not is_first():
        return
      digests = {
        str(file.relative_to(self._root / str(step))): _sha256(file)
        for file in _files(self._root / str(step))
      }
      write_json(self._manifests / f"{step}.json", _sealed({"files": digests, "metrics": metrics}))
      for manifest in self._manifests.glob("*.json"):
        if not (self._root / manifest.stem).is_dir():
          manifest.unlink()

    self._saving = self._thread.submit(finish)

  def wait(self) -> None:
    """Waits until what was saved is on disk, with its manifest."""
    if self._saving is not None:
      saving, self._saving = self._saving, None
      try:
        saving.result()
      except Exception as error:
        raise self._cannot_save(error) from error

  def _cannot_save(self, error: Exception) -> RunError:
    # Orbax wraps what the file system said in kinds of its own.
    reason = " ".join(str(error).split())[:200]
    return RunError(f"{self._root}: a checkpoint cannot be saved ({reason}); those before are kept")


def good_steps(workdir: Path) -> dict[int, dict[str, float] | None]:
  """The steps whose checkpoints are whole, with their metrics; reads only, also beside a running program."""
  root, manifests = _folders(workdir)
  inspected = {int(folder.name): _inspect(folder, manifests) for folder in _step_folders(root)}
  return {step: metrics for step, (fault, metrics) in inspected.items() if fault is None}


def seal(workdir: Path, step: int) -> str:
  """The digest of a good checkpoint with its metrics: of another training, another one."""
  manifest = json.loads((_folders(workdir)[1] / f"{step}.json").read_text())
  return manifest["seal"]


def restore(workdir: Path, step: int, like: Any) -> Any:
  """The state saved at `step`, with the structure, shapes, dtypes and shardings of the abstract state `like`.

  Raises:
    RunError: if the checkpoint does not fit.
  """
  folder = _folders(workdir)[0] / str(step)
  try:
    return ocp.load_checkpointables(folder, {"state": like})["state"]
  except Exception as error:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise RunError(f"{folder}: the checkpoint does not fit this configuration ({first_line})") from error


def abstract(state: Any, sharding: Any) -> Any:
  """`state` as shapes and dtypes, to be restored with one sharding, or with a tree of them."""
  like = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
  return jax.tree.map(like, state, jax.tree.broadcast(sharding, state))


def write_json(file: Path, value: Any) -> None:
  """Writes JSON so that the file is either the old one or the new one, whatever happens."""
  file.parent.mkdir(parents=True, exist_ok=True)
  partial = file.with_name(file.name + ".partial")
  with open(partial, "w") as stream:
    json.dump(value, stream, indent=2)
    stream.write("\n")
    stream.flush()
    os.fsync(stream.fileno())
  partial.replace(file)


def _folders(workdir: Path) -> tuple[Path, Path]:
  workdir = Path(workdir).absolute()
  return workdir / "checkpoints", workdir / "manifests"


def _clean(root: Path, manifests: Path, set_aside: Path) -> None:
  inspected = [(folder, *_inspect(folder, manifests)) for folder in _step_folders(root)]
  newest_good = max((int(folder.name) for folder, fault, _ in inspected if fault is None), default=None)
  for folder, fault, _ in inspected:
    if fault is None:
      continue
    # A kill leaves a newest one without manifest, or an older one half deleted: nothing that is missed.
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
  """What is wrong with a checkpoint, None if it is whole; and the metrics that were saved with it."""
  try:
    manifest = _read_manifest(manifests / f"{folder.name}.json")
    expected = manifest["files"]
    found = {str(file.relative_to(folder)): file for file in _files(folder)}
    if expected.keys() - found.keys():
      return FILES_MISSING, None
    if found.keys() - expected.keys():
      return "it has files that were not saved", None
    wrong = [name for name, file in found.items() if _sha256(file) != expected[name]]
  except FileNotFoundError as error:
    return (NO_MANIFEST if str(error.filename).endswith(".json") else FILES_MISSING), None
  except (OSError, ValueError) as error:
    return f"its manifest cannot be read: {error}", None
  return (f"{wrong[0]} does not match its checksum" if wrong else None), manifest["metrics"]


def _sealed(manifest: dict[str, Any]) -> dict[str, Any]:
  """The manifest with a digest of itself: a flipped bit there must not pass for a better metric."""
  return {**manifest, "seal": hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()}


def _read_manifest(file: Path) -> dict[str, Any]:
  manifest = json.loads(file.read_text())
  if not isinstance(manifest, dict):
    raise ValueError("it is not a table")
  seal = manifest.pop("seal", None)
  if _sealed(manifest)["seal"] != seal:
    raise ValueError("it does not match its own checksum")
  return manifest


def _step_folders(root: Path) -> list[Path]:
  if not root.is_dir():
    return []
  return sorted((f for f in root.iterdir() if f.name.isdigit() and f.is_dir()), key=lambda f: -int(f.name))


def _files(folder: Path) -> list[Path]:
  return sorted(file for file in folder.rglob("*") if file.is_file())


def _sha256(file: Path) -> str:
  with open(file, "rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()

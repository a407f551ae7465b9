"""Saves and restores states: Orbax writes a checkpoint, and a manifest says that it is complete."""

import concurrent.futures
import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
from etils.epath import Path
from jax.sharding import Sharding, SingleDeviceSharding
from orbax.checkpoint import v1

from jaxreg._atomic_files import in_bucket, remove
from jaxreg.train.devices.processes import T, first, is_first
from jaxreg.train.devices.replicas import stacked
from jaxreg.train.devices.sharding import Layout
from jaxreg.train.errors import NothingToSave, RunError, first_line, one_line
from jaxreg.train.run.manifest import check_path, clean, folders, good_steps, write_manifest
from jaxreg.train.sealed_tables import Json
from jaxreg.train.step.metrics import Values, averaged, chosen_metric
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array

ocp: Any = v1  # Its classes do not satisfy its own protocols for a type checker.
TRIES = 5  # in case a training run deletes each checkpoint while it is read


class Checkpoints:
  """The checkpoints of a work directory, open for writing; a context manager that finishes the last save.

  On opening, checkpoints that a kill left half saved or half deleted are removed. Damaged checkpoints are set
  aside with a warning, so that only good checkpoints remain. All of several processes save; the first one
  writes the manifest. The last step saved is `latest`, or None; `measured` says whether it has metrics.
  """

  def __init__(
    self,
    workdir: Path,
    *,
    keep: int,
    best: str,
    run: str = "",
    check_there: Callable[[], None] = lambda: None,
  ):
    """Opens the checkpoints of the run with the token `run`.

    `check_there` raises if the work directory no longer belongs to this run.
    """
    self._workdir, self._root, self._run, self._check_there = workdir, folders(workdir)[0], run, check_there
    good = first(lambda: list(clean(workdir, run).items()))  # a list, because JSON has no number keys
    policies = ocp.training.preservation_policies
    by_best = policies.BestN(
      get_metric_fn=lambda metrics: metrics.get(chosen_metric(best, metrics), math.inf),
      reverse=True,
      n=1,
      keep_checkpoints_without_metrics=False,
    )
    try:
      self._orbax = ocp.training.Checkpointer(
        self._root,
        save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
        preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), by_best]),
        cleanup_tmp_directories=True,
      )
    except Exception as error:  # Orbax raises exceptions of many types for a folder that it cannot read.
      reason = one_line(error)
      raise RunError(f"{self._root}: the checkpoints cannot be opened ({reason}); move it away") from error
    self.latest, metrics = max(good, default=(None, None), key=lambda item: item[0])
    self.measured = metrics is not None
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._saving: concurrent.futures.Future | None = None

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
    at_once = kind is KeyboardInterrupt  # a half-written checkpoint has no manifest and will be removed
    try:
      if not at_once:
        self.wait()
    except KeyboardInterrupt:
      at_once = True
      raise
    finally:
      self._thread.shutdown(wait=not at_once, cancel_futures=at_once)
      # After a failed save, `close` fails again; that error must not replace the one with the reason.
      with contextlib.suppress(Exception):
        if not at_once:
          self._orbax.close()
      if not at_once:
        self._clear_away()

  def save(self, step: int, state: TrainState, of_replicas: Values | None, sums: Json = None) -> None:
    """Starts saving `state`, which may be donated afterwards, unless this step is saved with its metrics.

    `sums` belong to the training record that the checkpoint interrupts; `saved_sums` reads them.
    """
    metrics = None if of_replicas is None else averaged(of_replicas)
    again = step == self.latest
    if again and (self.measured or metrics is None):
      return
    self.wait()
    self._check_there()
    self.latest, self.measured = step, metrics is not None
    if again and is_first():
      (folders(self._workdir)[1] / f"{step}.json").unlink(missing_ok=True)
    try:
      response = self._orbax.save_checkpointables_async(
        step, {"state": state}, force=True, overwrite=again, metrics=metrics
      )
    except Exception as error:
      self._check_there()
      raise self._cannot_save(error) from error

    def finish() -> None:
      try:
        if response is not None:
          response.result()
      finally:
        self._check_there()
      if is_first():
        write_manifest(self._workdir, step, metrics, sums, self._run)

    self._saving = self._thread.submit(finish)

  def wait(self) -> None:
    """Waits until the last save is on disk, with its manifest."""
    if self._saving is not None:
      saving, self._saving = self._saving, None
      try:
        saving.result()
      except NothingToSave:
        raise
      except Exception as error:
        raise self._cannot_save(error) from error

  def _clear_away(self) -> None:
    """Removes a work directory that Orbax recreated after its removal; later runs would refuse it."""
    try:
      self._check_there()
    except NothingToSave:
      begun = (self._workdir / "config.json").is_file()  # another run began here
      if begun or not is_first():
        return
      manifests = folders(self._workdir)[1]
      for made in (*self._root.glob(f"{self.latest}*"), *manifests.glob(f"{self.latest}.json*")):
        with contextlib.suppress(OSError):
          remove(made)
      for folder in () if in_bucket(self._workdir) else (self._root, manifests, self._workdir):
        with contextlib.suppress(OSError, ValueError):  # the folder holds other files
          folder.rmdir()

  def _cannot_save(self, error: Exception) -> NothingToSave:
    # Orbax wraps the errors of the file system in exceptions of its own.
    reason = one_line(error, 200)
    return NothingToSave(f"{self._root}: a checkpoint cannot be saved ({reason}); those before are kept")


def restore(workdir: Path, step: int, like: TrainState) -> TrainState:
  """Restores the state of a step, with the structure, shapes, dtypes and shardings of `like`."""
  folder = folders(workdir)[0] / str(step)
  check_path(workdir, "\\")
  try:
    return ocp.load_checkpointables(folder, {"state": like})["state"]
  except Exception as error:
    reason = first_line(error)  # the whole message may list every leaf
    raise RunError(f"{folder}: the checkpoint does not fit this configuration ({reason})") from error


def abstract(state: TrainState, sharding: Layout | SingleDeviceSharding) -> TrainState:
  """Returns the shapes and dtypes of a state, to restore it with one sharding or a tree of shardings."""

  def shape_of(x: Array, sharding: Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(shape_of, state, jax.tree.broadcast(sharding, state))


def pick_and_restore(
  workdir: Path,
  pick: Callable[[], int],
  restored: Callable[[int], T],
  *,
  agree: Callable[[Callable[[], int]], int] = lambda call: call(),
) -> tuple[int, T]:
  """Restores the step that `pick` returns, and returns the step and the result of `restored`.

  A training run in the same folder may delete the checkpoint that was just picked; then another is picked.
  `agree` calls a function whose result all processes must share.
  """
  for _ in range(TRIES - 1):
    step = agree(pick)
    try:
      return step, restored(step)
    except RunError:
      if agree(lambda step=step: step in good_steps(workdir)):
        raise
  step = agree(pick)
  return step, restored(step)


def restore_state(program: Program, workdir: Path, step: int, replica: int, replicas: int) -> TrainState:
  """Restores one of several replicas at a good step, with the parameters for predictions."""
  here = SingleDeviceSharding(jax.local_devices()[0])
  states = restore(workdir, step, abstract(stacked(program.abstract, replicas), here))
  return program.predicting(jax.tree.map(lambda x: x[replica], states))

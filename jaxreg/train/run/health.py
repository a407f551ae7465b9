"""Watches a run: values that are not finite, signs that it does not learn, steps that hang."""

import contextlib
import faulthandler
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

import jax
import jax.numpy as jnp
import numpy as np
from etils.epath import Path

from jaxreg._atomic_files import in_bucket, open_in_place
from jaxreg.train.errors import NothingToSave
from jaxreg.train.step.state import States
from jaxreg.typing import Array, PyTree

NEAR_CHANCE = 1.5  # multiple of the accuracy of a guess
EXPLODED = 10  # multiple of the loss of a guess; an overfit network stays below it
STACKS_AFTER = 30  # minutes of a step after which it hangs
ALIKE = 0.05  # difference of retain probabilities; a healthy run reaches 0.1 in its first epoch


def largest_parts(states: States) -> dict[str, np.ndarray]:
  """Returns the largest absolute value in each part of the state, for each replica."""
  parts = ("params", "model_state", "opt_state")
  if isinstance(states, tuple):
    return {name: np.stack([_largest(getattr(state, name)) for state in states]) for name in parts}
  return {name: np.asarray(_largest(getattr(states, name))) for name in parts}


@jax.jit
def _largest(tree: PyTree) -> Array:
  """Returns the largest absolute value in a tree; NaN or infinite if the tree holds such a value."""
  leaves = [jnp.abs(x).max().astype(jnp.float32) for x in jax.tree.leaves(tree) if jnp.size(x)]
  return jnp.max(jnp.stack(leaves)) if leaves else jnp.float32(0)


def check_finite(step: int, values: Mapping[str, np.ndarray | float]) -> None:
  """Stops the run if a value of any replica is NaN or infinite; the last checkpoint stays as it is."""
  shown = []
  for name, runs in values.items():
    runs = np.atleast_1d(runs)
    for replica in np.flatnonzero(~np.isfinite(runs))[:1]:
      where = f" in replica {replica}" if len(runs) > 1 else ""
      shown.append(f"{name} = {runs[replica]:g}{where}")
  if shown:
    raise NothingToSave(
      f"step {step}: {', '.join(shown)}; stopped, the last good checkpoint is kept: "
      "a lower optimizer.learning_rate or optimizer.clip_norm may help"
    )


class CollapseGuard:
  """Warns when a replica shows a sign of collapse for `steps` steps in a row; the run goes on.

  Each sign is reported once. One sign is a training accuracy near chance. The other sign is DropMax's: mean
  retain probabilities of target and wrong classes that stay equal, so that no mask tells the classes apart.
  A third sign is a validation loss far above that of a guess, at two evaluations in a row or at the last one.
  With `steps=0` it never warns. With `num_classes=0` labels are numbers, so no guess exists. A run that is
  `clipped` already gets other advice.
  """

  def __init__(self, warn: Callable[[str], None], *, steps: int, num_classes: int, clipped: bool):
    self._warn, self._steps, self._chance = warn, steps, 1 / num_classes if num_classes else 0.0
    self._exploded, self._warned = False, False  # at the last evaluation; whether the warning was given
    self._advice = "a lower optimizer.learning_rate" if clipped else "optimizer.clip_norm=1.0"
    self._stretch = {"accuracy": 0, "retain": 0}

  def observe(self, steps: int, values: Mapping[str, np.ndarray]) -> None:
    """Takes the means over the last `steps` steps, `[replicas]` each, by names such as `train/accuracy`."""
    if not self._steps:
      return
    accuracy = values.get("train/accuracy")
    if accuracy is not None and self._lasts("accuracy", steps, accuracy.min() < NEAR_CHANCE * self._chance):
      self._warn_of(f"training accuracy is {accuracy.min():.1%}, where a guess reaches {self._chance:.1%}")
    target, wrong = values.get("train/retain_target"), values.get("train/retain_nontarget")
    if target is not None and wrong is not None:
      worst = np.abs(target - wrong).argmin()
      if self._lasts("retain", steps, abs(target[worst] - wrong[worst]) < ALIKE):
        self._warn_of(
          f"DropMax retains target ({target[worst]:.2f}) and wrong classes ({wrong[worst]:.2f}) alike, "
          "so its masks know no class"
        )

  def observe_evaluation(self, nll: np.ndarray, *, last: bool) -> None:
    """Takes the loss on the validation split, `[replicas]`; `last`: of the last step."""
    if not self._chance:
      return
    guess = -math.log(self._chance)
    before, self._exploded = self._exploded, bool(nll.max() > EXPLODED * guess)
    if self._steps and self._exploded and (before or last) and not self._warned:
      self._warned = True
      self._warn(
        f"warning: the validation loss is {nll.max():.4g}, where a guess has {guess:.4g}; the steps were "
        f"probably too large, or too few for BatchNorm's averages: try {self._advice}, or a smaller "
        "batch_size with a lower optimizer.learning_rate"
      )

  def _lasts(self, sign: str, steps: int, shown: bool) -> bool:
    """Tells whether this sign has just been shown for the full number of steps."""
    before = self._stretch[sign]
    self._stretch[sign] = before + steps if shown else 0
    return before < self._steps <= self._stretch[sign]

  def _warn_of(self, what: str) -> None:
    cause = "the first steps were probably too large"
    self._warn(f"warning: for {self._steps} steps {what}; {cause}: try {self._advice}")


class Watchdog:
  """A context manager; the program must call `alive` at least every `minutes`.

  After a longer time, the interpreter writes the stacks of all threads to `file`. It does so in a thread of
  its own that needs no Python, because a step that hangs may hold Python's lock. For a `file` in a bucket, it
  writes to a local file, which a second thread copies there.
  """

  def __init__(self, file: Path, *, minutes: float = STACKS_AFTER):
    self._file, self._seconds = file, 60 * minutes
    self._stream: IO[bytes] | None = None
    self._since = 0.0
    self._ended = threading.Event()

  def __enter__(self) -> "Watchdog":
    if in_bucket(self._file):
      self._stream = tempfile.NamedTemporaryFile()
      threading.Thread(target=self._copy, args=(self._stream.name,), daemon=True).start()
    else:
      self._stream = open_in_place(self._file, "wb")
    self.alive()
    return self

  def __exit__(self, *exception: object) -> None:
    if self._stream is not None:
      self._ended.set()
      faulthandler.cancel_dump_traceback_later()
      size = os.fstat(self._stream.fileno()).st_size
      self._stream.close()
      if not size and not in_bucket(self._file):
        self._file.unlink(missing_ok=True)

  def _copy(self, local: str) -> None:
    """Copies the local file to the bucket each time that it has grown."""
    copied = 0
    while not self._ended.wait(min(60, self._seconds)):
      with contextlib.suppress(OSError):  # the bucket does not answer, or the run has ended
        content = Path(local).read_bytes()
        if len(content) > copied:
          self._file.write_bytes(content)
          copied = len(content)

  def alive(self) -> None:
    """Restarts the count of minutes."""
    now = time.monotonic()
    if self._stream is not None and now - self._since > min(1, self._seconds / 10):  # each call is a thread
      self._since = now
      faulthandler.dump_traceback_later(self._seconds, file=self._stream)

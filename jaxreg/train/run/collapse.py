"""Warns when a run does not learn, or when its validation loss explodes."""

import math
from collections.abc import Callable, Mapping

import numpy as np

NEAR_CHANCE = 1.5  # multiple of the accuracy of a guess
EXPLODED = 10  # multiple of the loss of a guess; an overfit network stays below it
ALIKE = 0.05  # difference of retain probabilities; a healthy run reaches 0.1 in its first epoch


class CollapseGuard:
  """Warns when a replica shows a sign of collapse for `steps` steps in a row; the run goes on.

  Each sign is reported once. One sign is a training accuracy near chance. The other sign is DropMax's: mean
  retain probabilities of target and wrong classes that stay equal, so that no mask tells the classes apart.
  A third sign is a validation loss far above that of a guess, at two evaluations in a row or at the last one.

  Args:
    warn: receives the line of the warning.
    steps: the number of steps in a row; 0 for no warning.
    num_classes: the number of classes; a guess is right once in `num_classes` times.
    clipped: whether the run clips its gradients already, which changes the advice.
  """

  def __init__(self, warn: Callable[[str], None], *, steps: int, num_classes: int, clipped: bool):
    self._warn, self._steps, self._chance = warn, steps, 1 / num_classes
    self._exploded, self._told = False, False  # at the last evaluation, and whether it was said
    self._advice = "a lower optimizer.learning_rate" if clipped else "optimizer.clip_norm=1.0"
    self._stretch = {"accuracy": 0, "retain": 0}

  def see(self, steps: int, values: Mapping[str, np.ndarray]) -> None:
    """Takes the means over the last `steps` steps, `[replicas]` each, by names such as `train/accuracy`."""
    if not self._steps:
      return
    accuracy = values.get("train/accuracy")
    if accuracy is not None and self._lasts("accuracy", steps, accuracy.min() < NEAR_CHANCE * self._chance):
      self._say(f"training accuracy is {accuracy.min():.1%}, where a guess reaches {self._chance:.1%}")
    target, wrong = values.get("train/retain_target"), values.get("train/retain_nontarget")
    if target is not None and wrong is not None:
      worst = np.abs(target - wrong).argmin()
      if self._lasts("retain", steps, abs(target[worst] - wrong[worst]) < ALIKE):
        self._say(
          f"DropMax retains target ({target[worst]:.2f}) and wrong classes ({wrong[worst]:.2f}) alike, "
          "so its masks know no class"
        )

  def see_evaluation(self, nll: np.ndarray, *, last: bool) -> None:
    """Takes the loss on the validation split, `[replicas]`; `last`: of the last step."""
    guess = -math.log(self._chance)
    before, self._exploded = self._exploded, bool(nll.max() > EXPLODED * guess)
    if self._steps and self._exploded and (before or last) and not self._told:
      self._told = True
      self._warn(
        f"warning: the validation loss is {nll.max():.4g}, where a guess has {guess:.4g}; the steps were "
        f"probably too large, or too few for BatchNorm's averages: try {self._advice}, or a smaller "
        "batch_size with a lower optimizer.learning_rate"
      )

  def _lasts(self, sign: str, steps: int, shown: bool) -> bool:
    """Whether this sign has just been shown for the full number of steps."""
    before = self._stretch[sign]
    self._stretch[sign] = before + steps if shown else 0
    return before < self._steps <= self._stretch[sign]

  def _say(self, what: str) -> None:
    self._warn(
      f"warning: for {self._steps} steps {what}; the first steps were probably too large: try {self._advice}"
    )

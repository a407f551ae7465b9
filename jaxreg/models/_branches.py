"""What a residual block adds to its shortcut, with the noise that is made for branches."""

from collections.abc import Callable

from flax import linen as nn

from jaxreg import noise
from jaxreg.typing import Array

BRANCH_NOISES = ("", "stochastic_depth", "shake_drop", "shake_shake")


def branch(module: nn.Module, make: Callable[[], Array], *, kind: str, rate: float, train: bool) -> Array:
  """A branch, dropped or scaled at random in training, and its mean otherwise.

  Args:
    module: whose `dropout` stream is drawn from.
    make: the branch; for `shake_shake` it is called twice, for two of them.
    kind: one of `BRANCH_NOISES`.
    rate: probability of disturbing it; `shake_shake` has none.
    train: whether to draw.
  """
  y = make()
  if kind == "shake_shake":
    other = make()
    return noise.shake_shake(module.make_rng("dropout"), y, other) if train else (y + other) / 2
  if not kind or not rate:
    return y
  if train:
    return getattr(noise, kind)(module.make_rng("dropout"), y, rate=rate)
  # The mean of ShakeDrop's factor; that of stochastic depth, inverted, is 1.
  return noise.dropout_mean(y, rate=rate, inverted=kind == "stochastic_depth")

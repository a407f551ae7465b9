"""Branches of residual blocks, with the noise for branches."""

from collections.abc import Callable

from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import acts
from jaxreg.typing import Array

BRANCH_NOISES = ("", "stochastic_depth", "shake_drop", "shake_shake")


def branch(module: nn.Module, make: Callable[[], Array], *, kind: str, rate: float, train: bool) -> Array:
  """Drops or scales a branch at random in training, and returns its mean otherwise.

  Args:
    module: the module with the `dropout` stream.
    make: computes the branch; `shake_shake` calls it twice, for two branches.
    kind: one of `BRANCH_NOISES`.
    rate: probability of disturbing the branch; `shake_shake` ignores it.
    train: whether to draw.
  """
  y = make()
  if kind == "shake_shake":
    other = make()
    return noise.shake_shake(module.make_rng("dropout"), y, other) if train else (y + other) / 2
  if not kind or not acts(rate):
    return y
  if train:
    return getattr(noise, kind)(module.make_rng("dropout"), y, rate=rate)
  # The mean of ShakeDrop's factor; the mean of inverted stochastic depth is 1.
  return noise.dropout_mean(y, rate=rate, inverted=kind == "stochastic_depth")

"""The rates of stochastic depth along a network."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_count, check_option


def drop_path_rates(rate: ArrayLike, num_blocks: int, *, schedule: str = "linear") -> list[ArrayLike]:
  r"""Computes the probability of dropping for each block.

  .. math:: r_l = \frac{l}{L} r \ \text{(linear)}, \quad \frac{l - 1}{L - 1} r \ \text{(linear from zero)},
    \quad r \ \text{(constant)}, \qquad l = 1, \dots, L

  Args:
    rate: `r`, the probability for the last block, in [0, 1]; may be traced.
    num_blocks: `L`, the number of blocks.
    schedule: `linear`, the source's; `linear_from_zero`, timm's, whose first block is never dropped; or
      `constant`.

  Returns:
    A list of `num_blocks` rates, for `stochastic_depth`.

  Example:
    >>> drop_path_rates(0.5, 5), drop_path_rates(0.5, 3, schedule="linear_from_zero")
    ([0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.25, 0.5])

  References:
    Huang et al., `Deep Networks with Stochastic Depth`, 2016, section 3.
  """
  check_option(rate, "rate", (), low=0, high=1)
  check_count(num_blocks, "num_blocks")
  check_choice(schedule, "schedule", ("linear", "linear_from_zero", "constant"))
  if schedule == "constant":
    return [rate] * num_blocks
  if schedule == "linear":
    return [rate * block / num_blocks for block in range(1, num_blocks + 1)]
  return [rate * block / max(num_blocks - 1, 1) for block in range(num_blocks)]

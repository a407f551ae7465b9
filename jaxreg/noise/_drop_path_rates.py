"""The rates of stochastic depth along a network."""

import numpy as np

from jaxreg.typing import check_count, check_range

SCHEDULES = ("linear", "linear_from_zero", "constant")


def drop_path_rates(rate: float, number: int, *, schedule: str = "linear") -> list[float]:
  r"""Computes the probability of dropping for each block.

  .. math:: r_l = \frac{l}{L} r \ \text{(linear)}, \quad \frac{l - 1}{L - 1} r \ \text{(linear from zero)},
    \quad r \ \text{(constant)}, \qquad l = 1, \dots, L

  Args:
    rate: `r`, the probability for the last block, in [0, 1].
    number: `L`, the number of blocks.
    schedule: `linear`, the source's; `linear_from_zero`, timm's, whose first block is never dropped; or
      `constant`.

  Returns:
    A list of `number` rates, for `stochastic_depth`.

  Raises:
    TypeError: if `number` is not an integer.
    ValueError: if `rate` is outside [0, 1], `number` is below 1, or for another schedule.

  Example:
    >>> drop_path_rates(0.5, 5), drop_path_rates(0.5, 3, schedule="linear_from_zero")
    ([0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.25, 0.5])

  References:
    Huang et al., `Deep Networks with Stochastic Depth`, 2016, section 3.
  """
  check_range(rate, "rate", low=0, high=1)
  check_count(number, "number")
  if schedule not in SCHEDULES:
    raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
  if schedule == "constant":
    return [rate] * number
  if schedule == "linear":
    return [rate * block / number for block in range(1, number + 1)]
  return np.linspace(0, rate, number).tolist()

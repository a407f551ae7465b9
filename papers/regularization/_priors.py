"""Minus the log densities of priors over the weights, which the lecture compares with norms."""

import math

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import penalties
from jaxreg._checks import check_option
from jaxreg._leaves import selected
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Params


def gaussian_prior(params: Params, *, precision: ArrayLike) -> Array:
  r"""Computes minus the log density of independent normal weights.

  .. math:: -\log p(w) = \frac{\alpha}{2} \|w\|_2^2 - \frac n2 \log \frac{\alpha}{2\pi}, \qquad
    w_i \sim \mathcal{N}(0, 1/\alpha)

  Its gradient equals the gradient of `alpha * l2`. The constant matters if `alpha` is learned or densities
  are compared. A maximum a posteriori estimate adds this penalty to the *sum* of the examples' losses; with a
  mean over `N` examples its weight is `1 / N`.

  Args:
    params: as in `penalties.l2`, with `n` weights in kernels and embeddings.
    precision: `alpha` > 0, may be traced.

  Returns:
    A scalar in nats, float32 or wider.

  Example:
    >>> gaussian_prior({"kernel": jnp.array([1.0, 1.0])}, precision=1.0).round(4)
    Array(2.8379, dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization (the MAP
    reading of both norms).
  """
  check_option(precision, "precision", (), low=0, open_low=True)
  half_log = 0.5 * (jnp.log(precision) - math.log(2 * math.pi))
  return jnp.multiply(precision, penalties.l2(params)) - _count(params) * half_log


def laplace_prior(params: Params, *, rate: ArrayLike) -> Array:
  r"""Computes minus the log density of independent Laplace weights.

  .. math:: -\log p(w) = \alpha \|w\|_1 - n (\log \alpha - \log 2), \qquad
    w_i \sim \mathrm{Laplace}(0, 1/\alpha)

  Erratum: the lecture sums the densities of `n` weights and prints the constant once.

  Args:
    params: as in `gaussian_prior`.
    rate: `alpha` > 0, may be traced.

  Returns:
    A scalar in nats, float32 or wider.

  Example:
    >>> laplace_prior({"kernel": jnp.array([1.0, -1.0])}, rate=2.0)
    Array(4., dtype=float32)

  References:
    As in `gaussian_prior`.
  """
  check_option(rate, "rate", (), low=0, open_low=True)
  return jnp.multiply(rate, penalties.l1(params)) - _count(params) * (jnp.log(rate) - math.log(2))


def _count(params: Params) -> int:
  return sum(w.size for _, w in selected(params, kernels_only))

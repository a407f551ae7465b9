"""Variational dropout: Gaussian dropout with learned variances, and its KL cost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_key, check_range, check_wide
from jaxreg._sharding import drawn_like
from jaxreg.typing import Array, Key


def variational_dropout(
  key: Key | None, x: ArrayLike, *, log_alpha: ArrayLike, max_log_alpha: float = 8.0
) -> Array:
  r"""Multiplies each entry by Gaussian noise of mean 1 and trained variance.

  .. math:: y = x \odot \bigl(1 + \sqrt{\alpha}\, n\bigr), \qquad n \sim \mathcal{N}(0, 1)

  Gaussian dropout at rate `p` has `alpha = p / (1 - p)`. At test time nothing is done. Train `log_alpha` with
  `variational_dropout_kl` in the loss.

  Args:
    key, x: as in `dropout`.
    log_alpha: `log(alpha)`, a scalar or one per entry of the last axis.
    max_log_alpha: upper bound applied to `log_alpha`. The first paper uses 0, because its approximation of
      the KL holds up to there; the approximation here does not need that.

  Example:
    >>> variational_dropout(jax.random.key(0), jnp.ones(3), log_alpha=jnp.array([-jnp.inf, 0.0, -4.0]))
    Array([1.        , 3.0252647 , 0.94131935], dtype=float32)

  References:
    Kingma, Salimans and Welling, `Variational Dropout and the Local Reparameterization Trick`, 2015,
    section 3.
  """
  x = check_floating(x, "x")
  wide = jnp.promote_types(x.dtype, jnp.float32)
  log_alpha = check_floating(log_alpha, "log_alpha").astype(wide)
  if log_alpha.ndim and log_alpha.shape != x.shape[-1:]:
    raise ValueError(
      f"log_alpha must be a scalar or have one entry for each of the last axis of x, "
      f"got {log_alpha.shape} for {x.shape}"
    )
  check_range(max_log_alpha, "max_log_alpha")
  if key is None:
    return x
  std = jnp.exp(jnp.minimum(log_alpha, max_log_alpha) / 2)
  noise = drawn_like(x, jax.random.normal, check_key(key), x.shape, dtype=wide)
  return (x * (1 + jnp.broadcast_to(std, x.shape) * noise)).astype(x.dtype)


def variational_dropout_kl(log_alpha: ArrayLike) -> Array:
  r"""Approximates the KL of a weight's posterior `N(w, alpha w^2)` from the scale-invariant prior `1 / |w|`.

  .. math:: \mathrm{KL}(\alpha) = \tfrac12 \sum_k \mathrm{Poisson}\bigl(k; \tfrac1{2 \alpha}\bigr)
    \bigl(\psi(k + \tfrac12) - \psi(\tfrac12)\bigr)
    \approx k_1 \bigl(1 - \sigma(k_2 + k_3 \log \alpha)\bigr) + \tfrac12 \log (1 + \alpha^{-1})

  with `k_1 = 0.63576`, `k_2 = 1.87320`, `k_3 = 1.48695`. The prior is improper; the constant is chosen so
  that the KL goes to 0 as `alpha` grows. This is the second paper's fit, which is off by less than 0.01 nats
  at any `alpha`. The first paper's polynomial, `-log(alpha) / 2 - c_1 alpha - ...`, holds only up to `alpha =
  1`; beyond that its KL goes to minus infinity.

  Args:
    log_alpha: any shape, floating.

  Returns:
    The same shape, float32 or wider. Sum it once for each `alpha` with its own noise, and divide by the
    number of training examples. If the weights that read an input share its noise, as in
    `variational_dropout`, count it once per input.

  Example:
    >>> variational_dropout_kl(jnp.array([-2.0, 0.0, 8.0]))
    Array([1.5405328e+00, 4.3123895e-01, 1.6836934e-04], dtype=float32)

  References:
    Molchanov, Ashukha and Vetrov, `Variational Dropout Sparsifies Deep Neural Networks`, 2017, section 4.2.
    Kingma, Salimans and Welling, `Variational Dropout and the Local Reparameterization Trick`, 2015,
    section 3.3 and appendix C.
  """
  log_alpha = check_wide(log_alpha, "log_alpha")
  # sigmoid(-s) equals 1 - sigmoid(s) without its cancellation.
  return 0.63576 * jax.nn.sigmoid(-(1.87320 + 1.48695 * log_alpha)) + 0.5 * jax.nn.softplus(-log_alpha)

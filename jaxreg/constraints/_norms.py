"""Projections of each unit's incoming weights onto a ball, a sphere or a shell."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option, check_range
from jaxreg._leaves import map_selected, unit_axes
from jaxreg._scaled import scaled, unit_length
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params

Axis = int | tuple[int, ...] | None


def max_norm(params: Params, *, limit: ArrayLike, axis: Axis = None, mask: Mask = kernels_only) -> Params:
  r"""Bounds the norm of each unit's incoming weights.

  .. math:: w_g \leftarrow w_g \min\Bigl(1, \frac{c}{\|w_g\|_2}\Bigr)

  Units within the bound stay unchanged, bit for bit.

  Args:
    params: any pytree.
    limit: `c` > 0; infinity limits nothing.
    axis: axes of one unit's weights, the same for all leaves; by default the axes of its incoming weights
      (`paths.incoming_axes`): all but the last of dense and convolutional kernels, the first of an
      attention's query, key and value, the last of an embedding, all but the first of Equinox's `weight`.
    mask: which leaves are bounded; by default kernels and embeddings.

  Example:
    >>> max_norm({"kernel": jnp.array([[3.0, 0.0], [4.0, 0.5]])}, limit=2.5)["kernel"]
    Array([[1.5, 0. ],
           [2. , 0.5]], dtype=float32)

  References:
    Hinton et al., `Improving neural networks by preventing co-adaptation of feature detectors`, 2012.
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014, section 5.1.
  """
  check_option(limit, "limit", (), low=0, high=jnp.inf, open_low=True)

  def clip(name: str, w: Array) -> Array:
    near_one, length, power = scaled(w, unit_axes(name, w, axis))
    outside = length / power > limit
    factor = jnp.where(outside, limit, 0) / jnp.where(outside, length, 1)
    return jnp.where(outside, near_one * factor, w)

  return map_selected(clip, params, mask)


def unit_norm(params: Params, *, axis: Axis = None, mask: Mask = kernels_only) -> Params:
  r"""Scales each unit's incoming weights to norm 1.

  .. math:: w_g \leftarrow \frac{w_g}{\|w_g\|_2}

  A unit of norm 0 has no nearest point on the sphere and stays unchanged.

  Args:
    params, axis, mask: as in `max_norm`.

  Example:
    >>> unit_norm({"kernel": jnp.array([[4.0, 0.0], [0.0, 0.0]])})["kernel"]
    Array([[1., 0.],
           [0., 0.]], dtype=float32)
  """

  def unit(name, w):
    return unit_length(w, unit_axes(name, w, axis), otherwise=w)

  return map_selected(unit, params, mask)


def min_max_norm(
  params: Params,
  *,
  low: float | Array,
  high: float | Array,
  rate: float | Array = 1.0,
  axis: Axis = None,
  mask: Mask = kernels_only,
) -> Params:
  r"""Keeps the norm of each unit's incoming weights between two bounds, or moves it toward them.

  .. math:: w_g \leftarrow w_g\, \frac{r \operatorname{clip}(\|w_g\|_2, a, b) + (1 - r) \|w_g\|_2}{\|w_g\|_2}

  Units within the bounds stay unchanged, bit for bit. A unit of norm 0 has no direction and stays too.

  Args:
    params, axis, mask: as in `max_norm`.
    low: `a`, at least 0.
    high: `b`, at least `low`; infinity limits nothing.
    rate: `r` in [0, 1]; 1 projects, a smaller rate moves part of the way.

  Example:
    >>> w = {"kernel": jnp.array([[3.0, 0.0], [4.0, 0.5]])}
    >>> min_max_norm(w, low=1.0, high=2.5)["kernel"]
    Array([[1.5, 0. ],
           [2. , 1. ]], dtype=float32)
  """
  check_option(low, "low", (), low=0)
  check_option(high, "high", (), low=0, high=jnp.inf)
  check_range(high - low, "high - low", low=0, high=jnp.inf)
  check_option(rate, "rate", (), low=0, high=1)

  def scale(name: str, w: Array) -> Array:
    near_one, length, power = scaled(w, unit_axes(name, w, axis))
    norms = length / power
    outside = ((norms < low) & (norms > 0)) | (norms > high)
    bound = jnp.where(outside, jnp.where(norms < low, low, high), 0)
    projected = near_one * (bound / jnp.where(outside, length, 1))
    return jnp.where(outside, rate * projected + (1 - rate) * w, w)

  return map_selected(scale, params, mask)

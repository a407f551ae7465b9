"""Gaussian noise on the parameters of a model."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_key, check_option
from jaxreg._errors import ArgumentError
from jaxreg.noise._gaussian_noise import Kind, check_kind, gaussian_noise
from jaxreg.paths import chosen, kernels_only, leaf_names
from jaxreg.typing import Array, Key, Mask, Params


def weight_noise(
  key: Key | None,
  params: Params,
  *,
  std: ArrayLike,
  mask: Mask = kernels_only,
  kind: Kind = "additive",
  relative: bool = False,
) -> Params:
  r"""Returns the parameters with Gaussian noise, for one evaluation of the loss.

  .. math:: \tilde W = W + \sigma n \quad\text{or}\quad \tilde W = W \odot (1 + \sigma n),
    \qquad n \sim \mathcal{N}(0, I)

  Call it inside the loss: `loss(weight_noise(key, params, std=0.1), batch)`. The step then updates the clean
  parameters, and no noise stays in them. For a small variance this penalises the
  gradient of a squared error: `papers/regularization` has the terms.

  The noisy leaves are rounded to their dtypes: in bfloat16 noise below 1/512 of a weight is lost, so give
  float32 parameters.

  Args:
    key: one draw for all parameters; None for no noise.
    params: any pytree.
    std: `sigma`, the square root of `eta`, at least 0; may be traced.
    mask: which leaves to change; by default kernels and embeddings.
    kind: whether the noise is added or multiplied.
    relative: whether `std` is in units of each leaf's root mean square, which carries no gradient.

  Raises:
    ValueError: if `relative` is set for multiplicative noise.

  Example:
    >>> weight_noise(jax.random.key(0), {"kernel": jnp.zeros(2), "bias": jnp.zeros(2)}, std=0.1)
    {'bias': Array([0., 0.], dtype=float32), 'kernel': Array([-0.24424557, -0.20356806], dtype=float32)}

  References:
    Graves, `Practical Variational Inference for Neural Networks`, 2011.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, noise robustness.
  """
  check_option(std, "std", (), low=0)
  check_kind(kind)
  if relative and kind == "multiplicative":
    raise ArgumentError("relative", "must be False for multiplicative noise, which is relative by itself")

  def perturb(key: Key, leaf: Array) -> Array:
    size = jax.lax.stop_gradient(_root_mean_square(leaf)) if relative else 1
    # The product of two scalars may be traced even if `std` is not.
    return gaussian_noise(key, leaf, std=jnp.asarray(std * size), kind=kind)

  return map_selected(perturb, key, params, mask)


def map_selected(
  function: Callable[[Key, Array], Array], key: Key | None, params: Params, mask: Mask
) -> Params:
  """Applies `function(key, leaf)` to the selected leaves; a leaf's key does not depend on the selection.

  Without a key the parameters stay unchanged.
  """
  leaves, tree = jax.tree.flatten(params)
  taken = chosen(params, mask)
  names = leaf_names(params)
  if key is None:
    return params
  keys = jax.random.split(check_key(key), len(leaves))
  return tree.unflatten(
    [
      function(keys[i], check_floating(leaf, names[i] or "params")) if taken[i] else leaf
      for i, leaf in enumerate(leaves)
    ]
  )


def _root_mean_square(leaf: Array) -> Array:
  squares = jnp.square(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)))
  return jnp.sqrt(squares.sum() / max(leaf.size, 1))

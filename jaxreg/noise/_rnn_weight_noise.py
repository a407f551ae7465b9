"""Noise on the weights of a recurrent network: additive or multiplicative, cumulative over time or not."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_key, check_option
from jaxreg._sharding import drawn_like
from jaxreg.noise._gaussian_noise import Kind, check_kind
from jaxreg.paths import chosen, kernels_only, leaf_names
from jaxreg.typing import Array, Key, Mask, Params


class RNNWeightNoise(NamedTuple):
  """The carry: the number of steps made, and the accumulated noise, a tree like the parameters."""

  step: Array
  total: Any


def rnn_weight_noise_init(params: Params) -> RNNWeightNoise:
  """Returns the carry without noise; start each sequence with it, or cumulative noise carries over.

  Example:
    >>> rnn_weight_noise_init({"kernel": jnp.ones(2)}).total
    {'kernel': Array([0., 0.], dtype=float32)}
  """

  def wide(leaf):
    return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))

  return RNNWeightNoise(jnp.zeros((), jnp.int32), jax.tree.map(lambda leaf: wide(jnp.asarray(leaf)), params))


def rnn_weight_noise(
  key: Key | None,
  params: Params,
  carry: RNNWeightNoise,
  *,
  std: ArrayLike,
  kind: Kind = "additive",
  cumulative: bool = False,
  per_step: bool = True,
  mask: Mask = kernels_only,
) -> tuple[Params, RNNWeightNoise]:
  r"""Returns the noisy weights of the next time step, for the body of a `jax.lax.scan`.

  .. math:: W + \Delta_t, \qquad W + \sum_{s \le t} \Delta_s, \qquad W \odot (1 + \Delta_t), \qquad
    W \odot \prod_{s \le t} (1 + \Delta_s), \qquad \Delta \sim \mathcal{N}(0, \sigma^2 I)

  These are additive noise, not cumulative and cumulative, and multiplicative noise, not cumulative and
  cumulative. The deviation at step `t` has the standard deviation `sigma`, `sigma sqrt(t)`, `sigma |W|` and
  `|W| sqrt((1 + sigma^2)^t - 1)`. The mean is `W` with `per_step`; for the first three it is always `W`.

  Args:
    key: the same at every step, because the step's number is folded in; None for no noise.
    params: any pytree, the same at every step.
    carry: the carry from `rnn_weight_noise_init` or from the last step.
    std: `sigma`, at least 0; may be traced.
    kind, mask: as in `weight_noise`.
    cumulative: whether it accumulates over the steps of a sequence.
    per_step: whether each step draws its own `Delta`, or a sequence shares one.

  Returns:
    The noisy parameters, with the dtypes of their leaves, and the carry for the next step.

  Example:
    >>> params = {"kernel": jnp.zeros(())}
    >>> def body(carry, _):
    ...   noisy, carry = rnn_weight_noise(jax.random.key(0), params, carry, std=0.1, cumulative=True)
    ...   return carry, noisy["kernel"]
    >>> jax.lax.scan(body, rnn_weight_noise_init(params), length=3)[1].round(2)
    Array([-0.06, -0.04, -0.19], dtype=float32)

  References:
    Jim, Giles and Horne, `An Analysis of Noise in Recurrent Neural Networks: Convergence and Generalization`,
    1996.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, noise robustness.
  """
  check_option(std, "std", (), low=0)
  check_kind(kind)
  leaves, tree = jax.tree.flatten(params)
  totals, names, taken = tree.flatten_up_to(carry.total), leaf_names(params), chosen(params, mask)
  if key is None:
    return params, carry._replace(step=carry.step + 1)
  key = jax.random.fold_in(check_key(key), carry.step if per_step else 0)
  keys = jax.random.split(key, len(leaves))
  for i, leaf in enumerate(leaves):
    if taken[i]:
      leaf = check_floating(leaf, names[i] or "params")
      totals[i] = _accumulate(keys[i], totals[i], std, kind, cumulative)
      noisy = leaf + totals[i] if kind == "additive" else leaf * (1 + totals[i])
      leaves[i] = noisy.astype(leaf.dtype)
  return tree.unflatten(leaves), RNNWeightNoise(carry.step + 1, tree.unflatten(totals))


def _accumulate(key: Key, total: Array, std: ArrayLike, kind: Kind, cumulative: bool) -> Array:
  """Accumulates the deviation; for factors it is their product minus 1, so that 0 always means no noise."""
  noise = drawn_like(total, jax.random.normal, key, total.shape, dtype=total.dtype)
  delta = jnp.asarray(std, total.dtype) * noise
  if not cumulative:
    return delta
  return total + delta if kind == "additive" else total + delta * (1 + total)

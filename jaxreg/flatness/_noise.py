"""The covariance of a gradient with independent noise per example."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_count, check_key


@analysis
def per_example_noise_covariance(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  key: Key,
  num_masks: int = 2,
  where: Where = "*",
  chunk_size: int = 64,
) -> Array:
  r"""Estimates the covariance of the full-batch gradient under noise that is independent between examples.

  .. math:: \Sigma_g = \frac1{n^2} \sum_i \mathrm{Cov}_\eta(\nabla_\theta \ell_i)

  A few draws give an unbiased estimate of each example's covariance, and the sum averages over the data set.
  There is no loop over samples of the whole gradient, and the rank is not limited by their number. For noise
  after a dense layer, `dense_noise_covariance` is much faster. This function is not for noise that examples
  share, or for layers that couple examples: for those see `sample_noise_by_parts`.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`; called with batches of one example.
    params: any pytree.
    batch: `n` examples along the leading axis of its leaves.
    key: a typed key.
    num_masks: draws per example, at least 2.
    where: the parameters that count.
    chunk_size: examples at once, whose draws are in memory, `[chunk_size, num_masks, size]`.

  Returns:
    `[size, size]`, float32 or wider.

  Raises:
    TypeError: if `key` is no typed key, a number no integer, or a selected leaf not floating.
    ValueError: for fewer than 2 draws, or if `where` selects nothing.

  Example:
    >>> sign = lambda key: jax.random.rademacher(key, (1,), float)
    >>> loss = lambda params, batch, *, key: (params * sign(key)).sum() + batch.sum()
    >>> noise = per_example_noise_covariance(
    ...   loss, jnp.ones(1), jnp.zeros(4000), key=jax.random.key(0), chunk_size=1000
    ... )
    >>> (4000 * noise).round(1)  # of one sign
    Array([[1.]], dtype=float32)
  """
  check_key(key)
  check_count(num_masks, "num_masks")
  check_count(chunk_size, "chunk_size")
  if num_masks < 2:
    raise ValueError(f"num_masks must be at least 2, got {num_masks}")
  num_examples(batch)
  mask, params, batch = selected(params, where), widened(params), widened(batch)
  return _covariance(loss_fn, mask, num_masks, chunk_size, params, batch, key)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _covariance(loss_fn, mask, num_masks, chunk_size, params, batch, key):
  part = split(params, mask)
  examples = num_examples(batch)
  chunk_size = min(chunk_size, examples)
  chunks = -(-examples // chunk_size)
  # Examples of weight 0 fill up the last chunk.
  index = jnp.arange(chunks * chunk_size).reshape(chunks, chunk_size)

  def centred(number: jax.Array) -> Array:
    one = jax.tree.map(lambda x: x[jnp.minimum(number, examples - 1)][None], batch)
    keys = jax.random.split(jax.random.fold_in(key, number), num_masks)
    gradient = jax.grad(lambda flat, key: scalar_loss(loss_fn, part.merge(flat), one, key))
    drawn = jax.vmap(gradient, in_axes=(None, 0))(part.flat, keys)
    return jnp.where(number < examples, drawn - drawn.mean(axis=0, keepdims=True), 0)

  def add(total: Array, numbers: Array) -> tuple[Array, None]:
    drawn = jax.vmap(centred)(numbers).reshape(-1, part.flat.size)
    return total + drawn.T @ drawn, None

  total, _ = jax.lax.scan(add, jnp.zeros((part.flat.size,) * 2, part.flat.dtype), index)
  return total / ((num_masks - 1) * examples**2)

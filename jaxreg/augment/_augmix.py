"""AugMix: an image mixed with the mixture of several chains of operations on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_key, check_option, check_range
from jaxreg._errors import ArgumentError
from jaxreg._sharding import partitioned
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._mixup import beta
from jaxreg.augment._moved import NAMES
from jaxreg.augment._operations import ALL, GEOMETRIC, changed, check_operations, check_pixels
from jaxreg.typing import Array, Key

# Without the operations that a benchmark of corrupted images measures.
OPERATIONS = ("autocontrast", "equalize", "posterize", "solarize", *GEOMETRIC)


def augmix(
  key: Key,
  batch: Mapping[str, Any],
  *,
  num_chains: int = 3,
  num_ops: int = 3,
  severity: ArrayLike = 3.0,
  alpha: ArrayLike = 1.0,
  operations: Sequence[str] = OPERATIONS,
  fill: float = 0.0,
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  r"""Mixes each image with the mixture of its copies after chains of random operations.

  .. math:: x' = m\, x + (1 - m) \sum_{i=1}^k w_i\, c_i(x), \qquad
    w \sim \operatorname{Dirichlet}(\alpha), \quad m \sim \operatorname{Beta}(\alpha, \alpha)

  Each chain `c_i` has 1 to `num_ops` operations of `rand_augment`, all counts equally likely, each operation
  with a magnitude from :math:`\mathcal U(0.1, s)`. Operations have the ranges that `rand_augment` gives them;
  the released code shifts by at most a third of a side, and keeps at most 4 bits. `losses.jensen_shannon`
  compares the predictions for an image and for two such views.

  Args:
    key: draws of `[num_ops, num_chains, batch]` operations, magnitudes and signs, of `[num_chains, batch]`
      lengths, and of the two mixtures.
    batch: `inputs` `[batch, height, width, channels]`, uint8 or floating; other entries pass through, but
      geometric operations are refused for a batch with masks, boxes or points.
    num_chains: `k`, at least 1; static.
    num_ops: the most operations of a chain, at least 1; static.
    severity: `s`, the largest magnitude, in [0.1, 10].
    alpha: parameter of both mixtures, above 0.
    operations: names to draw from, operations of `rand_augment`.
    fill, value_range, channel_axis: as in `rand_augment`.

  Example:
    >>> batch = {"inputs": jnp.array([[0.0, 0.25, 1.0]]).reshape(1, 1, 3, 1)}
    >>> augmix(jax.random.key(0), batch, operations=["identity"])["inputs"].ravel()
    Array([0.  , 0.25, 1.  ], dtype=float32)

  References:
    Hendrycks et al., `AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty`, 2020,
    algorithm 1.
  """
  x = images(batch, channel_axis)
  low_high = check_pixels(x, value_range)
  check_count(num_chains, "num_chains")
  check_count(num_ops, "num_ops")
  check_range(severity, "severity", low=0.1, high=10)
  check_option(alpha, "alpha", (), low=0, open_low=True)
  check_operations(operations)
  if {*NAMES} & batch.keys() and {*operations} & {*GEOMETRIC}:
    raise ArgumentError(
      "operations",
      f"must have none of {', '.join(GEOMETRIC)} for a batch with {', '.join(NAMES)}: the chains "
      "move an image to several places",
    )

  for_choice, for_size, for_sign, for_length, for_weights, for_share = jax.random.split(check_key(key), 6)
  number, dtype = x.shape[0], jnp.promote_types(x.dtype, jnp.float32)
  shape = (num_ops, num_chains, number)
  numbers = jnp.asarray([ALL.index(name) for name in operations])
  chosen = numbers[jax.random.randint(for_choice, shape, 0, len(operations))]
  length = jax.random.randint(for_length, (1, *shape[1:]), 1, num_ops + 1)
  chosen = jnp.where(jnp.arange(num_ops)[:, None, None] < length, chosen, ALL.index("identity"))
  most = jnp.asarray(severity, dtype) / 10
  level = jax.random.rademacher(for_sign, shape, dtype) * jax.random.uniform(
    for_size, shape, dtype, 0.01, most
  )

  alphas = jnp.broadcast_to(jnp.asarray(alpha, dtype), (num_chains,))
  weights = jax.random.dirichlet(for_weights, alphas, (number,), dtype)

  # All chains at once, as one batch of copies. Their mixture is a change of the image, so that chains that
  # change nothing leave its values as they are.
  def change(x: Array, chosen: Array, level: Array, weights: Array) -> Array:
    def flat(draws):
      return draws.reshape(num_ops, num_chains * number)

    copies = jnp.tile(x, (num_chains, 1, 1, 1))
    chains = changed(copies, flat(chosen), flat(level), operations, fill=fill, value_range=low_high)
    chains = chains.reshape(num_chains, *x.shape) - x.astype(dtype)[None]
    return jnp.einsum("bk,kbhwc->bhwc", weights, chains)

  moved = partitioned(change, x, chosen, level, weights)
  share = beta(for_share, alpha, number).astype(dtype)[:, None, None, None]
  return with_images(batch, narrowed(x.astype(dtype) + (1 - share) * moved, x.dtype), channel_axis)

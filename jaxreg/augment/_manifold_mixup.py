"""Manifold mixup: convex combinations of hidden features, at a layer that is drawn, and of the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_floating, check_key, check_option
from jaxreg._errors import ArgumentError
from jaxreg.augment._mixup import beta, counting, mixed, mixed_labels, partners, shuffled, soft_labels
from jaxreg.typing import Array, Key


class Mixing(NamedTuple):
  """Which example is mixed with which, `[batch]`, and each example's own share, `[batch]`, by layer."""

  partners: Array
  shares: dict[str, Array]


def manifold_mixup(
  key: Key,
  batch: Mapping[str, Any],
  *,
  layers: Sequence[str],
  alpha: ArrayLike = 2.0,
  num_classes: int | None = None,
  per_example: bool = True,
) -> dict[str, Any]:
  r"""Mixes the labels, and draws how the inputs of one layer are mixed; `mix_hidden` mixes them.

  .. math:: \tilde h = \lambda h_i + (1 - \lambda) h_j, \quad \tilde y = \lambda y_i + (1 - \lambda) y_j,
    \qquad \lambda \sim \mathrm{Beta}(\alpha, \alpha)

  The layer is uniform over `layers`, and the same for all examples. Each layer of the network calls
  `x = mix_hidden(x, batch["mixing"], layer="its name")` on its inputs. With the first layer alone this is
  `mixup`. A mixture of the outputs of an affine layer is the mixture of its inputs.

  Args:
    key: draws the layer, the shares and a permutation of the batch.
    batch: `inputs` `[batch, ...]`; `labels` `[batch]`, integer, or floating, as in `mixup`,
      which also says which examples count.
    layers: names of the layers that may be drawn.
    alpha: above 0; towards 0 the features stay unmixed.
    num_classes: needed for integer labels; static.
    per_example: whether each example draws its own share, or the batch draws one, as in the paper.

  Returns:
    The batch with labels `[batch, classes]` and an entry `mixing`.

  Example:
    >>> batch = {"inputs": jnp.zeros((2, 4)), "labels": jnp.array([0, 1])}
    >>> out = manifold_mixup(jax.random.key(0), batch, layers=["first", "second"], num_classes=10)
    >>> out["labels"].shape, mix_hidden(jnp.zeros((2, 8)), out["mixing"], layer="second").shape
    ((2, 10), (2, 8))

  References:
    Verma et al., `Manifold Mixup: Better Representations by Interpolating Hidden States`, 2019, section 2.
  """
  if not layers or len(set(layers)) < len(layers):
    raise ArgumentError("layers", f"must name at least one layer, and each once, got {tuple(layers)}")
  labels = soft_labels(batch, num_classes)
  check_option(alpha, "alpha", (), low=0, open_low=True)
  number = labels.shape[0]
  for_layer, for_share, for_order = jax.random.split(check_key(key), 3)
  chosen = jax.random.randint(for_layer, (), 0, len(layers))
  share = jnp.broadcast_to(beta(for_share, alpha, number if per_example else 1), (number,))
  other = partners(for_order, counting(batch, labels))
  shares = {layer: jnp.where(chosen == index, share, 1.0) for index, layer in enumerate(layers)}
  mixing = Mixing(other, shares)
  return {**batch, **mixed_labels(batch, labels, other, share), "mixing": mixing}


def mix_hidden(x: ArrayLike, mixing: Mixing, *, layer: str) -> Array:
  """Mixes the inputs of a layer as `manifold_mixup` drew it; if another layer was drawn, nothing changes.

  Args:
    x: `[batch, ...]`, floating.
    mixing: the entry `mixing` of the batch.
    layer: the name of the layer.

  Returns:
    An array of the shape and dtype of `x`.

  Raises:
    ValueError: if the batch is not the one of `mixing`, or `layer` is not one of its layers.

  Example:
    >>> mixing = Mixing(jnp.array([1, 0]), {"first": jnp.array([0.75, 1.0])})
    >>> mix_hidden(jnp.array([4.0, 8.0]), mixing, layer="first")
    Array([5., 8.], dtype=float32)

  References:
    Verma et al., `Manifold Mixup: Better Representations by Interpolating Hidden States`, 2019, section 2.
  """
  x = check_floating(x, "x")
  if x.ndim < 1 or x.shape[0] != len(mixing.partners):
    raise ValueError(f"x must have the batch axis of the mixing, {len(mixing.partners)}, got {x.shape}")
  check_choice(layer, "layer", mixing.shares)
  return mixed(x, shuffled(x, mixing.partners), mixing.shares[layer])

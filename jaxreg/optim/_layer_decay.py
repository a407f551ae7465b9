"""Learning rates that fall from the last layers to the first, for fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import optax
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_range
from jaxreg.optim._trust_region import check_transform


def layer_decay(
  inner: optax.GradientTransformation, *, layers: Sequence[paths.Pattern], decay: ArrayLike = 0.75
) -> optax.GradientTransformationExtraArgs:
  r"""Multiplies an optimizer's updates by a factor that falls with the distance from the last layer.

  .. math:: \Delta_l = \gamma^{L - 1 - l} \operatorname{inner}(g)_l, \qquad l = 0, \ldots, L - 1

  The last layer has the optimizer's own learning rate. Weight decay inside `inner` is also scaled.
  `optax.partition` with `paths.labels` gives layers whole optimizers of their own instead.

  Args:
    inner: the optimizer.
    layers: a pattern of names for each layer, as in `paths.labels`, from the input to the output.
    decay: `gamma`, in [0, 1]; 0 trains the last layer alone.

  Raises:
    ValueError: in `update`, for a parameter in no layer.

  Example:
    >>> tx = layer_decay(optax.sgd(1.0), layers=("stem/*", "block_*", "head/*"), decay=0.5)
    >>> grads = {name: {"kernel": jnp.array(8.0)} for name in ("stem", "block_0", "head")}
    >>> jax.tree.map(float, tx.update(grads, tx.init(grads))[0])
    {'block_0': {'kernel': -4.0}, 'head': {'kernel': -8.0}, 'stem': {'kernel': -2.0}}

  References:
    Howard and Ruder, `Universal Language Model Fine-tuning for Text Classification`, 2018, section 3.2.
    Bao et al., `BEiT: BERT Pre-Training of Image Transformers`, 2022.
  """
  check_transform(inner)
  check_range(decay, "decay", low=0, high=1)

  def scale(updates: Any, params: Any = None) -> Any:
    del params

    def factor(u, layer):
      return (u * decay ** (len(layers) - 1 - layer)).astype(u.dtype)

    return jax.tree.map(factor, updates, paths.labels(updates, layers))

  return optax.with_extra_args_support(optax.chain(inner, optax.stateless(scale)))

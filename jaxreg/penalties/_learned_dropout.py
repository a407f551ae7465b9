"""The KL cost of dropout with learned rates, over a whole network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import noise, paths
from jaxreg.typing import Array, Params


def learned_dropout(params: Params, *, length_scale: ArrayLike = 1.0) -> Array:
  r"""Computes the sum of the KL terms of all layers that learn their dropout rate or variance.

  .. math:: \sum_{l:\ p_l} \mathrm{KL}_{\text{concrete}}(W_l, p_l) +
    \sum_{l:\ \alpha_l} \mathrm{KL}_{\text{variational}}(\alpha_l)

  A leaf `rate_logit` belongs to concrete dropout on the inputs of the `kernel` of the same layer, as in
  `models.Dense`; for layers of Equinox see `noise.concrete_dropout_kl`. A leaf `log_alpha` belongs to
  variational dropout: it counts once per input, because the weights that read an input share its noise. With
  a mean loss, the weight of this penalty is 1 over the number of training examples.

  Args:
    params: any pytree; layers without such leaves cost nothing.
    length_scale: length scale of concrete dropout's prior.

  Returns:
    A scalar, float32 or wider.

  Raises:
    ValueError: if a layer has a `rate_logit` but no `kernel`.

  Example:
    >>> layer = {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2), "log_alpha": jnp.zeros(2)}
    >>> f"{learned_dropout({'Dense_0': layer}):.3f}"
    '0.862'

  References:
    Gal, Hron and Kendall, `Concrete Dropout`, 2017, section 3.
    Molchanov, Ashukha and Vetrov, `Variational Dropout Sparsifies Deep Neural Networks`, 2017, section 4.2.
  """
  leaves: dict[str, Any] = dict(zip(paths.leaf_names(params), jax.tree.leaves(params), strict=True))
  total = jnp.zeros((), jnp.float32)
  for name, leaf in leaves.items():
    layer, _, own = name.rpartition("/")
    if own == "log_alpha":
      total = total + noise.variational_dropout_kl(leaf).sum()
    elif own == "rate_logit":
      kernel = f"{layer}/kernel" if layer else "kernel"
      if kernel not in leaves:
        raise ValueError(f"params must have {kernel}, the kernel whose inputs {name} drops")
      total = total + noise.concrete_dropout_kl(leaves[kernel], rate_logit=leaf, length_scale=length_scale)
  return total

"""Weight scaling: the test-time form of dropout without inversion, on the weights."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option
from jaxreg._leaves import map_selected
from jaxreg.typing import Mask, Params


def scale_weights(params: Params, *, rate: ArrayLike, mask: Mask) -> Params:
  r"""Multiplies weights by the probability that their inputs were kept: `W x` becomes `(p W) x`.

  .. math:: \mathbb{E}_m\, W (m \odot x) = (p W)\, x, \qquad m \sim \mathrm{Ber}(p)

  This is exact for one linear layer, for a stack of them and, renormalised, for the geometric mean of softmax
  regressions. It is not exact through a non-linearity. Inverted dropout does not need it.

  Args:
    params: any pytree.
    rate: `1 - p`, the probability that an input was dropped, in [0, 1].
    mask: the kernels of the layers that read dropped units, without biases, such as `"Dense_1/kernel"`.

  Example:
    >>> scale_weights({"kernel": 2.0, "bias": 2.0}, rate=0.5, mask="kernel")
    {'bias': 2.0, 'kernel': Array(1., dtype=float32)}

  References:
    Hinton et al., `Improving neural networks by preventing co-adaptation of feature detectors`, 2012.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dropout (weight
    scaling inference rule).
  """
  check_option(rate, "rate", (), low=0, high=1)
  return map_selected(lambda _, leaf: leaf * jnp.asarray(1.0 - rate, leaf.dtype), params, mask)

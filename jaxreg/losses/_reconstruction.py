"""Reconstruction: how well a decoder reproduces an example's inputs."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_wide, known_values
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where(end=1)
def reconstruction(
  outputs: ArrayLike,
  x: ArrayLike,
  *,
  likelihood: Literal["gaussian", "bernoulli"] = "gaussian",
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes minus the log-likelihood of the inputs given the outputs of a decoder.

  .. math:: \tfrac12 \sum_i (o_i - x_i)^2 \quad \text{or} \quad
    -\sum_i \bigl(x_i \log \sigma(o_i) + (1 - x_i) \log \sigma(-o_i)\bigr)

  The Gaussian has variance 1, and its constant is left out. The loss needs no labels, so examples without
  labels train the representation that decoder and classifier share. For a denoising autoencoder,
  `x` is the clean input and the model gets the noisy one.

  Args:
    outputs: `[batch, ...]`, floating; for "bernoulli" logits.
    x: of the same shape, floating; for "bernoulli" in [0, 1].
    likelihood: the likelihood of an input given its output.
    where: `[batch]`, bool: which examples count.

  Returns:
    `[batch]`, in nats, float32 or wider; a sum over the inputs, not their mean.

  Raises:
    ValueError: if known inputs are outside [0, 1] for "bernoulli".

  Example:
    >>> reconstruction(jnp.zeros((1, 2)), jnp.array([[1.0, 2.0]]))
    Array([2.5], dtype=float32)

  References:
    Vincent et al., `Extracting and Composing Robust Features with Denoising Autoencoders`, 2008.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, semi-supervised learning.
  """
  outputs = check_wide(outputs, "outputs")
  raw_x, x = x, check_wide(x, "x", shape=outputs.shape)
  check_choice(likelihood, "likelihood", ("gaussian", "bernoulli"))
  known = known_values(raw_x) if likelihood == "bernoulli" else None
  if known is not None and known.size and (known.min() < 0 or known.max() > 1):
    raise ValueError(
      f"x must lie in [0, 1] for 'bernoulli', got values from {known.min():g} to {known.max():g}; "
      "divide pixels by 255, or take 'gaussian'"
    )
  if likelihood == "gaussian":
    each = 0.5 * jnp.square(outputs - x)
  else:
    # (1 - x) softplus(o) + x softplus(-o): nothing cancels, however large the logits.
    each = (1 - x) * jax.nn.softplus(outputs) + x * jax.nn.softplus(-outputs)
  return each.sum(axis=tuple(range(1, each.ndim)))

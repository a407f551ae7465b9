"""Co-adaptation: how strongly the activations of a layer's units are correlated."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_wide
from jaxreg._scaled import power_of_two
from jaxreg._sharding import partitioned
from jaxreg._sums import gram
from jaxreg.typing import Array


def coadaptation(activations: ArrayLike) -> Array:
  r"""Computes the mean absolute correlation over pairs of units: 0 if uncorrelated, 1 if one determines all.

  .. math:: \frac{2}{n (n - 1)} \sum_{i < j} |\operatorname{corr}(h_i, h_j)|

  The mean covers the `n` units whose activations differ between examples; a dead unit is left out. With few
  examples the value is larger by chance: for independent units it is about `0.8 / sqrt(examples)`.

  Args:
    activations: `[..., units]`, floating; all axes but the last are examples.

  Returns:
    A scalar in [0, 1], float32 or wider; 0 if fewer than two units vary.

  Example:
    >>> hidden = jnp.array([[1.0, 2.0, 1.0], [2.0, 4.0, -1.0], [3.0, 6.0, 1.0]])
    >>> coadaptation(hidden).round(4)  # units 1 and 2 agree, unit 3 differs
    Array(0.3333, dtype=float32)

  References:
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, effect on features.
  """
  activations = check_wide(activations, "activations")
  if activations.ndim < 2:
    raise ValueError(f"activations must be [..., units], got {activations.shape}")
  return partitioned(_mean_correlation, activations, kept=slice(0))


def _mean_correlation(activations: Array) -> Array:
  rows = activations.reshape(math.prod(activations.shape[:-1]), activations.shape[-1])
  rows = rows * power_of_two(rows, (0,))  # so that no square under- or overflows
  centred = rows - rows.mean(axis=0, keepdims=True)
  squares = jnp.square(centred).sum(axis=0)
  # A constant unit has no correlation, but its rounded mean would give it one.
  varies = (rows != rows[:1]).any(axis=0)
  units = jnp.where(varies[None], centred, 0) / jnp.sqrt(jnp.where(varies, squares, 1))[None]
  size = varies.sum()
  pairs = jnp.where(jnp.eye(rows.shape[1], dtype=bool), 0, jnp.abs(gram(units)))
  return pairs.sum() / jnp.maximum(size * (size - 1), 1)

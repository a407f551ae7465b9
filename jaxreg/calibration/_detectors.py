"""Detectors of out-of-distribution examples that are fitted to the features of training examples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import (
  check_array,
  check_choice,
  check_count,
  check_labels,
  check_range,
  check_wide,
  known_values,
)
from jaxreg._errors import ArgumentError
from jaxreg._scaled import unit_length
from jaxreg._sharding import gathered
from jaxreg._where import check_where, zero_elsewhere
from jaxreg.typing import Array

KINDS = ("mahalanobis", "relative_mahalanobis", "knn", "vim", "react")
CHUNK = 256  # examples whose distances to all training examples are in memory at a time
Scores = Callable[[ArrayLike], Array]


def fit_detector(
  features: ArrayLike,
  *,
  kind: Literal["mahalanobis", "relative_mahalanobis", "knn", "vim", "react"],
  labels: ArrayLike | None = None,
  num_classes: int | None = None,
  kernel: ArrayLike | None = None,
  bias: ArrayLike | None = None,
  num_neighbors: int = 50,
  num_components: int | None = None,
  quantile: float = 0.9,
  where: ArrayLike | None = None,
) -> Scores:
  r"""Fits a score of out-of-distribution examples to the features of training examples.

  With class means :math:`\mu_k`, the mean :math:`\mu` of all training features, the covariance :math:`\Sigma`
  around the class means and :math:`\Sigma_0` around the mean, the scores of features `h` are

  .. math::
    \text{mahalanobis:}\quad & m(h) = \min_k (h - \mu_k)^\top \Sigma^{+} (h - \mu_k) \\
    \text{relative_mahalanobis:}\quad & m(h) - (h - \mu)^\top \Sigma_0^{+} (h - \mu) \\
    \text{knn:}\quad & \| \tilde h - \tilde h_{(k)} \|_2, \quad \tilde h = h / \|h\|_2 \\
    \text{vim:}\quad & \alpha \|R^\top (h + W^{+\top} b)\|_2 - \log \textstyle\sum_k e^{(W^\top h + b)_k} \\
    \text{react:}\quad & -\log \textstyle\sum_k e^{(W^\top \min(h, c) + b)_k}

  Here :math:`\tilde h_{(k)}` is the `k`-th nearest training example and `R` an orthonormal basis of the minor
  directions of the training features. :math:`\alpha` is the mean largest logit over the mean norm of that
  part, and `c` is a quantile of all training activations. Directions without variance count as 0 in the
  pseudo-inverses.

  Args:
    features: `[n, size]`, floating: what the last layer sees, for training examples.
    kind: which score.
    labels: `[n]`, integer, for `mahalanobis` and `relative_mahalanobis`.
    num_classes: number of classes; by default that of the largest label, which must then be known.
    kernel: `W` `[size, classes]` of the last layer, for `vim` and `react`.
    bias: `b` `[classes]` of the last layer; by default 0.
    num_neighbors: `k` of `knn`; the source's 50 is for 50 000 training examples.
    num_components: size of the principal space that `vim` leaves out; by default half of `size`.
    quantile: of all training activations, the limit `c` of `react`.
    where: `[n]`, bool: which training examples count. If a traced `where` leaves none, or fewer than
      `num_neighbors` for `knn`, the scores are NaN.

  Returns:
    A function of features `[..., size]` to scores `[...]`, float32 or wider, larger for less usual examples.
    It is a pytree, which compiled functions take as an argument.

  Raises:
    ValueError: if an argument that the kind needs is missing.

  Example:
    >>> train, labels = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 8.0], [2.0, 8.0]]), jnp.array([0, 0, 1, 1])
    >>> detector = fit_detector(train, kind="mahalanobis", labels=labels)
    >>> detector(jnp.array([[1.0, 0.0], [4.0, 8.0]])).round(3)  # the variance along the first axis is 1
    Array([0., 9.], dtype=float32)

  References:
    Lee et al., `A Simple Unified Framework for Detecting Out-of-Distribution Samples`, 2018, Eqs. 1 and 2.
    Ren et al., `A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection`, 2021, Eq. 3.
    Sun et al., `Out-of-Distribution Detection with Deep Nearest Neighbors`, 2022, Algorithm 1.
    Wang et al., `ViM: Out-Of-Distribution with Virtual-logit Matching`, 2022, Eqs. 2 to 8.
    Sun, Guo and Li, `ReAct: Out-of-distribution Detection With Rectified Activations`, 2021, Eqs. 1 and 2.
  """
  check_choice(kind, "kind", KINDS)
  features = check_wide(features, "features")
  if features.ndim != 2 or 0 in features.shape:
    raise ArgumentError("features", f"must be [n, size] with at least one example, got {features.shape}")
  for value, name in ((labels, "labels"), (kernel, "kernel"), (bias, "bias")):
    if value is not None:
      check_array(value, name)
  check_count(num_neighbors, "num_neighbors")
  for value, name in ((num_classes, "num_classes"), (num_components, "num_components")):
    if value is not None:
      check_count(value, name)
  check_range(quantile, "quantile", low=0, high=1)
  number, size = features.shape
  known = known_values(where := np.ones(number, bool) if where is None else check_where(where, (number,)))
  counts, counting = jnp.asarray(where), number if known is None else int(known.sum())
  if not counting:
    raise ArgumentError("where", "must have an example that counts, got none")
  features, counts = gathered(features), gathered(counts)
  # An example that does not count may hold anything.
  features = jax.lax.stop_gradient(jnp.where(counts[:, None], features, 0))
  weights = counts.astype(features.dtype)
  if kind == "knn":
    if num_neighbors > counting:
      raise ArgumentError(
        "num_neighbors", f"must be at most the {counting} examples that count, got {num_neighbors}"
      )
    scores = functools.partial(_scores, _neighbor_scores, size, num_neighbors)
    return jax.tree_util.Partial(scores, *_fit_neighbors(features, counts, num_neighbors))
  if kind in ("vim", "react"):
    if kernel is None:
      raise ArgumentError("kernel", f"must be given for {kind}, got None")
    kernel = check_wide(kernel, "kernel")
    if kernel.ndim != 2 or kernel.shape[0] != size:
      raise ArgumentError("kernel", f"must be [{size}, classes], got {kernel.shape}")
    shape = kernel.shape[1:]
    bias = jnp.zeros(shape, kernel.dtype) if bias is None else check_wide(bias, "bias", shape=shape)
    if kind == "react":
      limit = jnp.nanquantile(jnp.where(counts[:, None], features, jnp.nan), quantile)
      return jax.tree_util.Partial(functools.partial(_scores, _react_scores, size), limit, kernel, bias)
    num_components = size // 2 if num_components is None else num_components
    if num_components >= size:
      raise ArgumentError("num_components", f"must be below the {size} features, got {num_components}")
    scores = functools.partial(_scores, _vim_scores, size)
    return jax.tree_util.Partial(scores, *_fit_vim(features, weights, kernel, bias, num_components))
  if labels is None:
    raise ArgumentError("labels", f"must be given for {kind}, got None")
  given: Any = labels
  if np.shape(given) == (number,):  # `check_labels` refuses others
    given = zero_elsewhere(where, given)
  if num_classes is None:
    if (classes := known_values(given)) is None:
      raise ArgumentError("num_classes", "must be given for labels that are traced, got None")
    num_classes = int(classes.max()) + 1
  labels = gathered(check_labels(given, features, "features", num_classes=num_classes))
  fitted = _fit_mahalanobis(features, weights, labels, num_classes)
  scores = _relative_scores if kind == "relative_mahalanobis" else _class_scores
  return jax.tree_util.Partial(functools.partial(_scores, scores, size), *fitted)


def _scores(scores: Callable[..., Array], size: int, *fitted_and_features: Any) -> Array:
  """Checks the features, and computes the scores in one program, which compiles faster than many."""
  *fitted, features = fitted_and_features
  x = check_wide(features, "features")
  if x.ndim == 0 or x.shape[-1] != size:
    raise ArgumentError("features", f"must be [..., {size}], as those of the fit, got {x.shape}")
  return scores(*fitted, x)


@functools.partial(jax.jit, static_argnums=2)
def _fit_neighbors(features: Array, counts: Array, num_neighbors: int) -> tuple[Array, Array]:
  enough = counts.sum() >= num_neighbors
  return jnp.where(enough, unit_length(features, (-1,)), jnp.nan), counts | ~enough


@functools.partial(jax.jit, static_argnums=0)
def _neighbor_scores(num_neighbors: int, training: Array, counts: Array, x: Array) -> Array:
  x = unit_length(x, (-1,))

  def distance(one: Array) -> Array:
    cosines = jnp.where(counts, _product(training, one), -jnp.inf)
    nearest = jax.lax.top_k(cosines, num_neighbors)[1]
    # The distance comes from differences: 2 - 2 cos would lose the digits of small distances.
    squares = jnp.square(one[None] - training[nearest]).sum(axis=-1)
    return jnp.sqrt(jnp.where(counts[nearest], squares, jnp.inf).max())

  flat = x.reshape(-1, x.shape[-1])
  return jax.lax.map(distance, flat, batch_size=CHUNK).reshape(x.shape[:-1])


@jax.jit
def _react_scores(limit: Array, kernel: Array, bias: Array, x: Array) -> Array:
  return -jax.nn.logsumexp(_logits(jnp.minimum(x, limit), kernel, bias), axis=-1)


@jax.jit
def _vim_scores(origin: Array, minor: Array, scale: Array, kernel: Array, bias: Array, x: Array) -> Array:
  residual = jnp.linalg.norm(_product(_minus(x, origin), minor), axis=-1)
  return scale * residual - jax.nn.logsumexp(_logits(x, kernel, bias), axis=-1)


@functools.partial(jax.jit, static_argnums=4)
def _fit_vim(
  features: Array, weights: Array, kernel: Array, bias: Array, num_components: int
) -> tuple[Array, ...]:
  origin = -_product(bias, jnp.linalg.pinv(kernel))
  centred = (features - origin[None]) * weights[:, None]
  # The singular vectors of the examples keep the digits that a matrix of squares would lose.
  directions = jnp.linalg.svd(centred, full_matrices=len(centred) < features.shape[1])[2]
  minor = directions[num_components:].T
  largest = (_logits(features, kernel, bias).max(axis=-1) * weights).sum()
  residual = jnp.linalg.norm(_product(centred, minor), axis=-1).sum()
  scale = largest / jnp.where(residual > 0, residual, 1)
  return origin, minor, jnp.where(weights.sum() > 0, scale, jnp.nan), kernel, bias


@jax.jit
def _class_scores(means: Array, whitening: Array, mean: Array, whole: Array, x: Array) -> Array:
  del mean, whole
  # One class after another: no array of all examples, classes and features.
  return jax.lax.map(lambda mean: _distance(_minus(x, mean), whitening), means).min(axis=0)


@jax.jit
def _relative_scores(means: Array, whitening: Array, mean: Array, whole: Array, x: Array) -> Array:
  return _class_scores(means, whitening, mean, whole, x) - _distance(_minus(x, mean), whole)


@functools.partial(jax.jit, static_argnums=3)
def _fit_mahalanobis(features: Array, weights: Array, labels: Array, num_classes: int) -> tuple[Array, ...]:
  members = jax.nn.one_hot(labels, num_classes, dtype=features.dtype) * weights[:, None]
  sizes, total = members.sum(axis=0), weights.sum()
  means, within = _centred(features, members, labels)
  mean, around = _centred(features, weights[:, None], jnp.zeros_like(labels))
  # A class without examples has no mean, and is never the nearest.
  means = jnp.where((sizes[:, None] > 0) | (total == 0), means, jnp.inf)
  rounding = jnp.linalg.norm(features) * jnp.finfo(features.dtype).eps
  return means, _whitening(within, total, rounding), mean[0], _whitening(around, total, rounding)


def _centred(features: Array, members: Array, labels: Array) -> tuple[Array, Array]:
  """Returns the means of the classes, and the features less the mean of their class."""
  sizes, weights = members.sum(axis=0), members.sum(axis=1, keepdims=True)
  means, rest = jnp.zeros((len(sizes), features.shape[1]), features.dtype), features
  for _ in range(3):  # a long sum in float32 is so coarse that a constant unit would get a variance
    added = _product(members.T, rest) / jnp.where(sizes > 0, sizes, 1)[:, None]
    means, rest = means + added, (rest - added[labels]) * weights
  return means, rest


def _whitening(centred: Array, total: Array, rounding: Array) -> Array:
  """Returns `V` such that `V V^T` is the pseudo-inverse of the covariance of centred examples."""
  values, vectors = jnp.linalg.svd(centred, full_matrices=False)[1:]
  cut = values.max() * centred.shape[1] * jnp.finfo(values.dtype).eps + rounding
  scales = jnp.where(values > cut, jnp.sqrt(total) / jnp.where(values > cut, values, 1), 0)
  return vectors.T * jnp.where(total > 0, scales, jnp.nan)[None]


def _distance(difference: Array, whitening: Array) -> Array:
  finite = jnp.isfinite(difference).all(axis=-1)
  squares = jnp.square(_product(jnp.where(finite[..., None], difference, 0), whitening)).sum(axis=-1)
  return jnp.where(finite, squares, jnp.inf)


def _logits(x: Array, kernel: Array, bias: Array) -> Array:
  return _minus(_product(x, kernel), -bias)


def _minus(x: Array, vector: Array) -> Array:
  return x - vector.reshape((1,) * (x.ndim - 1) + vector.shape)


def _product(a: Array, b: Array) -> Array:
  return jnp.matmul(a, b, precision="highest")

"""The Laplace approximation of the last layer: how sure a trained network is of its own weights."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_option, check_wide
from jaxreg._sums import ROWS, products, sum_of_blocks
from jaxreg.typing import Array


class DenseCurvature(NamedTuple):
  """`matrix` `[features, classes, features, classes]`: the sum over examples of the loss's Hessian."""

  matrix: Array


class KroneckerCurvature(NamedTuple):
  """Sums over examples: `features` `[features, features]`, `classes` `[classes, classes]`, and `count`."""

  features: Array
  classes: Array
  count: Array


class DensePosterior(NamedTuple):
  """The variances `[n]` of the weights along directions `[features, classes, n]`."""

  directions: Array
  variances: Array


class KroneckerPosterior(NamedTuple):
  """The variances `[features, classes]` along products of the columns of `features` and of `classes`."""

  features: Array
  classes: Array
  variances: Array


def laplace_curvature(
  features: ArrayLike,
  logits: ArrayLike,
  *,
  structure: Literal["dense", "kronecker"] = "dense",
  weights: ArrayLike | None = None,
  noise_variance: ArrayLike | None = None,
) -> DenseCurvature | KroneckerCurvature:
  r"""Computes the Gauss-Newton matrix of the last layer, here the Hessian of the cross-entropy, as sums.

  .. math:: H = \sum_i w_i\, \phi_i \phi_i^\top \otimes \Lambda_i, \quad
    \Lambda = \operatorname{diag}(p) - p p^\top, \qquad
    H \approx \sum_i w_i \phi_i \phi_i^\top \otimes \frac{\sum_i w_i \Lambda_i}{\sum_i w_i}

  For a regression, `Lambda` is the inverse of the noise's variance, the Hessian of a Gaussian's
  log-likelihood; the variance of a new target is then `laplace_variance` plus the noise's variance.

  The second form is `kronecker`, which is exact if all `Lambda` are equal. `dense` takes
  `(features * classes)**2` numbers. The sums of batches merge by addition:
  `calibration.merge(total, new)`.

  Args:
    features: the inputs of the last layer `phi`, `[batch, features]`, floating, without noise. For a layer
      with a bias, append a feature that is 1.
    logits: the outputs of the last layer, `[batch, classes]`, floating.
    structure: the form of the matrix.
    weights: `[batch]`, default 1; 0 for padding.
    noise_variance: of a regression, whose `logits` are the outputs: a scalar or `[classes]`, above 0.

  Returns:
    A NamedTuple of sums for `laplace_posterior`, float32 or wider: for "dense" of the `matrix`
    `[features, classes, features, classes]`, for "kronecker" of `features`, `classes` and `count`.

  Example:
    >>> laplace_curvature(jnp.array([[2.0]]), jnp.zeros((1, 2))).matrix.reshape(2, 2)
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)

  References:
    Ritter, Botev and Barber, `A Scalable Laplace Approximation for Neural Networks`, 2018.
    Kristiadi, Hein and Hennig, `Being Bayesian, Even Just a Bit, Fixes Overconfidence`, 2020.
  """
  features, logits = check_wide(features, "features"), check_wide(logits, "logits")
  if features.ndim != 2 or logits.ndim != 2 or len(features) != len(logits):
    raise ValueError(
      "features and logits must be [batch, features] and [batch, classes], "
      f"got {features.shape} and {logits.shape}"
    )
  check_choice(structure, "structure", ("dense", "kronecker"))
  ones = jnp.ones(len(features), features.dtype)
  w = ones if weights is None else check_wide(weights, "weights", shape=ones.shape)
  # Padding may hold anything, even NaN.
  features, logits = (jnp.where(w[:, None] == 0, 0, x) for x in (features, logits))
  eye = jnp.eye(logits.shape[1], dtype=logits.dtype)[None]
  if noise_variance is None:
    p = jax.nn.softmax(logits)
    outer = p[:, :, None] * (eye - p[:, None, :])
  else:
    check_option(noise_variance, "noise_variance", logits.shape[1:], low=0, open_low=True)
    variances = jnp.broadcast_to(jnp.asarray(noise_variance, eye.dtype), (1, 1, logits.shape[1]))
    outer = jnp.broadcast_to(eye / variances, (len(logits), *eye.shape[1:]))
  if structure == "dense":
    squared = features.shape[1] ** 2, logits.shape[1] ** 2
    rows = max(ROWS, 4 * math.prod(squared) // max(sum(squared), 1))
    of_block = lambda w, x, outer: jnp.einsum("n,nd,ne,nkl->dkel", w, x, x, outer)
    return DenseCurvature(sum_of_blocks(of_block, rows, w, features, outer))
  of_classes = (w[:, None, None] * outer).sum(axis=0)
  return KroneckerCurvature(products(w[:, None] * features, features), of_classes, w.sum())


def laplace_posterior(
  curvature: DenseCurvature | KroneckerCurvature, *, precision: ArrayLike
) -> DensePosterior | KroneckerPosterior:
  r"""Computes the Gaussian posterior of the last layer's weights at a trained solution.

  .. math:: \Sigma = (H + \tau I)^{-1}

  The weights are those that minimise the sum of the losses plus :math:`\tfrac{\tau}{2} \|W\|^2`; for a mean
  of `n` losses with `penalties.l2` of the weight `a`, `precision = n * a`. The prior also covers the feature
  that is 1, if there is one. Choose among several precisions by the loss on held-out data.

  Args:
    curvature: the sums of `laplace_curvature` over all training examples.
    precision: `tau` > 0, the prior's.

  Returns:
    A NamedTuple for `laplace_variance`, by the form of `curvature`: `directions` or the factors `features`
    and `classes` of the directions, and the `variances` of the weights along them.

  Example:
    >>> curvature = laplace_curvature(jnp.array([[2.0]]), jnp.zeros((1, 2)))
    >>> laplace_posterior(curvature, precision=1.0).variances.round(4)  # of eigenvalues 0 and 2
    Array([1.    , 0.3333], dtype=float32)

  References:
    Daxberger et al., `Laplace Redux - Effortless Bayesian Deep Learning`, 2021, section 2.
  """
  check_option(precision, "precision", (), low=0, open_low=True)
  if isinstance(curvature, KroneckerCurvature):
    (of_features, a), (of_classes, b) = _eigen(curvature.features), _eigen(curvature.classes)
    products = a[:, None] * b[None, :] / jnp.where(curvature.count > 0, curvature.count, 1)
    return KroneckerPosterior(of_features, of_classes, 1 / (products + precision))
  d, k = curvature.matrix.shape[:2]
  directions, values = _eigen(curvature.matrix.reshape(d * k, d * k))
  return DensePosterior(directions.reshape(d, k, d * k), 1 / (values + precision))


def laplace_variance(posterior: DensePosterior | KroneckerPosterior, features: ArrayLike) -> Array:
  r"""Computes the posterior variance of each logit.

  .. math:: v_k(x) = (\phi \otimes e_k)^\top \Sigma\, (\phi \otimes e_k)

  Args:
    posterior: from `laplace_posterior`.
    features: `[batch, features]`, floating, as in `laplace_curvature`.

  Returns:
    `[batch, classes]`, float32 or wider, for `probit_log_probs`.

  Example:
    >>> posterior = laplace_posterior(
    ...   laplace_curvature(jnp.array([[2.0]]), jnp.zeros((1, 2))), precision=1.0
    ... )
    >>> laplace_variance(posterior, jnp.array([[0.0], [3.0]])).round(4)  # 9 * (1 + 1 / 3) / 2
    Array([[0., 0.],
           [6., 6.]], dtype=float32)

  References:
    Daxberger et al., `Laplace Redux - Effortless Bayesian Deep Learning`, 2021, appendix B.
  """
  features = check_wide(features, "features")
  number = posterior[0].shape[0]
  if features.ndim != 2 or features.shape[1] != number:
    raise ValueError(f"features must be [batch, {number}], got {features.shape}")
  if isinstance(posterior, KroneckerPosterior):
    squares = jnp.square(features @ posterior.features), jnp.square(posterior.classes)
    return jnp.einsum("ni,kj,ij->nk", *squares, posterior.variances)
  along = jnp.einsum("nd,dkj->nkj", features, posterior.directions)
  return jnp.square(along) @ posterior.variances


def probit_log_probs(logits: ArrayLike, variance: ArrayLike) -> Array:
  r"""Computes the mean prediction under independent Gaussian logits, by MacKay's approximation.

  .. math:: \log \operatorname{softmax}\Bigl(\frac{z_k}{\sqrt{1 + \tfrac{\pi}{8} v_k}}\Bigr)_k

  Variances make the prediction less sure. Unlike a softmax, it changes if a constant is added to all logits,
  so log-probabilities do not replace logits here.

  Args:
    logits: `z`, `[..., classes]`, floating.
    variance: `v`, at least 0, same shape, floating.

  Returns:
    Log-probabilities `[..., classes]`, float32 or wider.

  Example:
    >>> log_probs = probit_log_probs(jnp.array([3.0, 0.0]), jnp.array([8 / jnp.pi * 8, 0.0]))
    >>> print(f"{jnp.exp(log_probs[0]):.4f}")  # sigmoid(3 / 3)
    0.7311

  References:
    MacKay, `The Evidence Framework Applied to Classification Networks`, 1992.
    Daxberger et al., `Laplace Redux - Effortless Bayesian Deep Learning`, 2021, appendix B.
  """
  logits = check_wide(logits, "logits")
  variance = check_wide(variance, "variance", shape=logits.shape)
  return jax.nn.log_softmax(logits / jnp.sqrt(1 + jnp.pi / 8 * variance))


def _eigen(matrix: Array) -> tuple[Array, Array]:
  """Eigenvectors and eigenvalues of a positive semidefinite matrix; 0 for values rounded below it."""
  values, vectors = jnp.linalg.eigh(matrix)
  return vectors, jnp.maximum(values, 0)

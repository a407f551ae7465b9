"""Curvature as a linear operator: products with the Hessian, the Gauss-Newton or the Fisher matrix."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxreg._analyses import as_mean_and_count, full_precision, mean_and_count, outputs_at, same, widened
from jaxreg._checks import check_choice, check_count, check_key, check_loss_fn
from jaxreg.flatness._subset import as_vector, leaves_in, selected, split, with_leaves
from jaxreg.flatness._vectors import Vector
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params

Likelihood = Literal["categorical", "normal"]


@dataclasses.dataclass(frozen=True, repr=False)
class Operator:
  """A symmetric matrix over the leaves of `params` that `mask` selects, as a function of a vector.

  It is a pytree: in a call of a compiled function, parameters and data are arguments, not constants.
  """

  params: Params
  batch: Batch
  key: Key | None
  mask: tuple[bool, ...]

  def __repr__(self) -> str:
    # Without the values of parameters and data, which may be millions.
    size = sum(math.prod(jnp.shape(leaf)) for leaf in self.leaves)
    return f"{type(self).__name__}([{size}] -> [{size}])"

  @property
  def leaves(self) -> Vector:
    """The selected parameters."""
    return leaves_in(self.params, self.mask)

  @property
  def like(self) -> Array:
    """The selected parameters, `[size]`: the shape and dtype of a vector."""
    return split(self.params, self.mask).flat

  @full_precision
  def __call__(self, vector: Array) -> Array:
    """Multiplies a vector `[size]` by the matrix."""
    like, unravel = ravel_pytree(self.leaves)
    return ravel_pytree(self.product(unravel(as_vector(vector, like))))[0]

  def product(self, vector: Vector) -> Vector:
    """Multiplies a vector that has an array for each selected leaf."""
    return self.product_and_count(vector)[0]

  def product_and_count(self, vector: Vector) -> tuple[Vector, Array | None]:
    """Multiplies a vector; also returns how many examples count in the loss, None for all of the batch."""
    raise NotImplementedError

  @full_precision
  def matrix(self, *, chunk_size: int = 1) -> Array:
    """Builds the matrix `[size, size]` from `chunk_size` products at a time; 1 is fastest on a CPU."""
    return _matrix(chunk_size, self)

  def outputs_fn(self, apply_fn: Callable[..., Any], key: Key | None) -> Callable[[Vector], Any]:
    """Returns the network's outputs as a function of the selected leaves."""

    def outputs(leaves: Vector) -> Any:
      return outputs_at(apply_fn, with_leaves(self.params, self.mask, leaves), self.batch, key)

    return outputs


@partial(jax.jit, static_argnums=0)
def _matrix(chunk_size: int, operator: Operator) -> Array:
  like = operator.like

  def row(number: Array) -> Array:
    return operator(jnp.zeros_like(like).at[number].set(1))

  matrix = jax.lax.map(row, jnp.arange(like.size), batch_size=chunk_size)
  return (matrix + matrix.T) / 2


def _as_pytree(operator: type[Operator], *functions: str) -> None:
  """Registers a class of operators, whose mask and functions are static."""
  data, static = ["params", "batch", "key"], ["mask", *functions]
  jax.tree_util.register_dataclass(operator, data_fields=data, meta_fields=static)


@dataclasses.dataclass(frozen=True, repr=False)
class Hessian(Operator):
  """The result of `hvp`."""

  loss_fn: LossFn

  def product_and_count(self, vector: Vector) -> tuple[Vector, Array | None]:
    """Differentiates the gradient along the vector."""

    def loss(leaves: Vector) -> tuple[Array, Array | None]:
      params = with_leaves(self.params, self.mask, leaves)
      return mean_and_count(self.loss_fn, params, self.batch, self.key)

    return jax.jvp(jax.grad(loss, has_aux=True), (self.leaves,), (vector,), has_aux=True)[1:]


@dataclasses.dataclass(frozen=True, repr=False)
class GaussNewton(Operator):
  """The result of `gauss_newton`."""

  apply_fn: Callable[..., Any]
  outer_loss_fn: Callable[..., Array]

  def product_and_count(self, vector: Vector) -> tuple[Vector, Array | None]:
    """Multiplies by the Jacobian, the Hessian of the outer loss and the transposed Jacobian."""
    outputs = self.outputs_fn(self.apply_fn, self.key)
    value, tangent = jax.jvp(outputs, (self.leaves,), (vector,))

    def outer_loss(value: Any) -> tuple[Array, Array | None]:
      return as_mean_and_count(self.outer_loss_fn(value, self.batch), "outer_loss_fn")

    gradient = jax.grad(outer_loss, has_aux=True)
    _, curved, count = jax.jvp(gradient, (value,), (tangent,), has_aux=True)
    return jax.vjp(outputs, self.leaves)[1](curved)[0], count


@dataclasses.dataclass(frozen=True, repr=False)
class Fisher(Operator):
  """The result of `fisher`."""

  apply_fn: Callable[..., Array]
  scores_fn: Callable[..., Array]

  def product_and_count(self, vector: Vector) -> tuple[Vector, Array | None]:
    """Multiplies by the Jacobian, the mean outer product of the scores and the transposed Jacobian."""
    outputs = self.outputs_fn(self.apply_fn, None)
    value, tangent = jax.jvp(outputs, (self.leaves,), (vector,))
    scores = self.scores_fn(value, self.batch, same(self.key))
    axes = tuple(range(2, scores.ndim))
    along = jnp.sum(scores * tangent[None], axis=axes, keepdims=True)
    return jax.vjp(outputs, self.leaves)[1]((scores * along).mean(axis=0) / len(value))[0], None


_as_pytree(Hessian, "loss_fn")
_as_pytree(GaussNewton, "apply_fn", "outer_loss_fn")
_as_pytree(Fisher, "apply_fn", "scores_fn")


def hvp(
  loss_fn: LossFn, params: Params, batch: Batch, *, mask: Mask = "*", key: Key | None = None
) -> Operator:
  r"""Returns the Hessian of a loss as a function :math:`v \mapsto H v`, by forward over reverse mode.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, twice differentiable, in forward mode too. `key` is always
      passed by name. It may return `(mean, count)`, as for `Curvature`; the count has no effect here.
    params, batch: any pytrees.
    mask: the parameters of the Hessian, as in `subset`; the others are constant.
    key: passed to `loss_fn`. With noise, the Hessian is that of one draw, which is the same in every product.

  Returns:
    A linear operator `[size] -> [size]`, in the order of `subset(params, mask).flat`; it is a pytree. Its
    `like` is the vector of parameters, and `matrix(chunk_size=1)` builds the dense matrix, `chunk_size`
    products at a time.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> hvp(loss, jnp.ones(2), jnp.array([4.0, 1.0]))(jnp.array([1.0, 2.0]))
    Array([4., 2.], dtype=float32)

  References:
    Pearlmutter, `Fast Exact Multiplication by the Hessian`, 1994.
  """
  check_loss_fn(loss_fn)
  return Hessian(widened(params), widened(batch), key, selected(params, mask), loss_fn)


@full_precision
def hessian(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
  key: Key | None = None,
  chunk_size: int = 1,
) -> Array:
  """Computes the dense Hessian `[size, size]` by Hessian-vector products: `hvp(...).matrix()`.

  For one layer of a ReLU network, `gauss_newton_matrix` gives the same matrix faster.

  Args:
    loss_fn, params, batch, mask, key: as in `hvp`.
    chunk_size: how many rows to compute at a time; 1 is fastest on a CPU.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> hessian(loss, jnp.ones(2), jnp.array([4.0, 1.0]))
    Array([[4., 0.],
           [0., 1.]], dtype=float32)
  """
  return hvp(loss_fn, params, batch, mask=mask, key=key).matrix(chunk_size=chunk_size)


def gauss_newton(
  apply_fn: Callable[..., Any],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
  key: Key | None = None,
) -> Operator:
  r"""Returns the generalised Gauss-Newton matrix as a function of a vector.

  .. math:: G v = J^\top (\nabla_z^2 \ell) J v, \qquad z = f(\theta), \quad J = \partial z / \partial \theta

  This is the Hessian without the curvature of the network. It is positive semidefinite for a convex loss. It
  equals the Hessian if the outputs are piecewise linear in the selected parameters, as for one layer of a
  ReLU network.

  Args:
    apply_fn: `(params, batch, *, key) -> outputs`, any array; it gets the whole batch, with its labels.
    outer_loss_fn: `(outputs, batch) -> scalar`, or `(mean, count)`, as for `Curvature`.
    params, batch, mask, key: as in `hvp`, which returns the same kind of operator.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).sum())
    >>> gauss_newton(outputs, outer, jnp.ones(2), jnp.array([[1.0, 0.0], [0.0, 2.0]]))(jnp.ones(2))
    Array([1., 4.], dtype=float32)

  References:
    Schraudolph, `Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent`, 2002.
  """
  check_loss_fn(apply_fn, "apply_fn")
  return GaussNewton(widened(params), widened(batch), key, selected(params, mask), apply_fn, outer_loss_fn)


def fisher(
  apply_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  key: Key | None = None,
  likelihood: Likelihood = "categorical",
  num_samples: int | None = 1,
  losses_fn: Callable[..., Array] | None = None,
  mask: Mask = "*",
) -> Operator:
  r"""Returns a Monte Carlo estimate of the Fisher matrix, or the empirical Fisher matrix, as a function.

  .. math:: F v = \frac1n \sum_i \mathbb{E}_{y \sim p(y \mid x_i)} [g_i (g_i^\top v)], \qquad
    g_i = \nabla_\theta \log p(y \mid x_i)

  Its mean over draws is the Gauss-Newton matrix of cross-entropy, or of half the squared error. With
  `losses_fn` it is the empirical Fisher matrix: the mean outer product of the examples' gradients at the
  given labels. That does not approximate the Hessian: near a minimum that fits all labels it vanishes.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ..., classes]`, logits or means; called with `key=None`.
    params, batch, mask: as in `hvp`, which returns the same kind of operator.
    key: draws the labels, the same in every product; needed with `num_samples`.
    likelihood: `categorical` of logits, or `normal` around the outputs with variance 1.
    num_samples: how many labels to draw per example; None for the exact mean over labels, without a key.
    losses_fn: `(outputs, batch) -> [n]`, the loss of each example, instead of drawn labels.

  Example:
    >>> outputs = lambda params, x, *, key: x @ params
    >>> half_squares, x = (lambda z, x: 0.5 * z[:, 0] ** 2), jnp.array([[1.0], [2.0]])
    >>> fisher(outputs, jnp.ones((1, 1)), x, likelihood="normal", num_samples=None)(jnp.ones(1))
    Array([2.5], dtype=float32)
    >>> fisher(outputs, jnp.ones((1, 1)), x, losses_fn=half_squares)(jnp.ones(1))
    Array([8.5], dtype=float32)

  References:
    Kunstner, Balles and Hennig, `Limitations of the Empirical Fisher Approximation`, 2019.
  """
  check_loss_fn(apply_fn, "apply_fn")
  scores_fn = make_scores(key, likelihood, num_samples, losses_fn)
  return Fisher(widened(params), widened(batch), key, selected(params, mask), apply_fn, scores_fn)


@dataclasses.dataclass(frozen=True)
class Scores:
  """Vectors `[samples, *outputs.shape]`, whose mean outer product is the Fisher matrix of the outputs."""

  likelihood: Likelihood
  num_samples: int | None
  losses_fn: Callable[..., Array] | None

  def __call__(self, outputs: Array, batch: Batch, key: Any) -> Array:
    if self.losses_fn is not None:
      return jax.grad(partial(_total_loss, self.losses_fn))(outputs, batch)[None]
    number = self.num_samples
    if number is None:
      return self._exact(outputs)
    if self.likelihood == "normal":
      return jax.random.normal(key, (number, *outputs.shape), outputs.dtype)
    if outputs.ndim < 2:
      raise ValueError(f"apply_fn must return [n, ..., classes] for categorical, got {outputs.shape}")
    labels = jax.random.categorical(key, outputs, shape=(number, *outputs.shape[:-1]))
    one_hot = jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return jax.nn.softmax(outputs)[None] - one_hot

  def _exact(self, outputs: Array) -> Array:
    """Computes vectors `[classes, *outputs.shape]` for the expectation over labels."""
    if outputs.ndim != 2:
      raise ValueError(f"apply_fn must return [n, classes] without samples, got {outputs.shape}")
    number = outputs.shape[1]
    units = jnp.broadcast_to(jnp.eye(number, dtype=outputs.dtype)[:, None], (number, *outputs.shape))
    if self.likelihood == "normal":
      return jnp.sqrt(number) * units
    p = jax.nn.softmax(outputs)
    return jnp.sqrt(number * p.T)[:, :, None] * (p[None] - units)


def _total_loss(losses_fn: Callable[..., Array], outputs: Array, batch: Batch) -> Array:
  losses, size = losses_fn(outputs, batch), outputs.shape[:1]
  if jnp.shape(losses) != size:
    raise ValueError(f"losses_fn must return {size}, a loss for each example, got {losses.shape}")
  return losses.sum()


def make_scores(
  key: Key | None, likelihood: Likelihood, num_samples: int | None, losses_fn: Callable[..., Array] | None
) -> Scores:
  """Checks the arguments of `fisher` that determine the scores, and returns their function."""
  if losses_fn is None:
    check_choice(likelihood, "likelihood", ("categorical", "normal"))
    if num_samples is not None:
      check_key(key)  # type: ignore[arg-type]
      check_count(num_samples, "num_samples")
  return Scores(likelihood, num_samples, losses_fn)

"""Curvature as a linear operator: products with the Hessian or the Gauss-Newton matrix."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.flatness._common import analysis, outputs_of, scalar_loss, widened
from jaxreg.flatness._subset import Where, check_no_tree, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_loss_fn


@partial(
  jax.tree_util.register_dataclass, data_fields=["params", "batch", "key"], meta_fields=["loss_fn", "mask"]
)
@dataclasses.dataclass(frozen=True)
class Hessian:
  """The result of `hvp`: a function of a vector, and a pytree, so data are arguments of compiled code."""

  params: Params
  batch: Batch
  key: Key | None
  loss_fn: LossFn
  mask: tuple[bool, ...]

  def __repr__(self) -> str:
    return _short(self)

  @property
  def like(self) -> Array:
    """The selected parameters, `[size]`: the shape and dtype of a vector."""
    return split(self.params, self.mask).flat

  @analysis
  def __call__(self, vector: Array) -> Array:
    part = split(self.params, self.mask)
    gradient = jax.grad(lambda flat: scalar_loss(self.loss_fn, part.merge(flat), self.batch, self.key))
    return jax.jvp(gradient, (part.flat,), (as_vector(vector, part.flat),))[1]


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["params", "batch", "key"],
  meta_fields=["outputs_fn", "outer_loss_fn", "mask"],
)
@dataclasses.dataclass(frozen=True)
class GaussNewton:
  """The result of `gauss_newton`."""

  params: Params
  batch: Batch
  key: Key | None
  outputs_fn: Callable[..., Any]
  outer_loss_fn: Callable[..., Array]
  mask: tuple[bool, ...]

  def __repr__(self) -> str:
    return _short(self)

  @property
  def like(self) -> Array:
    """As for `Hessian`."""
    return split(self.params, self.mask).flat

  @analysis
  def __call__(self, vector: Array) -> Array:
    part = split(self.params, self.mask)
    outputs = lambda flat: outputs_of(self.outputs_fn, part.merge(flat), self.batch, self.key)
    value, tangent = jax.jvp(outputs, (part.flat,), (as_vector(vector, part.flat),))
    gradient = jax.grad(lambda value: self.outer_loss_fn(value, self.batch))
    curved = jax.jvp(gradient, (value,), (tangent,))[1]
    return jax.vjp(outputs, part.flat)[1](curved)[0]


def hvp(
  loss_fn: LossFn, params: Params, batch: Batch, *, where: Where = "*", key: Key | None = None
) -> Hessian:
  r"""Returns the Hessian of a loss as a function :math:`v \mapsto H v`, by forward over reverse mode.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, twice differentiable in forward mode too; `key` is always
      passed, by name, even to a loss that ignores it.
    params: any pytree.
    batch: passed to `loss_fn`.
    where: the parameters of the Hessian; the others are constant.
    key: passed to `loss_fn`. With noise, this is the Hessian for one draw, the same in every product.

  Returns:
    `[size] -> [size]`, in the order of `subset(params, where).flat`; its `like` is such a vector. The result
    is a pytree: in a call of a compiled function, parameters and data are arguments, not constants.

  Raises:
    TypeError: if a selected leaf is not floating, the function takes no `key`, or in a product `key` is no
      typed key.
    ValueError: if `where` selects nothing.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> hvp(loss, jnp.ones(2), jnp.array([4.0, 1.0]))(jnp.array([1.0, 2.0]))
    Array([4., 2.], dtype=float32)

  References:
    Pearlmutter, `Fast Exact Multiplication by the Hessian`, 1994.
  """
  check_loss_fn(loss_fn)
  mask = selected(params, where)
  return Hessian(widened(params), widened(batch), key, loss_fn, mask)


def gauss_newton(
  outputs_fn: Callable[..., Any],
  outer_loss_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  where: Where = "*",
  key: Key | None = None,
) -> GaussNewton:
  r"""Returns the generalised Gauss-Newton matrix as a function of a vector.

  .. math:: G v = J^\top (\nabla_z^2 \ell) J v, \qquad z = f(\theta), \quad J = \partial z / \partial \theta

  This is the Hessian without the curvature of the network. It is positive semidefinite for a convex loss. It
  equals the Hessian if the outputs are piecewise linear in the selected parameters, as in a single layer.

  Args:
    outputs_fn: `(params, batch, *, key) -> outputs`, any array.
    outer_loss_fn: `(outputs, batch) -> scalar`.
    params, batch, where, key: as in `hvp`.

  Returns:
    As `hvp`.

  Raises:
    TypeError: if a selected leaf is not floating, the function takes no `key`, or in a product `key` is no
      typed key.
    ValueError: if `where` selects nothing.

  Example:
    >>> outputs, outer = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * (z**2).sum())
    >>> gauss_newton(outputs, outer, jnp.ones(2), jnp.array([[1.0, 0.0], [0.0, 2.0]]))(jnp.ones(2))
    Array([1., 4.], dtype=float32)

  References:
    Schraudolph, `Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent`, 2002.
  """
  check_loss_fn(outputs_fn, "outputs_fn")
  mask = selected(params, where)
  return GaussNewton(widened(params), widened(batch), key, outputs_fn, outer_loss_fn, mask)


@analysis
def hessian(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  where: Where = "*",
  key: Key | None = None,
  batch_size: int = 1,
) -> Array:
  """Computes the dense Hessian by Hessian-vector products; `dense_hessian` is faster for a dense layer.

  Args:
    loss_fn, params, batch, where, key: as in `hvp`.
    batch_size: rows at once; 1 is fastest on a CPU.

  Returns:
    `[size, size]`, symmetric.

  Raises:
    TypeError: if a selected leaf is not floating, the function takes no `key`, or in a product `key` is no
      typed key.
    ValueError: if `where` selects nothing.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> hessian(loss, jnp.ones(2), jnp.array([4.0, 1.0]))
    Array([[4., 0.],
           [0., 1.]], dtype=float32)
  """
  return materialize(hvp(loss_fn, params, batch, where=where, key=key), batch_size=batch_size)


@analysis
def materialize(operator: Hessian | GaussNewton, *, batch_size: int = 1) -> Array:
  """Builds the symmetric matrix `[size, size]` of an operator from `hvp` or `gauss_newton`.

  Args:
    operator: the operator to apply to every unit vector.
    batch_size: products at once; 1 is fastest on a CPU.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (batch * params**2).sum()
    >>> materialize(hvp(loss, jnp.ones(2), jnp.array([4.0, 1.0]))).diagonal()
    Array([4., 1.], dtype=float32)
  """
  return _materialize(batch_size, operator)


@partial(jax.jit, static_argnums=0)
def _materialize(batch_size, operator):
  like = operator.like
  unit = lambda i: operator(jnp.zeros_like(like).at[i].set(1))
  matrix = jax.lax.map(unit, jnp.arange(like.size), batch_size=batch_size)
  return (matrix + matrix.T) / 2


def _short(operator: Any) -> str:
  """The repr without the values of parameters and data, which may be millions."""
  leaves = zip(jax.tree.leaves(operator.params), operator.mask)
  size = sum(math.prod(jnp.shape(leaf)) for leaf, taken in leaves if taken)
  return f"{type(operator).__name__}([{size}] -> [{size}])"


def as_vector(vector: Array, like: Array) -> Array:
  """The vector in the dtype of `like`, whose shape it must have."""
  check_no_tree(vector, "vector", f"a vector of shape {like.shape}", "flat")
  if jnp.shape(vector) != like.shape:
    raise ValueError(f"vector must have shape {like.shape}, got {jnp.shape(vector)}")
  return jnp.asarray(vector, like.dtype)

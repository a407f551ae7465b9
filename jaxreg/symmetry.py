"""Changes of parameters that keep a network's function.

`incoming` names a layer's own leaves: its kernel, bias and normalisation scale. `outgoing` names the kernels
that read the layer. Both are masks, as `jaxreg.paths` explains them.

The name of a leaf determines the axis of its units, as for the penalties (`jaxreg.paths`). A Flax kernel
is `[..., in, out]`: its own units are on the last axis, the units that it reads on the axis before. A leaf
called `weight`, as in Equinox and PyTorch, is `[out, in, ...]`: its own units are on the first axis, the
units that it reads on the second. After a flattened image, the inputs of a Flax kernel are positions by
channels, and the inputs of a `weight` are channels by positions. In an Equinox convolution the units of the
bias `[out, 1, 1]` are on the first axis, too. An embedding called `weight` cannot be told from a
kernel: its rows count as its units.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_floating, check_range
from jaxreg.typing import Array, Mask, Params

__all__ = [
  "permute_units",
  "rescale_normalized",
  "rescale_units",
]


def permute_units(params: Params, permutation: ArrayLike, *, incoming: Mask, outgoing: Mask) -> Params:
  """Reorders the hidden units of a layer, or the channels of a convolution; the function stays the same.

  With `n` units there are `n!` orders, and as many minima for the same network.

  Args:
    params: any pytree.
    permutation: `[units]`, integers: the unit that comes first, the second, and so on.
    incoming, outgoing: the layer's own leaves, and the kernels that read the layer.

  Example:
    >>> params = {"a": {"kernel": jnp.array([[1.0, 2.0]])}, "b": {"kernel": jnp.array([[3.0], [4.0]])}}
    >>> permute_units(params, jnp.array([1, 0]), incoming="a/*", outgoing="b/kernel")["b"]["kernel"].ravel()
    Array([4., 3.], dtype=float32)

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Local Minima.
  """
  order = jnp.asarray(permutation)
  if not jnp.issubdtype(order.dtype, jnp.integer):
    raise TypeError(f"permutation must be integers, got {order.dtype}")
  known = not isinstance(order, Tracer)
  if order.ndim != 1 or (known and sorted(np.asarray(order).tolist()) != list(range(order.size))):
    raise ValueError(f"permutation must hold the numbers 0 to n - 1, each once, got {permutation}")

  def take(x, axis):
    return jnp.take(x, order, axis=axis)

  return _on_units(params, order.size, incoming, outgoing, take, take)


def rescale_units(params: Params, scales: ArrayLike, *, incoming: Mask, outgoing: Mask) -> Params:
  r"""Multiplies each unit's incoming weights and divides its outgoing ones; keeps a ReLU network's function.

  .. math:: s > 0: \quad \operatorname{ReLU}(s x) = s \operatorname{ReLU}(x), \qquad
    w_{in} \to s\, w_{in}, \quad b \to s\, b, \quad w_{out} \to w_{out} / s

  The gradient changes: it is divided by `s` at the incoming weights and multiplied by `s` at the outgoing
  ones. This holds for ReLU, leaky ReLU, linear units and pooling, but not for GELU, tanh or softmax. Biases
  belong to `incoming`.

  Args:
    params: any pytree.
    scales: `[units]`, above 0; for a convolution one per channel.
    incoming, outgoing: the layer's own leaves, kernel and bias, and the kernels that read the layer.

  Example:
    >>> params = {"a": {"kernel": jnp.array([[1.0, 2.0]])}, "b": {"kernel": jnp.array([[3.0], [4.0]])}}
    >>> new = rescale_units(params, jnp.array([10.0, 0.5]), incoming="a/*", outgoing="b/kernel")
    >>> new["a"]["kernel"], new["b"]["kernel"].ravel()
    (Array([[10.,  1.]], dtype=float32), Array([0.3, 8. ], dtype=float32))

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Gradient Descent under
    Reparameterization.
  """
  scales = _scales(scales)

  def times(x, axis):
    return (x * _along(scales, x, axis)).astype(x.dtype)

  def over(x, axis):
    return (x / _along(scales, x, axis)).astype(x.dtype)

  return _on_units(params, scales.size, incoming, outgoing, times, over)


def rescale_normalized(params: Params, scales: ArrayLike, *, incoming: Mask) -> Params:
  r"""Multiplies each unit's kernel in front of a normalisation; nothing else has to change.

  .. math:: f(s w) = f(w), \qquad \nabla f(s w) = \nabla f(w) / s, \qquad \langle w, \nabla f(w) \rangle = 0

  With BatchNorm in training, the function does not depend on the scale of a unit's kernel (up to the
  epsilon), but the gradient does. So weight decay on such a kernel changes the effective step and nothing
  else.

  Args:
    params: any pytree.
    scales: above 0, a number or `[units]`.
    incoming: the kernels, and biases, in front of the normalisation.

  Example:
    >>> params = {"Dense_0": {"kernel": jnp.ones((1, 2))}, "BatchNorm_0": {"scale": jnp.ones(2)}}
    >>> rescale_normalized(params, 3.0, incoming="Dense_0/kernel")["Dense_0"]["kernel"]
    Array([[3., 3.]], dtype=float32)

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Gradient Descent under
    Reparameterization.
  """
  scales = _scales(scales, number=True)
  chosen = paths.chosen(params, incoming)
  leaves, tree = jax.tree.flatten(params)

  def times(name: str, x: Array) -> Array:
    per_unit = scales if scales.ndim == 0 else _along(scales, x, _unit_axis(name, jnp.shape(x)))
    return (x * per_unit).astype(jnp.result_type(x))

  rows = zip(paths.leaf_names(params), leaves, chosen, strict=True)
  return jax.tree.unflatten(tree, [times(name, x) if taken else x for name, x, taken in rows])


def _scales(scales: ArrayLike, *, number: bool = False) -> Array:
  scales = check_floating(scales, "scales")
  if not (scales.ndim == 1 or (number and scales.ndim == 0)):
    raise ValueError(f"scales must be [units]{' or a number' if number else ''}, got shape {scales.shape}")
  check_range(scales, "scales", low=0, open_low=True)
  return scales


def _on_units(
  params: Params,
  units: int,
  incoming: Mask,
  outgoing: Mask,
  enter: Callable[[Array, int], Array],
  leave: Callable[[Array, int], Array],
) -> Params:
  leaves, tree = jax.tree.flatten(params)
  into = paths.chosen(params, incoming)
  out = paths.chosen(params, outgoing)
  new = []
  for name, x, comes, goes in zip(paths.leaf_names(params), leaves, into, out, strict=True):
    first = _unit_axis(name, jnp.shape(x)) == 0
    if comes:
      own = 0 if first else -1
      _check_units(name, x, own, units, several=False)
      x = enter(x, own)
    if goes:
      reads = 1 if first else -2
      _check_units(name, x, reads, units, several=True)
      # The inputs of a flattened image: channels by positions, or positions by channels.
      places = x.shape[reads] // units
      split = (units, places) if first else (places, units)
      before, after = (x.shape[:1], x.shape[2:]) if first else (x.shape[:-2], x.shape[-1:])
      x = leave(x.reshape(*before, *split, *after), reads).reshape(x.shape)
    new.append(x)
  return jax.tree.unflatten(tree, new)


def _unit_axis(name: str, shape: tuple[int, ...]) -> int:
  """The axis of a layer's units in its kernel, bias or scale: 0 or -1."""
  last = paths.last_name(name)
  spread_bias = last == "bias" and set(shape[1:]) == {1}
  return 0 if len(shape) > 1 and (last in paths.UNITS_FIRST or spread_bias) else -1


def _along(scales: Array, x: Array, axis: int) -> Array:
  return scales.reshape([-1 if i == axis % jnp.ndim(x) else 1 for i in range(jnp.ndim(x))])


def _check_units(name: str, x: Array, axis: int, units: int, *, several: bool) -> None:
  ndim = jnp.ndim(x)
  size = jnp.shape(x)[axis] if -ndim <= axis < ndim else 0
  if size == 0 or (size % units if several else size != units):
    raise ValueError(f"{name} must have {units} units on axis {axis}, got shape {jnp.shape(x)}")

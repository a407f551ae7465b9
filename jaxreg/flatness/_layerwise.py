"""The curvature of every layer of a network: top eigenvalue, trace and diagonal."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg.flatness._common import analysis
from jaxreg.flatness._curvature import Curvature
from jaxreg.flatness._hutchinson import Estimate, hutchinson
from jaxreg.flatness._lanczos import top_eigenpairs
from jaxreg.flatness._streamed import Streamed, replicated
from jaxreg.typing import Array, Key, check_count, check_key


class Layerwise(NamedTuple):
  """The diagonal blocks of a curvature, one for each layer.

  Attributes:
    names: the layers.
    top_eigenvalues: `[layers]`, the largest of each block.
    residuals: `[layers]`, the norms of `A v - value v` of the blocks.
    traces: `Estimate` of `[layers]`.
    diagonals: for each layer the `Estimate` of its diagonal, in the order of `subset`.
  """

  names: tuple[str, ...]
  top_eigenvalues: Array
  residuals: Array
  traces: Estimate
  diagonals: tuple[Estimate, ...]


def module_of(name: str) -> str:
  """Returns the module that a parameter belongs to, or the parameter where there is none."""
  return name.rpartition("/")[0] or name


@analysis
def layerwise(
  curvature: Curvature,
  *,
  key: Key,
  num_probes: int = 32,
  num_matvecs: int = 20,
  layer_of: Callable[[str], str] = module_of,
) -> Layerwise:
  """Computes the top eigenvalue, the trace and the diagonal of every layer's block.

  Traces and diagonals of all layers come from the same products with random signs. The top eigenvalue of a
  layer costs `num_matvecs` products, each with the whole network, whose product is compiled once. What is
  left to compile depends on the number of a layer's parameters only: once for layers of equal shape.

  Args:
    curvature: a `Curvature` of the parameters that `where` selects.
    key: draws the signs and the start vectors.
    num_probes: products for traces and diagonals, at least 2.
    num_matvecs: products for each top eigenvalue, at most as many as the layer has parameters; 0 leaves the
      eigenvalues out, as NaN.
    layer_of: from the name of a parameter to its layer; by default all but the last part of the name.

  Returns:
    `Layerwise`.

  Raises:
    TypeError: if `curvature` is no `Curvature`, `key` no typed key or a count no integer.
    ValueError: if `num_probes` is below 2 or `num_matvecs` below 0.

  Example:
    >>> loss = lambda params, x, *, key: (x * (3 * params["a"] ** 2 + params["b"] ** 2)).mean()
    >>> curvature = Curvature(loss, {"a": jnp.float32(1), "b": jnp.float32(1)}, jnp.ones(4))
    >>> found = layerwise(curvature, key=jax.random.key(0))
    >>> found.names, found.top_eigenvalues, found.traces.mean
    (('a', 'b'), Array([6., 2.], dtype=float32), Array([6., 2.], dtype=float32))

  References:
    Yao et al., `PyHessian: Neural Networks Through the Lens of the Hessian`, 2020.
  """
  if not isinstance(curvature, Curvature):
    raise TypeError(f"curvature must be a Curvature, got {type(curvature).__name__}")
  check_key(key)
  check_count(num_probes, "num_probes")
  if num_matvecs != 0:
    check_count(num_matvecs, "num_matvecs")
  if num_probes < 2:
    raise ValueError(f"num_probes must be at least 2, got {num_probes}")
  like, taken = (
    curvature.like,
    itertools.compress(jax.tree.leaves(curvature.operator.params), curvature.operator.mask),
  )
  sizes = [jnp.size(leaf) for leaf in taken]
  of_parameter = [layer_of(name) for name in curvature.names]
  names = tuple(dict.fromkeys(of_parameter))
  owners = np.repeat([names.index(layer) for layer in of_parameter], sizes).astype(np.int32)
  probe_key, *keys = jax.random.split(key, len(names) + 1)
  diagonal, traces = hutchinson(curvature, like, probe_key, num_probes, jnp.asarray(owners), len(names))
  found, diagonals = [], []
  for number, layer_key in enumerate(keys):
    index = jnp.asarray(np.flatnonzero(owners == number))
    block = Block(curvature, (), None, curvature.mesh, index)
    if num_matvecs:
      steps = min(num_matvecs, index.size)
      pair = top_eigenpairs(block, key=layer_key, num_matvecs=steps, check=False)
      found.append((pair.values[0], pair.residuals[0]))  # without its vector
    diagonals.append(Estimate(*(x[index] for x in diagonal)))
  values, residuals = jnp.asarray(found or [(jnp.nan, jnp.nan)] * len(names), like.dtype).T
  return Layerwise(names, values, residuals, traces, tuple(diagonals))


@dataclasses.dataclass(frozen=True, eq=False)
class Block(Streamed):
  """A diagonal block of a streamed operator: the products of the entries at `index`."""

  index: Any = None

  @functools.cached_property
  def like(self) -> Array:
    """The parameters of the block."""
    return _take(self.operator.like, self.index)

  def __call__(self, vector: Array) -> Array:
    whole = _embed(self.operator.mesh, self.operator.like, self.index, vector)
    return _take(self.operator(whole), self.index)


_take = jax.jit(lambda whole, index: whole[index])
_embed = jax.jit(
  lambda mesh, like, index, vector: replicated(jnp.zeros_like(like).at[index].set(vector), mesh),
  static_argnums=0,
)

"""The curvature of single layers: one dense layer by matrix products, KFAC, and every block of a network."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_count, check_key, check_loss_fn, check_range, check_wide
from jaxreg._sums import Compensated, add, compensated, gram, products, total
from jaxreg.flatness._batches import Streamed, dealt, num_examples, replicated
from jaxreg.flatness._common import analysis, as_pytree, outputs_of, same, widened
from jaxreg.flatness._curvature import Curvature
from jaxreg.flatness._eigen import SpectralDensity, quadrature, smoothed, top_eigenpairs
from jaxreg.flatness._layer_inputs import of_examples, tapped
from jaxreg.flatness._operators import Likelihood, scores
from jaxreg.flatness._sharpness import IntervalFlatness, as_search, check_loss, intervals
from jaxreg.flatness._split import leaves_of, split_trace
from jaxreg.flatness._subset import check_directions, selected
from jaxreg.flatness._trace import Estimate, check_samples, signs
from jaxreg.typing import Array, Batch, Key, Mask, Params

# `(z [n, units], batch, *, key) -> [n]`: the loss of each example as a function of the layer's outputs.
HeadFn = Callable[..., Array]


@partial(jax.tree_util.register_dataclass, data_fields=["packed"], meta_fields=["units", "inputs", "bias"])
@dataclasses.dataclass(frozen=True)
class DenseBlock:
  """A symmetric matrix over the parameters of a dense layer, which stores each distinct entry once.

  `packed` is `[units (units + 1) / 2, k (k + 1) / 2]`, where `k` is the number of inputs, plus one with a
  bias.
  """

  packed: Array
  units: int
  inputs: int
  bias: bool

  @property
  def size(self) -> int:
    """The number of parameters."""
    return self.units * (self.inputs + self.bias)

  def matrix(self) -> Array:
    """Builds the dense matrix `[size, size]`: first the bias, then the kernel `[inputs, units]` by rows."""
    return _matrix(self)

  def trace(self) -> Array:
    """Computes the sum of the diagonal."""
    outer, inner = (np.diagonal(_unpack_index(size)) for size in (self.units, self.inputs + self.bias))
    return self.packed[outer[:, None], inner[None, :]].sum()

  def inner(self, other: DenseBlock) -> Array:
    r"""Computes :math:`\mathrm{Tr}(A B)` without building the matrices; `other` is of the same layer."""
    layer, others = (f"{x.inputs} inputs, {x.units} units, bias {x.bias}" for x in (self, other))
    if layer != others:
      raise ValueError(f"other must describe the same layer, {layer}, got {others}")
    weights = _pair_weights(self.units)[:, None] * _pair_weights(self.inputs + self.bias)[None, :]
    return jnp.sum(self.packed * other.packed * jnp.asarray(weights, self.packed.dtype))


# Compiled: outside jit, the array of indices would take longer than the numbers.
@jax.jit
def _matrix(block: DenseBlock) -> Array:
  outer, inner = _unpack_index(block.units), _unpack_index(block.inputs + block.bias)
  blocks = block.packed[outer[None, :, None, :], inner[:, None, :, None]]
  return blocks.reshape(block.size, block.size)


@dataclasses.dataclass(frozen=True)
class DenseLayer:
  r"""One dense layer `z = h W + b` that every example passes once: its curvature, noise and profiles.

  Its Hessian and noise covariance are sums over examples of Kronecker products, which one product of two thin
  matrices computes. This is exact if nothing couples examples: no convolution, no attention, no BatchNorm
  after the layer. It needs the memory of one chunk and of the result.

  Attributes:
    head_fn: `(z, batch, *, key) -> [n]`, the losses of the examples as a function of the layer's outputs
      `z [n, units]`. `key=None` asks for no noise. A `jax.tree_util.Partial` keeps the parameters of the
      later layers out of the compiled program.
    preactivations: `[n, units]`, `z` at the parameters.
    inputs: `[n, inputs]`, `h`.
    batch: other arrays that the head needs, such as labels; its leaves have the same leading axis.
    bias: whether the layer has a bias. Vectors have it first, then the kernel `[inputs, units]` by rows, as
      `subset` of a Flax `Dense` has.
    chunk_size: examples at once.

  Example:
    >>> head = lambda z, batch, *, key: 0.5 * (z**2).sum(axis=-1)
    >>> layer = DenseLayer(head, jnp.ones((2, 1)), jnp.array([[1.0], [3.0]]))
    >>> layer.hessian().matrix()  # bias, kernel
    Array([[1., 2.],
           [2., 5.]], dtype=float32)

  References:
    Van Loan and Pitsianis, `Approximation with Kronecker Products`, 1993.
  """

  head_fn: HeadFn
  preactivations: ArrayLike
  inputs: ArrayLike
  batch: Batch = None
  bias: bool = True
  chunk_size: int = 1000

  def _arrays(self) -> tuple[Array, Array]:
    """The layer's outputs and inputs, checked."""
    check_count(self.chunk_size, "chunk_size")
    z, h = check_wide(self.preactivations, "preactivations"), check_wide(self.inputs, "inputs")
    if z.ndim != 2 or h.ndim != 2 or len(z) != len(h):
      raise ValueError(
        f"preactivations must be [n, units] and inputs [n, inputs], got {z.shape} and {h.shape}; "
        "the layer must see every example once"
      )
    if jax.tree.leaves(self.batch) and num_examples(self.batch) != len(z):
      raise ValueError(
        f"batch must have {len(z)} examples, as preactivations have, got {num_examples(self.batch)}"
      )
    return z, h

  @analysis
  def hessian(
    self, *, key: Key | None = None, curvature_fn: Callable[[Array, Batch], Array] | None = None
  ) -> DenseBlock:
    r"""Computes the exact Hessian of the mean loss in the layer's parameters, as one matrix product.

    .. math:: H = \frac1n \sum_i A_i \otimes \tilde h_i \tilde h_i^\top, \qquad
      A_i = \nabla_z^2 \ell_i, \quad \tilde h = (1, h)

    Args:
      key: passed to `head_fn`.
      curvature_fn: `(z, batch) -> [n, units, units]`, a formula in place of the derivatives of `head_fn`; it
        may also be a `Partial`.
    """
    formula = None if curvature_fn is None else as_pytree(curvature_fn)
    head = as_pytree(self.head_fn)
    return _hessian(self.bias, self.chunk_size, formula, head, *self._arrays(), self.batch, key)

  @analysis
  def noise_covariance(self, *, key: Key, num_samples: int = 2) -> DenseBlock:
    r"""Computes the covariance of the layer's full-batch gradient under later noise, without a loop.

    .. math:: \Sigma_g =
      \frac1{n^2} \sum_i \mathrm{Cov}_\eta(\nabla_z \ell_i) \otimes \tilde h_i \tilde h_i^\top

    Two draws per example give an unbiased estimate of full rank, and the mean over the data set makes it
    accurate. If few examples cause most of the noise, as in a trained network, it takes more draws.

    Args:
      key: for `head_fn`, which draws noise independent between examples.
      num_samples: draws per example, at least 2.
    """
    check_key(key)
    check_samples(num_samples)
    head = as_pytree(self.head_fn)
    return _noise(num_samples, self.bias, self.chunk_size, head, *self._arrays(), self.batch, key)

  @analysis
  def interval_flatness(
    self, directions: ArrayLike, *, key: Key | None = None, **options: Any
  ) -> IntervalFlatness:
    r"""Computes `interval_flatness` with outputs linear in the distance, :math:`z(t) = z + t\, (h V + v_b)`.

    Args:
      directions: `[k, size]`, in the order of `DenseBlock.matrix`.
      key: passed to `head_fn`.
      **options: `factor`, `first_step`, `growth`, `tol` and `cap` of `interval_flatness`; by default the
        first search starts at 0.01.
    """
    z, h = self._arrays()
    directions = check_directions(directions, z.shape[1] * (h.shape[1] + self.bias))
    search = as_search(z.dtype, **options)
    found, at_start = _lines(self.bias, as_pytree(self.head_fn), z, h, directions, self.batch, key, search)
    check_loss(*at_start, name="head_fn")
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _hessian(bias, chunk_size, curvature_fn, head_fn, z, h, batch, key):
  def curvature(z: Array, part: Batch, number: Array) -> Array:
    if curvature_fn is not None:
      curved = curvature_fn(z, part)
      if jnp.shape(curved) != (*z.shape, z.shape[1]):
        raise ValueError(f"curvature_fn must return {(*z.shape, z.shape[1])}, got {jnp.shape(curved)}")
      return curved
    gradient = _gradient(head_fn, part, None if key is None else jax.random.fold_in(key, number))
    column = lambda unit: jax.jvp(gradient, (z,), (jnp.broadcast_to(unit[None], z.shape),))[1]
    return jax.vmap(column, out_axes=2)(jnp.eye(z.shape[1], dtype=z.dtype))

  return _sum_blocks(curvature, bias, chunk_size, z, h, batch, 1 / z.shape[0])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _noise(num_samples, bias, chunk_size, head_fn, z, h, batch, key):
  def covariance(z: Array, part: Batch, number: Array) -> Array:
    keys = jax.random.split(jax.random.fold_in(key, number), num_samples)
    # [n, masks, units]: the products below are faster with the examples on the first axis.
    drawn = jax.vmap(lambda key: _gradient(head_fn, part, key)(z), out_axes=1)(keys)
    drawn = drawn - drawn.mean(axis=1, keepdims=True)
    return jnp.einsum("nku,nkv->nuv", drawn, drawn) / (num_samples - 1)

  return _sum_blocks(covariance, bias, chunk_size, z, h, batch, 1 / z.shape[0] ** 2)


@partial(jax.jit, static_argnums=0)
def _lines(bias, head_fn, z, h, directions, batch, key, search):
  units = z.shape[1]

  def line(direction: Array) -> Callable[[Array], Array]:
    shift, kernel = (direction[:units], direction[units:]) if bias else (jnp.zeros(units), direction)
    speed = h @ kernel.reshape(-1, units) + shift.astype(z.dtype)[None]
    return lambda t: _losses(head_fn, z + t * speed, batch, key).mean()

  loss, again = (_losses(head_fn, z, batch, key).mean() for _ in range(2))
  near = jnp.asarray(1e-2, z.dtype)
  return intervals(line, directions.astype(z.dtype), loss, near, search), (loss, again)


def _sum_blocks(of_example, bias, chunk_size, z, h, batch, scale):
  """The sum over examples of Kronecker products, by one matrix product per chunk: a `DenseBlock`."""
  (n, units), inputs = z.shape, h.shape[1]
  outer, inner = np.triu_indices(units), np.triu_indices(inputs + bias)

  def block(number: Array, z: Array, h: Array, part: Batch) -> Array:
    left = of_example(z, part, number)[:, outer[0], outer[1]]
    if bias:
      h = jnp.concatenate([jnp.ones((len(h), 1), h.dtype), h], axis=1)
    right = h[:, inner[0]] * h[:, inner[1]]
    return products(left, right)

  chunks, rest = divmod(n, chunk_size)
  whole = (z, h, batch)
  running = compensated(jnp.zeros((len(outer[0]), len(inner[0])), jnp.result_type(z, h)))
  if chunks:
    part = lambda number: jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), whole)
    add_chunk = lambda running, number: (add(running, block(number, *part(number))), None)
    running, _ = jax.lax.scan(add_chunk, running, jnp.arange(chunks))
  if rest:
    running = add(running, block(jnp.int32(chunks), *jax.tree.map(lambda x: x[n - rest :], whole)))
  return DenseBlock(total(running) * scale, units, inputs, bias)


def _gradient(head_fn: HeadFn, batch: Batch, key: Key | None) -> Callable[[Array], Array]:
  """The gradient of every example's loss in its own outputs, in one backward pass."""
  return jax.grad(lambda z: _losses(head_fn, z, batch, key).sum())


def _losses(head_fn: HeadFn, z: Array, batch: Batch, key: Key | None) -> Array:
  """The losses of the examples `[n]`, with fixed noise; a mean would have the wrong scale."""
  losses = head_fn(z, batch, key=same(key))
  if jnp.shape(losses) != z.shape[:1]:
    raise ValueError(f"head_fn must return a loss for each of {len(z)} examples, got {jnp.shape(losses)}")
  return losses


def _unpack_index(size: int) -> np.ndarray:
  """The position of each entry in the packed upper triangle: `[size, size]`."""
  index = np.zeros((size, size), np.int32)
  index[np.triu_indices(size)] = np.arange(size * (size + 1) // 2)
  return np.maximum(index, index.T)


def _pair_weights(size: int) -> np.ndarray:
  """How often the matrix contains each entry of the packed triangle."""
  rows, columns = np.triu_indices(size)
  return np.where(rows == columns, 1.0, 2.0)


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["inputs", "outputs", "scales"],
  meta_fields=["bias"],
)
@dataclasses.dataclass(frozen=True)
class KroneckerBlock:
  r"""A symmetric matrix over a layer's parameters in the Kronecker product of two bases.

  .. math:: (U_A \otimes U_B) \operatorname{diag}(s) (U_A \otimes U_B)^\top

  `inputs` `[k, k]` is :math:`U_A`, `outputs` `[units, units]` :math:`U_B`, and `scales` `[k, units]` the
  eigenvalues. Vectors have the bias, if it is part of the matrix, before the kernel by rows `[..., in, out]`,
  as `subset` of a Flax layer has.
  """

  inputs: Array
  outputs: Array
  scales: Array
  bias: bool

  @property
  def like(self) -> Array:
    """A vector of zeros `[size]`."""
    return jnp.zeros(self.scales.size, self.scales.dtype)

  def __call__(self, vector: Array) -> Array:
    """Multiplies a vector `[size]`."""
    return self._scaled(vector, self.scales)

  def solve(self, vector: Array, *, damping: float) -> Array:
    r"""Multiplies a vector `[size]` by :math:`(A + \lambda I)^{-1}`, exactly."""
    check_range(damping, "damping", low=0)
    return self._scaled(vector, 1 / (self.scales + damping))

  def matrix(self) -> Array:
    """Builds the dense matrix `[size, size]`."""
    return jax.vmap(self)(jnp.eye(self.scales.size, dtype=self.scales.dtype))

  def trace(self) -> Array:
    """Computes the sum of the diagonal."""
    return self.scales.sum()

  def _scaled(self, vector: Array, scales: Array) -> Array:
    turned = self.inputs.T @ vector.reshape(self.scales.shape) @ self.outputs
    return (self.inputs @ (turned * scales) @ self.outputs.T).reshape(-1)


@analysis
def kfac(
  apply_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  key: Key | None = None,
  likelihood: Likelihood = "categorical",
  num_samples: int | None = 1,
  losses_fn: Callable[..., Array] | None = None,
  mask: Mask = "*/kernel",
  corrected: bool = False,
) -> dict[str, KroneckerBlock]:
  r"""Computes KFAC's or EKFAC's approximation of the Fisher matrix of dense and convolutional layers.

  .. math:: F_l \approx \Big(\frac1{n T} \sum_{i,t} h_{it} h_{it}^\top\Big) \otimes
    \Big(\frac1n \sum_{i,t} g_{it} g_{it}^\top\Big)

  `h` are a layer's inputs at the `T` positions of an example, with 1 before them for a bias, and `g` the
  gradients in its outputs. It is exact for one example and one position. EKFAC keeps the eigenvectors, and
  replaces the eigenvalues by the mean squares of the examples' gradients along them, the best choice in the
  Frobenius norm.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ..., classes]`, called with `key=None`: any function in which
      the matrix product or convolution with each kernel occurs once and nothing couples examples.
    params, batch: the batch has the examples on the leading axis; all are processed at once.
    key, likelihood, num_samples, losses_fn: as in `fisher`.
    mask: the kernels, `[in, out]` or `[..., in, out]`. The leaf `bias` beside one is taken with it; the
      layer must add it to its output.
    corrected: whether to compute EKFAC.

  Returns:
    A `KroneckerBlock` for each kernel, by its name.

  Example:
    >>> params = {"a": {"kernel": jnp.array([[2.0]])}}
    >>> outputs = lambda params, x, *, key: x @ params["a"]["kernel"]
    >>> blocks = kfac(outputs, params, jnp.array([[3.0]]), losses_fn=lambda z, x: 0.5 * z[:, 0] ** 2)
    >>> blocks["a/kernel"].matrix()  # 3^2 6^2
    Array([[324.]], dtype=float32)

  References:
    Martens and Grosse, `Optimizing Neural Networks with Kronecker-factored Approximate Curvature`, 2015.
    Grosse and Martens, `A Kronecker-factored Approximate Fisher Matrix for Convolution Layers`, 2016.
    George et al., `Fast Approximate Natural Gradient Descent in a Kronecker-factored Eigenbasis`, 2018.
  """
  check_loss_fn(apply_fn, "apply_fn")
  scores_fn = scores(key, likelihood, num_samples, losses_fn)
  num_examples(batch)
  taken, names = selected(params, mask), paths.leaf_names(params)
  kernels = tuple((number, name) for number, name in enumerate(names) if taken[number])
  beside = tuple(f"{name.rpartition('/')[0]}/bias" in names for _, name in kernels)
  return _kfac(apply_fn, scores_fn, kernels, beside, corrected, widened(params), widened(batch), key)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _kfac(apply_fn, scores_fn, kernels, beside, corrected, params, batch, key):
  leaves, tree = jax.tree.flatten(params)
  function = lambda leaves, batch: outputs_of(apply_fn, jax.tree.unflatten(tree, leaves), batch)
  run = tapped(lambda leaves: function(leaves, batch), leaves, dict(kernels))
  value, inputs, outputs = run({})
  alike = of_examples(function, leaves, dict(kernels), batch)
  for number, name in kernels:
    if number not in alike:
      raise ValueError(f"mask: the layer of {name} must have the examples on the leading axis of its input")
  taps = {number: jnp.zeros_like(x) for number, x in outputs.items()}
  pull = jax.vjp(lambda taps: run(taps)[0], taps)[1]
  found = scores_fn(value, batch, same(key))
  drawn = jax.lax.map(lambda score: pull(score)[0], found)
  blocks = {}
  for (number, name), bias in zip(kernels, beside, strict=True):
    h, units = inputs[number], outputs[number].shape[-1]
    if bias:
      h = jnp.concatenate([jnp.ones((*h.shape[:2], 1), h.dtype), h], axis=2)
    g = drawn[number].reshape(len(found), *h.shape[:2], units)  # [samples, n, positions, units]
    blocks[name] = _kronecker(h, g, bias, corrected)
  return blocks


def _kronecker(h: Array, g: Array, bias: bool, corrected: bool) -> KroneckerBlock:
  n, positions, _ = h.shape
  inner, left = jnp.linalg.eigh(_gram(h) / (n * positions))
  outer, right = jnp.linalg.eigh(_gram(g) / (n * len(g)))
  scales: Any = jnp.maximum(inner, 0)[:, None] * jnp.maximum(outer, 0)[None, :]
  if corrected:

    def squares(running: Compensated, example: tuple[Array, Array]) -> tuple[Compensated, None]:
      inputs, gradients = example
      each = jnp.einsum("tk,stu->sku", inputs @ left, gradients @ right) ** 2
      return add(running, each.sum(axis=0)), None

    start = compensated(jnp.zeros_like(scales))
    scales = total(jax.lax.scan(squares, start, (h, jnp.swapaxes(g, 0, 1)))[0]) / (n * len(g))
  return KroneckerBlock(left, right, scales, bias)


def _gram(x: Array) -> Array:
  """The sum of the outer products of all rows, `[..., k] -> [k, k]`."""
  return gram(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))


def _module_of(name: str) -> str:
  """The module that a parameter belongs to, or the parameter where there is none."""
  return name.rpartition("/")[0] or name


class Layerwise(NamedTuple):
  """The result of `layerwise`."""

  names: tuple[str, ...]
  top_eigenvalues: Array
  residuals: Array
  traces: Estimate
  diagonals: tuple[Estimate, ...]
  frobenius_norms: Estimate
  densities: tuple[SpectralDensity, ...]


@analysis
def layerwise(
  curvature: Curvature,
  *,
  key: Key,
  num_samples: int = 32,
  num_steps: int = 20,
  num_starts: int = 0,
  layer_of: Callable[[str], str] = _module_of,
) -> Layerwise:
  r"""Computes top eigenvalue, trace, diagonal, Frobenius norm and density of every layer's block.

  .. math:: \|A\|_F^2 = n \, \mathbb{E} \|A u\|^2, \qquad u \text{ uniform on the unit sphere}

  Traces and diagonals of all layers come from the same products with random signs. The top eigenvalue of a
  layer costs `num_steps` products, each with the whole network, whose product is compiled once; density and
  norm cost `num_starts` times as many. If the parameters are split over devices, so are all vectors; then
  there are no diagonals, densities and norms, and `num_starts` must be 0.

  Args:
    curvature: a `Curvature` of the parameters that its `mask` selects.
    key: draws the signs and the start vectors.
    num_samples: products for traces and diagonals, at least 2.
    num_steps: products for each top eigenvalue, and for each random start of a density, at most as many as
      the layer has parameters; 0 leaves the eigenvalues out, as NaN.
    num_starts: random starts for densities and norms, at least 2; 0 leaves both out, the norms as NaN.
    layer_of: from the name of a parameter to its layer; by default all but the last part of the name.

  Returns:
    A NamedTuple: `names` of the layers; `top_eigenvalues` and `residuals` `[layers]`, as in `top_eigenpairs`;
    `traces` and `frobenius_norms` `[layers]`, each a `mean` and a `standard_error`; and for each layer in
    `diagonals` the same, in the order of `subset`, and in `densities` the result of `spectral_density`.

  Example:
    >>> loss = lambda params, x, *, key: (x * (3 * params["a"] ** 2 + params["b"] ** 2)).mean()
    >>> curvature = Curvature(loss, {"a": jnp.float32(1), "b": jnp.float32(1)}, jnp.ones(4))
    >>> found = layerwise(curvature, key=jax.random.key(0))
    >>> found.names, found.top_eigenvalues, found.traces.mean
    (('a', 'b'), Array([6., 2.], dtype=float32), Array([6., 2.], dtype=float32))

  References:
    Yao et al., `PyHessian: Neural Networks Through the Lens of the Hessian`, 2020.
    Ghorbani, Krishnan and Xiao, `An Investigation into Neural Net Optimization via Hessian Eigenvalue
    Density`, 2019, section 2.
  """
  if not isinstance(curvature, Curvature):
    raise TypeError(f"curvature must be a Curvature, got {type(curvature).__name__}")
  check_key(key)
  check_samples(num_samples)
  for name, value in (("num_steps", num_steps), ("num_starts", num_starts)):
    if value != 0:  # 0 leaves out what it is for
      check_count(value, name)
  if num_starts and min(num_starts, num_steps) < 2:
    raise ValueError(
      f"num_starts must be 0, or at least 2 with num_steps at least 2, got {num_starts} and {num_steps}"
    )
  if curvature.is_split:
    return _split_layers(curvature, key, num_samples, num_steps, num_starts, layer_of)
  names, owners, probe_key, keys = layers_of(curvature, key, layer_of)
  like = curvature.like
  diagonal, traces = signs(num_samples, curvature, like, probe_key, jnp.asarray(owners), (len(names),))
  each = [of_layer(curvature, owners, n, keys[n], num_steps, num_starts) for n in range(len(names))]
  stacked = lambda name: jnp.asarray([found[name] for found in each], like.dtype)
  diagonals = [Estimate(*(x[np.flatnonzero(owners == n)] for x in diagonal)) for n in range(len(names))]
  return Layerwise(
    names,
    stacked("top_eigenvalue"),
    stacked("residual"),
    traces,
    tuple(diagonals),
    Estimate(stacked("norm"), stacked("norm_error")),
    tuple(SpectralDensity(*found["density"]) for found in each) if num_starts else (),
  )


def _split_layers(curvature, key, num_samples, num_steps, num_starts, layer_of):
  """Traces and top eigenvalues of the layers, by vectors that are split as the parameters are."""
  if num_starts:
    raise ValueError(f"num_starts must be 0 for parameters that are split over devices, got {num_starts}")
  curvature._hessian_alone("layerwise of split parameters")
  layers: dict[str, list[str]] = {}
  for name in curvature.names:
    layers.setdefault(layer_of(name), []).append(name)
  names = tuple(layers)
  probe_key, *keys = jax.random.split(key, len(names) + 1)
  owners = [names.index(layer_of(name)) for name in curvature.names]
  traces = split_trace(curvature, key=probe_key, num_samples=num_samples, owners=owners)
  nan = jnp.full(len(names), jnp.nan, traces.mean.dtype)
  tops, residuals = nan, nan
  if num_steps:
    found = []
    for own, layer_key in zip(layers.values(), keys, strict=True):
      block = curvature._part(own)
      steps = min(num_steps, sum(x.size for x in leaves_of(block.operator)))
      found.append(block.top_eigenpairs(key=layer_key, num_steps=steps))
    tops, residuals = (jnp.concatenate(parts) for parts in zip(*((x.values, x.residuals) for x in found)))
  return Layerwise(names, tops, residuals, traces, (), Estimate(nan, nan), ())


def layers_of(
  curvature: Curvature, key: Key, layer_of: Callable[[str], str] = _module_of
) -> tuple[tuple[str, ...], np.ndarray, Key, list[Key]]:
  """The layers' names, the number of each entry's layer, the key of the signs, and each layer's key."""
  sizes = [jnp.size(leaf) for leaf in leaves_of(curvature.operator)]
  of_parameter = [layer_of(name) for name in curvature.names]
  names = tuple(dict.fromkeys(of_parameter))
  owners = np.repeat([names.index(layer) for layer in of_parameter], sizes).astype(np.int32)
  probe_key, *keys = jax.random.split(key, len(names) + 1)
  return names, owners, probe_key, keys


@analysis
def of_layer(
  curvature: Curvature, owners: np.ndarray, number: int, key: Key, num_steps: int, num_starts: int
) -> dict[str, Any]:
  """What `layerwise` computes for one layer from products with its block; its parts are NaN if left out."""
  nan = jnp.full((), jnp.nan, curvature.like.dtype)
  found: dict[str, Any] = dict.fromkeys(("top_eigenvalue", "residual", "norm", "norm_error"), nan)
  if not num_steps:
    return found
  index = jnp.asarray(np.flatnonzero(owners == number))
  block, steps = Block(curvature, (), None, curvature.mesh, index), min(num_steps, index.size)
  pair = top_eigenpairs(block, key=key, num_steps=steps, check=False)
  found |= {"top_eigenvalue": pair.values[0], "residual": pair.residuals[0]}  # the vector is not kept
  if not num_starts:
    return found
  own = jax.random.fold_in(jax.random.clone(key), 1)
  nodes, weights, _ = quadrature(num_starts, steps, block, block.like, own)
  # The quadrature is exact for squares: a row's sum is |A u|^2.
  squares = index.size * (weights * nodes**2).sum(axis=1)
  norm = jnp.sqrt(squares.mean())
  error = squares.std(ddof=1) / math.sqrt(num_starts) / (2 * jnp.where(norm > 0, norm, 1))
  return found | {"norm": norm, "norm_error": error, "density": smoothed(nodes, weights, 0.01, None, 1000)}


@dataclasses.dataclass(eq=False)
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

"""The curvature of single layers: KFAC, and every layer's block of a network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreg import paths
from jaxreg._analyses import full_precision, num_examples, outputs_of_leaves, same, widened
from jaxreg._checks import check_count, check_key, check_loss_fn, check_range
from jaxreg._layers import Layer, layers_in, tapped
from jaxreg._sums import Compensated, add, compensated, gram, total
from jaxreg.flatness._chunked import checked_chunk_size, sum_over_chunks
from jaxreg.flatness._curvature import Curvature
from jaxreg.flatness._eigen import SpectralDensity, eigenpairs_in_memory, quadrature, smoothed
from jaxreg.flatness._operators import Likelihood, Scores, make_scores
from jaxreg.flatness._streamed import Block
from jaxreg.flatness._subset import as_vector, selected
from jaxreg.flatness._trace import Estimate, estimate_mean, sample_diagonals, sample_traces
from jaxreg.typing import Array, Batch, Key, Mask, Params


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["inputs", "outputs", "scales"],
  meta_fields=["layer", "names"],
)
@dataclasses.dataclass(frozen=True)
class KroneckerBlock:
  r"""A symmetric matrix over a layer's parameters in the Kronecker product of two bases.

  .. math:: (U_A \otimes U_B) \operatorname{diag}(s) (U_A \otimes U_B)^\top

  `inputs` `[k, k]` is :math:`U_A`, `outputs` `[units, units]` :math:`U_B`, and `scales` `[k, units]` the
  eigenvalues. Their rows are the bias, if it is part of the matrix, and the kernel's as `[..., in, out]`.
  `names` are the parameters, and vectors are in their order: that of `subset(params, names).flat`.
  """

  inputs: Array
  outputs: Array
  scales: Array
  layer: Layer
  names: tuple[str, ...]

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
    rotated = self.inputs.T @ self.layer.from_vector(as_vector(vector, self.like)) @ self.outputs
    return self.layer.to_vector(self.inputs @ (rotated * scales) @ self.outputs.T)


@full_precision
def kfac(
  apply_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  key: Key | None = None,
  likelihood: Likelihood = "categorical",
  num_samples: int | None = 1,
  losses_fn: Callable[..., Array] | None = None,
  mask: Mask = "*",
  corrected: bool = False,
  chunk_size: int | None = None,
) -> dict[str, KroneckerBlock]:
  r"""Computes KFAC's or EKFAC's approximation of the Fisher matrix of dense and convolutional layers.

  .. math:: F_l \approx \Big(\frac1{n T} \sum_{i,t} h_{it} h_{it}^\top\Big) \otimes
    \Big(\frac1n \sum_{i,t} g_{it} g_{it}^\top\Big)

  `h` are a layer's inputs at the `T` positions of an example, with a leading 1 for a bias, and `g` are the
  gradients in its outputs. It is exact for one example and one position. EKFAC keeps the eigenvectors, and
  replaces the eigenvalues by the mean squares of the examples' gradients along them, which is optimal in the
  Frobenius norm.

  The layers are found in the computation, whatever their names and layouts are. A kernel is a leaf that
  multiplies an input once, in a matrix product or an ungrouped convolution, with the examples on the input's
  leading axis. A leaf is its bias if the next operation adds it to the layer's output, a number for each
  unit.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, ..., classes]`, called with `key=None`: any function in which
      nothing couples examples.
    params: any pytree.
    batch: the examples along the leading axis of its leaves.
    key, likelihood, num_samples, losses_fn: as in `fisher`.
    mask: the parameters, as in `subset`; all must be kernels and biases of such layers.
    corrected: whether to compute EKFAC, which takes a second pass over the examples.
    chunk_size: how many examples to process at a time, by default all. Memory holds the inputs of all layers,
      of a convolution the patch at each position. A chunk draws with `fold_in(key, number)` of its first
      example.

  Returns:
    A `KroneckerBlock` for each layer, by the name of its kernel; of its bias if `mask` leaves out the kernel.

  Raises:
    ValueError: if `mask` selects parameters that belong to no such layer; it names them.

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
  scores_fn = make_scores(key, likelihood, num_samples, losses_fn)
  size, n = checked_chunk_size(chunk_size, batch), num_examples(batch)
  params, batch = widened(params), widened(batch)
  layers = _layers_of(apply_fn, params, batch, selected(params, mask))
  factors = sum_over_chunks(_Factors(apply_fn, scores_fn, layers), size, params, batch, key)
  left, right, scales = map(list, zip(*_eigen(factors, n), strict=True))
  if corrected:
    point = params, [*zip(left, right, strict=True)]
    squares = sum_over_chunks(_Squares(apply_fn, scores_fn, layers), size, point, batch, key)
    scales = [x / n for x in squares]
  names = paths.leaf_names(params)
  blocks = {}
  for number, layer in enumerate(layers):
    own = tuple(names[leaf] for leaf in layer.numbers)
    blocks[names[_main(layer)]] = KroneckerBlock(left[number], right[number], scales[number], layer, own)
  return blocks


def _main(layer: Layer) -> int:
  """Returns the number of the leaf that names a layer: the kernel, or a bias without its kernel."""
  return layer.kernel if layer.kernel in layer.numbers else layer.numbers[0]


def _layers_of(
  apply_fn: Callable[..., Array], params: Params, batch: Batch, taken: tuple[bool, ...]
) -> tuple[Layer, ...]:
  """Returns the layers of the leaves that are `taken`."""
  names = paths.leaf_names(params)
  outputs_fn = partial(outputs_of_leaves, apply_fn, jax.tree.structure(params))
  layers, why = layers_in(outputs_fn, jax.tree.leaves(params), batch, taken)
  if why:
    listed = ", ".join(f"{names[number]} {reason}" for number, reason in [*why.items()][:5])
    more = f" and {len(why) - 5} more" if len(why) > 5 else ""
    raise ValueError(
      f"mask must select only kernels and biases of dense and convolutional layers, but {listed}{more}"
    )
  return tuple(layers)


@dataclasses.dataclass(frozen=True)
class _Factors:
  """Sums the outer products of layers' inputs, the mean over positions, and of gradients in their outputs."""

  apply_fn: Callable[..., Array]
  scores_fn: Scores
  layers: tuple[Layer, ...]

  def __call__(
    self, params: Params, examples: Batch, key: Key | None, first: Array | int, stride: int
  ) -> list[tuple[Array, Array]]:
    del stride
    inputs, pull, scores = self.passes(params, examples, key, first)
    # The gradients of all scores together would need the most memory.
    outer = jax.lax.map(lambda score: jax.tree.map(_gram_of_rows, pull(score)[0]), scores)
    return [
      (_gram_of_rows(inputs[number]) / inputs[number].shape[1], outer[number].mean(axis=0))
      for number in (layer.kernel for layer in self.layers)
    ]

  def passes(
    self, params: Params, examples: Batch, key: Key | None, first: Array | int
  ) -> tuple[dict[int, Array], Callable[[Array], tuple[dict[int, Array]]], Array]:
    """Returns layers' inputs `[n, positions, k]` by their kernels, the backward pass, and the scores."""
    leaves, tree = jax.tree.flatten(params)
    run = tapped(partial(outputs_of_leaves, self.apply_fn, tree, batch=examples), leaves, [*self.layers])
    outputs, inputs, zeros = run({})
    pull = jax.vjp(lambda taps: run(taps)[0], zeros)[1]
    own = None if key is None else jax.random.fold_in(same(key), first)  # type: ignore[arg-type]
    joined = {layer.kernel: layer.inputs(inputs[layer.kernel]) for layer in self.layers}
    return joined, pull, self.scores_fn(outputs, examples, own)


@dataclasses.dataclass(frozen=True)
class _Squares(_Factors):
  """Sums the squares of the examples' gradients along the eigenvectors of the factors."""

  def __call__(
    self, params: Any, examples: Batch, key: Key | None, first: Array | int, stride: int
  ) -> list[Array]:
    del stride
    params, bases = params
    inputs, pull, scores = self.passes(params, examples, key, first)
    # By kernel: `[samples, n, positions, units]`
    gradients = jax.lax.map(lambda score: pull(score)[0], scores)
    return [
      _squares(inputs[layer.kernel], gradients[layer.kernel], *basis) / len(scores)
      for layer, basis in zip(self.layers, bases, strict=True)
    ]


def _squares(h: Array, g: Array, left: Array, right: Array) -> Array:
  """Sums squares over examples and samples, from `[n, t, k]` and `[samples, n, t, units]`: `[k, units]`."""

  def add_squares(running: Compensated, example: tuple[Array, Array]) -> tuple[Compensated, None]:
    h, g = example
    return add(running, (jnp.einsum("tk,stu->sku", h @ left, g @ right) ** 2).sum(axis=0)), None

  start = compensated(jnp.zeros((h.shape[2], g.shape[3]), h.dtype))
  return total(jax.lax.scan(add_squares, start, (h, jnp.swapaxes(g, 0, 1)))[0])


@jax.jit
def _eigen(factors: list[tuple[Array, Array]], n: Array) -> list[tuple[Array, Array, Array]]:
  """Returns the two bases and the scales of each layer."""
  blocks = []
  for inner, outer in factors:
    (first, left), (second, right) = jnp.linalg.eigh(inner / n), jnp.linalg.eigh(outer / n)
    blocks.append((left, right, jnp.maximum(first, 0)[:, None] * jnp.maximum(second, 0)[None, :]))
  return blocks


def _gram_of_rows(x: Array) -> Array:
  """Sums the outer products of all rows, `[..., k] -> [k, k]`."""
  return gram(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))


def _module_of(name: str) -> str:
  """Returns the module of a parameter, or the parameter itself outside of modules."""
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


@full_precision
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
  layer costs `num_steps + 1` products with the whole network, which is compiled once; density and norm cost
  `num_starts * num_steps`. If the parameters are split over devices, so are all vectors; then there are no
  diagonals.

  Args:
    curvature: a `Curvature` of the parameters that its `mask` selects.
    key: draws the signs and the start vectors.
    num_samples: products for traces and diagonals, at least 2.
    num_steps: products for each top eigenvalue, and for each random start of a density, at most as many as
      the layer has parameters. With 0 the eigenvalues are NaN.
    num_starts: random starts for densities and norms, at least 2. With 0 there are no densities, and the
      norms are NaN.
    layer_of: returns the layer of a parameter's name; by default all but the last part of the name. A
      parameter outside of modules is a layer by itself; for a tree `{"kernel", "bias"}` give a function that
      returns one name.

  Returns:
    A NamedTuple: `names` of the layers; `top_eigenvalues` and `residuals` `[layers]`, as in `top_eigenpairs`;
    `traces` and `frobenius_norms` `[layers]`, each a `mean` and a `standard_error`; and for each layer in
    `diagonals` the same, in the order of `subset`, and in `densities` the result of `spectral_density`.

  Example:
    >>> loss = lambda params, x, *, key: (x * (3 * params["a"] ** 2 + params["b"] ** 2)).mean()
    >>> curvature = Curvature(loss, {"a": jnp.float32(1), "b": jnp.float32(1)}, jnp.ones(4))
    >>> layers = layerwise(curvature, key=jax.random.key(0))
    >>> layers.names, layers.top_eigenvalues, layers.traces.mean
    (('a', 'b'), Array([6., 2.], dtype=float32), Array([6., 2.], dtype=float32))

  References:
    Yao et al., `PyHessian: Neural Networks Through the Lens of the Hessian`, 2020.
    Ghorbani, Krishnan and Xiao, `An Investigation into Neural Net Optimization via Hessian Eigenvalue
    Density`, 2019, section 2.
  """
  if not isinstance(curvature, Curvature):
    raise TypeError(f"curvature must be a Curvature, got {type(curvature).__name__}")
  check_key(key)
  for name, value in (("num_steps", num_steps), ("num_starts", num_starts)):
    if value != 0:
      check_count(value, name)
  if num_starts and min(num_starts, num_steps) < 2:
    raise ValueError(
      f"num_starts must be 0, or at least 2 with num_steps at least 2, got {num_starts} and {num_steps}"
    )
  layers: dict[str, list[int]] = {}  # the numbers of the parameters of each layer
  for number, name in enumerate(curvature.names):
    layers.setdefault(layer_of(name), []).append(number)
  operator = curvature._by_parameter(shared=not curvature.is_split)
  probe_key, *keys = jax.random.split(key, len(layers) + 1)
  if curvature.is_split:
    traces, diagonals = sample_traces(operator, probe_key, num_samples), ()
  else:
    traces, of_parameters = sample_diagonals(operator, probe_key, num_samples)
    diagonals = tuple(_joined([of_parameters[n] for n in numbers]) for numbers in layers.values())
  by_layer = jnp.stack([traces[:, jnp.array(numbers)].sum(axis=1) for numbers in layers.values()], axis=1)
  blocks = [
    _block_spectrum(Block(operator, tuple(numbers)), layer_key, num_steps, num_starts)
    for numbers, layer_key in zip(layers.values(), keys, strict=True)
  ]
  tops, residuals, norms, errors = (
    jnp.stack(column) for column in zip(*(block[:4] for block in blocks), strict=True)
  )
  densities = tuple(block.density for block in blocks) if num_starts else ()
  return Layerwise(
    tuple(layers), tops, residuals, estimate_mean(by_layer), diagonals, Estimate(norms, errors), densities
  )


def _joined(estimates: list[Estimate]) -> Estimate:
  """Joins the estimates of several parameters into one flat estimate."""
  return Estimate(*(jnp.concatenate([x.reshape(-1) for x in column]) for column in zip(*estimates)))


class BlockSpectrum(NamedTuple):
  """What `layerwise` computes of one layer from products with its block; NaN if it is left out."""

  top_eigenvalue: Array
  residual: Array
  norm: Array
  norm_error: Array
  density: Any  # a `SpectralDensity`, or None


def _block_spectrum(block: Block, key: Key, num_steps: int, num_starts: int) -> BlockSpectrum:
  nan = jnp.full((), jnp.nan, jnp.result_type(*block.like))
  if not num_steps:
    return BlockSpectrum(nan, nan, nan, nan, None)
  size = sum(x.size for x in block.like)
  steps = min(num_steps, size)
  values, _, residuals, _ = eigenpairs_in_memory(block, key=key, num_steps=steps)
  if not num_starts:
    return BlockSpectrum(values[0], residuals[0], nan, nan, None)
  start_key = jax.random.fold_in(jax.random.clone(key), 1)
  nodes, weights, _ = quadrature(block, num_starts, steps, start_key, check=False)
  # The quadrature is exact for squares: a row's sum is |A u|^2.
  squares = size * (weights * nodes**2).sum(axis=1)
  norm = jnp.sqrt(squares.mean())
  error = squares.std(ddof=1) / math.sqrt(num_starts) / (2 * jnp.where(norm > 0, norm, 1))
  return BlockSpectrum(values[0], residuals[0], norm, error, smoothed(nodes, weights, 0.01, None, 1000))

"""Kronecker-factored curvature of dense and convolutional layers, with its inverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg import paths
from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import analysis, outputs_of, same, widened
from jaxreg.flatness._fisher import GivenScores, Likelihood, drawn_scores
from jaxreg.flatness._layer_inputs import of_examples, tapped
from jaxreg.flatness._subset import Where, selected
from jaxreg.typing import Array, Batch, Key, Params, check_key, check_loss_fn, check_range


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["inputs", "outputs", "scales"],
  meta_fields=["bias"],
)
@dataclasses.dataclass(frozen=True)
class KroneckerBlock:
  r"""A symmetric matrix over a layer's parameters in the Kronecker product of two bases.

  .. math:: (U_A \otimes U_B) \operatorname{diag}(s) (U_A \otimes U_B)^\top

  Its vectors have the bias first, then the kernel by rows `[..., in, out]`, as `subset` of a Flax layer has.

  Attributes:
    inputs: `[k, k]`, the columns of :math:`U_A`: of the inputs, the bias first.
    outputs: `[units, units]`, the columns of :math:`U_B`.
    scales: `[k, units]`, the eigenvalues.
    bias: whether the bias is part of it.
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
  outputs_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  key: Key | None = None,
  likelihood: Likelihood = "categorical",
  num_samples: int = 1,
  losses_fn: Callable[..., Array] | None = None,
  where: Where = "*/kernel",
  corrected: bool = False,
) -> dict[str, KroneckerBlock]:
  r"""Computes KFAC's or EKFAC's approximation of the Fisher matrix of dense and convolutional layers.

  .. math:: F_l \approx \Big(\frac1{n T} \sum_{i,t} h_{it} h_{it}^\top\Big) \otimes
    \Big(\frac1n \sum_{i,t} g_{it} g_{it}^\top\Big)

  `h` are a layer's inputs at the `T` positions of an example, with 1 before them for a bias, and `g` the
  gradients in its outputs. It is exact for one example and one position. EKFAC keeps the eigenvectors, and
  replaces the eigenvalues by the mean squares of the examples' gradients along them, which no other choice of
  eigenvalues beats in the Frobenius norm.

  Args:
    outputs_fn: `(params, batch, *, key) -> [n, ..., classes]`, called with `key=None`: any function. A layer
      is found as the matrix product or convolution with its kernel, which must occur once. Examples must not
      be coupled.
    params: any pytree.
    batch: its leaves have the examples on the leading axis; all are processed at once.
    key, likelihood, num_samples: as in `fisher`.
    losses_fn: as in `empirical_fisher`, in place of labels drawn from the model and of a key.
    where: the kernels, `[in, out]` or `[..., in, out]`. The leaf `bias` beside one is taken with it; the
      layer must add it to its output.
    corrected: whether to compute EKFAC.

  Returns:
    A `KroneckerBlock` for each kernel, by its name.

  Raises:
    TypeError: if a selected leaf is not floating, `outputs_fn` takes no `key`, or `key` is no typed key.
    ValueError: if `where` selects nothing, a kernel that no layer uses once, or the kernel of a layer whose
      input has no examples on its leading axis, such as all tokens of all examples.

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
  check_loss_fn(outputs_fn, "outputs_fn")
  if losses_fn is None:
    check_key(key)  # type: ignore[arg-type]
  num_examples(batch)
  scores_fn = GivenScores(losses_fn) if losses_fn is not None else drawn_scores(likelihood, num_samples)
  mask = selected(params, where)
  names = paths.leaf_names(params)
  kernels = tuple((number, name) for number, name in enumerate(names) if mask[number])
  beside = tuple(f"{name.rpartition('/')[0]}/bias" in names for _, name in kernels)
  return _blocks(outputs_fn, scores_fn, kernels, beside, corrected, widened(params), widened(batch), key)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _blocks(outputs_fn, scores_fn, kernels, beside, corrected, params, batch, key):
  leaves, tree = jax.tree.flatten(params)
  function = lambda leaves, batch: outputs_of(outputs_fn, jax.tree.unflatten(tree, leaves), batch)
  run = tapped(lambda leaves: function(leaves, batch), leaves, dict(kernels))
  value, inputs, outputs = run({})
  alike = of_examples(function, leaves, dict(kernels), batch)
  for number, name in kernels:
    if number not in alike:
      raise ValueError(f"where: the layer of {name} must have the examples on the leading axis of its input")
  taps = {number: jnp.zeros_like(x) for number, x in outputs.items()}
  pull = jax.vjp(lambda taps: run(taps)[0], taps)[1]
  scores = scores_fn(value, batch, None if key is None else same(key))
  drawn = jax.lax.map(lambda score: pull(score)[0], scores)
  blocks = {}
  for (number, name), bias in zip(kernels, beside, strict=True):
    h, units = inputs[number], outputs[number].shape[-1]
    if bias:
      h = jnp.concatenate([jnp.ones((*h.shape[:2], 1), h.dtype), h], axis=2)
    g = drawn[number].reshape(len(scores), *h.shape[:2], units)  # [samples, n, positions, units]
    blocks[name] = _block(h, g, bias, corrected)
  return blocks


def _block(h: Array, g: Array, bias: bool, corrected: bool) -> KroneckerBlock:
  n, positions, _ = h.shape
  inner, left = jnp.linalg.eigh(jnp.einsum("ntk,ntl->kl", h, h) / (n * positions))
  outer, right = jnp.linalg.eigh(jnp.einsum("sntu,sntv->uv", g, g) / (n * len(g)))
  scales: Any = jnp.maximum(inner, 0)[:, None] * jnp.maximum(outer, 0)[None, :]
  if corrected:

    def squares(total: Array, example: tuple[Array, Array]) -> tuple[Array, None]:
      inputs, gradients = example
      return total + (jnp.einsum("tk,stu->sku", inputs @ left, gradients @ right) ** 2).sum(axis=0), None

    total, _ = jax.lax.scan(squares, jnp.zeros_like(scales), (h, jnp.swapaxes(g, 0, 1)))
    scales = total / (n * len(g))
  return KroneckerBlock(left, right, scales, bias)

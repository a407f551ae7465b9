"""The Laplace approximation of a network or of any part of its parameters, and its predictions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg import flatness, paths
from jaxreg._analyses import full_precision, num_examples, outputs_of_leaves
from jaxreg._checks import check_choice, check_count, check_key, check_loss_fn, check_option, check_wide
from jaxreg._jacobians import JacobianRows, pull_back, unit_outputs_per_example
from jaxreg._layers import Layer, Part, layers_in
from jaxreg._leaves import wide
from jaxreg._log_odds import others_log_probs
from jaxreg._sharding import partitioned
from jaxreg.typing import Array, Batch, Key, Mask, Params

STRUCTURES = ("kfac", "ekfac", "diagonal", "dense")
MOST_DENSE = 4096  # parameters outside of all Kronecker factors: their matrix has 64 MiB
ENTRIES = 2**24  # of the Jacobians of a layer with several positions in memory: 64 MiB


class LinearizedOutputs(NamedTuple):
  """`outputs` `[n, classes]` at the parameters, and their `covariance` `[n, classes, classes]`."""

  outputs: Array
  covariance: Array


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["params", "bases", "values"],
  meta_fields=["apply_fn", "mask", "layers"],
)
@dataclasses.dataclass(frozen=True)
class Laplace:
  r"""The Gaussian :math:`N(\theta, (H + \tau I)^{-1})` of parameters, for any precision :math:`\tau`.

  Attributes:
    params: all parameters; those outside `mask` are constant.
    bases: pairs of matrices, whose products are the eigenvectors of a block of `H`; none if `H` is diagonal.
    values: `[size]`, the eigenvalues of `H`, the sum over the examples, block by block.
    apply_fn: `(params, batch, *, key) -> [n, classes]`.
    mask: for each leaf, whether it is random.
    layers: for each block, where its parameters lie.
  """

  params: Params
  bases: tuple[tuple[Array, Array], ...]
  values: Array
  apply_fn: Callable[..., Array]
  mask: tuple[bool, ...]
  layers: tuple[Layer, ...]

  def log_evidence(self, precision: ArrayLike) -> Array:
    r"""Computes the log marginal likelihood, less the log-likelihood at the parameters.

    .. math:: \tfrac12 \Bigl(P \log \tau - \tau \|\theta\|^2 - \sum_i \log(s_i + \tau)\Bigr)
    """
    check_option(precision, "precision", (), low=0, open_low=True)
    flat, tau = self._flat(), jnp.asarray(precision, self.values.dtype)
    # log(tau / (s + tau)), which keeps its digits where s is small.
    return (-jnp.log1p(self.values / tau).sum() - tau * jnp.vdot(flat, flat)) / 2

  def best_precision(self) -> Array:
    """Finds the precision between 1e-6 and 1e6 of the largest evidence, to five digits."""
    return _best_precision(self.values, self._flat())

  def linearized(self, batch: Batch, *, precision: ArrayLike, chunk_size: int = 64) -> LinearizedOutputs:
    r"""Computes the Gaussian of the outputs of the network that is linearised in its parameters.

    .. math:: f(x) \sim N\bigl(f_\theta(x), J(x) (H + \tau I)^{-1} J(x)^\top\bigr)

    `probit_log_probs(outputs, variance)` with the diagonals gives probabilities of classes; for a regression,
    the covariance of a new target is that of the outputs plus the noise's.

    Args:
      batch: as in `laplace`.
      precision: above 0, the prior's.
      chunk_size: examples at once. With `kfac`, `ekfac` and `diagonal`, memory holds the layers' inputs, and
        for each output the gradients in the layers' outputs. A dense layer `[in, out]` on vectors costs
        `in * out` multiplications per example, and its factors `in**2 + classes * out**2` more. The Jacobians
        of layers at several positions are built, a few examples at a time. With `dense`, and for parameters
        without a factor, memory holds the Jacobians `[chunk_size, classes, size]`.

    Returns:
      `outputs` `[n, classes]` and `covariance` `[n, classes, classes]`.
    """
    check_option(precision, "precision", (), low=0, open_low=True)
    check_count(chunk_size, "chunk_size")

    compute = functools.partial(_linearized, int(chunk_size))
    return LinearizedOutputs(*partitioned(compute, batch, self, precision, kept=(slice(1), slice(1))))

  def sample(self, key: Key, *, precision: ArrayLike, num_samples: int) -> Params:
    """Draws parameters: all leaves get a leading axis `[num_samples]`, also those that are constant."""
    check_key(key)
    check_option(precision, "precision", (), low=0, open_low=True)
    check_count(num_samples, "num_samples")
    own = flatness.subset(self.params, self._mask())
    noise = jax.random.normal(key, (num_samples, self.values.size), self.values.dtype)
    turned = self.turned_back(noise / jnp.sqrt(self.values + precision)[None])
    return jax.vmap(own.merge)(own.flat[None] + turned)

  def _flat(self) -> Array:
    return flatness.subset(self.params, self._mask()).flat

  def _mask(self) -> Params:
    return jax.tree.unflatten(jax.tree.structure(self.params), self.mask)

  def blocks(self, vectors: Array) -> list[Array]:
    """Splits vectors `[..., size]` in the order of `values` into matrices `[..., rows, units]`."""
    blocks, first = [], 0
    for left, right in self.bases:
      size = len(left) * len(right)
      blocks.append(vectors[..., first : first + size].reshape(*vectors.shape[:-1], len(left), len(right)))
      first += size
    return blocks

  def turned_back(self, vectors: Array) -> Array:
    """Turns vectors `[..., size]` of coordinates along the eigenvectors into parameters."""
    if not self.bases:
      return vectors
    leaves = {}
    for layer, (left, right), block in zip(self.layers, self.bases, self.blocks(vectors), strict=True):
      leaves |= layer.spread(left @ block @ right.T)
    return jnp.concatenate([leaves[n].reshape(*vectors.shape[:-1], -1) for n in sorted(leaves)], axis=-1)


@jax.jit
def _best_precision(values: Array, flat: Array) -> Array:
  square = jnp.vdot(flat, flat)

  def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    # The slope of the evidence in log(tau) falls: its root keeps the digits that the flat top has not.
    middle = (ends[0] + ends[1]) / 2
    tau = 10**middle
    rises = (values / (values + tau)).sum() > tau * square
    return jnp.where(rises, middle, ends[0]), jnp.where(rises, ends[1], middle)

  ends = jnp.asarray(-6.0, values.dtype), jnp.asarray(6.0, values.dtype)
  low, high = jax.lax.fori_loop(0, 50, halve, ends)
  return 10 ** ((low + high) / 2)


@full_precision
def _linearized(
  chunk_size: int, batch: Batch, posterior: Laplace, precision: ArrayLike
) -> tuple[Array, Array]:
  parts = []
  for first in range(0, num_examples(batch), chunk_size):
    some = jax.tree.map(lambda x, at=first: wide(jnp.asarray(x)[at : at + chunk_size]), batch)
    parts.append(_compiled_linearized(posterior, some, precision))
  outputs, covariances = zip(*parts, strict=True)
  return jnp.concatenate(outputs), jnp.concatenate(covariances)


@jax.jit
def _compiled_linearized(posterior: Laplace, batch: Batch, precision: ArrayLike) -> LinearizedOutputs:
  rows = pull_back(posterior.apply_fn, posterior.mask, posterior.params, batch, unit_outputs_per_example)
  return LinearizedOutputs(rows.outputs, _covariance(posterior, rows, 1 / (posterior.values + precision)))


def _covariance(posterior: Laplace, rows: JacobianRows, variances: Array) -> Array:
  """Computes `[n, classes, classes]` from Jacobians and the variances along the eigenvectors."""
  if not posterior.bases:
    own = flatness.subset(posterior.params, posterior._mask())
    by_leaf = dict(enumerate(jax.tree.leaves(own.merge(variances))))
    parts = [_of_layer(h, g, layer.join(by_leaf)) for layer, h, g in rows.layers]
    parts += [_of_rows(_as_rows(x), by_leaf[number].reshape(-1)) for number, x in rows.others.items()]
    return functools.reduce(jnp.add, parts)
  by_layer, parts, leaves = {one.layer: one for one in rows.layers}, [], None
  blocks = posterior.blocks(variances)
  for layer, (left, right), block in zip(posterior.layers, posterior.bases, blocks, strict=True):
    if layer in by_layer:
      parts.append(_of_layer(by_layer[layer].inputs @ left, by_layer[layer].gradients @ right, block))
    else:
      leaves = rows.leaves() if leaves is None else leaves
      turned = jnp.einsum("ik,ncij,jl->nckl", left, layer.join(leaves), right)
      parts.append(_of_rows(_as_rows(turned), block.reshape(-1)))
  return functools.reduce(jnp.add, parts)


def _as_rows(x: Array) -> Array:
  return x.reshape(*x.shape[:2], -1)


def _of_rows(rows: Array, variances: Array) -> Array:
  """Computes the covariance of outputs from Jacobians `[n, classes, size]` and variances `[size]`."""
  return jnp.einsum("ncp,ndp,p->ncd", rows, rows, variances)


def _of_layer(h: Array, g: Array, variances: Array) -> Array:
  """Computes a layer's part of the covariance of outputs, without the Jacobians of all examples.

  `h` are its inputs `[n, positions, rows]`, `g` the gradients in its outputs
  `[n, classes, positions, units]`, and `variances` `[rows, units]`.
  """
  if h.shape[1] == 1:  # the Jacobian is an outer product, and so is its square
    h, g = h[:, 0], g[:, :, 0]
    return jnp.einsum("nu,ncu,ndu->ncd", h**2 @ variances, g, g)

  def of_example(example: tuple[Array, Array]) -> Array:
    h, g = example
    rows = jnp.einsum("tk,ctu->cku", h, g)
    return jnp.einsum("cku,dku->cd", rows * variances, rows)

  at_once = max(1, ENTRIES // (g.shape[1] * variances.size))
  return jax.lax.map(of_example, (h, g), batch_size=min(at_once, len(h)))


def laplace(
  apply_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  likelihood: Literal["categorical", "normal"] = "categorical",
  structure: Literal["kfac", "ekfac", "diagonal", "dense"] = "kfac",
  noise_variance: ArrayLike = 1.0,
  mask: Mask = "*",
  chunk_size: int | None = None,
) -> Laplace:
  r"""Computes the Laplace approximation of a trained network's parameters, all of them or those in `mask`.

  .. math:: p(\theta \mid D) \approx N\bigl(\theta, (H + \tau I)^{-1}\bigr), \qquad
    H = \sum_i J_i^\top \Lambda_i J_i

  `H` is the Gauss-Newton matrix of the negative log-likelihood, which the parameters minimise together with
  :math:`\tfrac{\tau}{2} \|\theta\|^2`; for a mean of `n` losses with `a * penalties.l2(params, mask="*")`,
  :math:`\tau = n a`, or `n * a / noise_variance` if the losses are half the squared errors. `dense` is exact,
  and takes `size**2` numbers; in float32, values below about 1e-6 of the largest are rounding, so a smaller
  precision needs float64. `kfac` and `ekfac` have a block for each dense or convolutional layer, kernel
  and bias, by `flatness.kfac` without draws. All other parameters, such as a normalisation's, together have
  one exact block.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, classes]`, logits or means, called with `key=None`; nothing may
      couple examples.
    params: any pytree, at a minimum.
    batch: what `apply_fn` reads of all training examples, along the leading axis of its leaves. Labels are
      not needed.
    likelihood: `categorical` of logits, or `normal` around the outputs.
    structure: how `H` is approximated.
    noise_variance: of a `normal` likelihood: a scalar or `[classes]`, above 0. The mean square of the
      training residuals is too small; divide their sum of squares by `n` less the number of parameters that
      the data determine, `(values / (values + precision)).sum()` of a first posterior.
    mask: the parameters that are random, as in `flatness.subset`.
    chunk_size: how many examples to process at a time, by default all; of an exact block at most 16.

  Raises:
    ValueError: if the outputs lack an axis, or if `kfac` and `ekfac` have no factor for more than 4096
      parameters; it names them.

  Returns:
    A `Laplace`, with the methods `best_precision`, `log_evidence`, `linearized` and `sample`.

  Example:
    >>> outputs = lambda params, x, *, key: x @ params["kernel"]
    >>> params, x = {"kernel": jnp.zeros((1, 1))}, jnp.array([[1.0], [2.0]])
    >>> posterior = laplace(outputs, params, x, likelihood="normal", structure="dense")
    >>> posterior.linearized(x, precision=3.0).covariance.ravel().round(3)  # x^2 / (3 + 5)
    Array([0.125, 0.5  ], dtype=float32)

  References:
    MacKay, `A Practical Bayesian Framework for Backpropagation Networks`, 1992.
    Immer, Korzepa and Bauer, `Improving Predictions of Bayesian Neural Nets via Local Linearization`, 2021.
    Daxberger et al., `Laplace Redux - Effortless Bayesian Deep Learning`, 2021.
  """
  check_loss_fn(apply_fn, "apply_fn")
  check_choice(likelihood, "likelihood", ("categorical", "normal"))
  check_choice(structure, "structure", STRUCTURES)
  if chunk_size is not None:
    check_count(chunk_size, "chunk_size")
  number, params = num_examples(batch), jax.tree.map(wide, params)
  batch = jax.tree.map(wide, batch)
  shape = jnp.shape(jax.eval_shape(functools.partial(apply_fn, key=None), params, batch))
  if len(shape) < 2:
    raise ValueError(f"apply_fn must return outputs of shape ({number}, outputs), got {shape}; add an axis")
  taken = _taken(params, mask)
  scaled, data, outer_fn = apply_fn, batch, _categorical_loss
  if likelihood == "normal":
    check_option(noise_variance, "noise_variance", shape[-1:], low=0, open_low=True)
    scaled, data = _Scaled(apply_fn), (batch, jnp.broadcast_to(jnp.sqrt(noise_variance), shape))
    outer_fn = _normal_loss
  if structure == "diagonal":
    values = flatness.gauss_newton_diagonal(scaled, outer_fn, params, data, mask=mask, chunk_size=chunk_size)
    return Laplace(params, (), number * values, apply_fn, taken, ())
  blocks = []
  covered = _covered(apply_fn, params, batch, taken) if structure != "dense" else (False,) * len(taken)
  rest = tuple(one and not other for one, other in zip(taken, covered, strict=True))
  if any(covered):
    blocks = flatness.kfac(
      scaled,
      params,
      data,
      likelihood=likelihood,
      num_samples=None,
      mask=_as_tree(params, covered),
      corrected=structure == "ekfac",
      chunk_size=chunk_size,
    ).values()
  layers = [block.layer for block in blocks]
  bases = [(block.inputs, block.outputs) for block in blocks]
  scales = [block.scales.reshape(-1) for block in blocks]
  if any(rest):
    if structure != "dense":
      _check_dense(params, rest, structure)
    few, own = min(16, chunk_size or 16), _as_tree(params, rest)
    matrix = flatness.gauss_newton_matrix(scaled, outer_fn, params, data, mask=own, chunk_size=few)
    values, vectors = jnp.linalg.eigh(matrix)
    layers.append(_as_layer(params, rest))
    bases.append((vectors, jnp.ones((1, 1), vectors.dtype)))
    scales.append(jnp.maximum(values, 0))
  return Laplace(params, tuple(bases), number * jnp.concatenate(scales), apply_fn, taken, tuple(layers))


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


def _taken(params: Params, mask: Mask) -> tuple[bool, ...]:
  names = flatness.subset(params, mask).names
  return tuple(name in names for name in paths.leaf_names(params))


def _as_tree(params: Params, taken: tuple[bool, ...]) -> Params:
  return jax.tree.unflatten(jax.tree.structure(params), taken)


def _covered(
  apply_fn: Callable[..., Array], params: Params, batch: Batch, taken: tuple[bool, ...]
) -> tuple[bool, ...]:
  """Returns for each leaf whether it is part of a layer with a Kronecker factor."""
  leaves, tree = jax.tree.flatten(params)
  outputs_fn = functools.partial(outputs_of_leaves, apply_fn, tree)
  layers, _ = layers_in(outputs_fn, leaves, batch, taken)
  numbers = {number for layer in layers for number in layer.numbers}
  return tuple(number in numbers for number in range(len(leaves)))


def _check_dense(params: Params, rest: tuple[bool, ...], structure: str) -> None:
  """Checks that the parameters without a factor are few."""
  rows = zip(paths.leaf_names(params), jax.tree.leaves(params), rest, strict=True)
  names, sizes = zip(*((name, x.size) for name, x, one in rows if one), strict=True)
  if sum(sizes) > MOST_DENSE:
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise ValueError(
      f"mask: structure={structure} has no factor for {listed}, and {sum(sizes)} parameters are too many for "
      f"one exact block, at most {MOST_DENSE}; leave them out, or give structure='diagonal'"
    )


def _as_layer(params: Params, taken: tuple[bool, ...]) -> Layer:
  """Returns the matrix `[size, 1]` of leaves one below another."""
  shapes = [np.shape(x) for x in jax.tree.leaves(params)]
  parts = [Part(n, shape, tuple(range(len(shape)))) for n, shape in enumerate(shapes) if taken[n]]
  return Layer(-1, 1, tuple(parts))


@dataclasses.dataclass(frozen=True)
class _Scaled:
  """The network with outputs in units of the noise, whose standard deviations come with the batch.

  Two of one network are equal, so that a second call compiles nothing.
  """

  apply_fn: Callable[..., Array]

  def __call__(self, params: Params, batch: tuple[Batch, Array], *, key: None) -> Array:
    inputs, std = batch
    outputs = self.apply_fn(params, inputs, key=key)
    return outputs / std.astype(outputs.dtype)


# Losses with the Hessians of the likelihoods, whatever the labels are.
def _categorical_loss(outputs: Array, batch: Batch) -> Array:
  del batch
  return _log_total(outputs).mean()


@jax.custom_jvp
def _log_total(z: Array) -> Array:
  return jax.nn.logsumexp(z, axis=-1)


@_log_total.defjvp
def _log_total_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return _log_total(*primals), (_probabilities(*primals) * tangents[0]).sum(axis=-1)


@jax.custom_jvp
def _probabilities(z: Array) -> Array:
  return jax.nn.softmax(z)


@_probabilities.defjvp
def _probabilities_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  """Computes `p_k (sum of the others' p_j) t_k - p_k (sum of the others' p_j t_j)`.

  JAX's own `p_k (t_k - sum p_j t_j)` is `p - p * p` on the diagonal, which is rounding if `p` is nearly 1.
  """
  (z,), (t,) = primals, tangents
  log_probs = jax.nn.log_softmax(z)
  p = jnp.exp(log_probs)
  others = jnp.where(p > 0.5, jnp.exp(others_log_probs(log_probs)), 1 - p)
  return p, p * (others * t - ((p * t).sum(axis=-1, keepdims=True) - p * t))


def _normal_loss(outputs: Array, batch: Batch) -> Array:
  del batch
  return (outputs**2).sum(axis=-1).mean() / 2

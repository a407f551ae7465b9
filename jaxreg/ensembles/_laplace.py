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
from jaxreg._checks import check_choice, check_count, check_key, check_loss_fn, check_option, check_wide
from jaxreg._leaves import wide
from jaxreg.flatness._common import num_examples
from jaxreg.flatness._jacobians import jacobians
from jaxreg.typing import Array, Batch, Key, Mask, Params

STRUCTURES = ("kfac", "ekfac", "diagonal", "dense")


class LinearizedOutputs(NamedTuple):
  """`outputs` `[n, classes]` at the parameters, and their `covariance` `[n, classes, classes]`."""

  outputs: Array
  covariance: Array


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["params", "bases", "values"],
  meta_fields=["apply_fn", "mask", "order"],
)
@dataclasses.dataclass(frozen=True)
class Laplace:
  r"""The Gaussian :math:`N(\theta, (H + \tau I)^{-1})` of parameters, for any precision :math:`\tau`.

  Attributes:
    params: all parameters; those outside `mask` are constant.
    bases: pairs of matrices, whose products are the eigenvectors of a block of `H`; none if `H` is diagonal.
    values: `[size]`, the eigenvalues of `H`, the sum over the examples.
    apply_fn: `(params, batch, *, key) -> [n, classes]`.
    mask: for each leaf, whether it is random.
    order: the entries of the flat parameters in the order of the blocks.
  """

  params: Params
  bases: tuple[tuple[Array, Array], ...]
  values: Array
  apply_fn: Callable[..., Array]
  mask: tuple[bool, ...]
  order: tuple[int, ...]

  def log_evidence(self, precision: ArrayLike) -> Array:
    r"""Computes the log marginal likelihood, less the log-likelihood at the parameters.

    .. math:: \tfrac12 \Bigl(P \log \tau - \tau \|\theta\|^2 - \sum_i \log(s_i + \tau)\Bigr)
    """
    check_option(precision, "precision", (), low=0, open_low=True)
    tau, flat = jnp.asarray(precision, self.values.dtype), flatness.subset(self.params, self._mask()).flat
    # log(tau / (s + tau)), which keeps its digits where s is small.
    return (-jnp.log1p(self.values / tau).sum() - tau * jnp.vdot(flat, flat)) / 2

  def best_precision(self) -> Array:
    """Finds the precision between 1e-6 and 1e6 of the largest evidence, to four digits."""
    low, high = jnp.asarray(-6.0, self.values.dtype), jnp.asarray(6.0, self.values.dtype)
    for _ in range(4):  # each grid lies between the neighbours of the best point of the one before
      grid = jnp.linspace(low, high, 61, dtype=self.values.dtype)
      best = jax.lax.map(lambda x: self.log_evidence(10**x), grid).argmax()
      low, high = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, 60)]
    return 10 ** ((low + high) / 2)

  def linearized(self, batch: Batch, *, precision: ArrayLike, chunk_size: int = 64) -> LinearizedOutputs:
    r"""Computes the Gaussian of the outputs of the network that is linearised in its parameters.

    .. math:: f(x) \sim N\bigl(f_\theta(x), J(x) (H + \tau I)^{-1} J(x)^\top\bigr)

    `probit_log_probs(outputs, variance)` with the diagonals gives probabilities of classes; for a regression,
    the covariance of a new target is that of the outputs plus the noise's.

    Args:
      batch: as in `laplace`.
      precision: above 0, the prior's.
      chunk_size: examples at once, whose Jacobians `[chunk_size, classes, size]` are in memory.

    Returns:
      `outputs` `[n, classes]` and `covariance` `[n, classes, classes]`.
    """
    check_option(precision, "precision", (), low=0, open_low=True)
    check_count(chunk_size, "chunk_size")

    def some(first):
      return jax.tree.map(lambda x: jnp.asarray(x)[first : first + chunk_size], batch)

    parts = [_linearized(self, some(at), precision) for at in range(0, num_examples(batch), chunk_size)]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)

  def sample(self, key: Key, *, precision: ArrayLike, num_samples: int) -> Params:
    """Draws parameters: all leaves get a leading axis `[num_samples]`, also those that are constant."""
    check_key(key)
    check_option(precision, "precision", (), low=0, open_low=True)
    check_count(num_samples, "num_samples")
    own = flatness.subset(self.params, self._mask())
    noise = jax.random.normal(key, (num_samples, self.values.size), self.values.dtype)
    turned = self.turned(noise / jnp.sqrt(self.values + precision)[None], back=True)
    return jax.vmap(own.merge)(own.flat[None] + turned)

  def _mask(self) -> Params:
    return jax.tree.unflatten(jax.tree.structure(self.params), self.mask)

  def turned(self, vectors: Array, *, back: bool = False) -> Array:
    """Vectors `[..., size]` of parameters in coordinates along the eigenvectors, or back."""
    if not self.bases:
      return vectors
    order = np.asarray(self.order)
    vectors, parts, start = vectors if back else vectors[..., order], [], 0
    for left, right in self.bases:
      shape = (len(left), len(right))
      block = vectors[..., start : start + shape[0] * shape[1]].reshape(*vectors.shape[:-1], *shape)
      form = "ik,...kl,jl->...ij" if back else "ik,...ij,jl->...kl"
      turned = jnp.einsum(form, left, block, right)
      parts.append(turned.reshape(*vectors.shape[:-1], -1))
      start += shape[0] * shape[1]
    joined = jnp.concatenate(parts, axis=-1)
    return joined[..., np.argsort(order)] if back else joined


@jax.jit
def _linearized(posterior: Laplace, batch: Batch, precision: ArrayLike) -> LinearizedOutputs:
  outputs, rows = jacobians(posterior.apply_fn, posterior.mask, posterior.params, jax.tree.map(wide, batch))
  turned = posterior.turned(rows)
  return LinearizedOutputs(
    outputs, jnp.einsum("ncp,ndp,p->ncd", turned, turned, 1 / (posterior.values + precision))
  )


def laplace(
  apply_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  likelihood: Literal["categorical", "normal"] = "categorical",
  structure: Literal["kfac", "ekfac", "diagonal", "dense"] = "kfac",
  noise_variance: ArrayLike = 1.0,
  mask: Mask = "*",
) -> Laplace:
  r"""Computes the Laplace approximation of a trained network's parameters, all of them or those in `mask`.

  .. math:: p(\theta \mid D) \approx N\bigl(\theta, (H + \tau I)^{-1}\bigr), \qquad
    H = \sum_i J_i^\top \Lambda_i J_i

  `H` is the Gauss-Newton matrix of the negative log-likelihood, which the parameters minimise together with
  :math:`\tfrac{\tau}{2} \|\theta\|^2`; for a mean of `n` losses with `penalties.l2` of the weight `a`,
  :math:`\tau = n a`. `dense` is exact, and takes `size**2` numbers. `kfac` and `ekfac` have a block for each
  dense or convolutional kernel with its bias, by `flatness.kfac` without draws; other leaves stay constant.

  Args:
    apply_fn: `(params, batch, *, key) -> [n, classes]`, logits or means, called with `key=None`; nothing may
      couple examples.
    params: any pytree, at a minimum.
    batch: all training examples, along the leading axis of its leaves. Labels are not needed.
    likelihood: `categorical` of logits, or `normal` around the outputs.
    structure: how `H` is approximated.
    noise_variance: of a `normal` likelihood: a scalar or `[classes]`, above 0.
    mask: the parameters that are random, as in `flatness.subset`.

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
  number, params = num_examples(batch), jax.tree.map(wide, params)
  names = paths.leaf_names(params)
  chosen = flatness.subset(params, mask).names
  taken = tuple(name in chosen for name in names)
  scaled, outer_fn = apply_fn, _categorical_loss
  if likelihood == "normal":
    check_option(noise_variance, "noise_variance", np.shape(noise_variance)[-1:], low=0, open_low=True)
    scaled, outer_fn = _scaled(apply_fn, jnp.sqrt(noise_variance)), _normal_loss
  if structure == "diagonal":
    values = flatness.gauss_newton_diagonal(scaled, outer_fn, params, batch, mask=mask)
    return Laplace(params, (), number * values, apply_fn, taken, ())
  if structure == "dense":
    matrix = flatness.gauss_newton_matrix(scaled, outer_fn, params, batch, mask=mask)
    values, vectors = jnp.linalg.eigh(matrix)
    bases = ((vectors, jnp.ones((1, 1), vectors.dtype)),)
    return Laplace(params, bases, number * jnp.maximum(values, 0), apply_fn, taken, (*range(len(values)),))
  kernels = [take and jnp.ndim(leaf) > 1 for take, leaf in zip(taken, jax.tree.leaves(params), strict=True)]
  if not any(kernels):
    raise ValueError(f"mask must select a kernel with structure={structure}, or give diagonal or dense")
  treedef = jax.tree.structure(params)
  blocks = flatness.kfac(
    scaled,
    params,
    batch,
    likelihood=likelihood,
    num_samples=None,
    mask=jax.tree.unflatten(treedef, kernels),
    corrected=structure == "ekfac",
  )
  parts = {name: [f"{name.rpartition('/')[0]}/bias"] * block.bias + [name] for name, block in blocks.items()}
  random = {part for of_block in parts.values() for part in of_block}
  taken = tuple(name in random for name in names)
  places = _places([np.size(x) for x in jax.tree.leaves(params)], names, taken)
  order = tuple(int(at) for of_block in parts.values() for part in of_block for at in places[part])
  values = jnp.concatenate([block.scales.reshape(-1) for block in blocks.values()])
  bases = tuple((block.inputs, block.outputs) for block in blocks.values())
  return Laplace(params, bases, number * values, apply_fn, taken, order)


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


def _places(sizes: list[int], names: list[str], taken: tuple[bool, ...]) -> dict[str, range]:
  """Where each leaf that is taken stands in the flat parameters."""
  ends = np.cumsum([size * take for size, take in zip(sizes, taken, strict=True)]).tolist()
  return {name: range(end - size, end) for name, size, end in zip(names, sizes, ends, strict=True)}


def _scaled(apply_fn: Callable[..., Array], std: Array) -> Callable[..., Array]:
  """A network whose outputs are in units of the noise."""
  return lambda params, batch, *, key: _over(apply_fn(params, batch, key=key), std)


def _over(outputs: Array, std: Array) -> Array:
  return outputs / jnp.broadcast_to(std, outputs.shape[-1:])[None]


# Losses with the Hessians of the likelihoods, whatever the labels are.
def _categorical_loss(outputs: Array, batch: Batch) -> Array:
  del batch
  return jax.nn.logsumexp(outputs, axis=-1).mean()


def _normal_loss(outputs: Array, batch: Batch) -> Array:
  del batch
  return (outputs**2).sum(axis=-1).mean() / 2

"""The Fisher matrix as a linear operator: of labels drawn from the model, or of the given labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from jaxreg.flatness._common import analysis, outputs_of, same, widened
from jaxreg.flatness._operators import _short, as_vector
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, Params, check_count, check_key, check_loss_fn

Likelihood = Literal["categorical", "normal"]


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["params", "batch", "key"],
  meta_fields=["outputs_fn", "scores_fn", "mask"],
)
@dataclasses.dataclass(frozen=True)
class Fisher:
  """The result of `fisher` and `empirical_fisher`."""

  params: Params
  batch: Batch
  key: Key | None
  outputs_fn: Callable[..., Array]
  scores_fn: Callable[..., Array]
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
    outputs = lambda flat: outputs_of(self.outputs_fn, part.merge(flat), self.batch)
    value, tangent = jax.jvp(outputs, (part.flat,), (as_vector(vector, part.flat),))
    scores = self.scores_fn(value, self.batch, same(self.key))
    axes = tuple(range(2, scores.ndim))
    along = jnp.sum(scores * tangent[None], axis=axes, keepdims=True)
    return jax.vjp(outputs, part.flat)[1]((scores * along).mean(axis=0) / len(value))[0]


def fisher(
  outputs_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  key: Key,
  likelihood: Likelihood = "categorical",
  num_samples: int = 1,
  where: Where = "*",
) -> Fisher:
  r"""Returns a Monte Carlo estimate of the Fisher matrix as a function of a vector.

  .. math:: F v = \frac1n \sum_i \mathbb{E}_{y \sim p(y \mid x_i)} [g_i (g_i^\top v)], \qquad
    g_i = \nabla_\theta \log p(y \mid x_i)

  Its mean is the Gauss-Newton matrix of cross-entropy, or of half the squared error.

  Args:
    outputs_fn: `(params, batch, *, key) -> [n, ..., classes]`, logits or means; called with `key=None`.
    params, batch, where: as in `hvp`.
    key: draws the labels, the same in every product.
    likelihood: `categorical` of logits, or `normal` around the outputs with variance 1.
    num_samples: draws for each example.

  Returns:
    As `hvp`.

  Raises:
    TypeError: if a selected leaf is not floating, `outputs_fn` takes no `key`, `key` is no typed key or
      `num_samples` no integer.
    ValueError: for another likelihood, if `where` selects nothing, or in a product if the outputs of
      `categorical` have no axis of classes.

  Example:
    >>> outputs = lambda params, x, *, key: x @ params
    >>> options = {"likelihood": "normal", "num_samples": 999}
    >>> product = fisher(outputs, jnp.ones((1, 1)), jnp.ones((9, 1)), key=jax.random.key(0), **options)
    >>> product(jnp.ones(1)).round(1)
    Array([1.], dtype=float32)

  References:
    Kunstner, Balles and Hennig, `Limitations of the Empirical Fisher Approximation`, 2019.
  """
  check_loss_fn(outputs_fn, "outputs_fn")
  check_key(key)
  scores_fn, mask = drawn_scores(likelihood, num_samples), selected(params, where)
  return Fisher(widened(params), widened(batch), key, outputs_fn, scores_fn, mask)


def empirical_fisher(
  outputs_fn: Callable[..., Array],
  losses_fn: Callable[..., Array],
  params: Params,
  batch: Batch,
  *,
  where: Where = "*",
) -> Fisher:
  r"""Returns the mean square of the examples' gradients, at the given labels, as a function of a vector.

  .. math:: \frac1n \sum_i g_i g_i^\top, \qquad g_i = \nabla_\theta \ell_i

  It is no approximation of the Hessian: near a minimum that fits all labels it vanishes.

  Args:
    outputs_fn: as in `fisher`.
    losses_fn: `(outputs, batch) -> [n]`, the loss of each example.
    params, batch, where: as in `hvp`.

  Returns:
    As `hvp`.

  Raises:
    TypeError: if a selected leaf is not floating, or `outputs_fn` takes no `key`.
    ValueError: if `where` selects nothing, or in a product the losses are not `[n]`.

  Example:
    >>> outputs, each = (lambda params, x, *, key: x @ params), (lambda z, x: 0.5 * z[:, 0] ** 2)
    >>> empirical_fisher(outputs, each, jnp.ones((1, 1)), jnp.array([[1.0], [2.0]]))(jnp.ones(1))
    Array([8.5], dtype=float32)

  References:
    Kunstner, Balles and Hennig, `Limitations of the Empirical Fisher Approximation`, 2019.
  """
  check_loss_fn(outputs_fn, "outputs_fn")
  mask = selected(params, where)
  return Fisher(widened(params), widened(batch), None, outputs_fn, GivenScores(losses_fn), mask)


def drawn_scores(likelihood: Likelihood, num_samples: int) -> Callable[..., Array]:
  """Returns the scores of labels drawn from the outputs, checked."""
  if likelihood not in ("categorical", "normal"):
    raise ValueError(f"likelihood must be one of categorical, normal, got {likelihood!r}")
  check_count(num_samples, "num_samples")
  return DrawnScores(likelihood, int(num_samples))


@dataclasses.dataclass(frozen=True)
class DrawnScores:
  """Gradients of the negative log-likelihood in the outputs, `[num_samples, *outputs.shape]`."""

  likelihood: Likelihood
  num_samples: int

  def __call__(self, outputs: Array, batch: Batch, key: Key) -> Array:
    if self.likelihood == "normal":
      return jax.random.normal(key, (self.num_samples, *outputs.shape), outputs.dtype)
    if outputs.ndim < 2:
      raise ValueError(f"outputs_fn must return [n, ..., classes] for categorical, got {outputs.shape}")
    labels = jax.random.categorical(key, outputs, shape=(self.num_samples, *outputs.shape[:-1]))
    chosen = jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return jax.nn.softmax(outputs)[None] - chosen


@dataclasses.dataclass(frozen=True)
class GivenScores:
  """Gradients of the examples' losses in the outputs, `[1, *outputs.shape]`."""

  losses_fn: Callable[..., Array]

  def __call__(self, outputs: Array, batch: Batch, key: Key | None) -> Array:
    def total(outputs: Array) -> Array:
      losses = self.losses_fn(outputs, batch)
      if jnp.shape(losses) != outputs.shape[:1]:
        raise ValueError(
          f"losses_fn must return {outputs.shape[:1]}, a loss for each example, got {losses.shape}"
        )
      return losses.sum()

    return jax.grad(total)(outputs)[None]

"""Steps of a given length: minimisers of the linearised loss within a trust region around each block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_choice, check_range, one_line
from jaxreg._errors import ArgumentError, ArgumentTypeError
from jaxreg._leaves import unit_axes, wide
from jaxreg.optim._averages import Average, average_init, average_step, check_decay
from jaxreg.typing import Array

BLOCKS = ("global", "leaf", "unit", "element")
NORMS = ("l2", "l1", "linf", "rms")


class TrustRegionState(NamedTuple):
  """Running averages of the gradient and of the norms of its blocks; `()` for an average that is not used."""

  numerator: Average | tuple[()]
  denominator: Average | tuple[()]


def trust_region(
  learning_rate: optax.ScalarOrSchedule,
  *,
  blocks: str = "global",
  norm: str = "l2",
  numerator_decay: ArrayLike | None = None,
  denominator_decay: ArrayLike | None = None,
  debias: bool = True,
) -> optax.GradientTransformationExtraArgs:
  r"""Builds steps to the edge of a trust region: their length is the learning rate, whatever the gradient.

  .. math:: \Delta_b = \arg\min_{\|\Delta\| \le \epsilon} \langle g_b, \Delta \rangle, \qquad
    \Delta_b = -\epsilon\, \frac{g_b}{\|g_b\|_2} \text{ with } \lambda = \frac{\|g_b\|_2}{2 \epsilon},
    \quad -\epsilon \operatorname{sign}(g_b), \quad \ldots

  With averages over steps the direction is :math:`E_1[g] / \|E_1[g]\|`, or with `denominator_decay`
  :math:`E_1[g] / \sqrt{E_2[\|g\|^2]}`. A block without a gradient does not move: 0/0 is 0.

  `blocks="element"` is sign descent, `global` normalised gradient descent. LARS, LAMB and Fromage are
  different: their radius is proportional to the norm of the weights (`optax.scale_by_trust_ratio`).

  Args:
    learning_rate: `epsilon`, the radius; a number or an Optax schedule.
    blocks: which parameters are normalised together: `global`, everything; `leaf`, each array; `unit`, the
      incoming weights of each unit (`paths.incoming_axes`); `element`, each number.
    norm: norm of the region. `l2`; `linf`, with the sign as step; `l1`, with a step along the largest entry,
      shared among equal ones; `rms`, `l2` over the root of the number of entries, so that a larger block does
      not take smaller steps per entry.
    numerator_decay: decay of an exponential average of the gradient; `None` for no average, 1 for the flat
      mean.
    denominator_decay: decay of an exponential average of the squared norms, whose root then replaces the norm
      of the numerator; for `l2` and `rms`. With equal decays the result has norm at most 1; with unequal
      decays, as in Adam, it may be longer.
    debias: whether the weights of an average sum to 1 from the first step on.

  Raises:
    ValueError: for a `denominator_decay` with another norm.

  Example:
    >>> tx = trust_region(0.5, blocks="leaf")
    >>> grads = {"a": jnp.array([-3e-9, 4e-9]), "b": jnp.zeros(2)}
    >>> tx.update(grads, tx.init(grads))[0]
    {'a': Array([ 0.3, -0.4], dtype=float32), 'b': Array([-0., -0.], dtype=float32)}

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Trust Region Problem, and
    its two following slides.
  """
  direction = unit_steps(blocks, norm, numerator_decay, denominator_decay, debias)
  return with_learning_rate(direction, learning_rate)


def unit_steps(
  blocks: str,
  norm: str,
  numerator_decay: ArrayLike | None,
  denominator_decay: ArrayLike | None,
  debias: bool,
) -> optax.GradientTransformationExtraArgs:
  """Computes the direction of `trust_region`, uphill."""
  check_choice(blocks, "blocks", BLOCKS)
  check_choice(norm, "norm", NORMS)
  check_decay(numerator_decay, "numerator_decay", debias)
  check_decay(denominator_decay, "denominator_decay", debias)
  if denominator_decay is not None and norm not in ("l2", "rms"):
    raise ArgumentError("denominator_decay", f"must be None with norm={norm!r}: only l2 and rms use it")

  def init(params: Any) -> TrustRegionState:
    numerator = () if numerator_decay is None else average_init(params)
    if denominator_decay is None:
      return TrustRegionState(numerator, ())
    sizes = block_norms(jax.tree.map(lambda x: jnp.zeros_like(wide(x)), params), blocks)
    return TrustRegionState(numerator, average_init(sizes))

  def update(updates, state, params=None, **extra_args):
    del params, extra_args
    grads = jax.tree.map(wide, updates)
    numerator, denominator = state
    mean = grads
    if numerator_decay is not None:
      numerator = average_step(numerator, grads, numerator_decay, debias=debias)
      mean = numerator.value
    if denominator_decay is None:
      new = steepest(mean, blocks, norm)
    else:
      sizes = block_norms(grads, blocks)
      denominator = average_step(denominator, sizes, denominator_decay, debias=debias, root=True)
      new = jax.tree.map(_divide, mean, denominator.value)
      if norm == "rms":
        new = _times(new, _root_sizes(grads, blocks))
    return as_updates(new, updates), TrustRegionState(numerator, denominator)

  return optax.GradientTransformationExtraArgs(init, update)


def steepest(grads: Any, blocks: str, norm: str) -> Any:
  """Computes the direction of steepest ascent in each block."""
  if norm == "linf":
    return jax.tree.map(jnp.sign, grads)
  largest = _over_blocks(jnp.max, jax.tree.map(jnp.abs, grads), blocks)
  if norm == "l1":
    ends = jax.tree.map(lambda g, top: jnp.where(jnp.abs(g) < top, 0, jnp.sign(g)), grads, largest)
    return jax.tree.map(_divide, ends, _over_blocks(jnp.sum, jax.tree.map(jnp.abs, ends), blocks))
  # Divide by the largest entry first, so that squares neither vanish nor overflow.
  scaled = jax.tree.map(_divide, grads, largest)
  length = jax.tree.map(jnp.sqrt, _over_blocks(jnp.sum, jax.tree.map(jnp.square, scaled), blocks))
  unit = jax.tree.map(_divide, scaled, length)
  return _times(unit, _root_sizes(grads, blocks)) if norm == "rms" else unit


def block_norms(grads: Any, blocks: str) -> Any:
  """Computes Euclidean norms of the blocks, which broadcast to the leaves."""
  if blocks == "element":
    return jax.tree.map(jnp.abs, grads)
  largest = _over_blocks(jnp.max, jax.tree.map(jnp.abs, grads), blocks)
  squares = jax.tree.map(lambda g, top: jnp.square(_divide(g, top)), grads, largest)
  return jax.tree.map(lambda top, s: top * jnp.sqrt(s), largest, _over_blocks(jnp.sum, squares, blocks))


def with_learning_rate(
  direction: optax.GradientTransformationExtraArgs, learning_rate: optax.ScalarOrSchedule
) -> optax.GradientTransformationExtraArgs:
  """Chains a direction with a step downhill of the given learning rate."""
  if not callable(learning_rate):
    check_range(learning_rate, "learning_rate")
  chain = optax.chain(direction, optax.scale_by_learning_rate(learning_rate))
  return optax.with_extra_args_support(chain)


def as_updates(new: Any, updates: Any) -> Any:
  """Casts `new` to the dtypes of the incoming updates."""
  return jax.tree.map(lambda x, u: x.astype(jnp.result_type(u)), new, updates)


def on_floating(function: Callable[..., Array], tree: Any, *rest: Any) -> Any:
  """Applies `function` to floating leaves; other leaves, such as counters, stay unchanged."""

  def floats(x):
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)

  return jax.tree.map(lambda x, *others: function(x, *others) if floats(x) else x, tree, *rest)


def _over_blocks(fold: Callable[..., Array], tree: Any, blocks: str) -> Any:
  """Folds non-negative values over each block with `jnp.max` or `jnp.sum`; axes are kept."""
  leaves, structure = jax.tree.flatten(tree)
  axes = _axes(tree, blocks)
  folded = [fold(x, axis=over, keepdims=True, initial=0) for x, over in zip(leaves, axes, strict=True)]
  if blocks == "global" and leaves:
    whole = fold(jnp.stack([x.reshape(()) for x in folded]))
    folded = [whole] * len(leaves)
  return jax.tree.unflatten(structure, folded)


def _root_sizes(tree: Any, blocks: str) -> Any:
  ones = jax.tree.map(jnp.ones_like, tree)
  return jax.tree.map(jnp.sqrt, _over_blocks(jnp.sum, ones, blocks))


def _axes(tree: Any, blocks: str) -> list[tuple[int, ...]]:
  rows = list(zip(paths.leaf_names(tree), jax.tree.leaves(tree), strict=True))
  if blocks == "element":
    return [() for _ in rows]
  if blocks == "unit":
    return [unit_axes(name, x, None) for name, x in rows]
  return [tuple(range(x.ndim)) for _, x in rows]


def _divide(x: Array, by: Array) -> Array:
  """Computes `x / by`, and 0 where `by` is 0; NaN stays NaN."""
  return jnp.where(by == 0, 0, x / jnp.where(by == 0, 1, by)).astype(x.dtype)


def _times(tree: Any, factors: Any) -> Any:
  return jax.tree.map(jnp.multiply, tree, factors)


def check_transform(inner: Any) -> None:
  """Checks that the optimizer inside another transform is a transform, not a learning rate."""
  if not (callable(getattr(inner, "init", None)) and callable(getattr(inner, "update", None))):
    raise ArgumentTypeError(
      "inner", f"must be an Optax transform, such as optax.sgd(0.1), got {one_line(inner)}"
    )

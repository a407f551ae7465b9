"""Temperature scaling, and its forms with more parameters: recalibration that is learned on held-out data."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_logits, check_option
from jaxreg._scaled import power_of_two
from jaxreg._sharding import entries, gathered
from jaxreg.calibration._weights import weighted_examples
from jaxreg.typing import Array

# Each step halves an interval of logarithms; these numbers of steps reach the last digit.
STEPS = {"float32": 30, "float64": 60}
MOST_STEPS, MEMORY = 1000, 50  # of L-BFGS
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}  # of its gradient, whose entries are means over the examples
LOWEST = math.log(1e-30)  # smaller probabilities count as 1e-30
Kind = Literal["vector", "matrix", "dirichlet"]


class Affine(NamedTuple):
  """An affine map of log-probabilities, `log_probs @ kernel + bias`; a kernel `[classes]` is its diagonal."""

  kernel: Array
  bias: Array


@overload
def fit_temperature(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  kind: Literal["scalar"] = "scalar",
  weight: ArrayLike = 1.0,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
  low: ArrayLike = 1e-2,
  high: ArrayLike = 1e2,
) -> Array: ...


@overload
def fit_temperature(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  kind: Kind,
  weight: ArrayLike = 1.0,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
  low: ArrayLike = 1e-2,
  high: ArrayLike = 1e2,
) -> Affine: ...


def fit_temperature(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  kind: Literal["scalar", "vector", "matrix", "dirichlet"] = "scalar",
  weight: ArrayLike = 1.0,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
  low: ArrayLike = 1e-2,
  high: ArrayLike = 1e2,
) -> Array | Affine:
  r"""Finds the temperature, or the affine map, with the least negative log-likelihood.

  .. math:: \text{scalar: } \min_T \sum_i w_i \Bigl(\log \sum_k e^{z_{ik} / T} - z_{i y_i} / T\Bigr), \qquad
    \frac{\partial}{\partial \beta} = \sum_i w_i \bigl(\mathbb{E}_{p_\beta} z_i - z_{i y_i}\bigr),
    \quad \beta = 1 / T

  .. math:: \text{matrix: } \min_{W, b} \frac1n \sum_i w_i \ell\Bigl(\frac{\log p_i}{T} W + b, \, y_i\Bigr)
    + \frac{\lambda K}{n} \Bigl(\|b\|^2 + \sum_k (W_{kk} - 1)^2 + (K - 1) \sum_{j \ne k} W_{jk}^2\Bigr)

  .. math:: \text{dirichlet: } \min_{W, b} \frac1n \sum_i w_i \ell(\log p_i W + b, \, y_i)
    + \frac{\lambda}{K (K - 1)} \sum_{j \ne k} W_{jk}^2 + \frac{\lambda}{K} \|b\|^2

  Here `l` is the cross-entropy, `n` the sum of the weights and `K` the number of classes. `vector` is
  `matrix` with a diagonal `W`. Both start from the best temperature `T`, and shrink less the more examples
  there are. With `weight=0` both maps are the same logistic regression of the log-probabilities. The more
  parameters, the more held-out examples they need. The penalty of `dirichlet` is a mean over the entries: for
  many classes choose a larger weight.

  The objectives are convex: bisection finds the temperature, L-BFGS the maps. There is no interior minimum of
  the temperature if every example is right (`T` to 0), or if guessing at random is better than the model (`T`
  to infinity); then the answer is the bound. Fit on held-out data. No gradient flows through it.

  Args:
    logits: `[..., classes]`, floating; log-probabilities give the same.
    labels: `[...]`, integer.
    kind: what is learned: 1, `2 K` or `K (K + 1)` parameters; static.
    weight: `lambda`, at least 0, of the maps.
    weights, where: as in `nll`.
    low, high: bounds of the temperature, `0 < low < high`; may be traced.

  Returns:
    For `temper`: a scalar, or a named tuple of `kernel`, `[classes]` or `[classes, classes]`, and `bias`
    `[classes]`; float32 or wider. It is NaN without examples, if a logit is NaN, or if a traced label is out
    of range.

  Example:
    >>> logits = jnp.array([[2.0, 0.0]] * 4)  # confidence 0.88, right in 3 of 4
    >>> print(f"{fit_temperature(logits, jnp.array([0, 0, 0, 1])):.4f}")  # 2 / log 3
    1.8205
    >>> scaled = temper(logits, temperature=fit_temperature(logits, jnp.array([0, 0, 0, 1]), kind="vector"))
    >>> print(f"{jnp.exp(scaled[0, 0]):.4f}")
    0.7500

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, section 4.2.
    Berta, Holzmueller, Jordan and Bach, `Structured Matrix Scaling for Multi-Class Calibration`, 2025.
    Kull et al., `Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with
    Dirichlet calibration`, 2019, section 3 (`dirichlet`).
  """
  check_choice(kind, "kind", ("scalar", "vector", "matrix", "dirichlet"))
  check_option(low, "low", (), low=0, open_low=True)
  known: Any = 0 if isinstance(low, Tracer) else low
  check_option(high, "high", (), low=known, open_low=True)
  check_option(weight, "weight", (), low=0)
  z, labels, weights, _ = weighted_examples(check_logits(logits), labels, weights, where)
  z, weights = jax.lax.stop_gradient((z - z.max(axis=-1, keepdims=True), weights))
  temperature = _bisected(z, entries(z, labels)[..., 0], weights, low, high)
  if kind == "scalar":
    return temperature
  features = gathered(_features(z)).reshape(-1, z.shape[-1])
  start = jnp.ones_like(temperature) if kind == "dirichlet" else temperature
  return _affine(
    features, gathered(labels).ravel(), gathered(weights).ravel(), start, jnp.asarray(weight, z.dtype), kind
  )


@jax.jit  # without it, each eager call would compile the loop
def _bisected(z: Array, picked: Array, weights: Array, low: ArrayLike, high: ArrayLike) -> Array:
  """Finds the temperature; `z` are the logits minus the largest, and `picked` those of the labels."""
  weights = weights * power_of_two(weights, tuple(range(weights.ndim)))  # sums must not over- or underflow

  def slope(log_beta: Array) -> Array:
    probs = jax.nn.softmax(jnp.exp(log_beta) * z, axis=-1)
    mean = (probs * jnp.where(probs > 0, z, 0)).sum(axis=-1)
    return (weights * (mean - picked)).sum()

  def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
    left, right = interval
    middle = (left + right) / 2
    # Not `< 0`: the slope underflows to 0 if all examples are very confident, though the optimum is larger.
    falls = slope(middle) <= 0
    return jnp.where(falls, middle, left), jnp.where(falls, right, middle)

  ends = -jnp.log(jnp.asarray(high, z.dtype)), -jnp.log(jnp.asarray(low, z.dtype))
  left, right = jax.lax.fori_loop(0, STEPS[z.dtype.name], halve, ends)
  temperature = jnp.exp(-(left + right) / 2)
  unknown = jnp.isnan(slope(jnp.zeros((), z.dtype))) | (weights == 0).all()
  return jnp.where(unknown, jnp.nan, temperature)


def _features(logits: Array) -> Array:
  """Computes log-probabilities that a matrix can multiply."""
  return jnp.maximum(jax.nn.log_softmax(logits, axis=-1), LOWEST)


@jax.jit(static_argnames="kind")
def _affine(
  features: Array, labels: Array, weights: Array, temperature: Array, weight: Array, kind: Kind
) -> Affine:
  """Finds the map of log-probabilities `[n, classes]` by L-BFGS; NaN where something is unknown."""
  classes, power = features.shape[-1], power_of_two(weights, (0,))[0]
  weights = weights * power  # their sum must not over- or underflow
  total = weights.sum()
  number = total / power
  unknown = jnp.isnan(temperature) | jnp.isnan(number) | (number == 0)
  features = features / jnp.where(unknown, 1, temperature)
  scale = jnp.where(unknown, 1, jnp.maximum(number, 1e-30))  # shrinks all the way, and does not overflow
  shares = jnp.where(unknown, 0, weights) / jnp.where(unknown, 1, total)
  own = jnp.eye(classes, dtype=features.dtype)
  off = (1 - own) / (classes * (classes - 1)) if kind == "dirichlet" else classes * (classes - 1) / scale
  shrink = weight * (off if kind == "dirichlet" else jnp.where(own > 0, classes / scale, off))
  bias_shrink = weight * (1 / classes if kind == "dirichlet" else classes / scale)

  def objective(change: Affine) -> Array:
    if kind == "vector":
      moved, penalty = features * change.kernel[None], jnp.diagonal(shrink) * jnp.square(change.kernel)
    else:
      moved, penalty = features @ change.kernel, shrink * jnp.square(change.kernel)
    logits = features + moved + change.bias[None]
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return (shares * losses).sum() + penalty.sum() + (bias_shrink * jnp.square(change.bias)).sum()

  # With the usual memory of 10 steps, it stops before the minimum of an ill-conditioned map.
  optimizer = optax.lbfgs(memory_size=MEMORY)
  value_and_grad = optax.value_and_grad_from_state(objective)
  tolerance = TOLERANCE[features.dtype.name]

  def go_on(carry: tuple[Affine, Any]) -> Array:
    gradient, count = optax.tree.get(carry[1], "grad"), optax.tree.get(carry[1], "count")
    return (count == 0) | ((count < MOST_STEPS) & (optax.tree.norm(gradient) > tolerance))

  def step(carry: tuple[Affine, Any]) -> tuple[Affine, Any]:
    change, state = carry
    value, gradient = value_and_grad(change, state=state)
    updates, state = optimizer.update(gradient, state, change, value=value, grad=gradient, value_fn=objective)
    moved: Any = optax.apply_updates(change, updates)
    return moved, state

  zero = jnp.zeros(classes, features.dtype)
  start = Affine(zero if kind == "vector" else jnp.zeros_like(own), zero)
  change, _ = jax.lax.while_loop(go_on, step, (start, optimizer.init(start)))
  kernel = (1 if kind == "vector" else own) + change.kernel
  return jax.tree.map(lambda x: jnp.where(unknown, jnp.nan, x), Affine(kernel / temperature, change.bias))


def temper(logits: ArrayLike, *, temperature: ArrayLike | Affine) -> Array:
  r"""Computes log-probabilities at a temperature: less confident above 1, more below; the class order stays.

  .. math:: \log \operatorname{softmax}(z / T), \qquad \log \operatorname{softmax}(\log p W + b)

  Args:
    logits: `[..., classes]`, floating; log-probabilities give the same.
    temperature: `T` > 0, a scalar, or the map `W` and `b` that `fit_temperature` returns for another kind,
      which may change the class order.

  Returns:
    `[..., classes]`, float32 or wider.

  Example:
    >>> jnp.exp(temper(jnp.log(jnp.array([0.8, 0.2])), temperature=2.0)).round(4)
    Array([0.6667, 0.3333], dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, section 4.2.
  """
  if isinstance(temperature, Affine):
    logits = check_logits(logits)
    kernel, bias = (jnp.asarray(x, logits.dtype) for x in temperature)
    features = _features(logits)
    diagonal = kernel.ndim == 1
    scaled = features * jnp.broadcast_to(kernel, features.shape) if diagonal else features @ kernel
    return jax.nn.log_softmax(scaled + jnp.broadcast_to(bias, features.shape), axis=-1)
  check_option(temperature, "temperature", (), low=0, open_low=True)
  logits = check_logits(logits)
  # Shift first: compiled code may round the quotient of the largest logit in two ways that differ.
  logits = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  return jax.nn.log_softmax(logits / jnp.asarray(temperature, logits.dtype), axis=-1)

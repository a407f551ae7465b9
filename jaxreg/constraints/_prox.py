"""Proximal operators, and the Optax transform that ends a chain with one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_floating, check_function, check_option, check_range
from jaxreg._errors import ArgumentTypeError
from jaxreg._leaves import group_factor, map_selected, unit_axes, wide
from jaxreg._proximal import Prox
from jaxreg._scaled import scaled
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


class ProximalState(NamedTuple):
  """The number of steps taken, which the schedule of the threshold reads."""

  count: Array


def soft_threshold(x: ArrayLike, *, threshold: ArrayLike) -> Array:
  r"""Shrinks each entry toward zero by `threshold`, and to exactly zero within it.

  .. math:: \operatorname{sign}(x)\,\max(|x| - t, 0) = \arg\min_u \tfrac12 (u - x)^2 + t |u|

  Args:
    x: any shape, floating.
    threshold: `t`, at least 0, a scalar or of a shape that broadcasts to the shape of `x`; may be infinite.

  Returns:
    An array of the shape and dtype of `x`.

  Example:
    >>> soft_threshold(jnp.array([-3.0, 0.5, 2.0]), threshold=1.0)
    Array([-2.,  0.,  1.], dtype=float32)

  References:
    Tibshirani, `Regression shrinkage and selection via the lasso`, 1996, section 2.2.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization.
  """
  x = check_floating(x, "x")
  check_option(threshold, "threshold", x.shape, low=0, high=jnp.inf, entrywise=True)
  # sign(x) is 0 at 0 in value and in gradient; |x| would have the derivative 1 there, and maximum 1/2.
  sign = jnp.sign(wide(x))
  return (sign * jax.nn.relu(sign * wide(x) - threshold)).astype(x.dtype)


def prox_l1(params: Params, step: ArrayLike, *, weight: ArrayLike, mask: Mask = kernels_only) -> Params:
  r"""Takes the proximal step of `weight * penalties.l1`: soft thresholding at `step * weight`.

  .. math:: \arg\min_u \tfrac12 \|u - w\|^2 + \eta \alpha \|u\|_1

  Args:
    params: any pytree.
    step: `eta`, the learning rate of the preceding gradient step.
    weight: `alpha`, at least 0.
    mask: which leaves are changed; by default kernels and embeddings.

  Example:
    >>> prox_l1({"kernel": jnp.array([-3.0, 0.5, 2.0])}, 0.1, weight=10.0)["kernel"]
    Array([-2.,  0.,  1.], dtype=float32)

  References:
    Parikh and Boyd, `Proximal Algorithms`, 2014, section 6.5.2.
  """
  threshold = _threshold(step, weight)
  return map_selected(lambda _, w: soft_threshold(w, threshold=threshold), params, mask)


def prox_elastic_net(
  params: Params, step: ArrayLike, *, weight: ArrayLike, ratio: ArrayLike, mask: Mask = kernels_only
) -> Params:
  r"""Takes the proximal step of `weight * penalties.elastic_net`.

  .. math:: \frac{\operatorname{soft}(w, \eta \alpha \rho)}{1 + \eta \alpha (1 - \rho)}

  Args:
    params, step, weight, mask: as in `prox_l1`.
    ratio: `rho` in [0, 1], the share of the L1 norm.

  Example:
    >>> prox_elastic_net({"kernel": jnp.array([-3.0, 0.5, 2.0])}, 1.0, weight=2.0, ratio=0.5)["kernel"]
    Array([-1. ,  0. ,  0.5], dtype=float32)

  References:
    Parikh and Boyd, `Proximal Algorithms`, 2014, section 6.5.3.
  """
  check_option(ratio, "ratio", (), low=0, high=1)
  at = _threshold(step, weight)

  def shrink(_, w):
    return soft_threshold(w, threshold=at * ratio) / (1 + at * (1 - ratio))

  return map_selected(shrink, params, mask)


def prox_group_lasso(
  params: Params,
  step: ArrayLike,
  *,
  weight: ArrayLike,
  axis: int | tuple[int, ...] | None = None,
  size_weighted: bool = True,
  mask: Mask = kernels_only,
) -> Params:
  r"""Takes the proximal step of `weight * penalties.group_lasso`: whole units shrink and vanish.

  .. math:: w_g \max\Bigl(1 - \frac{\eta \alpha \sqrt{n_g}}{\|w_g\|_2}, 0\Bigr)

  Args:
    params, step, weight, mask: as in `prox_l1`.
    axis: axes of a group's weights, the same for all leaves; by default the axes of one unit's incoming
      weights (`paths.incoming_axes`).
    size_weighted: whether the threshold is multiplied by the root of a group's size.

  Example:
    >>> w = jnp.array([[3.0, 0.1], [4.0, 0.1]])
    >>> prox_group_lasso({"kernel": w}, 1.0, weight=2.5, size_weighted=False)["kernel"]
    Array([[1.5, 0. ],
           [2. , 0. ]], dtype=float32)

  References:
    Yuan and Lin, `Model selection and estimation in regression with grouped variables`, 2006.
    Parikh and Boyd, `Proximal Algorithms`, 2014, section 6.5.4.
  """
  threshold = _threshold(step, weight)

  def shrink(name: str, w: Array) -> Array:
    axes = unit_axes(name, w, axis)
    _, length, power = scaled(w, axes)
    at = threshold * group_factor(w, axes, size_weighted) * power
    factor = jax.nn.relu(length - at) / jnp.where(length > 0, length, 1)
    # Not `length > at`, which is false for NaN: a NaN unit would become 0.
    return jnp.where(length <= at, 0, w * factor)

  return map_selected(shrink, params, mask)


def prox_l0(params: Params, step: ArrayLike, *, weight: ArrayLike, mask: Mask = kernels_only) -> Params:
  r"""Takes the proximal step of `weight` times the number of non-zeros: hard thresholding.

  .. math:: w_i \text{ if } w_i^2 > 2 \eta \alpha, \text{ else } 0

  Args:
    params, step, weight, mask: as in `prox_l1`.

  Example:
    >>> prox_l0({"kernel": jnp.array([-3.0, 0.5, 2.0])}, 1.0, weight=1.0)["kernel"]
    Array([-3.,  0.,  2.], dtype=float32)

  References:
    Blumensath and Davies, `Iterative Thresholding for Sparse Approximations`, 2008.
  """
  threshold = jnp.sqrt(2 * _threshold(step, weight))
  return map_selected(lambda _, w: jnp.where(jnp.abs(w) <= threshold, 0, w), params, mask)


def prox_non_negative(params: Params, step: ArrayLike = 1.0, *, mask: Mask = kernels_only) -> Params:
  r"""Projects onto non-negative weights, whatever the step.

  .. math:: \max(w, 0)

  Args:
    params, mask: as in `prox_l1`.
    step: not used; present so that all operators share a signature.

  Example:
    >>> prox_non_negative({"kernel": jnp.array([-3.0, 0.5])})["kernel"]
    Array([0. , 0.5], dtype=float32)

  References:
    Parikh and Boyd, `Proximal Algorithms`, 2014.
  """
  del step
  return map_selected(lambda _, w: jax.nn.relu(w), params, mask)


def proximal(prox: Prox, learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformationExtraArgs:
  r"""Takes a proximal step after the gradient step; the **last** transform of a chain.

  .. math:: w \leftarrow \operatorname{prox}_{\eta_t}(w + \Delta_t)

  The zeros of the operator are exact. `learning_rate` must be the chain's, with the same schedule, because
  the threshold is the step times the penalty's weight. After plain gradient descent this is the proximal
  gradient method. After an optimizer that rescales coordinates, such as Adam, it is the decoupled analogue,
  as decoupled decay is for L2. It is then not the proximal operator in that optimizer's metric.

  Args:
    prox: `(params, step) -> params`, with its mask and its weight bound by `functools.partial`. The weight is
      a number, or an Optax schedule of the steps that this transform has taken.
    learning_rate: learning rate of the preceding chain, a number or an Optax schedule.

  Returns:
    An Optax transform that needs `params`.

  Raises:
    TypeError: for a `prox` with options that are not bound, such as `prox_l1` without its weight.

  Example:
    >>> import functools
    >>> tx = optax.chain(optax.sgd(0.1), proximal(functools.partial(prox_l1, weight=1.0), 0.1))
    >>> params = {"kernel": jnp.array([0.05, 1.0])}
    >>> updates, _ = tx.update({"kernel": jnp.zeros(2)}, tx.init(params), params)
    >>> optax.apply_updates(params, updates)["kernel"]
    Array([0. , 0.9], dtype=float32)

  References:
    Parikh and Boyd, `Proximal Algorithms`, 2014, section 4.2.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization.
  """
  check_function(prox, "prox", "(params, step) -> params", takes=2)
  if not callable(learning_rate):
    check_range(learning_rate, "learning_rate", low=0)

  def init(params: Params) -> ProximalState:
    del params
    return ProximalState(jnp.zeros((), jnp.int32))

  def update(updates, state, params=None, **extra_args):
    del extra_args
    step = learning_rate(state.count) if callable(learning_rate) else learning_rate
    now = _at(prox, state.count)
    updates = replace_updates(lambda moved: now(moved, step), updates, params)
    return updates, ProximalState(jnp.asarray(optax.safe_increment(state.count)))

  return optax.GradientTransformationExtraArgs(init, update)


def replace_updates(function: Callable[[Params], Params], updates: Any, params: Params | None) -> Any:
  """Returns updates that lead to `function(params + updates)`."""
  if params is None:
    raise ValueError("params must be given to update, got None")

  def replace(p: Array, u: Array, before: Array, after: Array) -> Array:
    # An entry that was not moved keeps its update, bit for bit. w + (0 - w) is 0 in every dtype: zeros are
    # exact.
    return jnp.where(after == before, u, (after - wide(p)).astype(jnp.result_type(u)))

  if not jax.tree.leaves(updates):
    return updates  # a group that `optax.partition` left empty
  moved = jax.tree.map(lambda p, u: wide(p) + wide(u), params, updates)
  return jax.tree.map(replace, params, updates, moved, function(moved))


def _at(prox: Prox, count: Array) -> Prox:
  """`prox` with the weight of its schedule after `count` steps."""
  weight = prox.keywords.get("weight") if isinstance(prox, functools.partial) else None
  return functools.partial(prox, weight=weight(count)) if callable(weight) else prox


def _threshold(step: ArrayLike, weight: ArrayLike) -> Array:
  if callable(weight):
    raise ArgumentTypeError(
      "weight", "must be a number; a schedule belongs in the operator of proximal, which counts steps"
    )
  check_option(weight, "weight", (), low=0)
  check_option(step, "step", (), low=0)
  return jnp.multiply(step, weight)

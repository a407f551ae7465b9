"""Weight decay in six forms, around any optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_choice, check_range
from jaxreg._errors import ArgumentError
from jaxreg._leaves import floating, map_selected, unit_axes, wide
from jaxreg._scaled import norm, unit_length
from jaxreg.optim._trust_region import check_transform
from jaxreg.typing import Array, Mask, Params

KINDS = ("coupled", "decoupled", "independent", "cautious", "corrected", "fixed_norm")


class DecayState(NamedTuple):
  """The number of steps taken, the norms that `fixed_norm` keeps, leaf by leaf, and the optimizer's state."""

  count: Array
  radius: Any
  inner: Any


def decay(
  inner: optax.GradientTransformation,
  learning_rate: optax.ScalarOrSchedule,
  *,
  rate: optax.ScalarOrSchedule,
  kind: str = "decoupled",
  blocks: str = "leaf",
  peak: ArrayLike | None = None,
  mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an optimizer with weight decay, or with weights whose norm is fixed.

  .. math:: w_{t+1} = w_t + \Delta_t(g_t) - \begin{cases}
      0, \text{ with } \Delta_t(g_t + \lambda_t w_t) & \text{coupled} \\
      \eta_t \lambda_t w_t & \text{decoupled} \\
      \lambda_t w_t & \text{independent} \\
      \eta_t \lambda_t w_t \cdot [\Delta_t w_t \le 0] & \text{cautious} \\
      \eta_t \lambda_t w_t \cdot \eta_t / \eta_{\max} & \text{corrected}
    \end{cases}

  .. math:: w_{t+1} = R\, N\bigl(w_t + \eta_t \lambda_t R\, N(\Delta_t)\bigr), \quad N(x) = x / \|x\|,
    \quad R = \|w_0\| \qquad \text{fixed norm}

  The update :math:`\Delta_t` of `inner` has its learning rate in it. `cautious` compares signs entry by
  entry. `fixed_norm` uses the direction of the update alone, and the length of a step is
  :math:`\eta_t \lambda_t` times the norm; `rate=1` is Hyperball. A block whose initial norm is 0 has no
  sphere, and moves as `inner` says. `docs/guides/decay.md` has the norm that each kind leads to.

  Args:
    inner: the optimizer, without decay of its own. `coupled` decay changes the gradient that it gets, so it
      goes inside an optimizer that needs `grad_fn`: `sam(decay(...))`. All kinds go inside
      `optax.MultiSteps`, or the weights decay with every part.
    learning_rate: `eta`, the learning rate of `inner`: a number or an Optax schedule. `coupled` and
      `independent` do not use it.
    rate: `lambda`, a number of at least 0 or a schedule.
    kind: `coupled`, `decoupled`, `independent`, `cautious`, `corrected` or `fixed_norm`.
    blocks: the weights that share a sphere with `fixed_norm`: `leaf`, each array; `unit`, the incoming
      weights of each unit (`paths.incoming_axes`).
    peak: the largest learning rate, for `corrected`; by default `learning_rate`, if it is a number.
    mask: which parameters decay, or keep their norm; by default kernels and embeddings.

  Example:
    >>> w = {"kernel": jnp.array([2.0, -2.0])}
    >>> g = {"kernel": jnp.array([1.0, 1.0])}
    >>> for kind in ("decoupled", "cautious", "fixed_norm"):
    ...   tx = decay(optax.sgd(0.1), 0.1, rate=0.5, kind=kind)
    ...   print(kind, (100 * optax.apply_updates(w, tx.update(g, tx.init(w), w)[0])["kernel"]).round())
    decoupled [ 180. -200.]
    cautious [ 180. -210.]
    fixed_norm [ 190. -210.]

  References:
    Loshchilov and Hutter, `Decoupled Weight Decay Regularization`, 2019, algorithm 2.
    Chen et al., `Cautious Weight Decay`, 2025.
    Defazio, `Why Gradients Rapidly Increase Near the End of Training`, 2025.
    Wen et al., `Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball Optimization`, 2026.
  """
  check_transform(inner)
  check_choice(kind, "kind", KINDS)
  check_choice(blocks, "blocks", ("leaf", "unit"))
  for value, name in ((learning_rate, "learning_rate"), (rate, "rate")):
    if not callable(value):
      check_range(value, name, low=0)
  if peak is not None:
    check_range(peak, "peak", low=0, open_low=True)
  elif kind == "corrected" and callable(learning_rate):
    raise ArgumentError("peak", "must be the largest learning rate where kind=corrected and it is a schedule")
  tx = optax.with_extra_args_support(inner)

  def init(params: Params) -> DecayState:
    radii = _norms(params, mask, blocks) if kind == "fixed_norm" else ()
    return DecayState(jnp.zeros((), jnp.int32), radii, tx.init(params))

  def update(updates, state, params=None, **extra_args):
    if params is None:
      raise ValueError("params must be given to update")
    eta, strength = _at(learning_rate, state.count), _at(rate, state.count)
    factor = {"coupled": strength, "independent": strength}.get(kind, eta * strength)
    if kind == "corrected" and peak is not None:
      factor = factor * eta / peak

    def coupled(name: str, g: Array, w: Array) -> Array:
      return g + factor * w

    def subtracted(name: str, u: Array, w: Array) -> Array:
      return u - factor * w

    def cautious(name: str, u: Array, w: Array) -> Array:
      # Compare signs: the product of two small numbers may underflow to 0.
      return u - factor * jnp.where(jnp.sign(u) * jnp.sign(w) <= 0, w, 0)

    def on_sphere(name: str, u: Array, w: Array, radius: Array) -> Array:
      axes = _axes(name, w, blocks)
      moved = w + factor * radius * unit_length(u, axes)
      return jnp.where(radius == 0, u, radius * unit_length(moved, axes) - w)

    if kind == "coupled":
      updates = map_selected(coupled, updates, mask, params)
      if "grad_fn" in extra_args:
        extra_args["grad_fn"] = _without_decay
    new, inner_state = tx.update(updates, state.inner, params, **extra_args)
    if kind == "fixed_norm":
      new = map_selected(on_sphere, new, mask, params, state.radius)
    elif kind != "coupled":
      new = map_selected(cautious if kind == "cautious" else subtracted, new, mask, params)
    count = jnp.asarray(optax.safe_increment(state.count))
    return new, DecayState(count, state.radius, inner_state)

  return optax.GradientTransformationExtraArgs(init, update)


def _without_decay(params: Params) -> Any:
  """Takes the place of `grad_fn`, whose gradient would lack coupled decay, for those that call it."""
  raise ArgumentError(
    "kind", "must not be coupled around an optimizer that needs grad_fn; give sam(decay(...))"
  )


def _at(value: optax.ScalarOrSchedule, count: Array) -> ArrayLike:
  return value(count) if callable(value) else value


def _axes(name: str, w: Array, blocks: str) -> tuple[int, ...]:
  return unit_axes(name, w, None if blocks == "unit" else tuple(range(w.ndim)))


def _norms(params: Params, mask: Mask, blocks: str) -> tuple[Array, ...]:
  """Computes the norms of the blocks that `mask` selects, leaf by leaf; 0 for the other leaves.

  They are not in the structure of `params`: an NNX variable there would split a norm as it splits the leaf.
  """
  rows = zip(paths.leaf_names(params), paths.chosen(params, mask), jax.tree.leaves(params), strict=True)
  return tuple(
    norm(wide(floating(w, name)), _axes(name, w, blocks)) if taken else jnp.zeros(())
    for name, taken, w in rows
  )

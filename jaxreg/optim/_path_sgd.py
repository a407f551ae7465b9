"""Path-SGD: gradient descent in a metric that is invariant to rescaling the units of a ReLU network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_range
from jaxreg._leaves import wide
from jaxreg.optim._mahalanobis import mahalanobis, quotient
from jaxreg.optim._masked import on_whole, part
from jaxreg.paths import chosen, everything
from jaxreg.typing import Array, Mask, Params

# `(params, x [1, ...]) -> outputs`, with no dropout and no batch statistics.
Apply = Callable[[Params, Array], Any]


def path_kappa(apply_fn: Apply, params: Params, input_shape: Sequence[int], *, p: ArrayLike = 2.0) -> Params:
  """Computes the diagonal of the path metric, a tree like `params`: 0 for dead edges."""
  sums = jax.grad(lambda v: _path_sum(apply_fn, v, input_shape))(_powers(params, p))
  return jax.tree.map(lambda s: _power(_power(s, p, inverse=True), 2), sums)


def path_sgd(
  learning_rate: optax.ScalarOrSchedule,
  *,
  apply_fn: Apply,
  input_shape: Sequence[int],
  p: ArrayLike = 2.0,
  eps: ArrayLike = 0.0,
  mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Builds Path-SGD, which keeps equivalent ReLU networks equivalent, however their units are scaled.

  .. math:: w_e \leftarrow w_e - \frac{\eta}{\kappa_e + \epsilon} \frac{\partial L}{\partial w_e}, \qquad
    \kappa_e = \Bigl(\sum_{\text{paths} \ni e} \prod_{e' \ne e} |w_{e'}|^p\Bigr)^{2/p}, \qquad 0/0 = 0

  The step is the approximate minimiser of :math:`\eta \langle \nabla L, w \rangle + \tfrac12 \|\pi(w) -
  \pi(w_t)\|_p^2`, with the products :math:`\pi` of all paths, one coordinate at a time. The lecture leaves
  out the half, and its steps are then half as long. It also leaves out the absolute values, which odd `p`
  needs. If the units are balanced at the start, Path-SGD gains little.

  `kappa` takes one backward pass at a batch of 1, in the parameters' dtype: in float32 with `p = 2`, the
  weights and the products along paths must lie between about 1e-19 and 1e19. A weight used at several places,
  as in a convolution, is one edge per place. An average pool counts as edges of weight 1/n, not 1/n to the
  power p; the factor is the same for all paths through it. A max pool passes on its largest sum.

  Args:
    learning_rate: `eta`, a number or an Optax schedule.
    apply_fn: `(params, x) -> outputs`, the network of ReLUs, without dropout and normalisation: softmax,
      LayerNorm and attention have no paths.
    input_shape: shape of one example, without the batch.
    p: order of the path norm, at least 1.
    eps: at least 0. Above 0 it bounds the steps of nearly dead edges, and equivalent networks no longer stay
      equivalent.
    mask: which leaves are divided by `kappa`, by default all; other leaves take plain gradient steps. In
      `optax.masked` and `optax.partition`, give `update` also `all_params=params`.

  Returns:
    An Optax transform that needs `params`.

  Example:
    Two networks of the same function, steps of the same function:

    >>> apply_fn = lambda params, x: jax.nn.relu(x @ params["a"]) @ params["b"]
    >>> tx = path_sgd(0.1, apply_fn=apply_fn, input_shape=(1,))
    >>> for scale in 1.0, 10.0:
    ...   params = {"a": jnp.full((1, 1), scale), "b": jnp.full((1, 1), 1 / scale)}
    ...   grads = jax.grad(lambda params: ((apply_fn(params, jnp.ones((1, 1))) - 2) ** 2).sum())(params)
    ...   updates, _ = tx.update(grads, tx.init(params), params)
    ...   print(f"{float(apply_fn(optax.apply_updates(params, updates), jnp.ones((1, 1)))[0, 0]):.4f}")
    1.4400
    1.4400

  References:
    Neyshabur, Salakhutdinov and Srebro, `Path-SGD: Path-Normalized Optimization in Deep Neural Networks`,
    2015.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, steepest descent in an
    invariance-preserving norm.
  """
  if not callable(apply_fn):
    raise TypeError(f"apply_fn must be a function (params, x) -> outputs, got {type(apply_fn).__name__}")
  check_range(p, "p", low=1)
  check_range(eps, "eps", low=0)

  def solve(updates: Any, params: Params, *, all_params: Params | None = None, **extra_args: Any) -> Any:
    if params is None:
      raise ValueError("params must be given to update, got None")

    def kappa_of(params):
      return path_kappa(apply_fn, params, input_shape, p=p)

    kappa = on_whole(kappa_of, "apply_fn", all_params)(params)
    taken = jax.tree.unflatten(jax.tree.structure(kappa), chosen(kappa, mask, default=everything))

    def divide(g, k, each):
      return quotient(g, k + eps) if each else g

    return jax.tree.map(divide, updates, part(kappa, updates), part(taken, updates))

  return mahalanobis(learning_rate, solve=solve)


def _path_sum(apply_fn: Apply, powers: Params, input_shape: Sequence[int]) -> Array:
  dtype = jnp.result_type(*jax.tree.leaves(powers))
  outputs = apply_fn(powers, jnp.ones((1, *input_shape), dtype))
  return sum((jnp.sum(out) for out in jax.tree.leaves(outputs)), start=jnp.zeros((), dtype))


def _powers(params: Params, p: ArrayLike) -> Params:
  return jax.tree.map(lambda w: _power(jnp.abs(wide(w)), p), params)


def _power(x: Array, p: ArrayLike, *, inverse: bool = False) -> Array:
  # A general power costs more than the rest of a step, so p = 1 and p = 2 avoid it.
  if isinstance(p, int | float) and p in (1, 2):
    return x if p == 1 else (jnp.sqrt(x) if inverse else jnp.square(x))
  return x ** (1 / jnp.asarray(p, x.dtype) if inverse else jnp.asarray(p, x.dtype))

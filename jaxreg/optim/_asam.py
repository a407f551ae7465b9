"""Sharpness-aware minimisation whose neighbourhood scales with the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_range
from jaxreg._leaves import wide
from jaxreg.optim._masked import part, train_only, whole
from jaxreg.optim._sam import GradFn, check_second, gradient_at
from jaxreg.optim._trust_region import check_transform, steepest
from jaxreg.typing import Mask


def asam(
  inner: optax.GradientTransformation,
  *,
  rho: ArrayLike = 0.5,
  eps: ArrayLike = 0.01,
  mask: Mask | None = None,
  trained: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an optimizer with the gradient at a point uphill, where larger weights move farther.

  .. math:: \Delta = \operatorname{inner}\Bigl(\nabla L\Bigl(w + \rho\,
    \frac{T^2 g}{\|T g\|}\Bigr)\Bigr), \qquad T_i = |w_i| + \epsilon, \qquad 0/0 = 0

  If weights are rescaled without changing the function, as the two layers of a ReLU unit, then `sam` looks at
  another neighbourhood. With `eps = 0` this transform looks at the same one. `update` takes `grad_fn` as
  `sam` does, with the same conditions, and `all_params` in `optax.masked` and `optax.partition`.

  Args:
    inner, trained: as in `sam`.
    rho: length of the perturbation after division by `T`, at least 0.
    eps: at least 0; lets weights move that are nearly 0.
    mask: the parameters that have this `T`, by default kernels and embeddings; the others have `T = 1`, as in
      the paper's code.

  Returns:
    An Optax transform whose `update` needs `params` and `grad_fn`.

  Example:
    >>> loss = lambda w: 0.5 * jnp.sum(jnp.array([1.0, 4.0]) * w["kernel"] ** 2)
    >>> tx, w = asam(optax.sgd(0.1), rho=0.5, eps=0.0), {"kernel": jnp.array([2.0, 0.0])}
    >>> tx.update(jax.grad(loss)(w), tx.init(w), w, grad_fn=jax.grad(loss))[0]["kernel"]
    Array([-0.3, -0. ], dtype=float32)

  References:
    Kwon et al., `ASAM: Adaptive Sharpness-Aware Minimization`, 2021, Eq. 9 and Algorithm 1.
  """
  check_transform(inner)
  check_range(rho, "rho", low=0)
  check_range(eps, "eps", low=0)
  tx = optax.with_extra_args_support(inner)

  def update(updates, state, params=None, *, grad_fn: GradFn | None = None, **extra_args):
    grad_fn = check_second(params, grad_fn, extra_args)
    # A mask may be a tree of all parameters, also where `params` shows a part of them.
    leaves, tree = jax.tree.flatten(whole(params, extra_args.get("all_params")))
    taken = paths.chosen(jax.tree.unflatten(tree, leaves), mask)
    sizes = [jnp.abs(wide(w)) + eps if each else 1.0 for w, each in zip(leaves, taken)]
    scale = part(jax.tree.unflatten(tree, sizes), updates)

    def scaled(t, u):
      return (t * wide(u)).astype(wide(u).dtype)

    direction = steepest(jax.tree.map(scaled, scale, updates), "global", "l2")
    second = gradient_at(jax.tree.map(scaled, scale, direction), updates, params, grad_fn, rho)
    return tx.update(second, state, params, **extra_args)

  return train_only(optax.GradientTransformationExtraArgs(tx.init, update), trained)

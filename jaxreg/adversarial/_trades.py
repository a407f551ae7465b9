"""TRADES: the loss of the clean inputs plus a penalty on how far an attack moves the prediction."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_key
from jaxreg._leaves import wide
from jaxreg.adversarial._common import Bounds
from jaxreg.adversarial._pgd import Norm, pgd
from jaxreg.adversarial._vat import divergence_of_examples, predicted
from jaxreg.typing import Array, Key


def trades_loss(
  key: Key,
  log_probs_fn: Callable[[Array], Array],
  x: ArrayLike,
  *,
  eps: ArrayLike,
  step_size: ArrayLike,
  num_steps: int = 10,
  norm: Norm = "linf",
  clip: Bounds = None,
) -> Array:
  r"""Computes how far the worst inputs within a ball move the prediction: a penalty without labels.

  .. math:: \max_{\|x' - x\| \le \epsilon} \mathrm{KL}\bigl(p(\cdot \mid x) \,\|\, p(\cdot \mid x')\bigr)

  The objective of the paper is the loss of the clean inputs plus `beta = 6` times the mean of this penalty.
  `pgd` finds `x'` from a uniform start, because the gradient at `x` itself is 0; `x'` is a constant to
  differentiation. Unlike in `vat_loss`, gradient goes to both predictions, also to that of the clean inputs.

  Args:
    key: one draw of the start for all examples.
    log_probs_fn: as in `virtual_adversarial`.
    x: `[batch, ...]`, floating; inside `clip`, if that is given.
    eps, step_size: as in `pgd`; 8 / 255 and 2 / 255 in the paper.
    num_steps: at least 1; static.
    norm, clip: as in `pgd`.

  Returns:
    `[batch]`, in nats, float32 or wider; summed over the axes between batch and classes.

  Example:
    >>> log_probs = lambda x: jax.nn.log_softmax(x @ jnp.array([[3.0, -3.0], [0.0, 0.0]]))
    >>> options = dict(eps=0.5, step_size=0.25, num_steps=5)
    >>> trades_loss(jax.random.key(0), log_probs, jnp.zeros((1, 2)), **options)  # log cosh 1.5
    Array([0.85544014], dtype=float32)

  References:
    Zhang et al., `Theoretically Principled Trade-off between Robustness and Accuracy`, 2019, Eq. 5.
  """
  x = check_batched(x, "x")
  clean = predicted(log_probs_fn, x)
  target = jax.lax.stop_gradient(clean)
  moved = pgd(
    check_key(key),
    lambda x: divergence_of_examples(target, wide(log_probs_fn(x))),
    x,
    eps=eps,
    step_size=step_size,
    num_steps=num_steps,
    norm=norm,
    clip=clip,
  )
  return divergence_of_examples(clean, wide(log_probs_fn(jax.lax.stop_gradient(moved))))

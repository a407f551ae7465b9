"""The fast gradient sign method."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batched
from jaxreg.adversarial._common import Bounds, LossOfInputs, input_gradient, per_example, perturbed
from jaxreg.typing import Array


def fgsm(loss_of_inputs: LossOfInputs, x: ArrayLike, *, eps: ArrayLike, clip: Bounds = None) -> Array:
  r"""Moves inputs by one step of length `eps` along the sign of the loss's gradient.

  .. math:: x' = x + \epsilon \operatorname{sign}(\nabla_x J(x))

  If the loss is monotone in a linear function of `x`, as in logistic regression, this is the worst point of
  the box of half-width `eps`. It adds `eps * ||w||_1` to the negative margin. To move toward a target class,
  give minus the loss of that class.

  Args:
    loss_of_inputs: as in `pgd`.
    x: `[batch, ...]`, floating.
    eps: a scalar or `[batch]`, at least 0, in units of `x`; .007 in the paper's figure.
    clip: the least and largest value that an input may have, applied last.

  Returns:
    `x'`, with the shape and dtype of `x`; unmoved where the gradient is 0.

  Example:
    >>> w, y = jnp.array([1.0, -2.0]), jnp.array([1.0])
    >>> logistic = lambda x: jax.nn.softplus(-y * (x @ w))
    >>> fgsm(logistic, jnp.zeros((1, 2)), eps=0.5)
    Array([[-0.5,  0.5]], dtype=float32)

  References:
    Goodfellow, Shlens and Szegedy, `Explaining and Harnessing Adversarial Examples`, 2015, section 4.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, adversarial training.
  """
  x = check_batched(x, "x")
  radius = per_example(eps, "eps", x)
  return perturbed(x, jnp.sign(input_gradient(loss_of_inputs, x)) * radius, clip)

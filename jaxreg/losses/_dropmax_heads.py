"""The three affine heads of DropMax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_floating
from jaxreg.typing import Array


def dropmax_heads(
  features: ArrayLike,
  classifier: Mapping[str, ArrayLike],
  prior: Mapping[str, ArrayLike],
  residual: Mapping[str, ArrayLike],
  *,
  stop_gradient: Literal["activations", "parameters"] = "activations",
  branch_only: bool = False,
) -> dict[str, Array]:
  r"""Computes DropMax's three affine heads on the last features, for `dropmax(key, labels=labels, **heads)`.

  .. math:: o = W^\top h + b, \quad \rho = \sigma(W_\theta^\top h + b_\theta), \quad
    g = \sigma(\overline{W_\theta}^\top h + \overline{b_\theta} + W_\phi^\top h + b_\phi)

  A bar marks a value without gradient. The released code stops the whole prior pre-activation
  (`"activations"`). The poster stops only its parameters (`"parameters"`), so that the likelihood's
  gradient still reaches `h` through them.

  Args:
    features: `h`, `[..., features]`, floating.
    classifier: `kernel` `[features, classes]` and `bias` `[classes]` of the logits.
    prior: `W_theta` and `b_theta`, in the same form, for the retain probabilities.
    residual: `W_phi` and `b_phi`, in the same form, for the residual of the posterior.
    stop_gradient: the variant, as above.
    branch_only: the prior and the residual train only their own weights, not the features (an ablation, not
      in the paper).

  Returns:
    `logits`, `retain_logits`, `residual_logits`, and for `"parameters"` also `posterior_logits`; each
    `[..., classes]`.

  Example:
    >>> head = {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
    >>> outputs = dropmax_heads(jnp.ones((5, 2)), head, head, head)
    >>> {name: output.shape for name, output in outputs.items()}
    {'logits': (5, 3), 'retain_logits': (5, 3), 'residual_logits': (5, 3)}

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, section 4 and the released code.
  """
  features = check_floating(features, "features")
  check_choice(stop_gradient, "stop_gradient", ("activations", "parameters"))
  branch = jax.lax.stop_gradient(features) if branch_only else features
  outputs = {
    "logits": _affine(features, classifier, "classifier"),
    "retain_logits": _affine(branch, prior, "prior"),
    "residual_logits": _affine(branch, residual, "residual"),
  }
  if stop_gradient == "parameters":
    barred = _affine(branch, jax.lax.stop_gradient(prior), "prior")
    outputs["posterior_logits"] = barred + outputs["residual_logits"]
  return outputs


def _affine(x: Array, head: Mapping[str, ArrayLike], name: str) -> Array:
  kernel = check_floating(head["kernel"], f"{name}['kernel']")
  if kernel.ndim != 2 or kernel.shape[0] != x.shape[-1]:
    raise ValueError(f"{name}['kernel'] must have shape ({x.shape[-1]}, classes), got {kernel.shape}")
  bias = check_floating(head["bias"], f"{name}['bias']", shape=kernel.shape[1:])
  y = x @ kernel
  return y + jnp.broadcast_to(bias, y.shape)

"""Adversarial training: a loss on clean and on attacked inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batch, check_floating, check_loss, check_loss_fn, check_option, unpack
from jaxreg._leaves import rebuilt, wide
from jaxreg.typing import Array, Key, LossFn, Params


def adversarial_loss(
  loss_fn: LossFn | Callable[..., tuple[Array, Any]],
  attack: Callable[..., Array],
  *,
  mix: ArrayLike = 0.5,
  attacked_fn: Callable[..., Array] | None = None,
  has_aux: bool = False,
) -> Callable[..., Any]:
  r"""Turns a loss function into one that also trains on adversarial examples.

  .. math:: \tilde J(\theta) = \alpha J(\theta; x) + (1 - \alpha) J(\theta; x'), \qquad
    x' = x + \delta \text{ by the attack on } J(\theta; \cdot)

  Every call computes `x'` for the current parameters; it is a constant to differentiation. All passes get the
  same key and so the same noise. Attack a model with BatchNorm through an `attacked_fn` that uses its running
  statistics: with batch statistics, examples depend on each other.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over examples; the attack moves `batch["inputs"]`,
      `[batch, ...]`, floating.
    attack: `(function_of_inputs, x) -> x` or, if its first parameter is called `key`, `(key,
      function_of_inputs, x) -> x`: `functools.partial(pgd, eps=0.1, num_steps=1, random_start=False)`,
      `virtual_adversarial` with its options, or your own.
    mix: `alpha` in [0, 1], the share of the clean inputs.
    attacked_fn: `(params, batch, *, key) -> [batch, ...]`, the function that the attack sees as a function of
      the inputs; by default the loss. `virtual_adversarial` needs one that returns log-probabilities.
    has_aux: whether `loss_fn` returns `(scalar, aux)`, as for `jax.grad`; the result then does too, with the
      `aux` of the clean inputs.

  Returns:
    A function of the signature of `loss_fn`; its value is float32 or wider.

  Example:
    >>> loss_fn = lambda w, batch, *, key: jax.nn.softplus(-batch["inputs"] @ w).mean()
    >>> from jaxreg.adversarial import pgd
    >>> fast = lambda loss, x: pgd(None, loss, x, eps=0.5, num_steps=1, random_start=False)
    >>> robust = adversarial_loss(loss_fn, fast, mix=0.0)
    >>> w, batch = jnp.array([1.0, -1.0]), {"inputs": jnp.array([[0.5, -0.5]])}
    >>> robust(w, batch, key=None)  # the attack removes the margin of 1: log 2
    Array(0.6931472, dtype=float32)

  References:
    Goodfellow, Shlens and Szegedy, `Explaining and Harnessing Adversarial Examples`, 2015.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, adversarial training.
  """
  check_loss_fn(loss_fn)
  if attacked_fn is not None:
    check_loss_fn(attacked_fn, "attacked_fn")
  check_option(mix, "mix", (), low=0, high=1)
  draws = next(iter(inspect.signature(attack).parameters), None) == "key"

  def mixed(params: Params, batch: Mapping[str, Any], *, key: Key | None = None) -> Any:
    check_batch(batch, "inputs")
    attack_key, loss_key = (None, None) if key is None else jax.random.split(key)

    def at(function: Callable[..., Any], x: Array) -> Any:
      # The same noise in every pass: this reuse of the key is intended, so clone it for the key checker.
      noise = None if loss_key is None else jax.random.clone(loss_key)
      return function(params, rebuilt({**batch, "inputs": x}), key=noise)

    def loss_at(x: Array) -> tuple[Array, Any]:
      loss, aux = unpack(at(loss_fn, x), has_aux)
      return wide(check_loss(loss, "a scalar", shape=())), aux

    def loss_of_inputs(x: Array) -> Array:
      if attacked_fn is not None:
        return at(attacked_fn, x)
      # The mean, repeated per example: the gradient of their sum in an input is the gradient of its own loss.
      return jnp.broadcast_to(loss_at(x)[0], x.shape[:1])

    x = check_floating(batch["inputs"], "inputs")
    moved = attack(attack_key, loss_of_inputs, x) if draws else attack(loss_of_inputs, x)
    clean, aux = loss_at(x)
    worse, _ = loss_at(jax.lax.stop_gradient(moved))
    share = jnp.asarray(mix)
    loss = share * clean + (1 - share) * worse
    return (loss, aux) if has_aux else loss

  return mixed

"""The mixture of clean and adversarial losses against closed forms of logistic regression."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import adversarial, noise, objective

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(6, 3)), RNG.normal(size=3)
Y = np.array([1.0, -1, 1, 1, -1, -1])
fast = functools.partial(adversarial.pgd, num_steps=1, random_start=False)


def loss_fn(w, batch, *, key):
  del key
  return jax.nn.softplus(-batch["labels"] * (batch["inputs"] @ w)).mean()


def softplus(x):
  return np.log1p(np.exp(x))


def closed(eps, mix, length):
  """Of loss and gradient in the weights, where the attack takes `eps * length(w)` of every margin."""
  margins = Y * (X @ W)
  clean, worse = softplus(-margins).mean(), softplus(eps * length - margins).mean()
  return mix * clean + (1 - mix) * worse


@pytest.mark.claim(
  "regularization",
  "adversarial training",
  "training on adversarially perturbed examples from the training set",
)
@pytest.mark.parametrize(
  ("attack", "length"),
  [
    pytest.param(functools.partial(fast, eps=0.3), np.abs(W).sum(), id="fgsm"),
    pytest.param(
      functools.partial(adversarial.pgd, eps=0.3, step_size=0.3, num_steps=2, norm="l2", random_start=False),
      np.sqrt((W**2).sum()),
      id="pgd-l2",
      marks=pytest.mark.thorough,
    ),
    pytest.param(
      functools.partial(adversarial.pgd, eps=0.3, step_size=0.3, num_steps=3),
      np.abs(W).sum(),
      id="pgd-linf",
      marks=pytest.mark.thorough,
    ),
  ],
)
def test_logistic_regression(attack, length):
  """Each margin is less by eps times the dual norm of the weights; x' has no gradient."""
  batch = {"inputs": X, "labels": Y}
  mixed = adversarial.adversarial_loss(loss_fn, attack, mix=0.25)
  with jax.enable_x64(True):
    value, gradient = jax.jit(jax.value_and_grad(lambda w, key: mixed(w, batch, key=key)))(
      W, jax.random.key(0)
    )
  np.testing.assert_allclose(value, closed(0.3, 0.25, length), rtol=1e-10)
  # With x' fixed: -y x' sigmoid(-y x' w), which is not the gradient of the closed form.
  direction = np.sign(W) if length == np.abs(W).sum() else W / length
  moved = X - 0.3 * Y[:, None] * direction
  each = lambda x: -(Y * oracles.sigmoid(-Y * (x @ W))) @ x / 6
  np.testing.assert_allclose(gradient, 0.25 * each(X) + 0.75 * each(moved), rtol=1e-9)


@pytest.mark.thorough
def test_every_pass_has_the_same_noise():
  """With dropout that keeps either input, the attack moves what the loss then looks at."""

  def noisy(w, batch, *, key):
    return (noise.dropout(key, batch["inputs"], rate=0.5) @ w).mean()

  attack = functools.partial(fast, eps=1.0)
  run = jit(lambda w, x, key: adversarial.adversarial_loss(noisy, attack)(w, {"inputs": x}, key=key))
  w, x = jnp.array([1.0, -2.0, 3.0]), jnp.ones((50, 3))
  got = run(w, x, jax.random.key(1))
  kept = 2.0 * np.asarray(jax.random.bernoulli(jax.random.split(jax.random.key(1))[1], 0.5, (50, 3)))
  clean, worse = (kept @ w).mean(), (kept @ (w + np.abs(w))).mean()
  np.testing.assert_allclose(got, (clean + worse) / 2, rtol=1e-5)


def test_a_virtual_adversarial_attack_of_what_attacked_fn_gives():
  """Log-probabilities of logits `x w` and `-x w` change most along w: the squared margin is (eps |w|)^2."""
  w, eps = jnp.asarray(W, jnp.float32), 0.3
  square = lambda w, batch, *, key: jnp.square(batch["inputs"] @ w).mean()

  def log_probs_fn(w, batch, *, key):
    logits = noise.dropout(key, batch["inputs"], rate=0.0) @ w
    return jax.nn.log_softmax(jnp.stack([logits, -logits], axis=-1))

  attack = functools.partial(adversarial.virtual_adversarial, eps=eps)
  run = lambda **options: jit(
    lambda key: adversarial.adversarial_loss(square, attack, mix=0.25, **options)(
      w, {"inputs": jnp.zeros((4, 3))}, key=key
    )
  )(jax.random.key(0))
  np.testing.assert_allclose(run(attacked_fn=log_probs_fn), 0.75 * eps**2 * (W**2).sum(), rtol=1e-5)
  with pytest.raises(ValueError, match="needs an attacked_fn"):
    run()


@pytest.mark.thorough
def test_what_comes_with_the_loss_is_that_of_the_clean_inputs():
  batch = {"inputs": jnp.asarray(X), "labels": jnp.asarray(Y)}
  with_mean = lambda w, batch, *, key: (loss_fn(w, batch, key=key), batch["inputs"].mean(axis=0))
  attack = functools.partial(fast, eps=0.3)
  w = jnp.asarray(W)
  plain = jax.value_and_grad(adversarial.adversarial_loss(loss_fn, attack))(w, batch)
  paired = adversarial.adversarial_loss(with_mean, attack, has_aux=True)
  (loss, mean), gradient = jax.value_and_grad(objective.compose(paired, {}, has_aux=True), has_aux=True)(
    w, batch
  )
  chex.assert_trees_all_equal((loss, gradient), plain)
  np.testing.assert_allclose(mean, X.mean(0), rtol=1e-6)
  with pytest.raises(TypeError, match="needs has_aux=True"):
    adversarial.adversarial_loss(with_mean, attack)(w, batch, key=None)
  with pytest.raises(TypeError, match=r"must return \(loss, aux\)"):
    adversarial.adversarial_loss(loss_fn, attack, has_aux=True)(w, batch, key=None)


def test_refusals():
  with pytest.raises(ValueError, match="mix must lie in"):
    adversarial.adversarial_loss(loss_fn, fast, mix=2.0)
  with pytest.raises(TypeError, match="attacked_fn must take"):
    adversarial.adversarial_loss(loss_fn, fast, attacked_fn=lambda x: x)
  mixed = adversarial.adversarial_loss(loss_fn, functools.partial(fast, eps=0.1))
  with pytest.raises(TypeError, match="batch must be a mapping with 'inputs', got a tuple"):
    mixed(W, (X, 0), key=None)
  with pytest.raises(ValueError, match="batch must have 'inputs'"):
    mixed(W, {"x": X}, key=None)
  with pytest.raises(TypeError, match="inputs must be floating"):
    mixed(W, {"inputs": np.ones((2, 3), int)}, key=None)

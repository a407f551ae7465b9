"""Arguments that functions refuse, a row each, where no contract and no other test looks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import adversarial, constraints, flatness, losses, noise, optim

X, KEY = np.ones((3, 2), np.float32), jax.random.key(0)
loss = lambda params, batch, *, key: (batch @ params).sum()


@pytest.mark.parametrize(
  ("call", "error", "message"),
  [
    (lambda: optim.sam(optax.sgd(0.1), rho=-0.1), ValueError, "rho must lie in"),
    (lambda: optim.reparameterize(0.1, jnp.sinh, jnp.arcsinh), TypeError, "inner must be an Optax transform"),
    (lambda: constraints.dual_init(multiplier=np.ones(2)), ValueError, r"multiplier must have shape \(\)"),
    (
      lambda: flatness.gauss_newton(lambda params: params, lambda out, batch: out.sum(), X[0], X),
      TypeError,
      "apply_fn must take",
    ),
    (
      lambda: flatness.operator_diagonal(lambda v: v, num_samples=4, key=jnp.zeros(2, jnp.uint32), like=X[0]),
      TypeError,
      "key must be a typed key",
    ),
    (
      lambda: flatness.layerwise(flatness.Curvature(loss, X[0], X), key=KEY, num_steps=-1),
      ValueError,
      "num_steps must be at least 1",
    ),
    (
      lambda: flatness.layerwise(flatness.Curvature(loss, X[0], X), key=KEY, num_samples=0),
      ValueError,
      "num_samples must be at least 2, got 0",
    ),
    (
      lambda: flatness.Curvature(loss, X[0], X).fisher(lambda *_, key: X, key=jnp.zeros(2, jnp.uint32)),
      TypeError,
      "key must be a typed key",
    ),
    (
      lambda: flatness.per_example_noise_covariance(loss, X[0], X, key=KEY, num_samples=0),
      ValueError,
      "num_samples must be",
    ),
    (
      lambda: constraints.proximal_gradient(
        lambda params: (params**2).sum(), X, lambda v, step: v, num_steps=0
      ),
      ValueError,
      "num_steps must be",
    ),
    (
      lambda: optim.path_sgd(0.1, apply_fn=lambda params, x: x @ params, input_shape=(2,), eps=-1.0),
      ValueError,
      "eps must lie in",
    ),
    (
      lambda: noise.drop_block(KEY, jnp.ones((4, 4, 1)), rate=0.1, block_size=0),
      ValueError,
      "block_size must be",
    ),
    (
      lambda: adversarial.vat_loss(KEY, lambda x: jax.nn.log_softmax(x), np.float32(1), eps=0.1),
      ValueError,
      "x must have a batch axis",
    ),
    (lambda: flatness.power_law_fit(X[:, 0], X[:, 1], confidence=0.0), ValueError, "confidence must lie in"),
    (lambda: noise.drop_path_rates(0.5, 0), ValueError, "num_blocks must be at least 1"),
    (lambda: losses.pseudo_label(np.ones((3, 2), int), X), TypeError, "logits must be floating"),
  ],
)
def test_the_argument_is_named(call, error, message):
  with pytest.raises(error, match=message):
    call()

"""The lasso by FISTA, beside plain proximal gradient descent: `python examples/lasso.py`.

Half of the columns of the design have no effect on the targets. The L1 penalty makes their weights exactly 0.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from jaxreg import constraints

keys = jax.random.split(jax.random.key(0), 2)
design = jax.random.normal(keys[0], (60, 20)) * jnp.linspace(0.1, 1.0, 20)
targets = design @ jnp.where(jnp.arange(20) < 10, 1.0, 0.0) + 0.1 * jax.random.normal(keys[1], (60,))


def loss_fn(weights):
  return 0.5 * jnp.mean((design @ weights - targets) ** 2)


prox = functools.partial(constraints.prox_l1, weight=0.03, mask="*")
accelerated = constraints.proximal_gradient(loss_fn, jnp.zeros(20), prox, num_steps=200)

optimizer = optax.chain(optax.sgd(0.3), constraints.proximal(prox, 0.3))
weights = jnp.zeros(20)
state = optimizer.init(weights)
for _ in range(200):
  updates, state = optimizer.update(jax.grad(loss_fn)(weights), state, weights)
  weights = optax.apply_updates(weights, updates)


def objective(weights):
  return float(loss_fn(weights) + 0.03 * jnp.abs(weights).sum())


print(f"after 200 steps: FISTA {objective(accelerated.params):.6f}, plain {objective(weights):.6f}")
print(f"weights that are 0: {int((accelerated.params == 0).sum())} of 20")

"""Noise, penalties and a constraint in one step: `python examples/noise_penalties_constraints.py`.

Noise and penalties go into a loss function, constraints at the end of an Optax chain.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from jaxreg import constraints, noise, objective, penalties


def loss_fn(params, batch, *, key):
  noisy = noise.weight_noise(key, params, std=0.05)
  return jnp.mean((batch[0] @ noisy["kernel"] - batch[1]) ** 2)


terms = {
  "l1": objective.penalty(penalties.l1, weight=1e-3),
  "group_lasso": objective.penalty(penalties.group_lasso, weight=1e-4),
}
regularized = objective.compose(loss_fn, terms)
project = constraints.project(functools.partial(constraints.max_norm, limit=1.0))
optimizer = optax.chain(optax.adam(1e-2), project)  # the norm of each unit's weights

params, batch = {"kernel": jnp.ones((8, 3))}, (jnp.ones((16, 8)), jnp.zeros((16, 3)))
grads = jax.grad(regularized)(params, batch, key=jax.random.key(0))
updates, state = optimizer.update(grads, optimizer.init(params), params)
params = optax.apply_updates(params, updates)

norms = jnp.linalg.norm(params["kernel"], axis=0)
print(f"norms of the units' weights: {norms}")

"""A training step with Equinox: `python examples/equinox_step.py`.

The arrays are split off the module.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from jaxreg import losses, noise, objective, penalties

params, static = eqx.partition(eqx.nn.Linear(64, 10, key=jax.random.key(1)), eqx.is_inexact_array)
optimizer = optax.adam(1e-2)
batch = {"inputs": jax.random.normal(jax.random.key(2), (8, 64)), "labels": jnp.arange(8)}


def loss_fn(params, batch, *, key):
  x = noise.dropout(key, batch["inputs"], rate=0.2)
  logits = jax.vmap(eqx.combine(params, static))(x)
  return losses.softmax_cross_entropy(logits, batch["labels"]).mean()


@jax.jit
def step(params, state, batch, key):
  regularized = objective.compose(loss_fn, {"l1": objective.penalty(penalties.l1, weight=1e-3)})
  loss, grads = jax.value_and_grad(regularized)(params, batch, key=key)
  updates, state = optimizer.update(grads, state, params)
  return optax.apply_updates(params, updates), state, loss


state = optimizer.init(params)
for number in range(20):
  params, state, loss = step(params, state, batch, jax.random.fold_in(jax.random.key(0), number))

print(f"loss of step 20, penalty included: {loss:.3f}")

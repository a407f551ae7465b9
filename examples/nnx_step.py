"""A training step with NNX: `python examples/nnx_step.py`.

The parameters are split off the module. The penalty finds the kernels by their names.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxreg import losses, objective, penalties

graph, params = nnx.split(nnx.Linear(64, 10, rngs=nnx.Rngs(1)))
optimizer = optax.adam(1e-2)
batch = {"inputs": jax.random.normal(jax.random.key(1), (8, 64)), "labels": jnp.arange(8)}


def loss_fn(params, batch, *, key):
  logits = nnx.merge(graph, params)(batch["inputs"])
  return losses.label_smoothing(logits, batch["labels"], smoothing=0.1).mean()


@jax.jit
def step(params, state, batch, key):
  regularized = objective.compose(loss_fn, {"l2": objective.penalty(penalties.l2, weight=1e-3)})
  loss, grads = jax.value_and_grad(regularized)(params, batch, key=key)
  updates, state = optimizer.update(grads, state, params)
  return optax.apply_updates(params, updates), state, loss


state = optimizer.init(params)
for number in range(20):
  params, state, loss = step(params, state, batch, jax.random.fold_in(jax.random.key(0), number))

print(f"loss of step 20, penalty included: {loss:.3f}")

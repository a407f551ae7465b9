"""A training step of any loss function, with Flax Linen and Optax: `python examples/linen_step.py`."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxreg import losses

model, optimizer = nn.Dense(30), optax.adam(1e-2)  # three heads of ten classes
x, labels = jax.random.normal(jax.random.key(1), (8, 64)), jnp.arange(8)


def loss_fn(params, batch, *, key):
  logits, retain_logits, residual_logits = jnp.split(model.bind(params)(batch["inputs"]), 3, axis=-1)
  return losses.dropmax(key, logits, retain_logits, residual_logits, batch["labels"]).mean()


@jax.jit
def step(params, state, batch, key):
  loss, grads = jax.value_and_grad(loss_fn)(params, batch, key=key)
  updates, state = optimizer.update(grads, state, params)
  return optax.apply_updates(params, updates), state, loss


params = model.init(jax.random.key(2), x)
state = optimizer.init(params)
for number in range(20):
  key = jax.random.fold_in(jax.random.key(0), number)
  params, state, loss = step(params, state, {"inputs": x, "labels": labels}, key)

logits, retain_logits, _ = jnp.split(model.bind(params)(x), 3, axis=-1)
log_probs = losses.dropmax_log_probs(logits, retain_logits)
nll = -log_probs[jnp.arange(8), labels].mean()
print(f"NLL after 20 steps: {nll:.3f} nats")

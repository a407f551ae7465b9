"""An ensemble is one pytree, members first: `python examples/ensemble.py`.

The first axis of each leaf is the member, and `jax.vmap` makes a function of one member one of all.
"""

import jax
import jax.numpy as jnp
import optax

from jaxreg import ensembles, losses

batch = {"inputs": jax.random.normal(jax.random.key(0), (8, 16)), "labels": jnp.arange(8)}
optimizer = optax.sgd(0.1)
init = lambda key: {"kernel": 0.1 * jax.random.normal(key, (16, 10))}
logits_fn = lambda params, x: x @ params["kernel"]


def step(member, batch):
  params, state = member
  loss = lambda params: losses.softmax_cross_entropy(
    logits_fn(params, batch["inputs"]), batch["labels"]
  ).mean()
  updates, state = optimizer.update(jax.grad(loss)(params), state, params)
  return optax.apply_updates(params, updates), state


params = jax.vmap(init)(jax.random.split(jax.random.key(1), 5))
members = params, jax.vmap(optimizer.init)(params)
for _ in range(5):
  members = jax.vmap(step, in_axes=(0, None))(members, batch)
logits = jax.vmap(logits_fn, in_axes=(0, None))(members[0], batch["inputs"])  # [5, 8, 10]
log_probs = ensembles.arithmetic(losses.softmax_log_probs(logits))  # [8, 10]

print(f"mean log-probability of the label: {log_probs[jnp.arange(8), batch['labels']].mean():.2f}")

"""An ensemble is one pytree, members first: `python examples/ensemble.py`.

Its leaves have the members in front; whatever takes one member takes all.
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


params = ensembles.ensemble_init(jax.random.key(1), init, num_members=5)
members = params, ensembles.ensemble_apply(optimizer.init, params)
for _ in range(5):
  members = ensembles.ensemble_apply(step, members, batch)
logits = ensembles.ensemble_apply(logits_fn, members[0], batch["inputs"])  # [5, 8, 10]
log_probs = ensembles.arithmetic(losses.softmax_log_probs(logits))  # [8, 10]

print(f"mean log-probability of the label: {log_probs[jnp.arange(8), batch['labels']].mean():.2f}")

"""A vocabulary without its logits: `python examples/many_classes.py`.

The next token is a fixed function of the last one, or any token. `losses.linear` takes the features and the
kernel of the last layer, so that the logits `[tokens, vocabulary]` are never in memory. Second derivatives
are right, too: the largest eigenvalue of the Hessian at the end.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from jaxreg import flatness, losses

VOCABULARY, WIDTH, TOKENS, NOISE = 4096, 32, 1024, 0.1
follows = jax.random.permutation(jax.random.key(0), VOCABULARY)
draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape) / WIDTH**0.5
params = {"embedding": draw(1, VOCABULARY, WIDTH), "kernel": draw(2, WIDTH, VOCABULARY)}
loss = functools.partial(losses.label_smoothing, smoothing=0.01)


def sample(key):
  for_tokens, for_noise, for_others = jax.random.split(key, 3)
  tokens = jax.random.randint(for_tokens, (TOKENS,), 0, VOCABULARY)
  others = jax.random.randint(for_others, (TOKENS,), 0, VOCABULARY)
  return tokens, jnp.where(jax.random.bernoulli(for_noise, NOISE, (TOKENS,)), others, follows[tokens])


def loss_fn(params, batch, *, key=None):
  tokens, labels = batch
  features = jnp.tanh(params["embedding"][tokens])
  return losses.linear(loss, features, params["kernel"], labels).mean()


def plain_loss_fn(params, batch):
  tokens, labels = batch
  return loss(jnp.tanh(params["embedding"][tokens]) @ params["kernel"], labels).mean()


def temporaries(loss_fn):
  """What the compiled gradient needs beside its arguments and results, in MiB."""
  compiled = jax.jit(jax.value_and_grad(loss_fn)).lower(params, sample(jax.random.key(3))).compile()
  return compiled.memory_analysis().temp_size_in_bytes / 2**20


memory = {"all logits": temporaries(plain_loss_fn), "losses.linear": temporaries(loss_fn)}
print(", ".join(f"{name}: {size:.0f} MiB" for name, size in memory.items()))

optimizer = optax.adam(0.1)


@jax.jit
def train_step(params, state, key):
  value, grads = jax.value_and_grad(loss_fn)(params, sample(key))
  updates, state = optimizer.update(grads, state)
  return optax.apply_updates(params, updates), state, value


state, values = optimizer.init(params), []
for key in jax.random.split(jax.random.key(4), 50):
  params, state, value = train_step(params, state, key)
  values.append(float(value))
print(f"loss {values[0]:.2f} at the start, {values[-1]:.2f} after {len(values)} steps")

product = flatness.hvp(loss_fn, params, sample(jax.random.key(5)))
top = flatness.top_eigenpairs(product, key=jax.random.key(6), num_pairs=1, num_steps=6).values[0]
print(f"largest eigenvalue of the Hessian: {top:.3f}")

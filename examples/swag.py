"""How sure a network is by SWAG: draws around the mean of SGD's iterates: `python examples/swag.py`.

Beside the mean of the iterates, SWAG has their covariance. Far from the data its draws disagree.
"""

import jax
import jax.numpy as jnp
import optax

from jaxreg import averaging, ensembles, losses

keys = jax.random.split(jax.random.key(0), 5)
labels = jnp.arange(128) % 2
inputs = jax.random.normal(keys[0], (128, 2)) + 3 * labels[:, None]
params = {
  "first": 0.5 * jax.random.normal(keys[1], (2, 16)),
  "second": 0.5 * jax.random.normal(keys[2], (16, 2)),
}


def apply(params, x):
  return jnp.tanh(x @ params["first"]) @ params["second"]


@jax.jit
def epoch(params, state, key):
  def step(params, batch):
    loss_fn = lambda params: losses.softmax_cross_entropy(apply(params, inputs[batch]), labels[batch]).mean()
    return optax.apply_updates(params, jax.tree.map(lambda g: -0.3 * g, jax.grad(loss_fn)(params))), None

  order = jax.random.permutation(key, 128).reshape(8, 16)
  params, _ = jax.lax.scan(step, params, order)
  return params, average.update(state, params)


average = averaging.swag(rank=10)
state = average.init(params)
for number, key in enumerate(jax.random.split(keys[3], 40)):
  params, after = epoch(params, state, key)
  state = after if number >= 20 else state  # the iterates of the second half

draws = jax.vmap(lambda key: average.sample(key, state))(jax.random.split(keys[4], 50))
near_and_far = jnp.array([[0.0, 0.0], [1.5, 1.5], [6.0, -6.0]])
log_probs = losses.softmax_log_probs(jax.vmap(apply, in_axes=(0, None))(draws, near_and_far))
mean = ensembles.arithmetic(log_probs)
spread = jnp.exp(log_probs)[..., 1].std(axis=0)
for point, probability, deviation in zip(near_and_far, jnp.exp(mean)[:, 1], spread):
  print(
    f"at {point}: probability of class 1 {probability:.3f}, standard deviation of the draws {deviation:.3f}"
  )

"""
The band of MC dropout
======================

A network with dropout is many networks: each mask makes another one. Drawn with their masks on, they scatter,
and the scatter is a measure of uncertainty. Here it is drawn for a regression on a line, with a gap in the
data, and compared with the error that the mean really makes.
"""

import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from jaxreg import ensembles, noise

# %%
# Data with a gap
# ---------------

truth = lambda x: np.sin(1.5 * x)
generator = np.random.default_rng(0)
x = np.concatenate([generator.uniform(-3, -1, 20), generator.uniform(1, 3, 20)])
y = truth(x) + generator.normal(0, 0.1, len(x))
inputs, targets = jnp.asarray(x, jnp.float32)[:, None], jnp.asarray(y, jnp.float32)

# %%
# A network with dropout
# ----------------------
#
# ``noise.dropout`` is a function of a key. Without a key it returns its input.


def apply_fn(params, x, *, key, rate=0.1):
  hidden = x
  for number, (kernel, bias) in enumerate(params[:-1]):
    hidden = jax.nn.relu(hidden @ kernel + bias)
    hidden = noise.dropout(None if key is None else jax.random.fold_in(key, number), hidden, rate=rate)
  return (hidden @ params[-1][0] + params[-1][1])[:, 0]


def init(key, sizes=(1, 100, 100, 1)):
  shapes = list(itertools.pairwise(sizes))
  keys = jax.random.split(key, len(shapes))
  return [(jax.random.normal(k, s) * (2 / s[0]) ** 0.5, jnp.zeros(s[1])) for k, s in zip(keys, shapes)]


@jax.jit
def train(key, steps=3000):
  optimizer = optax.adam(3e-3)

  def step(carry, number):
    params, state = carry
    key_now = jax.random.fold_in(key, number)
    loss = lambda params: jnp.mean((apply_fn(params, inputs, key=key_now) - targets) ** 2)
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return (optax.apply_updates(params, updates), state), None

  params = init(key)
  return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))[0][0]


params = train(jax.random.key(1))

# %%
# Mean and band
# -------------
#
# With ``per_example=False`` each draw is one function of ``x``, which can be drawn as a line. The variance is
# that of the masks alone; the noise of the observations, 0.1 here, adds to it.

at = np.linspace(-5, 5, 201)
points = jnp.asarray(at, jnp.float32)[:, None]
moments = jax.jit(
  lambda key: ensembles.mc_regress(apply_fn, params, points, key=key, num_samples=200, per_example=False)
)(jax.random.key(2))
mean, std = np.asarray(moments.mean), np.sqrt(moments.variance)

fig, axis = plt.subplots(figsize=(7, 4), layout="constrained")
axis.plot(at, moments.samples[:10].T, "C0", alpha=0.25, linewidth=0.8)
for width in (1, 2):
  axis.fill_between(at, mean - width * std, mean + width * std, color="C0", alpha=0.15, linewidth=0)
axis.plot(at, mean, "C0", label="mean of 200 masks, ±1 and ±2 standard deviations")
axis.plot(at, truth(at), "k--", label="true function")
axis.plot(x, y, "C3.", label="training points")
axis.set(xlabel="x", ylabel="y", ylim=(-3, 3))
axis.legend(loc="upper center", ncols=1, fontsize="small")
plt.show()

# %%
# Is the band wide enough?
# ------------------------
#
# Compare the band with the error of the mean, in three regions. Where the error is much larger than the band,
# the band says that the network is uncertain, but not by how much it is wrong.

size = np.abs(at)
regions = {"among the points": (size > 1) & (size < 3), "in the gap": size < 1, "beyond": size > 3}
for name, chosen in regions.items():
  error = np.sqrt(np.mean((mean - truth(at))[chosen] ** 2))
  print(f"{name}: standard deviation {std[chosen].mean():.2f}, error of the mean {error:.2f}")

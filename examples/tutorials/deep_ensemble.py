"""
A deep ensemble by vmap
=======================

Several networks from different seeds agree where there are data, and disagree elsewhere. On one device they
train in one program: ``jax.vmap`` turns a function of one member into a function of all.
"""

import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import make_moons

from jaxreg import calibration, ensembles, losses

# %%
# One member
# ----------
#
# Write everything for one network: how it begins, what it computes, how it trains.

x, y = make_moons(500, noise=0.3, random_state=0)
x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)
train, test = (x[:200], y[:200]), (x[200:], y[200:])


def init(key, sizes=(2, 32, 32, 2)):
  shapes = list(itertools.pairwise(sizes))
  keys = jax.random.split(key, len(shapes))
  return [(jax.random.normal(k, s) * (2 / s[0]) ** 0.5, jnp.zeros(s[1])) for k, s in zip(keys, shapes)]


def logits_fn(params, x):
  for kernel, bias in params[:-1]:
    x = jax.nn.relu(x @ kernel + bias)
  return x @ params[-1][0] + params[-1][1]


def fit(params, x, y, steps=150):
  optimizer = optax.adam(1e-2)

  def step(carry, _):
    params, state = carry
    loss = lambda params: losses.softmax_cross_entropy(logits_fn(params, x), y).mean()
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return (optax.apply_updates(params, updates), state), None

  return jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[0][0]


# %%
# Ten members
# -----------
#
# The leaves of ``members`` have the members in front. Nothing else changes.

members = jax.vmap(init)(jax.random.split(jax.random.key(0), 10))
members = jax.jit(jax.vmap(fit, in_axes=(0, None, None)))(members, *train)


def predict(x):
  logits = jax.vmap(logits_fn, in_axes=(0, None))(members, x)  # [10, batch, 2]
  return jax.nn.log_softmax(logits)


# %%
# Better probabilities
# --------------------
#
# The mean prediction has a lower NLL than its members have on average. That must be so, because the logarithm
# is concave. How much lower is a matter of measuring.


def nll(log_probs):
  total, count = calibration.nll(log_probs, test[1])
  return float(total / count)


each = predict(test[0])
ensemble = ensembles.uncertainty(each)
alone = [nll(log_probs) for log_probs in each]
print(f"test NLL of the members: {np.mean(alone):.3f} ({min(alone):.3f} to {max(alone):.3f})")
print(f"test NLL of the ensemble: {nll(ensemble.mean_log_probs):.3f} nats")

# %%
# Two kinds of uncertainty
# ------------------------
#
# The entropy of the mean prediction has two parts. Between the moons the members agree that it is a toss: the
# expected entropy is large. Below and at the upper right each member draws the boundary elsewhere, so they
# disagree: the mutual information is large. In the other corners all members are sure, without any data.

side = np.linspace(-3, 4, 90), np.linspace(-2.5, 3, 70)
grid = np.stack(np.meshgrid(*side), -1).reshape(-1, 2).astype(np.float32)
found = jax.jit(lambda x: ensembles.uncertainty(predict(x)))(grid)

fig, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
panels = {
  "probability of class 1": jnp.exp(found.mean_log_probs[:, 1]),
  "expected entropy (nats)": found.expected_entropy,
  "mutual information (nats)": found.mutual_information,
}
for axis, (title, values) in zip(axes, panels.items()):
  image = axis.pcolormesh(*side, np.asarray(values).reshape(70, 90), cmap="viridis", shading="gouraud")
  axis.scatter(*train[0].T, c=train[1], cmap="coolwarm", s=8, edgecolors="w", linewidths=0.3)
  axis.set_title(title)
  fig.colorbar(image, ax=axis)
plt.show()

"""
The Hessian's spectrum during a training
========================================

At a random start the eigenvalues of the Hessian lie on both sides of zero. As the network learns, most of
them gather at zero, and a few large ones stand apart: about as many as there are classes. Lanczos
quadrature draws the density of all eigenvalues from products of the Hessian with vectors. No matrix is
stored.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

from jaxreg import flatness, losses

# %%
# A small network
# ---------------
#
# 2410 parameters, so that the whole matrix fits too, and we can compare.

x, y = load_digits(return_X_y=True)
batch = jnp.asarray(x[:500] / 16, jnp.float32), jnp.asarray(y[:500], jnp.int32)
keys = jax.random.split(jax.random.key(0), 2)
params = {
  "Dense_0": {"kernel": jax.random.normal(keys[0], (64, 32)) / 8, "bias": jnp.zeros(32)},
  "Dense_1": {"kernel": jax.random.normal(keys[1], (32, 10)) / 6, "bias": jnp.zeros(10)},
}


def loss_fn(params, batch, *, key):
  hidden = jnp.tanh(batch[0] @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
  logits = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
  return losses.softmax_cross_entropy(logits, batch[1]).mean()


# %%
# Train, and stop to look
# -----------------------

optimizer = optax.sgd(0.5)
MOMENTS = (0, 20, 200, 2000)


@jax.jit
def advance(params, steps):
  def step(_, params):
    updates, _ = optimizer.update(jax.grad(loss_fn)(params, batch, key=None), optimizer.init(params))
    return optax.apply_updates(params, updates)

  return jax.lax.fori_loop(0, steps, step, params)


@jax.jit
def spectrum(params):
  hessian = flatness.hvp(loss_fn, params, batch)
  first, second = jax.random.split(jax.random.key(1))
  top = flatness.top_eigenpairs(hessian, hessian.like, key=first, num_pairs=12, check=False)
  return flatness.spectral_density(hessian, hessian.like, key=second, num_samples=4, num_steps=60), top


found = {}
for before, moment in zip((0, *MOMENTS), MOMENTS):
  params = advance(params, moment - before)
  density, top = spectrum(params)
  found[moment] = density, np.asarray(top.values)
  loss = loss_fn(params, batch, key=None)
  print(f"step {moment}: loss {loss:.4f}, largest eigenvalues {np.round(found[moment][1][:3], 3)}")

# %%
# The densities
# -------------
#
# The marks below each curve are the twelve largest eigenvalues, by ``flatness.top_eigenpairs``.

fig, axes = plt.subplots(len(MOMENTS), 1, figsize=(7, 7), layout="constrained")
for axis, (moment, (density, top)) in zip(axes, found.items()):
  axis.semilogy(density.grid, np.maximum(density.density, 1e-6))
  axis.plot(top, np.full(len(top), 3e-5), "C3|", markersize=12)
  axis.set(ylim=(1e-5, None), ylabel="density")
  axis.set_title(f"step {moment}", loc="left", fontsize="medium")
axes[-1].set_xlabel("eigenvalue")
plt.show()

# %%
# Is the estimate right?
# ----------------------
#
# For this size the exact eigenvalues are at hand. They have the same trace, and the same share above 0.01.

exact = np.linalg.eigvalsh(np.asarray(flatness.hessian(loss_fn, params, batch), np.float64))
density = found[MOMENTS[-1]][0]
step = float(density.grid[1] - density.grid[0])
estimate = len(exact) * float((density.grid * density.density).sum()) * step
print(f"trace: {exact.sum():.3f} exactly, {estimate:.3f} by Lanczos quadrature")
print(f"largest: {exact[-1]:.4f} exactly, {found[MOMENTS[-1]][1][0]:.4f} by Lanczos")

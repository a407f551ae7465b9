"""
SAM against SGD, with loss surfaces
===================================

Sharpness-aware minimisation takes the gradient a step uphill, and so prefers minima whose neighbourhood is
low as well. Here both train the same network on digits from the same starts; then we look at the loss
around the ends, at the largest eigenvalue of the Hessian, and at the test error.
"""

import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

from jaxreg import flatness, losses, optim

# %%
# The network and its loss
# ------------------------

x, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(x))
x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order], jnp.int32)
train, test = (x[:500], y[:500]), (x[500:], y[500:])


def init(key):
  first, second = jax.random.split(key)
  return {
    "Dense_0": {"kernel": jax.random.normal(first, (64, 32)) / 8, "bias": jnp.zeros(32)},
    "Dense_1": {"kernel": jax.random.normal(second, (32, 10)) / 6, "bias": jnp.zeros(10)},
  }


def logits_fn(params, x):
  hidden = jnp.tanh(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
  return hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]


def loss_fn(params, batch, *, key):
  return losses.softmax_cross_entropy(logits_fn(params, batch[0]), batch[1]).mean()


# %%
# Two optimizers
# --------------
#
# ``optim.sam`` wraps any optimizer. Its update needs the gradient function, which it calls once more.

optimizers = {"SGD": optax.sgd(0.2, momentum=0.9), "SAM": optim.sam(optax.sgd(0.2, momentum=0.9), rho=0.1)}


def fit(params, optimizer, steps=500):
  def step(carry, number):
    params, state = carry
    rows = jax.random.randint(jax.random.fold_in(jax.random.key(1), number), (50,), 0, 500)
    batch = train[0][rows], train[1][rows]
    grad_fn = lambda params: jax.grad(loss_fn)(params, batch, key=None)
    extra = {"grad_fn": grad_fn} if optimizer is optimizers["SAM"] else {}
    updates, state = optimizer.update(grad_fn(params), state, params, **extra)
    return (optax.apply_updates(params, updates), state), None

  return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))[0][0]


starts = jax.vmap(init)(jax.random.split(jax.random.key(0), 5))
ends = {
  name: jax.jit(jax.vmap(functools.partial(fit, optimizer=optimizer)))(starts)
  for name, optimizer in optimizers.items()
}

# %%
# How flat, and how good
# ----------------------
#
# Five starts each. The largest eigenvalue of the Hessian of the training loss comes from Lanczos.


@jax.jit
def measure(params):
  hessian = flatness.hvp(loss_fn, params, train)
  top = flatness.top_eigenpairs(
    hessian, hessian.like, key=jax.random.key(2), num_pairs=1, check=False
  ).values[0]
  error = (logits_fn(params, test[0]).argmax(-1) != test[1]).mean()
  return loss_fn(params, train, key=None), top, 100 * error


pick = lambda members, number: jax.tree.map(lambda leaf: leaf[number], members)
table = {name: np.array([measure(pick(members, n)) for n in range(5)]) for name, members in ends.items()}
for name, rows in table.items():
  words = [f"{mean:.3g} ± {std:.2g}" for mean, std in zip(rows.mean(0), rows.std(0, ddof=1))]
  print(f"{name}: training loss {words[0]}, largest eigenvalue {words[1]}, test error {words[2]} %")

# %%
# The loss around the ends
# ------------------------
#
# A plane through each end. Above, along two random directions, each as long as the filters of the network
# that it moves, so that a network with larger weights does not look flatter for that alone. Below, along
# the two sharpest directions of each network itself, the eigenvectors of its Hessian.
#
# The random planes hardly differ: among 2410 directions, two random ones miss the few that are sharp.
# Along its sharpest directions the end of SAM is the wider one. A picture of random directions alone
# would hide that.


def random_plane(params):
  keys = jax.random.split(jax.random.key(3), 2)
  return tuple(flatness.filter_normalized_direction(key, params, granularity="filter") for key in keys)


def sharpest_plane(params):
  hessian = flatness.hvp(loss_fn, params, train)
  pairs = flatness.top_eigenpairs(hessian, hessian.like, key=jax.random.key(2), num_pairs=2, check=False)
  empty = flatness.subset(jax.tree.map(jnp.zeros_like, params))
  return tuple(empty.merge(vector) for vector in pairs.vectors)


PLANES = {
  "random": (random_plane, jnp.linspace(-1, 1, 17)),
  "sharpest": (sharpest_plane, jnp.linspace(-1.6, 1.6, 17)),
}


@functools.partial(jax.jit, static_argnums=1)
def surface(params, plane):
  directions, alphas = PLANES[plane]
  return flatness.loss_surface(loss_fn, params, directions(params), alphas, alphas, train)


surfaces = {
  (plane, name): np.asarray(surface(pick(members, 0), plane))
  for plane in PLANES
  for name, members in ends.items()
}

fig, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
levels = np.geomspace(1e-3, 10, 21)
for axis, ((plane, name), values) in zip(axes.flat, surfaces.items()):
  alphas = PLANES[plane][1]
  image = axis.contourf(alphas, alphas, values, levels, norm="log", cmap="viridis", extend="both")
  axis.contour(alphas, alphas, values, [0.1, 1.0], colors="w", linewidths=1)
  axis.set_title(f"{name}, {plane} directions")
fig.colorbar(image, ax=axes, label="training loss; white: 0.1 and 1", ticks=[1e-3, 1e-2, 0.1, 1, 10])
plt.show()

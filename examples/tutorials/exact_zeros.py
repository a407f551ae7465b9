"""
Exact zeros: proximal steps beside scikit-learn's lasso
=======================================================

An L1 penalty in the loss makes weights small, but hardly ever zero, because gradient steps jump over the
kink. A proximal step puts weights exactly to zero. On a linear model this is the lasso, which scikit-learn
solves by another algorithm: the two must agree.
"""

import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso

from jaxreg import constraints, objective, penalties

# %%
# The problem
# -----------
#
# Ten measurements of 442 patients, and the progress of their disease a year later, all standardised. The
# lasso minimises half the mean squared error plus ``alpha`` times the sum of the absolute weights.

x, y = load_diabetes(return_X_y=True)
x, y = ((a - a.mean(0)) / a.std(0) for a in (x, y))
names = load_diabetes().feature_names
inputs, targets = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def loss_fn(params, batch, *, key):
  return 0.5 * jnp.mean((batch[0] @ params["kernel"] - batch[1]) ** 2)


# %%
# Two ways to the L1 penalty
# --------------------------
#
# Proximal: a plain gradient step, then ``constraints.prox_l1``, last in the chain. Subgradient: the penalty
# is a term of the loss. Both run 20000 steps from zero; the learning rate is below 1 over the largest
# curvature.

curvature = np.linalg.eigvalsh(x.T @ x / len(x))[-1]
rate = float(0.9 / curvature)


def descend(objective, optimizer):
  def step(carry, _):
    params, state = carry
    grads = jax.grad(objective)(params, (inputs, targets), key=None)
    updates, state = optimizer.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), None

  params = {"kernel": jnp.zeros(10)}
  return jax.lax.scan(step, (params, optimizer.init(params)), length=20000)[0][0]["kernel"]


@jax.jit
def proximal(alpha):
  prox = functools.partial(constraints.prox_l1, weight=alpha)
  return descend(loss_fn, optax.chain(optax.sgd(rate), constraints.proximal(prox, rate)))


@jax.jit
def subgradient(alpha):
  terms = {"l1": objective.penalty(penalties.l1, weight=alpha)}
  return descend(objective.compose(loss_fn, terms), optax.sgd(rate))


alphas = np.geomspace(0.003, 0.6, 25)
by_prox = np.stack([proximal(alpha) for alpha in alphas])
by_subgradient = np.stack([subgradient(alpha) for alpha in alphas])
by_sklearn = np.stack(
  [Lasso(alpha=alpha, fit_intercept=False, tol=1e-8, max_iter=10**5).fit(x, y).coef_ for alpha in alphas]
)

# %%
# They agree
# ----------

print(
  f"largest difference of a weight from scikit-learn's: proximal {np.abs(by_prox - by_sklearn).max():.1e}, "
  f"subgradient {np.abs(by_subgradient - by_sklearn).max():.1e}"
)
zeros = {"proximal": by_prox == 0, "subgradient": by_subgradient == 0, "scikit-learn": by_sklearn == 0}
for name, is_zero in zeros.items():
  print(f"{name}: {is_zero.sum()} of {is_zero.size} weights are exactly 0")
print(f"same zeros as scikit-learn: {(zeros['proximal'] == zeros['scikit-learn']).mean():.1%}")

# %%
# The path
# --------
#
# Left: lines are the proximal steps', circles scikit-learn's. Right: how many weights are exactly zero.

fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
for number, name in enumerate(names):
  left.plot(alphas, by_prox[:, number], f"C{number}", label=name)
  left.plot(alphas, by_sklearn[:, number], f"C{number}o", markersize=3, markerfacecolor="none")
left.set(xscale="log", xlabel="alpha", ylabel="weight")
left.legend(ncols=2, fontsize="x-small")
for (name, is_zero), style in zip(zeros.items(), ("C0-", "C1-", "k.")):
  right.plot(alphas, is_zero.sum(1), style, label=name)
right.set(xscale="log", xlabel="alpha", ylabel="weights that are exactly 0, of 10")
right.legend()
plt.show()

"""A regression in plain JAX with virtual adversarial training and L1: `python examples/vat_regression.py`.

VAT for numbers measures half the squared distance of two predictions, not a divergence of probabilities.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_diabetes

from jaxreg import adversarial, objective, penalties

x, y = load_diabetes(return_X_y=True)
x, y = (x / x.std(0)).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
train, test = {"inputs": x[:300], "targets": y[:300]}, {"inputs": x[300:], "targets": y[300:]}


def apply_fn(params, x):
  hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
  return (hidden @ params["last"]["kernel"])[:, 0] + params["last"]["bias"]


def loss_fn(params, batch, *, key):
  return (apply_fn(params, batch["inputs"]) - batch["targets"]) ** 2


def vat(key, view, *, eps):
  distance = lambda clean, moved: (clean - moved) ** 2 / 2
  predict = lambda x: apply_fn(view.params, x)
  return adversarial.vat_loss(key, predict, view.batch["inputs"], eps=eps, divergence=distance)


terms = {
  "vat": objective.example_term(vat, weight=1.0, eps=0.5),
  "l1": objective.penalty(penalties.l1, weight=optax.linear_schedule(0.0, 3e-3, transition_steps=500)),
}
regularized = objective.compose(loss_fn, terms)
optimizer = optax.adam(1e-2)


@jax.jit
def step(params, state, key, number):
  gradient = jax.grad(regularized)(params, train, key=key, step=number)
  updates, state = optimizer.update(gradient, state, params)
  return optax.apply_updates(params, updates), state


kernel = jax.random.normal(jax.random.key(0), (10, 32)) / 10**0.5
params = {
  "hidden": {"kernel": kernel, "bias": jnp.zeros(32)},
  "last": {"kernel": jnp.zeros((32, 1)), "bias": jnp.zeros(())},
}
state = optimizer.init(params)
for number in range(1000):
  params, state = step(params, state, jax.random.key(number), number)

r2 = 1 - loss_fn(params, test, key=None).mean() / test["targets"].var()
report = regularized.report(params, train, key=jax.random.key(0), step=1000)
print(report, f"R2 on the test data: {r2:.2f}", sep="\n")

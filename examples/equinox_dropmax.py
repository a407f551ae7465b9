"""An Equinox network with DropMax and dropout: `python examples/equinox_dropmax.py`.

DropMax needs three affine layers on the last features. The terms of its loss keep their names in the report.
"""

import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

from jaxreg import losses, objective, penalties

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)


class Net(eqx.Module):
  hidden: eqx.nn.Linear
  heads: list

  def __call__(self, x, key):
    x = jax.nn.relu(jax.vmap(self.hidden)(x))
    heads = [{"kernel": head.weight.T, "bias": head.bias} for head in self.heads]
    return losses.dropmax_heads(eqx.nn.Dropout(0.3)(x, key=key, inference=key is None), *heads)


first, *others = jax.random.split(jax.random.key(0), 4)
net = Net(eqx.nn.Linear(64, 128, key=first), [eqx.nn.Linear(128, 10, key=key) for key in others])
params, static = eqx.partition(net, eqx.is_inexact_array)


def loss_fn(params, batch, *, key):
  for_dropout, for_masks = jax.random.split(key)
  outputs = eqx.combine(params, static)(batch["inputs"], for_dropout)
  return losses.dropmax_terms(for_masks, labels=batch["labels"], **outputs)


regularized = objective.compose(loss_fn, {"l2": objective.penalty(penalties.l2, weight=1e-4)})
optimizer = optax.adam(3e-3)


@jax.jit
def step(params, state, batch, key):
  updates, state = optimizer.update(jax.grad(regularized)(params, batch, key=key), state, params)
  return optax.apply_updates(params, updates), state


state, order = optimizer.init(params), np.random.default_rng(0)
for number in range(500):
  index = order.integers(1400, size=64)
  batch = {"inputs": x[index], "labels": y[index]}
  params, state = step(params, state, batch, jax.random.key(number))

outputs = eqx.combine(params, static)(x[1400:], None)
log_probs = losses.dropmax_log_probs(outputs["logits"], outputs["retain_logits"])
error = (log_probs.argmax(-1) != y[1400:]).mean()
print(report := regularized.report(params, batch, key=jax.random.key(0)))
print(f"test error: {error:.1%}")

"""An NNX network with mixup, label smoothing, SAM and averaged weights: `python examples/nnx_cnn.py`.

`compose` adds the terms to the user's loss; its report says what each one does.
"""

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from jaxreg import augment, averaging, losses, objective, optim, penalties

x, y = load_digits(return_X_y=True)
x = (x / 16).reshape(-1, 8, 8, 1).astype(np.float32)


class CNN(nnx.Module):
  def __init__(self, rngs):
    self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
    self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
    self.last = nnx.Linear(4 * 4 * 32, 10, rngs=rngs)

  def __call__(self, x):
    x = nnx.relu(self.second(nnx.relu(self.first(x))))
    return self.last(x.reshape(x.shape[0], -1))


graph, params = nnx.split(CNN(nnx.Rngs(0)))


def loss_fn(params, batch, *, key):
  logits = nnx.merge(graph, params)(batch["inputs"])
  return losses.label_smoothing(logits, batch["labels"], smoothing=0.1)


terms = {
  "mixup": objective.perturbation(augment.mixup, on="batch", num_classes=10, alpha=0.2),
  "l2": objective.penalty(penalties.l2, weight=1e-4),
}
regularized, optimizer = objective.compose(loss_fn, terms), optim.sam(optax.adam(3e-3), rho=0.05)
average = averaging.ema(decay=0.98)


@jax.jit
def step(params, state, kept, batch, key):
  # SAM's second gradient must see the same mixture.
  grad_fn = lambda params: jax.grad(regularized)(params, batch, key=jax.random.clone(key))
  updates, state = optimizer.update(grad_fn(params), state, params, grad_fn=grad_fn)
  params = optax.apply_updates(params, updates)
  return params, state, average.update(kept, params)


state, kept = optimizer.init(params), average.init(params)
for number, index in enumerate(np.random.default_rng(0).integers(1400, size=(300, 64))):
  batch = {"inputs": x[index], "labels": y[index]}
  params, state, kept = step(params, state, kept, batch, jax.random.key(number))

error = (nnx.merge(graph, average.params(kept))(x[1400:]).argmax(-1) != y[1400:]).mean()
print(report := regularized.report(params, batch, key=jax.random.key(0)))
print(f"test error of the averaged weights: {error:.1%}")

"""A perceptron with Flax Linen, in the style of Optax's `mlp_mnist`; docs/porting.md changes its loss.

`python examples/porting/measure.py optax_mnist --seeds 1` trains it before and after the change.
"""

import jax
import optax
from flax import linen as nn

optimizer = optax.adam(1e-4)


class MLP(nn.Module):
  sizes: tuple

  @nn.compact
  def __call__(self, x):
    x = x.reshape(len(x), -1)
    for size in self.sizes[:-1]:
      x = nn.relu(nn.Dense(size)(x))
    return nn.Dense(self.sizes[-1])(x)


model = MLP((1000, 1000, 10))


def loss_fn(params, batch):
  logits = model.apply(params, batch["image"])
  return optax.softmax_cross_entropy(logits, jax.nn.one_hot(batch["label"], 10)).mean()


@jax.jit
def train_step(params, opt_state, batch):
  loss, grads = jax.value_and_grad(loss_fn)(params, batch)
  updates, opt_state = optimizer.update(grads, opt_state)
  return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def evaluate(params, batch):
  logits = model.apply(params, batch["image"])
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
  return loss, (logits.argmax(-1) == batch["label"]).mean()


def run(seed, batches, test, marks):
  """Yields (training loss, test loss, test accuracy) after each number of steps in `marks`."""
  key = jax.random.key(seed)
  params = model.init(key, test["image"][:1])
  opt_state = optimizer.init(params)
  total, steps = 0.0, 0
  for step, batch in zip(range(1, max(marks) + 1), batches(128)):
    params, opt_state, loss = train_step(params, opt_state, batch)
    total, steps = total + float(loss), steps + 1
    if step in marks:
      yield total / steps, *evaluate(params, test)
      total, steps = 0.0, 0

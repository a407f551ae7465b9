"""A convolutional network with Equinox, in the style of its MNIST example; docs/porting.md changes its loss.

`python examples/porting/measure.py equinox_mnist --seeds 1` trains it before and after each change.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

optimizer = optax.adamw(3e-4)


class CNN(eqx.Module):
  layers: list

  def __init__(self, height, width, key):
    keys = jax.random.split(key, 4)
    self.layers = [
      eqx.nn.Conv2d(1, 3, kernel_size=4, key=keys[0]),
      eqx.nn.MaxPool2d(kernel_size=2),
      jax.nn.relu,
      jnp.ravel,
      eqx.nn.Linear(3 * (height - 4) * (width - 4), 512, key=keys[1]),
      jax.nn.sigmoid,
      eqx.nn.Linear(512, 64, key=keys[2]),
      jax.nn.relu,
      eqx.nn.Linear(64, 10, key=keys[3]),
      jax.nn.log_softmax,
    ]

  def __call__(self, x):
    for layer in self.layers:
      x = layer(x)
    return x


def loss_fn(model, x, y):
  log_probs = jax.vmap(model)(x)
  return -jnp.take_along_axis(log_probs, y[:, None], axis=1).mean()


@eqx.filter_jit
def make_step(model, opt_state, x, y):
  loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y)
  updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
  return eqx.apply_updates(model, updates), opt_state, loss


@eqx.filter_jit
def evaluate(model, x, y):
  log_probs = jax.vmap(model)(x)
  return -jnp.take_along_axis(log_probs, y[:, None], axis=1).mean(), (log_probs.argmax(-1) == y).mean()


def run(seed, batches, test, marks):
  """Yields (training loss, test loss, test accuracy) after each number of steps in `marks`."""
  key = jax.random.PRNGKey(seed)
  key, subkey = jax.random.split(key)
  model = CNN(*test["image"].shape[1:3], subkey)
  opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
  total, steps = 0.0, 0
  for step, batch in zip(range(1, max(marks) + 1), batches(64)):
    x, y = jnp.moveaxis(batch["image"], -1, 1), batch["label"]
    model, opt_state, loss = make_step(model, opt_state, x, y)
    total, steps = total + float(loss), steps + 1
    if step in marks:
      yield total / steps, *evaluate(model, jnp.moveaxis(test["image"], -1, 1), test["label"])
      total, steps = 0.0, 0

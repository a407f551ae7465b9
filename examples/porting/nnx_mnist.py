"""A convolutional network with NNX, in the style of Flax's MNIST tutorial; docs/porting.md changes its loss.

`python examples/porting/measure.py nnx_mnist --seeds 1` trains it before and after the change.
"""

import functools

import optax
from flax import nnx


class CNN(nnx.Module):
  def __init__(self, height, width, rngs):
    self.conv1 = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
    self.norm1 = nnx.BatchNorm(32, rngs=rngs)
    self.conv2 = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
    self.norm2 = nnx.BatchNorm(64, rngs=rngs)
    self.hidden = nnx.Linear(64 * (height // 4) * (width // 4), 256, rngs=rngs)
    self.dropout = nnx.Dropout(0.025)
    self.head = nnx.Linear(256, 10, rngs=rngs)
    self.pool = functools.partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))

  def __call__(self, x, rngs):
    x = self.pool(nnx.relu(self.norm1(self.conv1(x))))
    x = self.pool(nnx.relu(self.norm2(self.conv2(x))))
    x = nnx.relu(self.hidden(x.reshape(len(x), -1)))
    return self.head(self.dropout(x, rngs=rngs))


def loss_fn(model, rngs, batch):
  logits = model(batch["image"], rngs)
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
  return loss, logits


@nnx.jit
def train_step(model, optimizer, metrics, rngs, batch):
  (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, rngs, batch)
  metrics.update(loss=loss, logits=logits, labels=batch["label"])
  optimizer.update(model, grads)


@nnx.jit
def eval_step(model, metrics, batch):
  loss, logits = loss_fn(model, None, batch)  # without streams of random numbers
  metrics.update(loss=loss, logits=logits, labels=batch["label"])


def run(seed, batches, test, marks):
  """Yields (training loss, test loss, test accuracy) after each number of steps in `marks`."""
  rngs = nnx.Rngs(seed)
  model = CNN(*test["image"].shape[1:3], rngs)
  optimizer = nnx.Optimizer(model, optax.adamw(0.005, 0.9), wrt=nnx.Param)
  metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
  for step, batch in zip(range(1, max(marks) + 1), batches(32)):
    model.train()
    train_step(model, optimizer, metrics, rngs, batch)
    if step in marks:
      trained = metrics.compute()
      metrics.reset()
      model.eval()
      for start in range(0, len(test["label"]), 1000):
        eval_step(model, metrics, {name: array[start : start + 1000] for name, array in test.items()})
      tested = metrics.compute()
      metrics.reset()
      yield trained["loss"], tested["loss"], tested["accuracy"]

"""A label for every pixel: `python examples/dense_outputs.py`.

Losses, calibration and metrics take any axes before the classes: `[batch, height, width, classes]` here, and
`[batch, length, classes]` for sequences. The pixels of scikit-learn's digits are labelled by their digit, or
as background; those that are neither light nor dark have no label, -1, and `where` leaves them out.
"""

import functools

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

from jaxreg import augment, calibration, losses

ink, digit = load_digits(return_X_y=True)
ink = jnp.asarray(ink.reshape(-1, 8, 8, 1) / 16, jnp.float32)
labels = jnp.asarray(digit)[:, None, None]
masks = jnp.where(ink[..., 0] > 0.5, labels, jnp.where(ink[..., 0] < 0.2, 10, -1))
train, test = ({"inputs": ink[part], "masks": masks[part]} for part in (slice(1500), slice(1500, None)))


class Network(nn.Module):
  @nn.compact
  def __call__(self, x):
    for dilation in (1, 2, 4):
      x = nn.relu(nn.Conv(32, (3, 3), kernel_dilation=dilation)(x))
    return nn.Dense(11)(x)  # [batch, height, width, classes]


network, optimizer = Network(), optax.adam(3e-3)
# The masks move with their images; pixels that come from outside have no label.
moved = augment.compose(
  functools.partial(augment.rotate, max_degrees=10.0), functools.partial(augment.translate, max_shift=1)
)


def loss_fn(params, batch):
  where = batch["masks"] >= 0
  loss = losses.label_smoothing(
    network.apply(params, batch["inputs"]), batch["masks"], smoothing=0.1, where=where
  )
  return loss.sum() / where.sum()


@jax.jit
def train_step(params, state, key):
  for_rows, for_motion = jax.random.split(key)
  rows = jax.random.randint(for_rows, (64,), 0, len(train["masks"]))
  batch = moved(for_motion, jax.tree.map(lambda x: x[rows], train))
  updates, state = optimizer.update(jax.grad(loss_fn)(params, batch), state)
  return optax.apply_updates(params, updates), state


params = network.init(jax.random.key(0), ink[:1])
state = optimizer.init(params)
for step in range(300):
  params, state = train_step(params, state, jax.random.fold_in(jax.random.key(1), step))

log_probs = losses.softmax_log_probs(network.apply(params, test["inputs"]))
where = test["masks"] >= 0
right = (log_probs.argmax(axis=-1) == test["masks"]).mean(where=where)
ece = calibration.ece(calibration.ece_bins(log_probs, test["masks"], where=where))
print(f"{where.sum()} test pixels with a label: {right:.1%} right, calibration error {ece:.3f}")

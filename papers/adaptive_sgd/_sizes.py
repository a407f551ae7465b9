"""Errors of networks of growing size on MNIST, and the losses at which many runs of each end."""

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks._records import Found
from jaxreg import losses
from papers._small_networks import dense, init, last, mnist, train
from papers.adaptive_sgd import plots

UNITS = (4, 8, 16, 32, 64, 128, 256, 512)
RUNS, STEPS, IMAGES = 40, 3000, 2000


def network_sizes(found: Found, folder: str) -> Figure:
  """One hidden layer of rectified units on 14x14 pixels of 2000 images; 40 runs of each size by Adam."""
  examples, test = (_halved(split) for split in mnist(folder, num_train=IMAGES))
  measured = []
  for units in UNITS:
    params = jax.vmap(lambda key, units=units: init(key, (196, units, 10)))(
      jax.random.split(jax.random.key(0), RUNS)
    )
    options = {"key": jax.random.key(1), "steps": STEPS, "chunk": 1000, "learning_rate": 3e-3}
    params = last(train(loss_fn, params, examples, **options, name=f"{units} units"))
    (train_error, _), (test_error, test_loss) = (_measure(params, split) for split in (examples, test))
    measured.append((train_error, test_error, test_loss))
    found.add(f"{units} units", "training error, %", 100 * train_error)
    found.add(f"{units} units", "test error, %", 100 * test_error)
    found.add(f"{units} units", "test loss", test_loss, 3)
  title = f"Networks 196-N-10, {RUNS} runs of each size, {IMAGES} images of MNIST with 14 x 14 pixels"
  return plots.network_sizes(UNITS, *np.array(measured).swapaxes(0, 1), title=title)


def logits(params, x):
  return dense(params["Dense_1"], jax.nn.relu(dense(params["Dense_0"], x)))


def loss_fn(params, batch, *, key=None):
  return losses.softmax_cross_entropy(logits(params, batch["inputs"]), batch["labels"]).mean()


def _halved(split):
  """The means of 2x2 pixels."""
  x = split["inputs"].reshape(-1, 14, 2, 14, 2).mean((2, 4))
  return {**split, "inputs": x.reshape(len(x), -1)}


@jax.jit
def _measure(params, split) -> tuple[jax.Array, jax.Array]:
  """The errors and the mean losses `[runs]`."""

  def one(params):
    wrong = logits(params, split["inputs"]).argmax(-1) != split["labels"]
    return wrong.mean(), loss_fn(params, split)

  return jax.lax.map(one, params)

"""Soups beside one long run and beside ensembles, all at the cost of 100 epochs on 1000 images of MNIST.

    python benchmarks/merge.py --data DIR

DIR has the four idx files. An MLP (256, 256) and Adam, in batches of 50. For each of five seeds a start of 20
epochs has four branches of 20 epochs, with two learning rates and with or without dropout; five more networks
begin from random values, and have 20 epochs each. The long run has 100 epochs under the options of the branch
with the smallest NLL on 1000 validation images. It writes the record `merge_mnist1k`.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from _records import Found  # noqa: E402
from _report import flags  # noqa: E402

from configs.dropmax_mnist import get_config  # noqa: E402
from jaxreg import averaging, calibration, ensembles, losses, noise  # noqa: E402
from jaxreg.train.assemble.load_data import load_data  # noqa: E402

EPOCHS, BATCH, SEEDS, STARTS = 20, 50, 5, 5
BRANCHES = ((3e-4, 0.0), (1e-3, 0.0), (3e-4, 0.5), (1e-3, 0.5))  # learning rate, rate of the dropout


def init(key):
  sizes = (784, 256, 256, 10)
  keys = jax.random.split(key, 3)
  return [
    {"kernel": jax.random.normal(one, (n, m)) * (2 / n) ** 0.5, "bias": jnp.zeros(m)}
    for one, n, m in zip(keys, sizes, sizes[1:], strict=False)
  ]


def logits_of(params, x, key=None, rate=0.0):
  for number, layer in enumerate(params[:-1]):
    x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    x = noise.dropout(None if key is None else jax.random.fold_in(key, number), x, rate=rate)
  return x @ params[-1]["kernel"] + params[-1]["bias"]


@functools.partial(jax.jit, static_argnames="epochs")
def trained(params, key, data, options, *, epochs):
  """Trains for some epochs by a new Adam."""
  images, labels = data
  learning_rate, rate = options
  optimizer = optax.adam(learning_rate)
  steps = len(labels) // BATCH

  def step(state, number):
    params, opt_state = state
    epoch, position = number // steps, number % steps
    order = jax.random.permutation(jax.random.fold_in(jax.random.clone(key), epoch), len(labels))
    rows = jax.lax.dynamic_slice(order, (position * BATCH,), (BATCH,))
    noise_key = jax.random.fold_in(jax.random.fold_in(jax.random.clone(key), 10**6), number)

    def loss(params):
      return losses.softmax_cross_entropy(
        logits_of(params, images[rows], noise_key, rate), labels[rows]
      ).mean()

    updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), None

  return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(epochs * steps))[0][0]


@jax.jit
def log_probs_of(params, images):
  return jax.nn.log_softmax(logits_of(params, images))


def measures(log_probs, labels):
  total, count = calibration.nll(log_probs, labels)
  return {
    "test/error": float((log_probs.argmax(-1) != labels).mean()),
    "test/nll": float(total / count),
    "test/ece": float(calibration.ece(calibration.ece_bins(log_probs, labels))),
  }


def soup_of(networks, score_fn=None):
  soup = averaging.soup(score_fn)
  state = soup.init(networks[0])
  for params in networks:
    state = soup.update(state, params)
  return soup.params(state), int(state.count)


def of_seed(seed, data, epochs):
  """Measures every row for one seed."""
  key = jax.random.fold_in(jax.random.key(2024), seed)
  start_key, long_key, *keys = jax.random.split(key, 2 + len(BRANCHES) + 2 * STARTS + 1)
  first_key, *branch_keys = keys[: 1 + len(BRANCHES)]
  other_keys = keys[1 + len(BRANCHES) :]
  images, labels = data["test"]

  def score(params):
    log_probs = log_probs_of(params, data["val"][0])
    total, count = calibration.nll(log_probs, data["val"][1])
    return total / count

  train = functools.partial(trained, data=data["train"])
  first = init(start_key)
  start = train(first, first_key, options=BRANCHES[1], epochs=epochs)
  branches = [
    train(start, one, options=options, epochs=epochs)
    for one, options in zip(branch_keys, BRANCHES, strict=True)
  ]
  order = np.argsort([float(score(params)) for params in branches])
  best = BRANCHES[order[0]]
  long = train(first, long_key, options=best, epochs=STARTS * epochs)
  others = [
    train(init(one), other, options=best, epochs=epochs)
    for one, other in zip(other_keys[::2], other_keys[1::2], strict=True)
  ]
  ordered = [branches[n] for n in order]
  greedy, taken = soup_of(ordered, score)
  found = {
    "one long run": log_probs_of(long, images),
    "best of four branches": log_probs_of(ordered[0], images),
    "greedy soup of the branches": log_probs_of(greedy, images),
    "uniform soup of the branches": log_probs_of(soup_of(branches)[0], images),
    "ensemble of the branches": mean_of(branches, images),
    "uniform soup of five starts": log_probs_of(soup_of(others)[0], images),
    "ensemble of five starts": mean_of(others, images),
  }
  return {name: measures(log_probs, labels) for name, log_probs in found.items()}, taken


def mean_of(networks, images):
  return ensembles.arithmetic(jnp.stack([log_probs_of(params, images) for params in networks]))


def main() -> None:
  parser = flags(__doc__, rounds=1)
  parser.add_argument("--data", required=True, help="the folder of the four idx files")
  options = parser.parse_args()
  config = get_config("1k")
  config.data.idx.path = options.data
  dataset = load_data(config)
  data = {
    name: (
      jnp.asarray(np.asarray(split.inputs).reshape(len(split.labels), -1) / 255, jnp.float32),
      jnp.asarray(split.labels, jnp.int32),
    )
    for name, split in dataset.splits().items()
  }
  print({name: len(labels) for name, (_, labels) in data.items()}, flush=True)
  epochs, seeds = (1, 2) if options.quick else (EPOCHS, SEEDS)
  runs, taken = zip(*(of_seed(seed, data, epochs) for seed in range(seeds)), strict=True)
  print("networks in the greedy soup:", taken)
  found = Found()
  for row in runs[0]:
    for quantity, digits in {"test/error": 2, "test/nll": 3, "test/ece": 2}.items():
      found.add(row, quantity, [run[row][quantity] for run in runs], digits)
  found.add("greedy soup of the branches", "networks", taken, 1)
  if not options.quick:
    found.write("merge_mnist1k", "python benchmarks/merge.py --data DIR")


if __name__ == "__main__":
  main()

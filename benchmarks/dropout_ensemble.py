"""Dropout as an ensemble, on a network that other people trained: means over masks beside weight scaling.

    JAXREG_TEST_DATA=DIR python -m benchmarks dropout_ensemble

The dense layers 800-500-10 of JJGO's MnistNet, which was trained without dropout, are trained on with dropout
0.5 on the inputs of both, for 3000 steps of 100 of 55,000 images; the convolutions stay. The members are the
networks of 100 masks, each one function for all 10,000 test images. Five runs, with batches and masks of
their own. The script writes the record `dropout_ensemble`, in about two minutes on one core.
"""

import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _public_networks import NETWORKS, variables
from _records import Found
from _report import Report, flags
from flax import linen as nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jaxreg import ensembles, losses, noise
from jaxreg.train.data import sources
from papers._command import one_line_errors
from papers._small_networks import dense, last, run, train

NAME, RATE = "jjgo_mnistnet", 0.5
SEEDS, STEPS, CHUNK, MASKS = 5, 3000, 250, (3, 10, 30, 100)


def features(split: Any, read: Any, batch: int = 1000) -> dict[str, Any]:
  """Returns what the dense layers see, `[n, 800]`, and the labels."""
  network = NETWORKS[NAME]
  of_backbone = {"params": read["params"]["backbone"]}

  @jax.jit
  def of_batch(images: Any) -> Any:
    x = (images.astype(jnp.float32) / 255 - network.mean[0]) / network.std[0]
    kept = lambda module, _: module.name == "Conv_1"
    _, state = network.backbone.apply(of_backbone, x, train=False, capture_intermediates=kept)
    maps = state["intermediates"]["Conv_1"]["__call__"][0]
    return nn.relu(nn.max_pool(maps, (2, 2), strides=(2, 2))).reshape(len(x), -1)

  parts = [split.inputs[start : start + batch] for start in range(0, len(split), batch)]
  return {"inputs": jnp.concatenate([of_batch(x) for x in parts]), "labels": jnp.asarray(split.labels)}


def logits_fn(params: Any, x: Any, *, key: Any = None) -> Any:
  """Returns logits under masks that `key` draws; without a key it scales the weights."""
  keys = (None, None) if key is None else jax.random.split(key)
  hidden = jax.nn.relu(dense(params["Dense_0"], noise.dropout(keys[0], x, rate=RATE)))
  return dense(params["Dense_1"], noise.dropout(keys[1], hidden, rate=RATE))


def loss_fn(params: Any, batch: Any, *, key: Any) -> Any:
  return losses.softmax_cross_entropy(logits_fn(params, batch["inputs"], key=key), batch["labels"]).mean()


@jax.jit
def predictions(params: Any, x: Any, key: Any) -> dict[str, Any]:
  """Returns log-probabilities of each mask, `[masks, n, classes]`, of means over masks and of one pass."""
  sample = {"num_samples": MASKS[-1], "per_example": False, "chunk_size": 1}
  drawn = ensembles.mc_regress(logits_fn, params, x, key=key, **sample).samples
  members = jax.nn.log_softmax(drawn)
  means = {f"{number} masks": ensembles.arithmetic(members[:number]) for number in MASKS}
  geometric = f"{MASKS[-1]} masks, geometric mean"
  one = jax.nn.log_softmax(logits_fn(params, x))
  return {"weight scaling": one, "one mask": members, **means, geometric: ensembles.geometric(members)}


def distance(log_probs: Any, others: Any) -> Any:
  """Returns the mean over examples of the total variation, in per cent."""
  return 50 * jnp.abs(jnp.exp(log_probs) - jnp.exp(others)).sum(axis=-1).mean()


@one_line_errors()
def main() -> None:
  parser = flags(__doc__ or "", rounds=1)
  options = parser.parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    parser.error("JAXREG_TEST_DATA must name the folder with `networks` and `mnist`, got none")
  if options.quick:
    globals().update(SEEDS=2, STEPS=20, CHUNK=10, MASKS=(2, 3))
  folder, record = Path(given), Found()
  with np.load(folder / "networks" / f"{NAME}.npz") as tensors:
    read = jax.tree.map(jnp.asarray, variables(tensors, NETWORKS[NAME]))
  data = sources.idx(path=str(folder / "mnist"))
  examples, test = features(data.train, read), features(data.test, read)
  layers = read["params"]
  start = {"Dense_0": layers["backbone"]["Dense_0"], "Dense_1": layers["head"]["classifier"]}

  same = jax.tree.map(lambda x: jnp.broadcast_to(x, (SEEDS, *x.shape)), start)
  steps = {"key": jax.random.key(0), "steps": STEPS, "chunk": CHUNK}
  params = last(train(loss_fn, same, examples, **steps, name="dropout 0.5"))

  def add(row: str, log_probs: list[Any], geometric: list[Any]) -> None:
    errors = [100 * (each.argmax(axis=-1) != test["labels"]).mean() for each in log_probs]
    nlls = [
      losses.softmax_cross_entropy(each, jnp.broadcast_to(test["labels"], each.shape[:-1])).mean()
      for each in log_probs
    ]
    record.add(row, "test error, %", errors)
    record.add(row, "test NLL", nlls, 4)
    if geometric:
      distances = [distance(*pair) for pair in zip(log_probs, geometric, strict=True)]
      record.add(row, "distance to the geometric mean, %", distances)

  add("as published, no dropout", [jax.nn.log_softmax(logits_fn(start, test["inputs"]))], [])
  keys = jax.random.split(jax.random.key(1), SEEDS)
  found = [predictions(run(params, number), test["inputs"], keys[number]) for number in range(SEEDS)]
  means = *(f"{number} masks" for number in MASKS), f"{MASKS[-1]} masks, geometric mean"
  geometric = [each[means[-1]] for each in found]
  for row in ("one mask", *means, "weight scaling"):
    add(row, [each[row] for each in found], geometric)
  if not options.quick:
    record.write("dropout_ensemble", "JAXREG_TEST_DATA=DIR python -m benchmarks dropout_ensemble")
  Report(options.json).close()


if __name__ == "__main__":
  main()

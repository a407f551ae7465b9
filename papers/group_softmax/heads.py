"""Heads of softmax and group softmax on the features of a public network, over groups and images a class.

    python -m papers.group_softmax.heads --data DIR

The features are the 256 of distiller's ResNet-20, which its authors trained with softmax on all of CIFAR-100;
only the head is trained, from zero. DIR has the network in `networks` and CIFAR-100 in `tfds_full`. 2000
steps of 256 images, SGD with momentum 0.9, the rate 0.1 divided by 10 at a third, two thirds and five sixths,
weight decay 1e-4: the recipe of Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021,
supplement B.1, but for the length. Writes the record `group_softmax_heads`.
"""

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks._public_networks import features_of
from benchmarks._records import Found
from jaxreg import losses, penalties
from jaxreg.train.data.sources import tfds
from papers._command import one_line_errors

NETWORK = "dis_resnet20_cifar100"
GROUPS = (2, 4, 8, 16)
PER_CLASS = (50, 100, 250, 500)
SEEDS, STEPS, BATCH = 3, 2000, 256
RATE, DECAY = 0.1, 1e-4


class Examples(NamedTuple):
  features: jax.Array  # [n, 256]
  labels: jax.Array  # [n]


def read(folder: Path) -> dict[str, Examples]:
  """Returns the features of all training and test images."""
  features_fn, _ = features_of(NETWORK, folder)
  data = tfds(name="cifar100", data_dir=str(folder / "tfds_full"), val="test", order="id")
  examples = {}
  for name, split in (("train", data.train), ("test", data.test)):
    examples[name] = Examples(features_fn(split.inputs), jnp.asarray(split.labels))
  return examples


def subset(key: Any, examples: Examples, per_class: int) -> Examples:
  """Draws `per_class` examples of each class, without replacement."""
  order = jax.random.permutation(key, len(examples.labels))
  by_class = order[jnp.argsort(examples.labels[order], stable=True)].reshape(100, -1)
  chosen = by_class[:, :per_class].ravel()
  return Examples(*(column[chosen] for column in examples))


@functools.partial(jax.jit, static_argnames=("kind", "num_groups"))
def fit(key: Any, examples: Examples, *, kind: str, num_groups: int) -> Any:
  """Trains one head; returns its kernel and bias."""
  number, dim = examples.features.shape
  drops = {STEPS // 3: 0.1, 2 * STEPS // 3: 0.1, 5 * STEPS // 6: 0.1}
  optimizer = optax.sgd(optax.piecewise_constant_schedule(RATE, drops), momentum=0.9)

  def loss_fn(head: Any, x: Any, labels: Any) -> Any:
    decay = DECAY * penalties.l2(head)
    if kind == "softmax":
      return losses.softmax_cross_entropy(x @ head["kernel"] + head["bias"], labels).mean() + decay
    options: Any = {"kind": kind, "num_groups": num_groups}
    return losses.group_softmax(x, head["kernel"], head["bias"], labels, **options).mean() + decay

  def step(carry: Any, key: Any) -> Any:
    head, state = carry
    rows = jax.random.randint(key, (BATCH,), 0, number)
    grads = jax.grad(loss_fn)(head, examples.features[rows], examples.labels[rows])
    updates, state = optimizer.update(grads, state, head)
    return (optax.apply_updates(head, updates), state), None

  head = {"kernel": jnp.zeros((dim, 100)), "bias": jnp.zeros(100)}
  return jax.lax.scan(step, (head, optimizer.init(head)), jax.random.split(key, STEPS))[0][0]


def measure(head: Any, test: Examples, *, scale: float) -> tuple[float, float]:
  """Returns the error in per cent, and the NLL of the logits times `scale`."""
  logits = test.features @ head["kernel"] + head["bias"]
  nll = losses.softmax_cross_entropy(scale * logits, test.labels).mean()
  return 100 * float((logits.argmax(-1) != test.labels).mean()), float(nll)


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--data", type=Path, required=True, help="folder of the network and CIFAR-100")
  examples = read(parser.parse_args().data)
  heads = [("softmax", 1)] + [(kind, groups) for kind in ("I", "II") for groups in GROUPS]
  found = Found()
  for per_class in PER_CLASS:
    keys = [jax.random.split(jax.random.key(seed)) for seed in range(SEEDS)]
    subsets = [subset(drawn, examples["train"], per_class) for drawn, _ in keys]
    for kind, groups in heads:
      # All heads of a seed see the same images in the same order.
      options: Any = {"kind": kind, "num_groups": groups}
      fitted = [fit(trained, few, **options) for (_, trained), few in zip(keys, subsets, strict=True)]
      scale = 1 / groups if kind == "II" else 1.0
      results = [measure(head, examples["test"], scale=scale) for head in fitted]
      row = "softmax" if kind == "softmax" else f"{kind}, {groups} groups"
      errors, nlls = zip(*results, strict=True)
      found.add(row, f"{per_class} a class, error, %", errors, 2)
      found.add(row, f"{per_class} a class, NLL", nlls, 3)
  found.write("group_softmax_heads", "python -m papers.group_softmax.heads --data DIR")


if __name__ == "__main__":
  main()

"""Fine-tuning with anchors at the old weights: the error on the new task, and what is forgotten of the old.

    python benchmarks/anchors.py --data DIR

DIR has the four idx files of MNIST. An MLP (256, 256) learns 5000 upright digits, and then 200 digits that
are each rotated by an angle that is uniform over the circle. All rows have equal batches and numbers of
steps, and for a seed equal old networks. Each weight is one of five, the one with the least sum of both
tasks' validation errors for one seed. The script writes the record `anchors`.
"""

import functools
import itertools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from _records import Found  # noqa: E402
from _report import flags  # noqa: E402

from configs.finetune_mnist import get_config  # noqa: E402
from jaxreg import losses, penalties  # noqa: E402
from jaxreg.train.assemble.load_data import load_data  # noqa: E402

SIZES, RANK, BATCH, SEEDS, EPOCHS, FISHER = (784, 256, 256, 10), 8, 50, 5, (20, 50), 2000
# The weights of each row; None trains without a penalty.
ROWS = {
  "all layers": None,
  "L2-SP": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
  "EWC": (1.0, 10.0, 1e2, 1e3, 1e4),
  "LoRA": None,
  "LoRA, L2 of the product": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
  "LoRA, L2 of the factors": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
}


def init(key: Any) -> dict[str, Any]:
  keys = jax.random.split(key, 3)
  return {
    f"Dense_{i}": {"kernel": jax.random.normal(keys[i], (n, m)) * (2 / n) ** 0.5, "bias": jnp.zeros(m)}
    for i, (n, m) in enumerate(itertools.pairwise(SIZES))
  }


def logits_of(params: Any, x: Any, change: Any = None) -> Any:
  for i in range(3):
    layer, name = params[f"Dense_{i}"], f"Dense_{i}"
    kernel = layer["kernel"] + (change[name]["lora_a"] @ change[name]["lora_b"] if change else 0)
    x = (jax.nn.relu(x) if i else x) @ kernel + layer["bias"][None]
  return x


def trained(params: Any, loss_fn: Any, key: Any, data: Any, epochs: int) -> Any:
  """Trains by Adam at the rate 1e-3."""
  optimizer = optax.adam(1e-3)
  steps = len(data["labels"]) // BATCH

  def step(carry: Any, number: Any) -> Any:
    params, state = carry
    order = jax.random.permutation(jax.random.fold_in(key, number // steps), len(data["labels"]))
    rows = jax.lax.dynamic_slice(order, (number % steps * BATCH,), (BATCH,))
    updates, state = optimizer.update(
      jax.grad(loss_fn)(params, data["inputs"][rows], data["labels"][rows]), state
    )
    return (optax.apply_updates(params, updates), state), None

  return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(epochs * steps))[0][0]


def fisher_of(params: Any, key: Any, inputs: Any) -> Any:
  """Returns the means over examples of squared gradients, with labels that the network draws."""
  drawn = jax.random.categorical(key, logits_of(params, inputs))

  def squares(example: Any) -> Any:
    x, label = example
    gradient = jax.grad(
      lambda params: losses.softmax_cross_entropy(logits_of(params, x[None]), label[None])[0]
    )
    return jax.tree.map(jnp.square, gradient(params))

  return jax.tree.map(lambda x: x.mean(0), jax.lax.map(squares, (inputs, drawn), batch_size=BATCH))


@functools.partial(jax.jit, static_argnames="epochs")
def start(key: Any, data: Any, *, epochs: int) -> Any:
  """Returns a network of the old task, its Fisher matrix's diagonal, and a key."""

  def loss_fn(params: Any, inputs: Any, labels: Any) -> Any:
    return losses.softmax_cross_entropy(logits_of(params, inputs), labels).mean()

  keys = jax.random.split(key, 4)
  params = trained(init(keys[0]), loss_fn, keys[1], data, epochs)
  return params, fisher_of(params, keys[2], data["inputs"][:FISHER]), keys[3]


@functools.partial(jax.jit, static_argnames=("row", "epochs"))
def tuned(row: str, weight: Any, old: Any, fisher: Any, key: Any, data: Any, *, epochs: int) -> Any:
  """Returns the change of the network, `(params, change)`, after fine-tuning with a penalty."""
  lora = row.startswith("LoRA")
  change = {
    f"Dense_{i}": {
      "lora_a": jax.random.normal(jax.random.fold_in(key, i), (n, RANK)) * n**-0.5,
      "lora_b": jnp.zeros((RANK, m)),
    }
    for i, (n, m) in enumerate(itertools.pairwise(SIZES))
  }

  def loss_fn(params: Any, inputs: Any, labels: Any) -> Any:
    logits = logits_of(old, inputs, params) if lora else logits_of(params, inputs)
    if row.endswith("product"):
      penalty = penalties.lora_l2(params)
    elif row.endswith("factors"):
      penalty = penalties.l2(params, mask="*")
    elif lora or row == "all layers":
      penalty = 0.0
    else:
      penalty = penalties.l2_sp(params, reference=old, fisher=fisher if row == "EWC" else None, mask="*")
    return losses.softmax_cross_entropy(logits, labels).mean() + weight * penalty

  params = trained(change if lora else old, loss_fn, jax.random.fold_in(key, 9), data, epochs)
  return (old, params) if lora else (params, None)


@jax.jit
def measured(networks: Any, data: Any) -> Any:
  """Returns the error and the NLL."""
  logits = logits_of(networks[0], data["inputs"], networks[1])
  nll = losses.softmax_cross_entropy(logits, data["labels"]).mean()
  return 100 * (logits.argmax(-1) != data["labels"]).mean(), nll


def as_batch(split: Any) -> dict[str, Any]:
  inputs = jnp.asarray(split.inputs, jnp.float32).reshape(len(split.labels), -1) / 255
  return {"inputs": inputs, "labels": jnp.asarray(split.labels)}


def main() -> None:
  parser = flags(__doc__ or "", rounds=1)
  parser.add_argument("--data", required=True, help="the folder of the four idx files")
  options = parser.parse_args()
  seeds, first, second = (2, 1, 2) if options.quick else (SEEDS, *EPOCHS)
  tasks = {}
  for task, variant in {"old": "pretrain", "new": "compare"}.items():
    config = get_config(variant)
    config.data.idx.path = options.data
    data = load_data(config)
    tasks[task] = {name: as_batch(getattr(data, name)) for name in ("train", "val", "test")}

  starts = [
    start(jax.random.fold_in(jax.random.key(70), seed), tasks["old"]["train"], epochs=first)
    for seed in range(seeds)
  ]
  record = Found()

  def add(row: str, networks: Any) -> None:
    for name, task in (("rotated", "new"), ("upright", "old")):
      results = np.array([measured(each, tasks[task]["test"]) for each in networks])
      record.add(row, f"error, {name}, %", results[:, 0], 2)
      record.add(row, f"NLL, {name}", results[:, 1], 3)

  add("before", [(old, None) for old, _, _ in starts])
  for row, weights in ROWS.items():

    def run(weight: float, seed: int, row: str = row) -> Any:
      return tuned(row, weight, *starts[seed], tasks["new"]["train"], epochs=second)

    def validation(weight: float) -> float:
      networks = run(weight, 0)
      return float(sum(measured(networks, each["val"])[0] for each in tasks.values()))

    weight = min(weights, key=validation) if weights else 0.0
    add(row, [run(weight, seed) for seed in range(seeds)])
    if weights:
      record.rows[row]["setting"] = {"weight": weight}
  if not options.quick:
    record.write("anchors", "python benchmarks/anchors.py --data DIR")


if __name__ == "__main__":
  main()

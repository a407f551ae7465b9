"""The variance of one example's gradient along a training on digits, without and with dropout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks._records import Found
from papers._small_networks import Layers, digits, init, nll, plain, train
from papers.regularization import plots

SEEDS, SIZES = 5, (64, 128, 10)


def gradient_variance(found: Found) -> Figure:
  """Total variance of one example's gradient along a training, without and with dropout."""
  examples, _ = digits()
  start = jax.vmap(lambda key: init(key, SIZES))(jax.random.split(jax.random.key(0), SEEDS))

  def variance(params: Layers, key: jax.Array | None) -> jax.Array:
    """The trace of the covariance over examples and, with a key, their masks."""

    def one(example: dict[str, jax.Array], key: jax.Array | None) -> Any:
      return jax.grad(nll)(params, jax.tree.map(lambda x: x[None], example), key=key)

    keys = None if key is None else jax.random.split(key, len(examples["labels"]))
    gradients = jax.vmap(one, in_axes=(0, None if key is None else 0))(examples, keys)
    return sum((leaf.var(axis=0).sum() for leaf in jax.tree.leaves(gradients)), start=jnp.zeros(()))

  @jax.jit
  def measured(params: Any) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(2), SEEDS)
    return jax.vmap(lambda params: variance(params, None))(params), jax.vmap(variance)(params, keys)

  curves, steps = {}, []
  for name, loss_fn in (("without dropout", plain), ("with dropout", nll)):
    options = {"key": jax.random.key(1), "steps": 1000, "chunk": 50, "name": name}
    each = [(0, measured(start))]
    each += [(step, measured(params)) for step, params in train(loss_fn, start, examples, **options)]
    steps = [step for step, _ in each]
    without, masked = (np.stack([np.asarray(pair[i]) for _, pair in each], 1) for i in range(2))
    found.add(f"trained {name}", "masks' factor at the start", masked[:, 0] / without[:, 0])
    found.add(f"trained {name}", "masks' factor at the end", masked[:, -1] / without[:, -1])
    if name == "without dropout":
      curves[f"trained {name}, gradient without"] = without
    curves[f"trained {name}, gradient with"] = masked
  values = list(curves.values())
  found.add("trained with dropout", "factor over a training without", values[2][:, -1] / values[0][:, -1])
  size = len(examples["labels"])
  title = f"{size} digits, networks 64-128-10, {SEEDS} runs: mean and one standard deviation"
  return plots.seed_curves(steps, curves, ylabel="variance of one example's gradient", log=True, title=title)

"""The lectures' figures along a training on digits: early stopping, the variance of the gradient."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _lecture_training import Layers, _examples, dense, init, spread, train
from matplotlib.figure import Figure

from jaxreg import averaging, losses, noise, plots
from jaxreg.train.data import sources

SEEDS, SIZES, RATE = 5, (64, 128, 10), 0.5
PATIENCE = 10  # evaluations


def logits_fn(params: Layers, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
  hidden = jax.nn.relu(dense(params["Dense_0"], x))
  return dense(params["Dense_1"], hidden if key is None else noise.dropout(key, hidden, rate=RATE))


def nll(params: Layers, batch: dict[str, jax.Array], *, key: jax.Array | None = None) -> jax.Array:
  return losses.softmax_cross_entropy(logits_fn(params, batch["inputs"], key), batch["labels"]).mean()


def plain(params: Layers, batch: dict[str, jax.Array], *, key: jax.Array) -> jax.Array:
  del key
  return nll(params, batch)


def digits() -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
  """Training and validation images as `[n, 64]` in [0, 1]."""
  data = sources.digits()
  scaled = lambda one: {**one, "inputs": one["inputs"] * 255 / data.scale}
  return scaled(_examples(data.train)), scaled(_examples(data.val))


def learning_curves() -> Figure:
  """NLL on training and validation images, where a fifth of the training labels are drawn anew."""
  examples, val = digits()
  generator = np.random.default_rng(0)
  labels = np.asarray(examples["labels"])
  drawn = np.where(generator.uniform(size=len(labels)) < 0.2, generator.integers(0, 10, len(labels)), labels)
  examples = {**examples, "labels": jnp.asarray(drawn)}
  params = jax.vmap(lambda key: init(key, SIZES))(jax.random.split(jax.random.key(0), SEEDS))

  @jax.jit
  def measured(state: Any, params: Any) -> tuple[Any, jax.Array, jax.Array]:
    of = lambda batch: jax.vmap(lambda params: nll(params, batch))(params)
    update = partial(averaging.early_stopping_update, patience=PATIENCE)
    return jax.vmap(update)(state, params, of(val)), of(examples), of(val)

  state = jax.vmap(averaging.early_stopping_init)(params)
  steps, on_train, on_val, stops = [], [], [], np.zeros(SEEDS, int)
  options = {"key": jax.random.key(1), "steps": 2000, "chunk": 20, "learning_rate": 0.005}
  for step, moved in train(plain, params, examples, **options, name="a fifth of the labels drawn anew"):
    state, train_nll, val_nll = measured(state, moved)
    stops = np.where((stops == 0) & np.asarray(state.should_stop), step, stops)
    steps.append(step)
    on_train.append(train_nll)
    on_val.append(val_nll)
  on_train, on_val = np.stack(on_train, 1), np.stack(on_val, 1)
  best = np.asarray(steps)[[row[np.asarray(steps) <= stop].argmin() for row, stop in zip(on_val, stops)]]
  kept = jax.vmap(lambda params: nll(params, val))(state.params)
  print(f"  best step {spread(best, digits=0)}, stop {spread(stops, digits=0)}")
  print(f"  validation NLL: kept {spread(kept)}, in the end {spread(on_val[:, -1])}")
  at_best = on_train[np.arange(SEEDS), np.searchsorted(steps, best)]
  print(f"  training NLL: of the copy {spread(at_best)}, in the end {spread(on_train[:, -1])}")
  return plots.seed_curves(
    steps,
    {"training": on_train, "validation": on_val},
    marks={"the copy that early stopping keeps": best.mean(), "the run would end": stops.mean()},
    ylabel="NLL",
  )


def gradient_variance() -> Figure:
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

  found, steps = {}, []
  for name, loss_fn in (("without dropout", plain), ("with dropout", nll)):
    options = {"key": jax.random.key(1), "steps": 1000, "chunk": 50, "name": name}
    each = [(0, measured(start))]
    each += [(step, measured(params)) for step, params in train(loss_fn, start, examples, **options)]
    steps = [step for step, _ in each]
    without, masked = (np.stack([np.asarray(pair[i]) for _, pair in each], 1) for i in range(2))
    print(f"  trained {name}, ratio at the start: {spread(masked[:, 0] / without[:, 0])}")
    print(f"  trained {name}, ratio at the end: {spread(masked[:, -1] / without[:, -1])}")
    if name == "without dropout":
      found[f"trained {name}, gradient without"] = without
    found[f"trained {name}, gradient with"] = masked
  values = list(found.values())
  print(f"  a training with over one without, at the end: {spread(values[2][:, -1] / values[0][:, -1])}")
  return plots.seed_curves(steps, found, ylabel="variance of one example's gradient", log=True)

"""Where early stopping stops, on digits with wrong labels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks._records import Found
from jaxreg import averaging
from papers._small_networks import digits, init, nll, plain, train
from papers.regularization import plots

SEEDS, SIZES = 5, (64, 128, 10)
PATIENCE = 10  # evaluations


def learning_curves(found: Found) -> Figure:
  """NLL on training and validation images, where a fifth of the training labels are drawn anew."""
  examples, val = digits()
  generator = np.random.default_rng(0)
  labels = np.asarray(examples["labels"])
  drawn = np.where(generator.uniform(size=len(labels)) < 0.2, generator.integers(0, 10, len(labels)), labels)
  examples = {**examples, "labels": jnp.asarray(drawn)}
  params = jax.vmap(lambda key: init(key, SIZES))(jax.random.split(jax.random.key(0), SEEDS))
  stopping = averaging.early_stopping(patience=PATIENCE)

  @jax.jit
  def measured(state: Any, params: Any) -> tuple[Any, jax.Array, jax.Array]:
    of = lambda batch: jax.vmap(lambda params: nll(params, batch))(params)
    return jax.vmap(stopping.update)(state, params, of(val)), of(examples), of(val)

  state = jax.vmap(stopping.init)(params)
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
  at_best = on_train[np.arange(SEEDS), np.searchsorted(steps, best)]
  copy, end = "the copy that is kept", "after 2000 steps"
  found.add(copy, "step", best, 0)
  for row, on_train_then, on_val_then in ((copy, at_best, kept), (end, on_train[:, -1], on_val[:, -1])):
    found.add(row, "training NLL", on_train_then)
    found.add(row, "validation NLL", on_val_then)
  return plots.seed_curves(
    steps,
    {"training": on_train, "validation": on_val},
    marks={"the copy that early stopping keeps": best.mean(), "the run would end": stops.mean()},
    ylabel="NLL (nats)",
    title=f"{len(drawn)} digits, a fifth of the labels drawn anew, networks 64-128-10, "
    f"{SEEDS} runs: mean and one standard deviation",
  )

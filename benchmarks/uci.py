"""Monte Carlo dropout, deep ensembles and Laplace on seven UCI sets, with the field's standard splits.

    JAXREG_TEST_DATA=DIR python -m benchmarks uci

The protocol is that of Gal and Ghahramani, `Dropout as a Bayesian Approximation`, 2016: one hidden layer of
50 ReLU units (100 for the protein set), dropout on the inputs and the hidden layer, Adam with the rate 0.001,
batches of 128, 4000 epochs (400 of the three large sets), 10,000 draws. The dropout rate and the precision
are chosen on a fifth of the training rows, by the log likelihood. Then the network is trained on all training
rows. The published numbers come with the data, one for each split. All splits of a set train in one program.

Each stage of each set leaves its results in `--workdir`. After an interruption the same command continues
with the next stage. At its end, the script writes the record `uci`.
"""

import functools
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _records import Found
from _report import Report, flags

from jaxreg import ensembles, losses, noise, penalties

SETS = {
  "yacht": "yacht",
  "bostonHousing": "Boston housing",
  "energy": "energy",
  "concrete": "concrete",
  "power-plant": "power plant",
  "protein-tertiary-structure": "protein",
  "naval-propulsion-plant": "naval propulsion (RMSE x 1000)",
}
BATCH, EPOCHS = 128, 4000
SHARES = (100, 10, 1)  # of the epochs, for an ensemble, whose predicted variance overfits
LARGE = 5000  # examples, from which 400 epochs are enough
DRAWS, DRAWS_TO_CHOOSE = 10_000, 1_000
AT_ONCE = 2_000_000  # draws of one output at a time
RATES = (0.005, 0.01, 0.05, 0.1)
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)  # of the network that Laplace takes
LENGTH_SCALE = 1e-2
MEMBERS = 5
VARIANCES = jnp.logspace(-5, 0.5, 56)  # of the noise, for a target of variance 1


class Rows(NamedTuple):
  x: jax.Array  # [splits, n, features]
  y: jax.Array  # [splits, n]


class Set(NamedTuple):
  train: Rows
  test: Rows
  std: np.ndarray  # of the targets, [splits]
  units: int
  epochs: int
  published: dict[str, np.ndarray]


def read(path: Path, splits: int | None) -> Set:
  """Returns a set with each split standardised by its own training rows."""
  with np.load(path) as file:
    data, features, target, test = (file[name] for name in ("data", "features", "target", "test"))
    published = {name: file[f"published_{name}"] for name in ("rmse", "mc_rmse", "ll")}
  trains, tests, stds = [], [], []
  for mask in test[:splits].astype(bool):
    x, y = data[:, features], data[:, target[0]]
    mean, std = x[~mask].mean(0), x[~mask].std(0)
    x = (x - mean) / np.where(std > 0, std, 1)
    stds.append(y[~mask].std())
    y = (y - y[~mask].mean()) / stds[-1]
    trains.append((x[~mask], y[~mask]))
    tests.append((x[mask], y[mask]))
  train, test_rows = (
    Rows(*(jnp.asarray(np.stack(column), jnp.float32) for column in zip(*rows, strict=True)))
    for rows in (trains, tests)
  )
  units, epochs = 100 if "protein" in path.name else 50, EPOCHS if len(test[0]) < LARGE else EPOCHS // 10
  return Set(train, test_rows, np.array(stds), units, epochs, published)


def halves(rows: Rows) -> tuple[Rows, Rows]:
  """Returns the rows to train on and to choose by: four fifths and one fifth."""
  order = np.random.default_rng(0).permutation(rows.x.shape[1])
  first, last = np.split(order, [4 * len(order) // 5])
  return Rows(rows.x[:, first], rows.y[:, first]), Rows(rows.x[:, last], rows.y[:, last])


def init(key: Any, features: int, units: int, outputs: int) -> Any:
  glorot, keys = jax.nn.initializers.glorot_uniform(), jax.random.split(key)
  return [
    {"kernel": glorot(keys[0], (features, units)), "bias": jnp.zeros(units)},
    {"kernel": glorot(keys[1], (units, outputs)), "bias": jnp.zeros(outputs)},
  ]


def apply_fn(params: Any, x: Any, *, key: Any, rate: Any = 0.0) -> Any:
  """Returns outputs `[batch, outputs]`, without dropout if `key` is None."""
  first, last = params
  keys = (None, None) if key is None else jax.random.split(key)
  hidden = jax.nn.relu(noise.dropout(keys[0], x, rate=rate) @ first["kernel"] + first["bias"])
  return noise.dropout(keys[1], hidden, rate=rate) @ last["kernel"] + last["bias"]


def predict(params: Any, x: Any, *, key: Any, rate: Any) -> Any:
  return apply_fn(params, x, key=key, rate=rate)[:, 0]


def fit(key: Any, rows: Rows, rate: Any, decay: Any, *, units: int, outputs: int, epochs: int) -> Any:
  """Trains one network on one split; without dropout if `rate` is None."""
  number = len(rows.y)
  steps = -(-number // BATCH)
  optimizer = optax.adam(1e-3)

  def loss_fn(params, x, y, counts, key):
    out = apply_fn(params, x, key=None if rate is None else key, rate=0.0 if rate is None else rate)
    log_vars = out[:, 1] if outputs == 2 else jnp.zeros_like(y)
    nll = losses.gaussian_nll(out[:, 0], log_vars, y, where=counts)
    return nll.sum() / counts.sum() + decay * penalties.l2(params)

  def step(carry, batch):
    params, state = carry
    rows_of_batch, key = batch
    counts = rows_of_batch < number  # the last batch has fewer rows
    x, y = rows.x[rows_of_batch % number], rows.y[rows_of_batch % number]
    grads = jax.grad(loss_fn)(params, x, y, counts, key)
    updates, state = optimizer.update(grads, state)
    return (optax.apply_updates(params, updates), state), None

  def epoch(carry, key):
    order = jax.random.permutation(jax.random.fold_in(key, steps), number)
    order = jnp.concatenate([order, jnp.full(steps * BATCH - number, number)]).reshape(steps, BATCH)
    return jax.lax.scan(step, carry, (order, jax.random.split(key, steps)))

  first, rest = jax.random.split(key)
  params = init(first, rows.x.shape[1], units, outputs)
  start = params, optimizer.init(params)
  return jax.lax.scan(epoch, start, jax.random.split(rest, epochs))[0][0]


def fit_all(data: Set, rows: Rows, *, rate: Any, decay: Any, seed: int, **options: Any) -> Any:
  """Trains a network for each split, `rate` and `decay` `[splits]` or None."""
  keys = jax.random.split(jax.random.key(seed), len(rows.y))
  return jax.block_until_ready(fit_splits(keys, rows, rate, decay, units=data.units, **options))


@functools.partial(jax.jit, static_argnames=("units", "outputs", "epochs"))
def fit_splits(keys: Any, rows: Rows, rates: Any, decays: Any, **options: int) -> Any:
  axes = (0, 0, None if rates is None else 0, 0)
  return jax.vmap(functools.partial(fit, **options), in_axes=axes)(keys, rows, rates, decays)


def split_of(params: Any, number: int) -> Any:
  return jax.tree.map(lambda leaf: leaf[number], params)


@functools.partial(jax.jit, static_argnames="draws")
def log_likelihoods(params: Any, x: Any, y: Any, rate: Any, variances: Any, *, draws: int) -> Any:
  """Returns the mean prediction, and the log likelihood of each row for each variance of the noise."""
  parts = max(1, -(-len(y) * draws // AT_ONCE))
  while draws % parts:
    parts += 1

  def part(carry, key):
    mean, total = carry
    outputs = functools.partial(predict, rate=rate)
    result = ensembles.mc_regress(outputs, params, x, key=key, num_samples=draws // parts, per_example=False)
    terms = jax.lax.map(functools.partial(of_variance, result.samples), variances)
    return (mean + result.mean / parts, jnp.logaddexp(total, terms)), None

  def of_variance(samples, variance):
    each = -losses.gaussian_nll(
      samples, jnp.full_like(samples, jnp.log(variance)), jnp.broadcast_to(y, samples.shape)
    )
    return jax.nn.logsumexp(each, axis=0) - jnp.log(draws)

  start = jnp.zeros_like(y), jnp.full((len(variances), len(y)), -jnp.inf)
  return jax.lax.scan(part, start, jax.random.split(jax.random.key(7), parts))[0]


def rmse(mean: Any, y: Any) -> float:
  return float(jnp.sqrt(jnp.square(mean - y).mean()))


def penalty(rate: Any, number: int) -> Any:
  """Returns the weight of `penalties.l2`, the paper's lambda for a precision of 1."""
  return LENGTH_SCALE**2 * (1 - rate) / number


def in_units(data: Set, rmses: list[float], likelihoods: list[float]) -> dict[str, list[float]]:
  """Returns both measures in the units of the data; their splits are the runs."""
  return {
    "RMSE": (np.array(rmses) * data.std).tolist(),
    "log likelihood": (np.array(likelihoods) - np.log(data.std)).tolist(),
  }


def mc_dropout(data: Set) -> dict[str, Any]:
  fitted, chosen_by = halves(data.train)
  splits = len(data.train.y)
  best = [(-np.inf, 0.0, 1.0)] * splits
  for number, rate in enumerate(RATES):
    rates = jnp.full(splits, rate)
    decay = penalty(rates, fitted.x.shape[1])
    params = fit_all(data, fitted, rate=rates, decay=decay, seed=number, outputs=1, epochs=data.epochs)
    for split in range(splits):
      x, y = chosen_by.x[split], chosen_by.y[split]
      _, each = log_likelihoods(split_of(params, split), x, y, rate, VARIANCES, draws=DRAWS_TO_CHOOSE)
      means = np.asarray(each.mean(axis=1))
      best[split] = max(best[split], (float(means.max()), rate, float(VARIANCES[means.argmax()])))
  rates = jnp.array([rate for _, rate, _ in best])
  decay = penalty(rates, data.train.x.shape[1])
  params = fit_all(data, data.train, rate=rates, decay=decay, seed=100, outputs=1, epochs=data.epochs)
  rmses, likelihoods, scaled = [], [], []
  for split, (_, rate, variance) in enumerate(best):
    one, x, y = split_of(params, split), data.test.x[split], data.test.y[split]
    mean, each = log_likelihoods(one, x, y, rate, jnp.array([variance]), draws=DRAWS)
    rmses.append(rmse(mean, y))
    likelihoods.append(float(each.mean()))
    scaled.append(rmse(predict(one, x, key=None, rate=0.0), y) * float(data.std[split]))
  return {**in_units(data, rmses, likelihoods), "RMSE of the mean network": scaled, "rate": rates.tolist()}


def deep_ensemble(data: Set) -> dict[str, Any]:
  """Five networks that predict a mean and a variance; the epochs are chosen with one of them."""
  fitted, chosen_by = halves(data.train)
  splits = len(data.train.y)
  no_decay = jnp.zeros(splits)

  def measured(members: list[Any], x: Any, y: Any) -> tuple[float, float]:
    outputs = jnp.stack([apply_fn(params, x, key=None) for params in members])
    targets = jnp.broadcast_to(y, outputs.shape[:2])
    each = -losses.gaussian_nll(outputs[..., 0], outputs[..., 1], targets)
    likelihood = jax.nn.logsumexp(each, axis=0) - jnp.log(len(members))
    return rmse(outputs[..., 0].mean(0), y), float(likelihood.mean())

  def train(rows: Rows, epochs: int, seed: int) -> Any:
    return fit_all(data, rows, rate=None, decay=no_decay, seed=seed, outputs=2, epochs=epochs)

  grid = tuple(data.epochs // share for share in SHARES)
  single = {epochs: train(fitted, epochs, 200) for epochs in grid}
  members = {
    epochs: [train(data.train, epochs, 300 + number) for number in range(MEMBERS)] for epochs in grid
  }
  rmses, likelihoods, chosen = [], [], []
  for split in range(splits):
    x, y = chosen_by.x[split], chosen_by.y[split]
    scores = {epochs: measured([split_of(params, split)], x, y)[1] for epochs, params in single.items()}
    chosen.append(max(scores, key=lambda epochs: np.nan_to_num(scores[epochs], nan=-np.inf)))
    ours = [split_of(each, split) for each in members[chosen[-1]]]
    error, likelihood = measured(ours, data.test.x[split], data.test.y[split])
    rmses.append(error)
    likelihoods.append(likelihood)
  return {**in_units(data, rmses, likelihoods), "epochs": chosen}


def laplace(data: Set) -> dict[str, Any]:
  """The posterior of all parameters; the decay and the noise are chosen by the rows that chose above."""
  fitted, chosen_by = halves(data.train)
  splits = len(data.train.y)
  best = [(np.inf, 0.0)] * splits
  for number, decay in enumerate(DECAYS):
    decays = jnp.full(splits, decay)
    params = fit_all(data, fitted, rate=None, decay=decays, seed=400 + number, outputs=1, epochs=data.epochs)
    for split in range(splits):
      mean = predict(split_of(params, split), chosen_by.x[split], key=None, rate=0.0)
      best[split] = min(best[split], (rmse(mean, chosen_by.y[split]), decay))
  decays = jnp.array([decay for _, decay in best])
  params = fit_all(data, data.train, rate=None, decay=decays, seed=500, outputs=1, epochs=data.epochs)
  rmses, likelihoods = [], []
  for split, (error, _) in enumerate(best):
    one, x, y = split_of(params, split), data.test.x[split], data.test.y[split]
    options = {"likelihood": "normal", "structure": "dense", "noise_variance": error**2}
    posterior = ensembles.laplace(apply_fn, one, data.train.x[split], **options)
    linearized = posterior.linearized(x, precision=posterior.best_precision())
    variance = linearized.covariance[:, 0, 0] + error**2
    mean = linearized.outputs[:, 0]
    rmses.append(rmse(mean, y))
    likelihoods.append(float(-losses.gaussian_nll(mean, jnp.log(variance), y).mean()))
  return {**in_units(data, rmses, likelihoods), "decay": decays.tolist()}


STAGES = {"MC dropout": mc_dropout, "deep ensemble": deep_ensemble, "Laplace": laplace}


def stage(file: Path, method: str, path: Path, splits: int | None) -> None:
  """Computes one method on one set, and writes its results."""
  print(f"{path.stem}: {method} ...", flush=True)
  file.parent.mkdir(parents=True, exist_ok=True)
  began = time.perf_counter()
  results = STAGES[method](read(path, splits))
  partial = file.with_suffix(".partial")
  partial.write_text(json.dumps({**results, "minutes": (time.perf_counter() - began) / 60}))
  partial.replace(file)


def recorded(workdir: Path, folder: Path) -> Found:
  record = Found()
  for name, title in SETS.items():

    def add(method: str, quantity: str, values: Any, title: str = title) -> None:
      factor = 1000 if "x 1000" in title and "RMSE" in quantity else 1
      record.add(f"{title}, {method}", quantity, factor * np.asarray(values))

    for method in STAGES:
      file = workdir / name / f"{method.replace(' ', '_')}.json"
      if file.is_file():
        results = json.loads(file.read_text())
        for quantity, values in results.items():
          if quantity != "minutes":
            add(method, quantity, values)
    if not any((workdir / name).glob("*.json")):
      continue
    published = read(folder / f"{name}.npz", 1).published
    add("published", "RMSE", published["mc_rmse"])
    add("published", "log likelihood", published["ll"])
    add("published", "RMSE of the mean network", published["rmse"])
  return record


def main() -> None:
  parser = flags(__doc__ or "", rounds=1)
  parser.add_argument("--workdir", type=Path, default=Path("runs/uci"))
  parser.add_argument(
    "--record", action="store_true", help="measure nothing: record the stages that are done"
  )
  options = parser.parse_args()
  if not (named := os.environ.get("JAXREG_TEST_DATA")):
    parser.error("JAXREG_TEST_DATA must name the folder with `uci`, got none")
  folder = Path(named) / "uci"
  sets, splits, workdir = [*SETS], None, options.workdir
  if options.quick:
    sets, splits, workdir = sets[:1], 2, workdir / "quick"
    globals().update(EPOCHS=4, SHARES=(2, 1), DRAWS=100, DRAWS_TO_CHOOSE=50)
  for name in () if options.record else sets:
    for method in STAGES:
      file = workdir / name / f"{method.replace(' ', '_')}.json"
      if not file.is_file():
        stage(file, method, folder / f"{name}.npz", splits)
  if not options.quick:
    recorded(workdir, folder).write("uci", "JAXREG_TEST_DATA=DIR python -m benchmarks uci")
  Report(options.json).close()


if __name__ == "__main__":
  main()

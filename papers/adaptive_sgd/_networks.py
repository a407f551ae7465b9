"""Small trained networks: dropout's ensemble, the features of an autoencoder, prediction by samples."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from benchmarks._records import Found
from jaxreg import ensembles, losses, noise, paths
from papers._small_networks import dense, init, last, mnist, run, train
from papers.adaptive_sgd import plots

SEEDS = 5


def ensemble(found: Found) -> Figure:
  """A sine from 24 noisy points on two intervals, with dropout on two layers of 100 units."""
  generator, truth = np.random.default_rng(0), lambda x: np.sin(1.5 * x)
  x = np.sort(np.concatenate([generator.uniform(-3, -1, 12), generator.uniform(1, 3, 12)]))
  y = truth(x) + generator.normal(0, 0.1, len(x))
  examples = {"x": jnp.asarray(x, jnp.float32)[:, None], "y": jnp.asarray(y, jnp.float32)}

  def apply_fn(params, x, *, key):
    first, second = jax.random.split(key)
    hidden = noise.dropout(first, jax.nn.relu(dense(params["Dense_0"], x)), rate=0.1)
    hidden = noise.dropout(second, jax.nn.relu(dense(params["Dense_1"], hidden)), rate=0.1)
    return dense(params["Dense_2"], hidden)[:, 0]

  def loss_fn(params, batch, *, key):
    return jnp.mean((apply_fn(params, batch["x"], key=key) - batch["y"]) ** 2)

  keys = jax.random.split(jax.random.key(0), SEEDS)
  params = jax.vmap(lambda key: init(key, (1, 100, 100, 1)))(keys)
  options = {"key": jax.random.key(1), "steps": 6000, "chunk": 1500, "batch_size": len(x)}
  params = last(train(loss_fn, params, examples, **options, name="dropout 0.1"))

  at = np.linspace(-5, 5, 241)
  inputs = jnp.asarray(at, jnp.float32)[:, None]
  sample = {"num_samples": 500, "per_example": False, "chunk_size": 50}
  moments = jax.jit(
    jax.vmap(lambda params, key: ensembles.mc_regress(apply_fn, params, inputs, key=key, **sample))
  )(params, jax.random.split(jax.random.key(2), SEEDS))
  stds, size = jnp.sqrt(moments.variance), abs(at)
  for name, chosen in (
    ("among the points", (size > 1) & (size < 3)),
    ("in the gap", size < 1),
    ("beyond", size > 3),
  ):
    errors = jnp.sqrt(((moments.mean - truth(at)[None])[:, chosen] ** 2).mean(axis=1))
    found.add(name, "standard deviation of the ensemble", stds[:, chosen].mean(axis=1))
    found.add(name, "root mean square error of its mean", errors)
  # Each member is one function, so one mask serves all inputs.
  member = lambda key: jax.vmap(lambda x: apply_fn(run(params, 0), x[None], key=key)[0])(inputs)
  members = jax.vmap(member)(jax.random.split(jax.random.key(3), 10))
  return plots.regression_band(
    at,
    moments.mean[0],
    stds[0],
    truth=truth(at),
    points=(x, y),
    draws=members,
    title=f"{len(x)} points of a sine, network 1-100-100-1 with dropout 0.1, the first of {SEEDS} runs",
  )


def autoencoder(found: Found, folder: str) -> Figure:
  """784-256-784, rectified, with dropout 0.5 on the hidden units and without."""
  examples, test = mnist(folder)
  runs, pictures, activity, correlation = 3, {}, {}, {}

  def hidden_units(params, x):
    return jax.nn.relu(dense(params["Dense_0"], x))

  def reconstruct(params, x, hidden):
    logits = dense(params["Dense_1"], hidden)
    return optax.sigmoid_binary_cross_entropy(logits, x).sum(axis=-1)

  for name, rate in (("without dropout", 0.0), ("with dropout 0.5", 0.5)):

    def loss_fn(params, batch, *, key, rate=rate):
      hidden = hidden_units(params, batch["inputs"])
      return reconstruct(params, batch["inputs"], noise.dropout(key, hidden, rate=rate)).mean()

    keys = jax.random.split(jax.random.key(0), runs)
    # Small weights, because the part of a start that is never unlearnt would cover the features. Positive
    # biases, because without them a third of the units would be dead.
    params = jax.vmap(lambda key: init(key, (784, 256, 784), gain=0.02, bias=0.1))(keys)
    options = {"key": jax.random.key(1), "steps": 3000, "chunk": 500}
    params = last(train(loss_fn, params, examples, **options, name=name))

    measured = []
    for number in range(runs):
      one = run(params, number)
      hidden = hidden_units(one, test["inputs"])
      error = reconstruct(one, test["inputs"], hidden).mean()
      active, alike = np.asarray((hidden > 0).mean(axis=0)), correlations(hidden)
      measured.append((float((hidden == 0).mean()), alike.mean(), float(error), (active == 0).sum()))
      if number == 0:
        pictures[f"{name}: units 1 to 64"] = one["Dense_0"]["kernel"].T[:64].reshape(-1, 28, 28)
        activity[name], correlation[name] = 100 * active, alike
    zeros, alike, error, dead = np.array(measured).T
    row = name.removesuffix(" 0.5")
    found.add(row, "zero activations, %", 100 * zeros, 1)
    found.add(row, "absolute correlation", alike, 3)
    found.add(row, "cross-entropy of the pixels, nats", error, 1)
    found.add(row, "dead units of 256", dead, 1)
  histograms = {
    "images on which a unit is active, %": activity,
    "|correlation| of two units": correlation,
  }
  title = f"Autoencoders 784-256-784 on {len(examples['labels'])} images of MNIST, the first of {runs} runs"
  return plots.features(pictures, histograms, title=title)


def correlations(hidden: jax.Array) -> np.ndarray:
  """Absolute correlations of all pairs of units over examples, a measure of their co-adaptation.

  Units that are constant have none. The mean is 0 for independent units, and 1 for copies of one.
  """
  values = np.asarray(hidden, np.float64)
  values = values[:, values.std(axis=0) > 0]
  return np.abs(np.asarray(np.corrcoef(values.T))[np.triu_indices(values.shape[1], 1)])


def mc_samples(found: Found, folder: str) -> Figure:
  """784-256-256-10 with dropout 0.5: the error of M samples beside that of the scaled weights."""
  examples, test = mnist(folder, num_train=10000)
  numbers = (1, 2, 4, 8, 16, 32, 64)

  def apply_fn(params, x, *, key, rate=0.5):
    first, second = jax.random.split(key)
    hidden = jax.nn.relu(dense(params["Dense_0"], x))
    hidden = noise.dropout(first, hidden, rate=rate, inverted=False)
    hidden = jax.nn.relu(dense(params["Dense_1"], hidden))
    return dense(params["Dense_2"], noise.dropout(second, hidden, rate=rate, inverted=False))

  def loss_fn(params, batch, *, key):
    return losses.softmax_cross_entropy(apply_fn(params, batch["inputs"], key=key), batch["labels"]).mean()

  keys = jax.random.split(jax.random.key(0), SEEDS)
  params = jax.vmap(lambda key: init(key, (784, 256, 256, 10)))(keys)
  options = {"key": jax.random.key(1), "steps": 2000, "chunk": 500}
  params = last(train(loss_fn, params, examples, **options, name="784-256-256-10"))

  def score(log_probs):
    wrong = log_probs.argmax(axis=-1) != test["labels"]
    return 100 * wrong.mean(), losses.softmax_cross_entropy(log_probs, test["labels"]).mean()

  @partial(jax.jit, static_argnums=2)
  def by_samples(params, key, number):
    sample = {"num_samples": number, "chunk_size": min(number, 8)}
    return score(ensembles.mc_predict(apply_fn, params, test["inputs"], key=key, **sample).mean_log_probs)

  @jax.jit
  def by_scaling(params):
    reading = lambda params: paths.select(params, ("Dense_1/kernel", "Dense_2/kernel"))
    scaled = noise.scale_weights(params, rate=0.5, mask=reading)
    return score(apply_fn(scaled, test["inputs"], key=jax.random.key(0), rate=0.0))

  def note(row, scores):
    found.add(row, "test error, %", scores[:, 0])
    found.add(row, "test NLL", scores[:, 1], 4)

  scaled = np.array([by_scaling(run(params, n)) for n in range(SEEDS)])
  sampled = np.zeros((SEEDS, len(numbers), 2))
  for place, number in enumerate(numbers):
    for n, key in enumerate(jax.random.split(jax.random.key(2 + place), SEEDS)):
      sampled[n, place] = by_samples(run(params, n), key, number)
    note(f"{number} sample{'s' * (number > 1)}", sampled[:, place])
  note("weight scaling", scaled)
  panels = {
    "test error, %": (sampled[..., 0], scaled[:, 0]),
    "test NLL (nats)": (sampled[..., 1], scaled[:, 1]),
  }
  title = "Networks 784-256-256-10 with dropout 0.5, 10000 images of MNIST"
  return plots.sample_error(numbers, panels, title=title)

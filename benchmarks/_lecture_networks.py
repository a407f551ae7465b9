"""The lectures' figures of small trained networks: dropout's ensemble and FGSM."""

import jax
import jax.numpy as jnp
import numpy as np
from _lecture_training import dense, init, last, mnist, run, spread, train
from matplotlib.figure import Figure

from jaxreg import adversarial, ensembles, losses, noise, plots

SEEDS = 5


def ensemble() -> Figure:
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
  sample = {"num_samples": 500, "mask": "shared", "chunk_size": 50}
  moments = jax.jit(
    jax.vmap(lambda params, key: ensembles.mc_regress(apply_fn, params, inputs, key=key, **sample))
  )(params, jax.random.split(jax.random.key(2), SEEDS))
  stds, size = jnp.sqrt(moments.variance), abs(at)
  for name, chosen in (
    ("among the points, 1 < |x| < 3", (size > 1) & (size < 3)),
    ("in the gap, |x| < 1", size < 1),
    ("beyond, 3 < |x| < 5", size > 3),
  ):
    errors = jnp.sqrt(((moments.mean - truth(at)[None])[:, chosen] ** 2).mean(axis=1))
    print(f"  {name}: standard deviation {spread(stds[:, chosen].mean(axis=1))}, error {spread(errors)}")
  # Each a function of its own: one mask for all inputs.
  member = lambda key: jax.vmap(lambda x: apply_fn(run(params, 0), x[None], key=key)[0])(inputs)
  members = jax.vmap(member)(jax.random.split(jax.random.key(3), 10))
  return plots.regression_band(at, moments.mean[0], stds[0], truth=truth(at), points=(x, y), draws=members)


def fgsm(folder: str) -> Figure:
  """Five networks 784-128-10, their errors as the attack grows, and six test images."""
  examples, test = mnist(folder)

  def logits_fn(params, x):
    return dense(params["Dense_1"], jax.nn.relu(dense(params["Dense_0"], x)))

  def loss_fn(params, batch, *, key):
    return losses.softmax_cross_entropy(logits_fn(params, batch["inputs"]), batch["labels"]).mean()

  keys = jax.random.split(jax.random.key(0), SEEDS)
  params = jax.vmap(lambda key: init(key, (784, 128, 10)))(keys)
  options = {"key": jax.random.key(1), "steps": 2000, "chunk": 500}
  params = last(train(loss_fn, params, examples, **options, name="784-128-10"))

  @jax.jit
  def attack(params, batch, eps):
    of_inputs = lambda x: losses.softmax_cross_entropy(logits_fn(params, x), batch["labels"])
    moved = adversarial.fgsm(of_inputs, batch["inputs"], eps=eps, clip=(0.0, 1.0))
    random = jax.random.rademacher(jax.random.key(2), moved.shape, moved.dtype)
    random = jnp.clip(batch["inputs"] + eps * random, 0, 1)
    wrong = lambda x: 100 * (logits_fn(params, x).argmax(axis=-1) != batch["labels"]).mean()
    return moved, wrong(moved), wrong(random)

  eps = np.array([0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2])
  wrong = np.array([[attack(run(params, n), test, e)[1:] for e in eps] for n in range(SEEDS)])
  for number, e in enumerate(eps):
    fooled, random = wrong[:, number].T
    print(f"  eps {e:.2f}: error {spread(fooled, ' %')}, with random signs {spread(random, ' %')}")

  few, chosen, one = jax.tree.map(lambda x: x[:6], test), 0.1, run(params, 0)
  moved = attack(one, few, chosen)[0]
  of_inputs = lambda x: losses.softmax_cross_entropy(logits_fn(one, x), few["labels"])
  signs = jnp.sign(adversarial.fgsm(of_inputs, few["inputs"], eps=1.0) - few["inputs"])
  captions = tuple(_captions(logits_fn(one, x)) for x in (few["inputs"], moved))
  print(f"  first six test images, truth {few['labels']}: before {captions[0]}, after {captions[1]}")
  pictures = (np.asarray(x).reshape(-1, 28, 28) for x in (few["inputs"], signs, moved))
  errors = {"FGSM": wrong[..., 0], "random signs": wrong[..., 1]}
  return plots.adversarial(*pictures, captions, eps, errors, name=f"{chosen:g} times these signs")


def _captions(logits: jax.Array) -> list[str]:
  probs = np.asarray(jax.nn.softmax(logits))
  return [f"{row.argmax()} ({100 * row.max():.1f} %)" for row in probs]

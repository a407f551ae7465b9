"""Adversarial examples of networks on MNIST."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks._records import Found
from jaxreg import adversarial, losses
from papers._small_networks import dense, init, last, mnist, run, train
from papers.regularization import plots

SEEDS = 5
FAST = {"num_steps": 1, "random_start": False}


def fgsm(found: Found, folder: str) -> Figure:
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
    moved = adversarial.pgd(None, of_inputs, batch["inputs"], eps=eps, **FAST, clip=(0.0, 1.0))
    random = jax.random.rademacher(jax.random.key(2), moved.shape, moved.dtype)
    random = jnp.clip(batch["inputs"] + eps * random, 0, 1)
    wrong = lambda x: 100 * (logits_fn(params, x).argmax(axis=-1) != batch["labels"]).mean()
    return moved, wrong(moved), wrong(random)

  eps = np.array([0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2])
  wrong = np.array([[attack(run(params, n), test, e)[1:] for e in eps] for n in range(SEEDS)])
  for number, e in enumerate(eps):
    for name, values in zip(("FGSM", "random signs"), wrong[:, number].T):
      found.add(name, f"{e:g}", values)

  few, chosen, one = jax.tree.map(lambda x: x[:6], test), 0.1, run(params, 0)
  moved = attack(one, few, chosen)[0]
  of_inputs = lambda x: losses.softmax_cross_entropy(logits_fn(one, x), few["labels"])
  signs = jnp.sign(adversarial.pgd(None, of_inputs, few["inputs"], eps=1.0, **FAST) - few["inputs"])
  captions = _captions(logits_fn(one, few["inputs"])), _captions(logits_fn(one, moved))
  print(f"  first six test images, truth {few['labels']}: before {captions[0]}, after {captions[1]}")
  before, added, after = (np.asarray(x).reshape(-1, 28, 28) for x in (few["inputs"], signs, moved))
  errors = {"FGSM": wrong[..., 0], "random signs": wrong[..., 1]}
  name = f"{chosen:g} times these signs"
  title = f"Networks 784-128-10 trained on {len(examples['labels'])} images of MNIST; images: the first run"
  return plots.adversarial(before, added, after, captions, eps, errors, name=name, title=title)


def _captions(logits: jax.Array) -> list[str]:
  probs = np.asarray(jax.nn.softmax(logits))
  return [f"{row.argmax()} ({100 * row.max():.1f} %)" for row in probs]

r"""
DropMax in 40 lines, from nothing
=================================

DropMax is a softmax over a random subset of the classes. Which classes are kept depends on the input and is
learned. Here we write its loss from the paper's equations, train it beside a softmax, compare it with
``losses.dropmax``, and look at which classes it keeps. It is the loss of Lee et al., *DropMax: Adaptive
Variational Softmax*, 2018.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

from jaxreg import losses  # only to compare with, at the end

# %%
# The loss
# --------
#
# The network has three outputs for each class: a logit ``o``, the logit of the probability ``rho`` that the
# class is kept, and a residual ``r``. In training the label is known, and ``g = sigmoid(r + rho's logit)`` is
# the probability of keeping the class given the label. Masks are drawn from ``g``, relaxed so that they have
# a gradient; the true class is always kept.


def dropmax(key, o, retain, r, labels, temperature=0.1):
  """One value for each example."""
  target = jax.nn.one_hot(labels, o.shape[-1], dtype=bool)
  posterior = jax.lax.stop_gradient(retain) + r
  rho, g = jax.nn.sigmoid(retain), jax.nn.sigmoid(posterior)
  log = jax.nn.log_sigmoid

  # The likelihood under a relaxed mask, p(y) = z_t exp(o_t) / sum_k z_k exp(o_k), with z_t = 1.
  u = jax.random.logistic(key, o.shape)
  log_mask = jnp.logaddexp(log((posterior + u) / temperature), jnp.log(1e-20))
  log_mask = jnp.where(target, 0.0, log_mask)
  nll = -jnp.sum(jnp.where(target, jax.nn.log_softmax(o + log_mask), 0.0), axis=-1)

  # How far the masks given the label are from those that the prediction will use.
  kl = g * (log(posterior) - log(retain)) + (1 - g) * (log(-posterior) - log(-retain))
  kl = jnp.where(target, -log(retain), kl).sum(axis=-1)

  # The prior should stay undecided, and the residual should know the label.
  neg_entropy = (rho * log(retain) + (1 - rho) * log(-retain)).sum(axis=-1)
  auxiliary = -jnp.where(target, log(r), log(-r)).sum(axis=-1)
  return nll + kl + neg_entropy + auxiliary


def predict(o, retain):
  """Log-probabilities with the expected mask: no draw, and no label."""
  return jax.nn.log_softmax(o + jnp.logaddexp(jax.nn.log_sigmoid(retain), jnp.log(1e-20)))


# %%
# Training
# --------
#
# A network with one hidden layer on scikit-learn's digits. The softmax has the same network, of which it uses
# the first ten outputs.

x, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(x))
x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order], jnp.int32)
train, test = (x[:1000], y[:1000]), (x[1000:], y[1000:])


def outputs(params, x):
  return jnp.split(jax.nn.relu(x @ params["in"]) @ params["out"], 3, axis=-1)


def dropmax_loss(params, key, rows):
  return dropmax(key, *outputs(params, train[0][rows]), train[1][rows]).mean()


def softmax_loss(params, key, rows):
  logits, labels = outputs(params, train[0][rows])[0], train[1][rows]
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def run(seed):
  """Trains both from one start on the same batches; returns their parameters and test errors on the way."""
  keys = jax.random.split(jax.random.key(seed), 2)
  params = {
    "in": jax.random.normal(keys[0], (64, 128)) / 8,
    "out": 0.1 * jax.random.normal(keys[1], (128, 30)),
  }
  optimizer = optax.adam(2e-3)
  rules = {
    "softmax": (softmax_loss, lambda p: outputs(p, test[0])[0]),
    "DropMax": (dropmax_loss, lambda p: predict(*outputs(p, test[0])[:2])),
  }
  found = {}
  for name, (loss, prediction) in rules.items():

    def step(carry, number, loss=loss):
      params, state = carry
      key, batch_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), number))
      rows = jax.random.randint(batch_key, (50,), 0, 1000)
      updates, state = optimizer.update(jax.grad(loss)(params, key, rows), state)
      return (optax.apply_updates(params, updates), state), None

    def epoch(carry, number, step=step, prediction=prediction):
      carry, _ = jax.lax.scan(step, carry, 20 * number + jnp.arange(20))
      return carry, (prediction(carry[0]).argmax(-1) != test[1]).mean()

    (final, _), errors = jax.lax.scan(epoch, (params, optimizer.init(params)), jnp.arange(60))
    found[name] = (final, errors)
  return found


runs = [run(seed) for seed in range(3)]

# %%
# The library's loss is the same
# ------------------------------
#
# ``losses.dropmax`` has more options and checks, and the same value from the same key.

params = runs[0]["DropMax"][0]
arguments = (*outputs(params, test[0]), test[1])
ours = dropmax(jax.random.key(7), *arguments)
theirs = losses.dropmax(jax.random.key(7), *arguments)
print(f"largest difference: {jnp.abs(ours - theirs).max():.1e} of {jnp.abs(theirs).max():.1f}")

# %%
# What it learned
# ---------------
#
# DropMax begins more slowly. On the right: the mean probability of keeping each class, for the test examples
# of each true class. The diagonal is bright, so the classes that are kept depend on the input.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for name, colour in (("softmax", "C0"), ("DropMax", "C1")):
  errors = 100 * np.stack([run[name][1] for run in runs])
  left.plot(20 * np.arange(1, 61), errors.mean(0), colour, label=name)
  left.fill_between(20 * np.arange(1, 61), errors.min(0), errors.max(0), color=colour, alpha=0.2)
  last = errors[:, -1]
  print(f"{name}: test error {last.mean():.2f} % ({last.min():.2f} to {last.max():.2f})")
left.set(xlabel="step", ylabel="test error (%), mean and range of 3 seeds", yscale="log")
left.set_yticks([2, 5, 10, 20, 50], labels=["2", "5", "10", "20", "50"], minor=False)
left.minorticks_off()
left.legend()

retain = jax.nn.sigmoid(outputs(params, test[0])[1])
kept = np.stack([np.asarray(retain)[np.asarray(test[1]) == label].mean(0) for label in range(10)])
image = right.imshow(kept, cmap="gray", vmin=0, vmax=1)
right.set(xlabel="class", ylabel="true class", xticks=range(10), yticks=range(10))
fig.colorbar(image, ax=right, label="probability of keeping the class")
plt.show()

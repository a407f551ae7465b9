"""
A report card for an NNX model
==============================

One call measures what reviewers ask of a trained model: calibration, selective prediction, conformal sets,
corruptions, attacks and flatness. The model may come from any library. Here it is a small convolutional
network of Flax NNX on scikit-learn's digits, trained twice, with and without dropout. The page,
``report.html``, needs no network and can be sent to anybody.
"""

import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxreg
from jaxreg import losses, noise, reports

# %%
# A network
# ---------

x, y = load_digits(return_X_y=True)
x, y = np.float32(x.reshape(-1, 8, 8, 1) / 16), y.astype(np.int32)
rows = np.random.default_rng(0).permutation(len(x))
train, held_out, test = ({"inputs": x[part], "labels": y[part]} for part in np.split(rows, [800, 1200]))


class CNN(nnx.Module):
  def __init__(self, rngs):
    self.convolution = nnx.Conv(1, 16, (3, 3), rngs=rngs)
    self.linear = nnx.Linear(4 * 4 * 16, 10, rngs=rngs)

  def features(self, x):
    x = nnx.relu(self.convolution(x))
    return nnx.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)


graph, params = nnx.split(CNN(nnx.Rngs(0)))

# %%
# ``predict`` is all that the card sees: logits of parameters and inputs. Its keyword ``key`` turns noise on.
# With Linen it calls ``model.apply(params, x)``; with Equinox ``jax.vmap(eqx.combine(params, static))(x)``.
# Where the channels come first, ``jaxreg.report`` needs ``channel_axis=1``.


def make_predict(rate):
  def predict(params, x, *, key=None):
    model = nnx.merge(graph, params)
    return model.linear(noise.dropout(key, model.features(x), rate=rate))

  return predict


optimizer = optax.adam(3e-3)


def fit(predict):
  def step(carry, key):
    params, state = carry
    loss = lambda params: losses.softmax_cross_entropy(
      predict(params, train["inputs"], key=key), train["labels"]
    ).mean()
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return (optax.apply_updates(params, updates), state), None

  keys = jax.random.split(jax.random.key(1), 150)
  return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]


models = {}
for name, rate in {"plain": 0.0, "dropout": 0.5}.items():
  predict = make_predict(rate)
  models[name] = predict, jax.jit(fit, static_argnums=0)(predict)

# %%
# The cards
# ---------
#
# ``held_out`` gives the temperature and the conformal thresholds, ``train`` the loss whose flatness is
# measured. Few sections and a small budget keep this page quick; leave ``sections`` out for all.

folder = Path(tempfile.mkdtemp())
cards = {
  name: jaxreg.report(
    predict,
    test,
    params=trained,
    held_out=held_out,
    train=train,
    out=folder / name,
    sections=("errors", "calibration", "adversarial"),
    minutes=0.1,
    title=name,
  )
  for name, (predict, trained) in models.items()
}
for name, card in cards.items():
  for number in card["sections"]["calibration"]["numbers"].values():
    print(name, number["title"], number["value"], number["low"], number["high"])

# %%
# Beside each other
# -----------------
#
# Both saw the same examples, so the intervals of their differences are paired. The first table of the page
# has the differences that chance does not explain.

compared = reports.compare({name: folder / name for name in cards}, out=folder / "both")
for each in compared["differences"]["dropout"].values():
  if each["real"]:
    print(f"{each['title']}: {each['first']:.4f} and {each['other']:.4f}")

figure, axis = plt.subplots(figsize=(6.2, 3.6))
axis.imshow(plt.imread(folder / "both" / "figures" / "adversarial_attack.png"))
axis.axis("off")
figure.tight_layout(pad=0)

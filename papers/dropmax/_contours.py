"""Softmax and random DropMax in the plane, by a small network, for `papers/dropmax/figures.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxreg import losses
from papers.dropmax import plots

KEEP_PROBS = (1.0, 0.8, 0.5, 0.2)


def draw_contours(seed: int) -> Any:
  """Contours of a small network for three classes in the plane, with random masks of fixed probability."""
  generator = np.random.default_rng(seed)
  centres = np.array([[0.0, 1.0], [-0.9, -0.5], [0.9, -0.5]])
  labels = np.repeat(np.arange(3), 40)
  points = (centres[labels] + 0.6 * generator.normal(size=(120, 2))).astype(np.float32)
  axis = np.linspace(-2.5, 2.5, 121, dtype=np.float32)
  grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)

  def logits(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"][None]) @ params["v"]

  def train_toy(keep_prob: float) -> np.ndarray:
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
      "w": jax.random.normal(keys[0], (2, 32)),
      "b": jnp.zeros(32),
      "v": 0.1 * jax.random.normal(keys[1], (32, 3)),
    }
    optimizer = optax.adam(1e-2)

    def step(carry, key):
      params, state = carry
      loss = lambda params: losses.random_dropmax(
        key, logits(params, points), labels, rate=1 - keep_prob
      ).mean()
      updates, state = optimizer.update(jax.grad(loss)(params), state)
      return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(keys[2], 1500))
    return np.asarray(jax.nn.softmax(logits(params, grid))).reshape(121, 121, 3)

  named = lambda keep_prob: "softmax" if keep_prob == 1 else f"wrong classes kept with {keep_prob:g}"
  probs = {named(keep_prob): train_toy(keep_prob) for keep_prob in KEEP_PROBS}
  title = f"Networks 2-32-3 on 120 points of three classes in the plane, seed {seed}"
  return plots.contours((axis, axis), probs, points, labels, title=title)

"""Sharpness-aware optimizers and layers in the trainer: what is clipped, what a configuration may name."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.registry import choose
from jaxreg.train.step.optimizer import make_optimizer


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options"), [("asam", {}), ("gsam", {"weight": 0.0})])
def test_the_gradient_at_the_second_point_is_clipped_and_decays(name, options):
  w, there = np.array([1.0, -2.0, 2.0]), np.array([3.0, 0.0, -4.0])
  tx = make_optimizer(
    choose("optimizer", "sgd"),
    lambda step: 0.1,
    wrapper=choose("optimizer", name, {"rho": 0.5, **options}),
    clip_norm=0.5,
    weight_decay=0.2,
  )
  params = {"kernel": jnp.float32(w)}
  gradient_at = lambda params: {"kernel": jnp.float32(there)}
  updates, _ = tx.update({"kernel": jnp.ones(3)}, tx.init(params), params, grad_fn=gradient_at)
  np.testing.assert_allclose(updates["kernel"], -0.1 * (there * 0.5 / 5 + 0.2 * w), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["asam", "gsam", "layer_decay"])
def test_its_config_makes_a_step(monkeypatch, name):
  monkeypatch.syspath_prepend(str(runs.ROOT))
  config = importlib.import_module("configs.optimizers_digits").get_config(name)
  train.check(config)
  build(config, sources.digits().describe())  # traces the step


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"optimizer.name": "layer_decay", "optimizer.layer_decay.layers": ("head/*",)},
      "patterns must match all",
    ),
    ({"optimizer.name": "asam", "optimizer.asam.inner": "polyak_sgd"}, "polyak_sgd compares the loss"),
  ],
)
def test_mistakes_are_told(fields, message):
  with pytest.raises(train.RunError, match=message):
    build(runs.make_config(fields), sources.digits().describe())

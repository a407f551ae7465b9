"""Manifold mixup from the trainer: which features it mixes, against the layers in NumPy."""

import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.augment import Mixing
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources

FIELDS = {"method.name": "softmax", "model.MLP.widths": (5,), "model.MLP.dropout_rate": 0.0}
FIELDS |= {"augment.names": ("manifold_mixup",)}


def built(**fields):
  return build(runs.make_config({**FIELDS, **fields}), sources.digits().describe())


@pytest.mark.thorough
@pytest.mark.parametrize("layer", ["backbone", "head"])
def test_the_inputs_of_the_drawn_layer_are_mixed(layer):
  program = built(**{"augment.manifold_mixup.layers": ("backbone", "head")})
  state = jax.jit(program.init)(0)
  share = np.linspace(0.2, 0.9, 6).astype(np.float32)
  partners = np.array([1, 2, 3, 4, 5, 0])
  one = np.ones(6, np.float32)
  mixing = Mixing(partners, {"backbone": one, "head": one, layer: share})
  x = sources.digits().test.inputs[:6]
  pure = program.network.features_and_outputs
  (_, outputs), _ = pure(state.params, {}, x / 16, key=None, train=False, mixing=mixing)
  mix = lambda x: share[:, None] * x + (1 - share)[:, None] * x[partners]
  hidden = np.float64(x.reshape(6, -1)) / 16
  first, last = (jax.tree.map(np.float64, state.params[part]) for part in ("backbone", "head"))
  first, last = first["Dense_0"], last["classifier"]
  hidden = np.maximum((mix(hidden) if layer == "backbone" else hidden) @ first["kernel"] + first["bias"], 0)
  logits = (mix(hidden) if layer == "head" else hidden) @ last["kernel"] + last["bias"]
  np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_it_trains_beside_terms_that_look_again():
  program = built(**{"regularizers.names": ("r_drop", "fgsm", "l1_activity"), "model.MLP.dropout_rate": 0.5})
  _, metrics = jax.jit(program.train_step)(jax.jit(program.init)(0), runs.digits_batch(32))
  assert np.isfinite(jax.device_get(metrics["loss"][0]))


def test_a_layer_that_is_not_there_is_named():
  with pytest.raises(train.RunError, match=r"layers: must be among .*backbone/Dense_0.*, got .*Dense_7"):
    built(**{"augment.manifold_mixup.layers": ("backbone/Dense_7",)})

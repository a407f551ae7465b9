"""Evaluation by the mean of many draws of the noise."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import runs

from jaxreg import train
from jaxreg.train import keys
from jaxreg.train.assemble.from_config import build
from jaxreg.train.config.checks import check
from jaxreg.train.data import sources

FIELDS = {"method.name": "softmax", "model.MLP.dropout_rate": 0.5}


def evaluated(**fields):
  built = build(runs.make_config({**FIELDS, **fields}), sources.digits().describe())
  state = jax.jit(built.init)(0)
  split = sources.digits().test
  batch = {"inputs": split.inputs[:64], "labels": split.labels[:64].astype(np.int32)}
  batch["weights"] = np.ones(64, np.float32)
  return built, state, batch, jax.device_get(jax.jit(built.eval_step)(state, batch, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("combine", ["arithmetic", "geometric"])
def test_it_is_the_mean_of_the_draws_probabilities(combine):
  fields = {"evaluate.mc_samples": 5, "evaluate.combine": combine}
  built, state, batch, metrics = evaluated(**fields)
  probs = []
  for key in jax.random.split(keys.prediction(state.key, state.step, 3), 5):
    noise_key, _ = jax.random.split(key)
    outputs, _ = built.apply_fn(state.params, {}, batch["inputs"] / 16, key=noise_key, train=True)
    exps = np.exp(np.asarray(outputs["logits"], np.float64))
    probs.append(exps / exps.sum(axis=-1, keepdims=True))
  assert np.std(probs, axis=0).max() > 0.01
  mean = np.mean(probs, axis=0)
  if combine == "geometric":
    mean = np.prod(probs, axis=0) ** (1 / 5)
    mean /= mean.sum(axis=-1, keepdims=True)
  nll = -np.log(mean[np.arange(64), batch["labels"]]).sum()
  np.testing.assert_allclose(metrics["nll"][0], nll, rtol=1e-5)
  assert metrics["error"][0] == (mean.argmax(axis=-1) != batch["labels"]).sum()


@pytest.mark.thorough
def test_without_noise_it_is_the_plain_prediction():
  silent = {"model.MLP.dropout_rate": 0.0}
  plain = evaluated(**silent, **{"evaluate.combine": "weight_scaling"})[-1]
  sampled = evaluated(**silent, **{"evaluate.mc_samples": 3})[-1]
  np.testing.assert_allclose(sampled["nll"], plain["nll"], rtol=1e-5)


@pytest.mark.thorough
def test_mirror_is_the_mean_with_the_mirror_images():
  built, state, batch, metrics = evaluated(**{"evaluate.mirror": True})
  exps = []
  for inputs in (batch["inputs"], np.flip(batch["inputs"], axis=2)):
    outputs, _ = built.apply_fn(state.params, {}, inputs / 16, key=None, train=False)
    exps.append(np.exp(np.asarray(outputs["logits"], np.float64)))
  probs = sum(x / x.sum(axis=-1, keepdims=True) for x in exps) / 2
  nll = -np.log(probs[np.arange(64), batch["labels"]]).sum()
  np.testing.assert_allclose(metrics["nll"][0], nll, rtol=1e-5)
  assert abs(nll / evaluated()[-1]["nll"][0] - 1) > 1e-4


def test_mirror_needs_images():
  data = dataclasses.replace(sources.digits().describe(), input_shape=(64,))
  with pytest.raises(train.RunError, match=r"evaluate\.mirror: is for images, .* has shape \(64,\); give F"):
    build(runs.make_config({**FIELDS, "evaluate.mirror": True}), data)


@pytest.mark.parametrize(("combine", "number"), [("geometric", 0), ("weight_scaling", 3)])
def test_a_mean_needs_draws_and_weight_scaling_has_none(combine, number):
  with pytest.raises(train.RunError, match=rf"evaluate\.combine: .*, got {combine} and {number}"):
    check(runs.make_config({"evaluate.combine": combine, "evaluate.mc_samples": number}))


def test_laplace_is_of_the_image_alone():
  with pytest.raises(train.RunError, match=r"evaluate\.mirror: must be False with the measure laplace"):
    check(runs.make_config({"evaluate.mirror": True, "evaluate.measures": ("laplace",)}))


def toy(name, rate=0.5, **fields):
  """A network with statistics of three steps, and four images."""
  config = train.base_config()
  config.model.name = f"backbones:{name}"
  train.add_options(config)
  flat = {**runs.TINY, "method.name": "softmax", **fields}
  config.update_from_flattened_dict(flat | ({f"model.{name}.rate": rate} if "PLAIN" not in name else {}))
  built = build(config, sources.digits().describe())
  state, images = built.init(0), np.float32(sources.digits().test.inputs[:24].reshape(3, 8, 8, 8, 1) / 16)
  # Statistics of passes in training mode, so that they differ from those at the start.
  for number, x in enumerate(images):
    key = jax.random.key(number)
    _, model_state = built.apply_fn(state.params, state.model_state, x, key=key, train=True)
    state = state.replace(model_state=model_state)
  return built, state, images[0, :4]


@pytest.mark.parametrize(
  "name",
  [
    "LinenNormField",
    *(
      pytest.param(name, marks=pytest.mark.thorough)
      for name in ("LinenNorm", "NNXNorm", "EquinoxNorm", "SILENT_PLAIN_NORM")
    ),
  ],
)
def test_without_noise_a_sampled_pass_is_the_evaluation_bit_for_bit(name):
  built, state, x = toy(name, rate=0.0)
  run = functools.partial(built.apply_fn, state.params, state.model_state, x)
  plain, _ = run(key=None, train=False)
  sampled, model_state = run(key=jax.random.key(7), train=True, use_running_average=True)
  np.testing.assert_array_equal(sampled["logits"], plain["logits"])
  chex.assert_trees_all_equal(model_state, state.model_state)
  batch_mode, _ = run(key=jax.random.key(7), train=True)
  assert np.abs(batch_mode["logits"] - plain["logits"]).max() > 1e-3


def numbers_of(state, name):
  """The layer `[in, units]`, its bias, and the mean and standard deviation of each unit's activations."""
  params, stats = (jax.tree.map(np.float64, tree) for tree in (state.params, state.model_state["backbone"]))
  layer, zeros = params["backbone"], np.zeros(3)
  if name == "LinenNorm":
    mean, var = (stats["batch_stats"]["BatchNorm_0"][each] for each in ("mean", "var"))
    return layer["Dense_0"]["kernel"], layer["Dense_0"]["bias"], mean, np.sqrt(var + 1e-5)
  if name == "NNXNorm":
    mean, var = stats["norm"]["mean"], stats["norm"]["var"]
    return layer["layer"]["kernel"], layer["layer"]["bias"], mean, np.sqrt(var + 1e-5)
  if name == "EquinoxNorm":
    mean, var = (x for x in jax.tree.leaves(stats["state"]) if x.shape == (3,))
    return layer["layer"]["weight"].T, layer["layer"]["bias"], mean, np.sqrt(var + 1e-5)
  return layer["kernel"], zeros, stats["mean"], 1 + zeros


@pytest.mark.parametrize(
  "name",
  [
    "LinenNorm",
    *(pytest.param(name, marks=pytest.mark.thorough) for name in ("NNXNorm", "EquinoxNorm", "PLAIN_NORM")),
  ],
)
def test_with_batch_norm_it_is_the_mean_over_all_masks(name):
  samples = 4000
  built, state, x = toy(name, **{"evaluate.mc_samples": samples})
  got = np.exp(jax.jit(built.predict_fn)(state, x, jax.random.key(1)))
  kernel, bias, mean, std = numbers_of(state, name)
  head = jax.tree.map(np.float64, state.params["head"]["classifier"])
  masks = oracles.all_masks(3)
  units = 2 * masks[:, None] * (np.float64(x).reshape(4, -1) @ kernel + bias)
  probs = oracles.softmax((units - mean) / std @ head["kernel"] + head["bias"])
  assert probs.std(axis=0).max() > 0.01
  assert (np.abs(got - probs.mean(0)) < 1e-6 + 5 * probs.std(axis=0) / np.sqrt(samples)).all()


@pytest.mark.parametrize(
  ("name", "culprit"),
  [
    ("LinenOwnStatistics", "training mode also moves mean;"),
    ("NNXModeInCall", "training mode also moves norm/mean, norm/var;"),
    ("EquinoxModeInCall", "training mode also moves"),
    ("STATEFUL", "or apply_fn must take use_running_average"),
  ],
)
def test_statistics_that_cannot_be_told_apart_are_refused(name, culprit):
  config = train.base_config()
  config.model.name = f"backbones:{name}"
  train.add_options(config)
  config.update_from_flattened_dict({**runs.TINY, "method.name": "softmax", "evaluate.mc_samples": 2})
  with pytest.raises(train.RunError, match=rf"^evaluate\.mc_samples: must be 0.* {culprit}") as info:
    build(config, sources.digits().describe())
  assert "\n" not in str(info.value)


@pytest.mark.thorough
def test_variables_that_a_layer_of_ones_own_writes_are_refused():
  config = train.base_config()
  config.model.name = "backbones:LinenOwnStatistics"
  train.add_options(config).model.LinenOwnStatistics.guarded = False
  config.update_from_flattened_dict({**runs.TINY, "method.name": "softmax", "evaluate.mc_samples": 2})
  with pytest.raises(train.RunError, match=r"^evaluate\.mc_samples: .* moves variables of other layers;"):
    build(config, sources.digits().describe())


@pytest.mark.thorough
def test_residual_networks_sample_their_dropout():
  fields = {"evaluate.mc_samples": 2, "model.name": "CifarResNet", "model.CifarResNet.depth": 8}
  data = dataclasses.replace(sources.digits().describe(), input_shape=(32, 32, 3))
  built = build(runs.make_config({**FIELDS, **fields}), data)
  x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
  assert jax.eval_shape(built.predict_fn, built.abstract, x, jax.random.key(0)).shape == (2, 10)

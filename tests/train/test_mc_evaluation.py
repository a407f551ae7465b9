"""Evaluation by the mean of many draws of the noise."""

import dataclasses

import jax
import numpy as np
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


@pytest.mark.thorough
def test_batch_norm_cannot_be_held():
  fields = {"evaluate.mc_samples": 2, "model.name": "CifarResNet", "model.CifarResNet.depth": 8}
  data = dataclasses.replace(sources.digits().describe(), input_shape=(32, 32, 3))
  with pytest.raises(train.RunError, match=r"evaluate\.mc_samples: must be 0 for a model with BatchNorm"):
    build(runs.make_config({**FIELDS, **fields}), data)

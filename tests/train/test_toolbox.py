"""Constraints and noise by name: what they do to the parameters of a step, and that every one trains."""

import functools
import importlib

import chex
import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.registry import REGISTRY

# Of the noises, methods, augmentations and averages, what `toolbox_digits` has beside the tables.
OTHERS = (
  *("none", "dropout", "mc_dropout", "geometric_mean", "weight_scaling_mean", "hidden_noise"),
  *("layer_scale", "standardized"),
  *("gaussian_dropout", "alpha_dropout", "spatial_dropout", "drop_block"),
  *("stochastic_depth", "shake_drop", "shake_shake", "token_dropout", "recurrent_dropout"),
  *("rnn_weight_noise", "concrete_dropout", "variational_dropout", "weight_norm", "spectral_norm"),
  "l2_limit",
  *("label_smoothing", "focal", "poly_loss", "confidence_penalty", "large_margin", "logit_adjustment"),
  *("cosface", "arcface", "bi_tempered", "generalized_cross_entropy", "active_passive"),
  "forward_correction",
  *("translate", "rotate", "scale", "cutout", "random_erasing", "rand_augment", "mixup", "cutmix"),
  *("manifold_mixup", "trivial_augment", "auto_augment", "random_resized_crop", "color_jitter"),
  *("early_stopping", "swa", "swag", "ema", "power_ema", "bagging", "deep_ensemble"),
)
# Named in `toolbox_digits` by the noise whose cost it is.
NAMED = [name for group in ("regularizers", "optimizer.constraints", "noise") for name in REGISTRY[group]]
TABLES = [name for name in NAMED if name != "learned_dropout"]


@functools.cache
def stepped(**fields):
  """Parameters before and after a step of SGD on digits, and the metrics; `__` in a name stands for a dot."""
  fields = {name.replace("__", "."): value for name, value in fields.items()}
  config = {
    "method.name": "softmax",
    "model.MLP.dropout_rate": 0.0,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.1,
  }
  built = build(runs.make_config({**config, **fields}), sources.digits().describe())
  state = jax.jit(built.init)(0)
  after, metrics = jax.jit(built.train_step)(state, runs.digits_batch(32))
  return jax.device_get((state.params, after.params, metrics))


def kernels(params):
  return [params["backbone"]["Dense_0"]["kernel"], params["head"]["classifier"]["kernel"]]


def biases(params):
  return [params["backbone"]["Dense_0"]["bias"], params["head"]["classifier"]["bias"]]


@pytest.mark.thorough
def test_a_projection_comes_after_the_update():
  _, plain, _ = stepped()
  fields = {"optimizer__constraints__names": ("max_norm",), "optimizer__constraints__max_norm__limit": 0.9}
  _, found, _ = stepped(**fields)
  for kernel, free in zip(kernels(found), kernels(plain), strict=True):
    norms = np.linalg.norm(free.astype(np.float64), axis=0)
    assert (norms > 0.9).any()
    np.testing.assert_allclose(kernel, free * np.minimum(1, 0.9 / norms), rtol=1e-5, atol=1e-7)
  for bias, free in zip(biases(found), biases(plain), strict=True):
    np.testing.assert_array_equal(bias, free)


@pytest.mark.thorough
def test_a_proximal_step_has_the_threshold_of_the_learning_rate():
  _, plain, _ = stepped()
  fields = {"optimizer__constraints__names": ("prox_l1",), "optimizer__constraints__prox_l1__weight": 0.5}
  _, found, _ = stepped(**fields)
  for kernel, free in zip(kernels(found), kernels(plain), strict=True):
    wanted = np.sign(free) * np.maximum(np.abs(free) - 0.1 * 0.5, 0)
    np.testing.assert_allclose(kernel, wanted, atol=1e-6)
    assert 0 < (kernel == 0).sum() == (np.abs(free) <= 0.05).sum()


@pytest.mark.thorough
@pytest.mark.parametrize("name", REGISTRY["noise"])
def test_noise_is_there_in_training_and_gone_without_it(name):
  """Without noise in it, the step is that of the plain network."""
  silent = "std" if name in ("gaussian_noise", "weight_noise") else "rate"
  start, plain, _ = stepped()
  before, found, _ = stepped(noise__names=(name,))
  chex.assert_trees_all_equal(start, before)
  assert any((one != other).any() for one, other in zip(kernels(found), kernels(plain), strict=True))
  _, none, _ = stepped(**{"noise__names": (name,), f"noise__{name}__{silent}": 0.0})
  chex.assert_trees_all_close(none, plain, rtol=1e-7, atol=1e-6)


@pytest.mark.thorough
def test_noises_draw_differently():
  """Two of one kind, in another order: other numbers."""
  both = ("weight_noise", "dropconnect_params")
  first, second = stepped(noise__names=both)[1], stepped(noise__names=both[::-1])[1]
  assert (kernels(first)[0] != kernels(second)[0]).any()


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"noise.names": ("weight_nose",)}, r"noise\.names: got 'weight_nose', .*did you mean 'weight_noise'\?"),
    ({"optimizer.constraints.names": ("maxnorm",)}, r"optimizer\.constraints\.names: got 'maxnorm'"),
    (
      {"noise.names": ("gaussian_noise",), "noise.gaussian_noise.kind": "both"},
      "kind: got 'both', allowed are additive, multiplicative",
    ),
    ({"optimizer.constraints.names": ("prox_l1",), "optimizer.constraints.prox_l1.weight": -1.0}, "weight"),
    ({"optimizer.constraints.names": ("max_norm",), "optimizer.constraints.max_norm.limit": 0.0}, "limit"),
    ({"regularizers.names": ("tying",)}, r"^regularizers\.tying\.pairs: must hold at least one pair"),
    ({"optimizer.weight_decay.mask": "kernels"}, r"optimizer\.weight_decay\.mask: got 'kernels'"),
    ({"regularizers.names": ("fgsn",)}, r"regularizers\.names: got 'fgsn'.*did you mean 'fgsm'"),
    ({"regularizers.names": ("mean_teacher",)}, r"average\.name=ema"),
    ({"average.name": "swa", "average.swa.start": 1.0}, r"average\.swa\.start: must lie in"),
    ({"average.name": "swag", "average.swag.rank": 1}, r"average\.swag\.rank: must be at least 2"),
    ({"average.name": "swag", "evaluate.mc_samples": 5}, "swag draws parameters"),
    ({"average.name": "early_stopping", "average.early_stopping.patience": 0}, "patience"),
    (
      {"average.name": "swa", "model.name": "CifarResNet"},
      r"average\.name: .* statistics, such as BatchNorm's",
    ),
    ({"ensemble": 2, "replicas": 3}, "ensemble: must divide replicas"),
    (
      {"average.name": "early_stopping", "ensemble": 2, "replicas": 2},
      r"average\.name: early_stopping is for",
    ),
    ({"data.unlabelled.batch_size": 8}, "no training examples are left over"),
    ({"data.subset.per_class": 10, "data.unlabelled.batch_size": 2000}, "must be at most 978"),
    (
      {
        "data.subset.per_class": 10,
        "data.unlabelled.batch_size": 8,
        "augment.names": ("mixup",),
        "regularizers.names": ("entropy",),
      },
      "mixup mixes labels",
    ),
    ({"data.subset.per_class": 10, "data.unlabelled.batch_size": 8}, "no term uses examples without"),
    ({"regularizers.names": ("fgsm",), "regularizers.fgsm.clip": (1.0, 0.0)}, "clip: must be"),
    ({"average.name": "swa", "average.swa.every": -1}, r"average\.swa\.every"),
    ({"optimizer.name": "path_sgd", "method.name": "cosface"}, "path_sgd needs a head"),
    ({"model.unbalance": 1.0, "model.MLP.widths": (), "model.MLP.dropout_rate": 0.0}, r"model\.unbalance"),
    (
      {
        "optimizer.schedule.name": "step",
        "optimizer.schedule.step.relative": True,
        "optimizer.schedule.step.boundaries": (3,),
      },
      "fractions of the run",
    ),
    ({"data.subset.per_class": 10, "data.unlabelled.batch_size": 8, "accumulate": 2}, "accumulate=1"),
    (
      {"method.name": "logit_adjustment"},
      r"method\.logit_adjustment\.loss\.class_counts: must be 10 numbers above 0",
    ),
  ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.train(
      runs.make_config({"method.name": "softmax", "data.subset.limit": 0, **fields}), tmp_path / "run"
    )
  assert not (tmp_path / "run").exists()


def test_the_toolbox_has_every_name(monkeypatch):
  monkeypatch.syspath_prepend(str(runs.ROOT))
  toolbox = importlib.import_module("configs.toolbox_digits").TOOLBOX
  assert {name.removesuffix("_params") for name in TABLES} | set(OTHERS) == set(toolbox)
  reached = {
    name
    for fields in toolbox.values()
    for field in fields
    if field.endswith(".names")
    for name in fields[field]
  }
  assert set(NAMED) <= reached


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
def test_every_one_trains_on_digits(tmp_path, monkeypatch, name):
  """The command's config for some epochs: far better than chance."""
  monkeypatch.syspath_prepend(str(runs.ROOT))
  name = name.removesuffix("_params")
  config = importlib.import_module("configs.toolbox_digits").get_config(name)
  epochs = 100 if config.data.unlabelled.batch_size else 12  # of two steps, where few have labels
  for field, value in {
    "epochs": epochs,
    "eval_every": epochs,
    "checkpoint.every": epochs,
  }.items():
    config.update_from_flattened_dict({field: value})
  if name == "distillation":
    teacher = importlib.import_module("configs.toolbox_digits").get_config("none")
    config.teacher.workdir = str(tmp_path / "teacher")
    train.train(teacher, tmp_path / "teacher")
  results = train.train(config, tmp_path / "run")
  assert results["test/error"] < 0.4

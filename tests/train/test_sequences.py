"""Labels of sequences: each counts as an example does, and padding as nothing."""

import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_text
from scipy.special import log_softmax

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data import dataset as data
from jaxreg.train.data import sources
from jaxreg.train.data.batches import gather
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.step.batch import make_examples

QUIET = {"model.Transformer.dropout_rate": 0.0, "data.subset.limit": 16}


@functools.cache
def prepared(text_folder, **changes):
  """The program, its first state and a batch of all 16 training examples."""
  fields = {f"data.parallel_text.{name}": value for name, value in changes.items() if name != "accumulate"}
  config = toy_text.make_config(text_folder, {**QUIET, **fields, "accumulate": changes.get("accumulate", 1)})
  dataset = load_data(config)
  program = build(config, dataset.describe())
  return program, jax.jit(program.init)(0), dataset.train


@functools.cache
def jitted(text_folder, **changes):
  program, _, _ = prepared(text_folder, **changes)
  return jax.jit(lambda state, batch: program.train_step(state, gather({}, batch)))


def stepped(text_folder, split=None, weights=None, **changes):
  _, state, own = prepared(text_folder, **changes)
  split = own if split is None else split
  weights = np.ones(16, np.float32) if weights is None else weights
  batch = {"inputs": split.inputs, "labels": split.labels, "weights": weights}
  return jax.device_get(jitted(text_folder, **changes)(state, batch))


@functools.cache
def evaluated(text_folder, **changes):
  program, state, split = prepared(text_folder, **changes)
  batch = gather({}, {"inputs": jnp.asarray(split.inputs), "labels": jnp.asarray(split.labels)})
  return jax.device_get(jax.jit(program.eval_step)(state, batch, 0))


def value(metric):
  total, count = metric
  return float(total) / float(count)


def test_what_is_a_token():
  assert [data.is_tokens(dtype) for dtype in ("int32", np.dtype("int64"), jnp.int32)] == [True] * 3
  assert not any(
    data.is_tokens(dtype) for dtype in ("uint8", np.dtype("uint8"), jnp.uint8, "float32", "bfloat16")
  )


def test_weights_of_sequences():
  labels = jnp.array([[3, 1, -1], [2, -1, -1], [0, 0, 0]])
  weights = lambda **given: np.asarray(
    make_examples({"inputs": labels, "labels": labels, **given}, 1.0).weights
  )
  np.testing.assert_array_equal(weights(), [[1, 1, 0], [1, 0, 0], [1, 1, 1]])
  given = jnp.array([1.0, 0.0, 2.0])
  np.testing.assert_array_equal(weights(weights=given), [[1, 1, 0], [0, 0, 0], [2, 2, 2]])


@pytest.mark.thorough
def test_the_loss_is_the_mean_over_the_tokens(text_folder):
  program, state, split = prepared(text_folder)
  apply = jax.jit(lambda params, x: program.apply_fn(params, {}, x, key=None, train=False)[0])
  outputs = apply(state.params, split.inputs)
  log_probs = log_softmax(np.asarray(outputs["logits"], np.float64), axis=-1)
  counts = split.labels >= 0
  nll = -np.take_along_axis(log_probs, np.maximum(split.labels, 0)[..., None], -1)[..., 0]
  smoothed = 0.9 * nll - 0.1 * log_probs.mean(axis=-1)
  _, metrics = stepped(text_folder)
  assert metrics["loss"][1] == counts.sum() < counts.size
  assert value(metrics["loss"]) == pytest.approx(smoothed[counts].mean(), rel=1e-5)
  right = log_probs.argmax(-1) == split.labels
  assert value(metrics["accuracy"]) == pytest.approx(right[counts].mean(), rel=1e-6)
  found = evaluated(text_folder)
  assert value(found["nll"]) == pytest.approx(nll[counts].mean(), rel=1e-5)
  assert value(found["error"]) == pytest.approx(1 - right[counts].mean(), rel=1e-6)
  assert found["ece"].count.sum() == counts.sum()


@pytest.mark.slow
def test_padding_to_a_greater_length_changes_nothing(text_folder):
  longer = {"source_length": 16, "target_length": 15}
  (one, ours), (other, theirs) = stepped(text_folder), stepped(text_folder, **longer)
  for name in ("loss", "label_smoothing", "accuracy", "grad_norm"):
    np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, err_msg=name)
  flat = lambda state: np.concatenate([x.ravel() for x in jax.tree.leaves(state.opt_state["adam"][0].mu)])
  np.testing.assert_allclose(flat(one), flat(other), atol=1e-5 * np.abs(flat(one)).max())
  ours, theirs = evaluated(text_folder), evaluated(text_folder, **longer)
  chex.assert_trees_all_close(ours, theirs, rtol=2e-5, atol=1e-5)


@pytest.mark.thorough
def test_an_example_of_weight_0_counts_for_nothing(text_folder):
  split = prepared(text_folder)[2]
  weights = np.ones(16, np.float32)
  weights[[3, 5]] = 0
  inputs, labels = split.inputs.copy(), split.labels.copy()
  inputs[[3, 5]], labels[[3, 5]] = 7, 9
  _, one = stepped(text_folder, weights=weights)
  _, other = stepped(text_folder, Split(inputs, labels), weights)
  assert one["loss"][1] == (split.labels[weights > 0] >= 0).sum()
  chex.assert_trees_all_equal(one, other)


@pytest.mark.thorough
def test_accumulated_parts_weigh_what_their_tokens_weigh(text_folder):
  (_, ours), (_, theirs) = stepped(text_folder), stepped(text_folder, accumulate=2)
  for name in ("loss", "accuracy", "grad_norm"):
    np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, err_msg=name)


# What does not fit together.


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"data.subset.per_class": 3}, "data.subset: needs one class per example, got 13 labels; leave it at 0"),
    ({"data.subset.num_classes": 3}, "data.subset: needs one class per example"),
    ({"augment.names": ("flip",)}, "augment: is for images, and the inputs of data.parallel_text are tokens"),
    ({"augment.mean": (0.5,), "augment.std": (1.0,)}, "augment: is for images"),
    ({"model.name": "MLP"}, "model.name: MLP takes nothing from the data, which give vocab_size"),
    ({"model.Transformer.num_heads": 0}, "num_heads: must be at least 1 and at most 1e4, got 0"),
    (
      {"data.name": "digits"},
      "Transformer takes vocab_size, source_length from the data, which give input_shape",
    ),
  ],
)
def test_mistakes_are_told(text_folder, tmp_path, fields, message):
  with pytest.raises(train.RunError, match=message) as refused:
    train.train(toy_text.make_config(text_folder, fields), tmp_path / "run")
  assert "\n" not in str(refused.value)
  assert not (tmp_path / "run").exists()


def test_labels_of_sequences_are_checked():
  tokens, labels = np.ones((2, 3), np.int32), np.array([[0, -1], [1, 5]])
  splits = lambda labels: [Split(tokens + number, labels) for number in range(3)]
  make = lambda labels: Dataset(*splits(labels), num_classes=6).checked()
  assert make(labels).describe().label_shape == (2,)
  with pytest.raises(train.RunError, match="label 6 at position 1, 1 is out of range"):
    make(labels + np.array([[0, 0], [0, 1]]))
  with pytest.raises(train.RunError, match="label -2 at position 0, 0"):
    make(labels - 2)
  with pytest.raises(train.RunError, match="labels are \\(1,\\), in the train split \\(2,\\)"):
    Dataset(Split(tokens, labels), Split(tokens, labels[:, :1]), Split(tokens, labels), 6).checked()
  # Pixels have one label each.
  with pytest.raises(train.RunError, match=r"labels must be integers \[n\]"):
    Split(tokens.astype(np.uint8), labels).check("here")


def test_a_description_comes_back_from_json():
  tokens, labels = np.ones((2, 3), np.int32), np.array([[0, -1], [1, 5]])
  sequences = Dataset(*(Split(tokens, labels) for _ in range(3)), num_classes=6, class_names=tuple("abcdef"))
  for spec in (sources.digits().describe(), sequences.describe()):
    assert data.DataSpec.from_table(json.loads(json.dumps(spec.table()))) == spec

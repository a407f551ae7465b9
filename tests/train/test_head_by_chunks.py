"""`method.chunk_size`: the step and the evaluation of all logits, without all logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
import toy_text
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.errors import RunError

SIZE = {"method.chunk_size": 7}  # of 16 x 13 labels: 29 chunks and a rest
PLAIN = {"optimizer.name": "sgd", "optimizer.schedule.name": "constant", "optimizer.learning_rate": 0.1}


@functools.cache
def programs(folder, **fields):
  """The program of all logits and that by chunks, a state, and a batch whose last examples do not count."""
  dotted = {name.replace("__", "."): value for name, value in fields.items()}
  made = []
  for more in ({}, SIZE):
    config = toy_text.make_config(folder, {**PLAIN, **dotted, **more})
    dataset = load_data(config)
    made.append(build(config, dataset.describe()))
  inputs, labels = (jnp.asarray(x[:16]) for x in (dataset.train.inputs, dataset.train.labels))
  batch = {"inputs": inputs, "labels": labels, "weights": (jnp.arange(16) < 13).astype(jnp.float32)}
  return *made, jax.jit(made[0].init)(0), batch


def close(found, expected, tol=1e-5):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "name",
  ["label_smoothing", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("focal", "cosface"))],
)
def test_the_step_is_that_of_all_logits(name, text_folder):
  """With dropout and noise on the parameters."""
  noise = {"noise__names": ("weight_noise",), "method__name": name}
  whole, chunked, state, batch = programs(text_folder, **noise)
  close(jax.jit(chunked.train_step)(state, batch), jax.jit(whole.train_step)(state, batch))


@pytest.mark.thorough
def test_dropmax_has_the_means_of_its_random_terms(text_folder):
  """The terms that draw nothing are the same; the others have draws of their own."""
  whole, chunked, state, batch = programs(text_folder, method__name="dropmax")
  (_, found), (_, expected) = (jax.jit(one.train_step)(state, batch) for one in (chunked, whole))
  assert found.keys() == expected.keys()
  for name in ("kl", "neg_entropy", "auxiliary"):
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
  for name in found:
    np.testing.assert_allclose(found[name][0], expected[name][0], rtol=0.2, atol=1e-3, err_msg=name)


@pytest.mark.thorough
def test_evaluation_is_that_of_all_logits(text_folder):
  whole, chunked, state, batch = programs(text_folder)
  close(jax.jit(chunked.eval_step)(state, batch, 0), jax.jit(whole.eval_step)(state, batch, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param("Auto", marks=pytest.mark.thorough), "Explicit"])
def test_examples_and_classes_split_over_devices(kind, text_folder):
  whole, chunked, state, batch = programs(text_folder)
  axes = (getattr(AxisType, kind),) * 2
  mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=axes)
  place = lambda tree, spec: jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), tree)
  placed = place(state, P())
  if kind == "Auto":
    kernel = place(state.params["head"]["classifier"]["kernel"], P(None, "model"))
    head = {**placed.params["head"], "classifier": {**placed.params["head"]["classifier"], "kernel": kernel}}
    placed = placed.replace(params={**placed.params, "head": head})
  with jax.set_mesh(mesh):
    found = jax.jit(chunked.train_step)(placed, place(batch, P("data")))
    metrics = jax.jit(chunked.eval_step)(placed, place(batch, P("data")), 0)
  close(jax.device_get(found), jax.jit(whole.train_step)(state, batch))
  close(jax.device_get(metrics), jax.jit(whole.eval_step)(state, batch, 0))


@pytest.mark.thorough
def test_neither_step_nor_evaluation_has_all_logits():
  """Memory of a vocabulary of 4096 and 2048 labels; all logits are 32 MiB."""
  config = runs.make_config(
    {**SIZE, "method.chunk_size": 64, "model.Transformer.dropout_rate": 0.0, "batch_size": 64},
    base=toy_text.TINY,
  )
  vocabulary = {"vocab_size": 4096, "source_length": 32}
  data = DataSpec((64,), "int32", 4096, {"train": 64}, label_shape=(32,), model=vocabulary)
  logits = 4 * 64 * 32 * 4096
  program = build(config, data)
  batch = {
    "inputs": jax.ShapeDtypeStruct((64, 64), jnp.int32),
    "labels": jax.ShapeDtypeStruct((64, 32), jnp.int32),
  }
  for step, given in ((program.train_step, (batch,)), (program.eval_step, (batch, 0))):
    compiled = jax.jit(step).lower(program.abstract, *given).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < logits / 2


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"method.name": "softmax", "regularizers.names": ("z_loss",)}, "must be 0 with z_loss in"),
    ({"method.name": "softmax", "augment.names": ("manifold_mixup",)}, "must be 0 with manifold_mixup"),
    (
      {"data.name": "diabetes", "method.name": "huber"},
      "must be 0 with method.name=huber, which has no classes",
    ),
    ({"method.chunk_size": -1}, "must be at least 0"),
  ],
)
def test_what_needs_all_logits_is_refused(fields, message):
  def built():
    config = runs.make_config({"method.chunk_size": 8, **fields})
    return build(config, load_data(config).describe())

  with pytest.raises(RunError, match=f"method.chunk_size: {message}"):
    built()

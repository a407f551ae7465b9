"""In bfloat16 the layers compute, and nothing else does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from jax.extend.core import ClosedJaxpr, Jaxpr

from jaxreg import train
from jaxreg._dropmax_masks import dropmax_log_mask
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.methods.method import NUMBERS
from jaxreg.train.registry import REGISTRY

CASES = {
  "MLP": {"model.name": "MLP", "model.MLP.widths": (8, 8)},
  "LeNet": {"model.name": "LeNet"},
  "CifarResNet": {"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "model.CifarResNet.width": 4},
}


@functools.cache
def program(model, precision, method="dropmax"):
  predicts = REGISTRY["method"][method].function.predicts
  classes = 0 if predicts in NUMBERS else 2 if predicts == "yes or no" else 10
  data = DataSpec(
    num_classes=classes,
    label_mean=() if classes else (0.0,),
    label_std=() if classes else (1.0,),
    input_shape=(28, 28, 1),
    input_dtype="uint8",
    scale=255.0,
    sizes={"train": 64},
  )
  fields = {**CASES[model], "precision": precision, "method.name": method}
  fields |= {"batch_size": 16, "augment.mean": (0.5,)}
  fields |= {"method.logit_adjustment.loss.class_counts": (1.0,) * 10}
  fields |= {"method.forward_correction.loss.transitions": tuple(np.eye(10).ravel().tolist())}
  return build(runs.make_config({**fields, "augment.std": (0.5,)}), data)


def equations(jaxpr):
  """All of them, also inside others."""
  for equation in jaxpr.eqns:
    yield equation
    for value in jax.tree.leaves(
      list(equation.params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)
    ):
      if isinstance(value, ClosedJaxpr):
        yield from equations(value.jaxpr)
      elif isinstance(value, Jaxpr):
        yield from equations(value)


def products(function, *arguments):
  """The dtypes of the operands of every matrix product and convolution."""
  found = equations(jax.make_jaxpr(function)(*arguments).jaxpr)
  return [
    tuple(str(operand.aval.dtype) for operand in equation.invars[:2])
    for equation in found
    if equation.primitive.name in ("dot_general", "conv_general_dilated")
  ]


def batch():
  return {
    "inputs": jax.ShapeDtypeStruct((16, 28, 28, 1), jnp.uint8),
    "labels": jax.ShapeDtypeStruct((16,), jnp.int32),
    "weights": jax.ShapeDtypeStruct((16,), jnp.float32),
  }


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("model", CASES)
def test_layers_compute_in_it(model, precision):
  built = program(model, precision)
  found = products(built.train_step, built.abstract, batch())
  # Forward and both gradients of at least three layers.
  assert len(found) >= 8
  assert set(found) == {(precision, precision)}


@pytest.mark.thorough
@pytest.mark.parametrize("model", CASES)
def test_what_is_kept_and_what_is_lost_is_float32(model):
  built = program(model, "bfloat16")
  after, metrics = jax.eval_shape(built.train_step, built.abstract, batch())
  assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
    lambda x: (x.shape, x.dtype), built.abstract
  )
  for tree in (after.params, after.opt_state, after.model_state, metrics):
    kinds = {str(x.dtype) for x in jax.tree.leaves(tree)}
    assert kinds <= {"float32", "int32"}, kinds
  if model == "CifarResNet":
    assert len(jax.tree.leaves(after.model_state)) > 8

  def masks(params, model_state, key):
    x = jnp.zeros((16, 28, 28, 1))
    outputs, _ = built.apply_fn(params, model_state, x, key=key, train=True)
    posterior = outputs["retain_logits"] + outputs["residual_logits"]
    return outputs["logits"], dropmax_log_mask(key, posterior, jnp.zeros(16, jnp.int32))

  logits, mask = jax.eval_shape(masks, built.abstract.params, built.abstract.model_state, jax.random.key(0))
  assert logits.dtype == jnp.bfloat16
  assert mask.dtype == jnp.float32


@pytest.mark.thorough
@pytest.mark.parametrize("model", CASES)
def test_without_it_nothing_is_bfloat16(model):
  assert train.base_config().precision == "float32"
  for precision, found in (("float32", False), ("bfloat16", True)):
    built = program(model, precision)
    for function, arguments in ((built.train_step, ()), (built.eval_step, (0,))):
      assert ("bf16" in str(jax.make_jaxpr(function)(built.abstract, batch(), *arguments))) == found


MOVES = ("broadcast_in_dim", "reshape", "select_n", "stop_gradient", "transpose")
CALLS = ("custom_vjp_call", "jit", "pjit", "scan")


@pytest.mark.thorough
@pytest.mark.parametrize("method", REGISTRY["method"])
def test_losses_and_predictions_begin_by_widening(method):
  """Metrics are cast to the dtype of the weights, and would not show a loss made in bfloat16."""
  built = program("MLP", "bfloat16", method)
  labels = np.zeros(16, np.float32 if built.method.predicts in NUMBERS else np.int32)
  state, key = built.abstract, jax.random.key(0)
  forward = functools.partial(built.apply_fn, key=key, train=True)
  outputs, _ = jax.eval_shape(
    forward, state.params, state.model_state, jax.eval_shape(built.examples, batch()).inputs
  )
  assert {str(x.dtype) for x in jax.tree.leaves(outputs)} == {"bfloat16"}
  for function in (
    lambda outputs: built.method.loss(
      *built.method.key_for("loss", key), **outputs, **{built.method.labels: labels}
    ),
    lambda outputs: built.method.predicted(key, outputs),
  ):
    jaxpr, results = jax.make_jaxpr(function, return_shape=True)(outputs)
    assert {str(x.dtype) for x in jax.tree.leaves(results)} == {"float32"}
    narrow = lambda variables: any(getattr(x.aval, "dtype", None) == jnp.bfloat16 for x in variables)
    taking = [equation for equation in equations(jaxpr.jaxpr) if narrow(equation.invars)]
    assert taking
    # Nothing is computed into bfloat16, only moved; a product of bfloat16 numbers is summed in float32.
    allowed = {"convert_element_type", *MOVES}
    if method == "group_softmax":
      allowed |= {"dot_general", *CALLS}
    assert {equation.primitive.name for equation in taking} <= allowed
    assert {e.primitive.name for e in taking if narrow(e.outvars)} <= {*MOVES, *CALLS}

"""Makes the subject of the flatness analyses from a run: its loss as a function of its parameters."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import flatness
from jaxreg.flatness._common import analysis
from jaxreg.train.jobs.flatness.subject import Outputs, Subject
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, LossFn, ModelState, Params


def with_weights(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The batch with weights such that its mean, and the mean of any part of it, weighs each label equally.

  So an example with more tokens has more weight. A label of -1 has none.
  """
  counts = batch["labels"] >= 0
  return {**batch, "weights": (counts * (len(counts) / counts.sum())).astype(np.float32)}


def draws_noise(program: Program, batch: Batch) -> bool:
  """Whether the network or its loss on a training batch draws random numbers; `batch` is for its shapes."""
  state = program.abstract

  def terms(key: Key, params: Params, model_state: ModelState, batch: Batch) -> dict[str, Array]:
    apply_key, loss_key = jax.random.split(key)
    outputs, _ = program.apply_fn(
      params, model_state, program.examples(batch).inputs, key=apply_key, train=True
    )
    return program.method.loss(loss_key, labels=batch["labels"], **outputs, **program.loss_options)

  # Keys are passed even without noise; only `random_bits` shows a draw.
  traced = jax.make_jaxpr(terms)(jax.random.key(0), state.params, state.model_state, batch)
  return "random_bits" in str(traced)


def make_subjects(
  program: Program, params: Params, batch: Batch, mask: tuple[str, ...], parts: int = 1
) -> Callable[[TrainState], Subject]:
  """Builds `state -> Subject`; all states share the compiled functions."""
  path, bias = _dense_path(params, mask)

  def examples_fn(
    params: Params, model_state: ModelState, z: Array | None, batch: Batch, *, key: Key | None
  ) -> Array:
    # Without noise, a method that draws in its loss still needs a key: always the same one.
    apply_key, loss_key = (None, jax.random.key(0)) if key is None else jax.random.split(key)
    replaced = contextlib.nullcontext() if z is None else nn.intercept_methods(_replacing(path, z))
    with replaced:
      outputs, _ = program.apply_fn(
        params, model_state, program.examples(batch).inputs, key=apply_key, train=key is not None
      )
    return losses_of(loss_key, outputs, batch)

  def losses_of(key: Key | None, outputs: Mapping[str, Array], batch: Batch) -> Array:
    examples = program.examples(batch)
    weights = examples.label_weights
    terms = program.method.loss(key, labels=examples.labels, **outputs, **program.loss_options)
    losses = jnp.where(weights > 0, sum(terms.values(), start=jnp.zeros(())) * weights, 0)
    return losses.reshape(len(weights), -1).sum(axis=1)

  def outputs_with(model_state: ModelState) -> Outputs | None:
    forward = lambda params, batch: program.apply_fn(
      params, model_state, program.examples(batch).inputs, key=None, train=False
    )[0]
    shapes = jax.eval_shape(forward, params, batch)
    # Of a sequence's outputs there are too many.
    if set(shapes) != {"logits"} or shapes["logits"].ndim != 2:
      return None
    return Outputs(
      lambda params, batch, *, key: forward(params, batch)["logits"],
      lambda logits, batch: losses_of(jax.random.key(0), {"logits": logits}, batch).mean(),
    )

  def loss_with(model_state: ModelState) -> LossFn:
    return lambda params, batch, *, key: examples_fn(params, model_state, None, batch, key=key).mean()

  plain, plain_outputs = loss_with({}), functools.cache(lambda: outputs_with({}))

  @analysis
  def layer_at(state: TrainState) -> tuple[flatness.DenseLayer | None, bool]:
    if not path:
      return None, False
    calls: list[tuple[Array, Array]] = []
    examples = program.examples(batch)
    with nn.intercept_methods(_recording(path, calls)):
      program.apply_fn(state.params, state.model_state, examples.inputs, key=None, train=False)
    if len(calls) != 1 or calls[0][1].ndim != 2:
      return None, False
    (inputs, preactivations), noisy = calls[0], []
    with nn.intercept_methods(_recording(path, noisy)):
      program.apply_fn(
        state.params, state.model_state, program.examples(batch).inputs, key=jax.random.key(0), train=True
      )
    all_noise = not state.model_state and bool((noisy[0][0] == inputs).all())
    # A pytree, so that the parameters do not become constants of the compiled function.
    head = jax.tree_util.Partial(examples_fn, state.params, state.model_state)
    return flatness.DenseLayer(head, preactivations, inputs, batch, bias), all_noise

  def subject(state: TrainState) -> Subject:
    loss_fn, outputs = plain, plain_outputs
    if state.model_state:
      loss_fn = loss_with(state.model_state)
      outputs = functools.cache(lambda: outputs_with(state.model_state))
    return Subject(
      loss_fn, state.params, batch, mask, *layer_at(state), outputs, parts, bool(state.model_state)
    )

  return subject


def _dense_path(params: Params, mask: tuple[str, ...]) -> tuple[str, bool]:
  """The path of the dense layer whose kernel, and perhaps bias, is all that is selected; else empty.

  The second value says whether the bias is selected.
  """
  part = flatness.subset(params, mask)
  names = part.names
  parents = {name.rpartition("/")[0] for name in names}
  kinds = {name.rpartition("/")[2] for name in names}
  if len(parents) != 1 or kinds not in ({"kernel"}, {"kernel", "bias"}):
    return "", False
  path = parents.pop()
  layer = functools.reduce(lambda tree, name: tree[name], path.split("/"), params)
  return (path, "bias" in kinds) if layer["kernel"].ndim == 2 else ("", False)


def _recording(path: str, calls: list[tuple[Array, Array]]) -> Callable[..., Any]:
  """Records the inputs and outputs of the module at `path` in `calls`."""

  def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    result = call(*args, **kwargs)
    if context.method_name == "__call__" and "/".join(context.module.path) == path:
      calls.append((args[0], result))
    return result

  return intercept


def _replacing(path: str, z: Array) -> Callable[..., Any]:
  """Replaces the output of the module at `path` by `z`."""

  def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    if context.method_name == "__call__" and "/".join(context.module.path) == path:
      return z
    return call(*args, **kwargs)

  return intercept

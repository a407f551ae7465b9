"""What the analyses of flatness look at: a run's loss as a function of its parameters, over some examples."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import flatness
from jaxreg.flatness._common import analysis
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, LossFn, ModelState, Params

CHUNK = 1000


@dataclasses.dataclass(frozen=True)
class DenseLayer:
  """The one dense layer whose parameters count, which each example passes once.

  All that is known of such a layer comes from a few matrix products, instead of a pass over the examples for
  each parameter.

  Attributes:
    inputs: `[n, inputs]`.
    preactivations: `[n, units]`.
    head_fn: `(z, batch, *, key) -> [n]`, from the layer's outputs to the losses of the examples.
    bias: whether its bias counts.
  """

  inputs: Array
  preactivations: Array
  head_fn: Callable[..., Array]
  bias: bool


@dataclasses.dataclass(frozen=True)
class Subject:
  """A network at one point of its training, and the parameters that count.

  Attributes:
    loss_fn: `(params, batch, *, key) -> scalar`; without a key nothing is dropped, and BatchNorm uses its
      running averages.
    params: all parameters.
    batch: the examples, `with_weights`.
    where: selects the parameters that count.
    layer: if they are one dense layer's.
  """

  loss_fn: LossFn
  params: Params
  batch: Batch
  where: tuple[str, ...]
  layer: DenseLayer | None

  @property
  def size(self) -> int:
    """How many parameters count."""
    return flatness.subset(self.params, self.where).flat.size

  @analysis
  def loss(self) -> float:
    """The mean over the examples, without noise."""
    return float(self.loss_fn(self.params, self.batch, key=None))

  def hessian(self) -> Array:
    """`[size, size]`."""
    if self.layer is None:
      return flatness.hessian(self.loss_fn, self.params, self.batch, where=self.where)
    return self._hessian_block(self.layer).matrix()

  def covariance(self, key: Key, num_masks: int) -> Array:
    """That of the gradient under noise drawn for each example, `[size, size]`."""
    if self.layer is None:
      return flatness.per_example_noise_covariance(
        self.loss_fn, self.params, self.batch, key=key, num_masks=num_masks, where=self.where
      )
    return self._noise_block(self.layer, key, num_masks).matrix()

  def alignment(self, key: Key, num_masks: int) -> flatness.Alignment:
    """Of the Hessian with that covariance."""
    if self.layer is None:
      return flatness.hessian_variance_alignment(self.hessian(), self.covariance(key, num_masks))
    return flatness.hessian_variance_alignment(
      self._hessian_block(self.layer), self._noise_block(self.layer, key, num_masks)
    )

  def intervals(self, directions: Array, factor: float) -> flatness.IntervalFlatness:
    """The interval flatness along each row."""
    if self.layer is None:
      return flatness.interval_flatness(
        self.loss_fn, self.params, directions, self.batch, where=self.where, factor=factor
      )
    head_fn, z, h = self.layer.head_fn, self.layer.preactivations, self.layer.inputs
    return flatness.dense_interval_flatness(
      head_fn, z, h, directions, self.batch, bias=self.layer.bias, factor=factor
    )

  def gradients(self, key: Key, first: int, num: int) -> Array:
    """Samples `first` to `first + num` of the gradient under noise, `[num, size]`."""
    return flatness.sample_gradients(
      self.loss_fn, self.params, self.batch, key=key, num=num, first=first, where=self.where
    )

  def _hessian_block(self, layer: DenseLayer) -> flatness.DenseBlock:
    return flatness.dense_hessian(
      layer.head_fn, layer.preactivations, layer.inputs, self.batch, bias=layer.bias, chunk_size=CHUNK
    )

  def _noise_block(self, layer: DenseLayer, key: Key, num_masks: int) -> flatness.DenseBlock:
    return flatness.dense_noise_covariance(
      layer.head_fn,
      layer.preactivations,
      layer.inputs,
      self.batch,
      key=key,
      num_masks=num_masks,
      bias=layer.bias,
      chunk_size=CHUNK,
    )


def with_weights(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Examples with weights by which the mean over them, or over any part that is drawn of them, counts each
  label alike: examples with more tokens count for more. A label of -1 counts for nothing."""
  counts = batch["labels"] >= 0
  return {**batch, "weights": (counts * (len(counts) / counts.sum())).astype(np.float32)}


def draws_noise(program: Program, batch: Batch) -> bool:
  """Whether the network or its loss on a training batch draws random numbers; `batch` is for its shapes."""
  state = program.abstract

  def terms(key: Key, params: Params, model_state: ModelState, batch: Batch) -> dict[str, Array]:
    apply_key, loss_key = jax.random.split(key)
    outputs, _ = program.apply_fn(params, model_state, batch["inputs"], key=apply_key, train=True)
    return program.method.loss(loss_key, labels=batch["labels"], **outputs, **program.loss_options)

  # Keys are handed on without noise, too; bits are made of them where something is drawn.
  traced = jax.make_jaxpr(terms)(jax.random.key(0), state.params, state.model_state, batch)
  return "random_bits" in str(traced)


def make_subjects(
  program: Program, params: Params, batch: Batch, where: tuple[str, ...]
) -> Callable[[TrainState], Subject]:
  """Builds `state -> Subject`; what is compiled for one state serves for the next.

  Raises:
    ValueError: if `where` selects nothing in `params`.
  """
  path, bias = _dense_path(params, where)

  def examples_fn(
    params: Params, model_state: ModelState, z: Array | None, batch: Batch, *, key: Key | None
  ) -> Array:
    # A method that draws in its loss, too, draws the same where no noise is asked for.
    apply_key, loss_key = (None, jax.random.key(0)) if key is None else jax.random.split(key)
    replaced = contextlib.nullcontext() if z is None else nn.intercept_methods(_replacing(path, z))
    with replaced:
      outputs, _ = program.apply_fn(
        params, model_state, batch["inputs"], key=apply_key, train=key is not None
      )
    labels, weights = jnp.maximum(batch["labels"], 0), batch["weights"]
    terms = program.method.loss(loss_key, labels=labels, **outputs, **program.loss_options)
    losses = jnp.where(weights > 0, sum(terms.values(), start=jnp.zeros(())) * weights, 0)
    return losses.reshape(len(weights), -1).sum(axis=1)

  def loss_with(model_state: ModelState) -> LossFn:
    return lambda params, batch, *, key: examples_fn(params, model_state, None, batch, key=key).mean()

  plain = loss_with({})

  @analysis
  def layer_at(state: TrainState) -> DenseLayer | None:
    if not path:
      return None
    calls: list[tuple[Array, Array]] = []
    with nn.intercept_methods(_recording(path, calls)):
      program.apply_fn(state.params, state.model_state, batch["inputs"], key=None, train=False)
    if len(calls) != 1 or calls[0][1].ndim != 2:
      return None
    (inputs, preactivations), noisy = calls[0], []
    with nn.intercept_methods(_recording(path, noisy)):
      program.apply_fn(state.params, state.model_state, batch["inputs"], key=jax.random.key(0), train=True)
    # Noise before the layer, or BatchNorm, is none of what follows it.
    if state.model_state or not bool((noisy[0][0] == inputs).all()):
      return None
    # A pytree: the parameters are no constants of what is compiled.
    head = jax.tree_util.Partial(examples_fn, state.params, state.model_state)
    return DenseLayer(inputs, preactivations, head, bias)

  def subject(state: TrainState) -> Subject:
    loss_fn = loss_with(state.model_state) if state.model_state else plain
    return Subject(loss_fn, state.params, batch, where, layer_at(state))

  return subject


def _dense_path(params: Params, where: tuple[str, ...]) -> tuple[str, bool]:
  """The path of the one dense layer whose kernel, and perhaps bias, is selected; else empty."""
  part = flatness.subset(params, where)
  names = part.names
  parents = {name.rpartition("/")[0] for name in names}
  kinds = {name.rpartition("/")[2] for name in names}
  if len(parents) != 1 or kinds not in ({"kernel"}, {"kernel", "bias"}):
    return "", False
  path = parents.pop()
  layer = functools.reduce(lambda tree, name: tree[name], path.split("/"), params)
  return (path, "bias" in kinds) if layer["kernel"].ndim == 2 else ("", False)


def _recording(path: str, calls: list[tuple[Array, Array]]) -> Callable[..., Any]:
  """Notes what the module at `path` is given and gives."""

  def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    result = call(*args, **kwargs)
    if context.method_name == "__call__" and "/".join(context.module.path) == path:
      calls.append((args[0], result))
    return result

  return intercept


def _replacing(path: str, z: Array) -> Callable[..., Any]:
  """Puts `z` in the place of what the module at `path` gives."""

  def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    if context.method_name == "__call__" and "/".join(context.module.path) == path:
      return z
    return call(*args, **kwargs)

  return intercept

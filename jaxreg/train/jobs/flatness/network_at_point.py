"""The subject of the flatness analyses: a run's loss as a function of its parameters, over some examples."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
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
PROBES = 3  # random vectors along which the Gauss-Newton matrix must agree with the Hessian
AGREEMENT = 1e-4  # relative; a network that is not piecewise linear differs by some per cent or more


@dataclasses.dataclass(frozen=True)
class DenseLayer:
  """The one dense layer whose parameters are analysed; each example passes it once.

  For such a layer, a few matrix products replace a pass over the examples for each parameter.

  Attributes:
    inputs: `[n, inputs]`.
    preactivations: `[n, units]`.
    head_fn: `(z, batch, *, key) -> [n]`, from the layer's outputs to the losses of the examples.
    bias: whether the layer's bias is analysed, too.
  """

  inputs: Array
  preactivations: Array
  head_fn: Callable[..., Array]
  bias: bool


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The network as outputs of each example, and the loss as a function of them.

  Attributes:
    outputs_fn: `(params, batch, *, key) -> [n, outputs]`.
    outer_loss_fn: `(outputs, batch) -> scalar`.
  """

  outputs_fn: Callable[..., Array]
  outer_loss_fn: Callable[..., Array]


@dataclasses.dataclass(frozen=True)
class Subject:
  """A network at one point of its training, and the parameters that are analysed.

  Attributes:
    loss_fn: `(params, batch, *, key) -> scalar`; with `key=None` nothing is dropped, and BatchNorm uses its
      running averages.
    params: all parameters.
    batch: the examples, from `with_weights`.
    where: selects the parameters that are analysed.
    layer: the layer, if the analysed parameters belong to one dense layer; else None.
    find_outputs: returns the network's outputs, if they are one vector for each example; else None.
  """

  loss_fn: LossFn
  params: Params
  batch: Batch
  where: tuple[str, ...]
  layer: DenseLayer | None
  find_outputs: Callable[[], Outputs | None] = lambda: None

  @property
  def size(self) -> int:
    """The number of parameters that are analysed."""
    return flatness.subset(self.params, self.where).flat.size

  @analysis
  def loss(self) -> float:
    """The mean loss over the examples, without noise."""
    return float(self.loss_fn(self.params, self.batch, key=None))

  def hessian(self) -> Array:
    """The Hessian of the loss, `[size, size]`."""
    if self.layer is not None:
      return self._hessian_block(self.layer).matrix()
    outputs = self.find_outputs()
    if outputs is not None and self.hessian_by == "jacobians":
      return flatness.gauss_newton_matrix(
        outputs.outputs_fn, outputs.outer_loss_fn, self.params, self.batch, where=self.where
      )
    return flatness.hessian(self.loss_fn, self.params, self.batch, where=self.where)

  @functools.cached_property
  def hessian_by(self) -> str:
    """The fastest exact way to the Hessian: `dense layer`, `jacobians` or `products`.

    `jacobians` gives the Gauss-Newton matrix. It counts as the Hessian if their products with random vectors
    agree, as in one layer of a piecewise linear network.
    """
    if self.layer is not None:
      return "dense layer"
    outputs = self.find_outputs()
    if outputs is None:
      return "products"
    hessian = flatness.hvp(self.loss_fn, self.params, self.batch, where=self.where)
    newton = flatness.gauss_newton(
      outputs.outputs_fn, outputs.outer_loss_fn, self.params, self.batch, where=self.where
    )
    for number in range(PROBES):
      vector = jax.random.normal(jax.random.key(number), (self.size,), hessian.like.dtype)
      exact = hessian(vector)
      if not jnp.linalg.norm(newton(vector) - exact) <= AGREEMENT * jnp.linalg.norm(exact):
        return "products"
    return "jacobians"

  def covariance(self, key: Key, num_masks: int) -> Array:
    """The covariance of the gradient under noise that is drawn for each example, `[size, size]`."""
    if self.layer is None:
      return flatness.per_example_noise_covariance(
        self.loss_fn, self.params, self.batch, key=key, num_masks=num_masks, where=self.where
      )
    return self._noise_block(self.layer, key, num_masks).matrix()

  def alignment(self, key: Key, num_masks: int) -> flatness.Alignment:
    """The alignment of the Hessian with `covariance`."""
    if self.layer is None:
      return flatness.hessian_variance_alignment(self.hessian(), self.covariance(key, num_masks))
    return flatness.hessian_variance_alignment(
      self._hessian_block(self.layer), self._noise_block(self.layer, key, num_masks)
    )

  def intervals(self, directions: Array, factor: float) -> flatness.IntervalFlatness:
    """The interval flatness along each row of `directions`."""
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
    outputs, _ = program.apply_fn(params, model_state, batch["inputs"], key=apply_key, train=True)
    return program.method.loss(loss_key, labels=batch["labels"], **outputs, **program.loss_options)

  # Keys are passed even without noise; only `random_bits` shows a draw.
  traced = jax.make_jaxpr(terms)(jax.random.key(0), state.params, state.model_state, batch)
  return "random_bits" in str(traced)


def make_subjects(
  program: Program, params: Params, batch: Batch, where: tuple[str, ...]
) -> Callable[[TrainState], Subject]:
  """Builds `state -> Subject`; all states share the compiled functions.

  Raises:
    ValueError: if `where` selects nothing in `params`.
  """
  path, bias = _dense_path(params, where)

  def examples_fn(
    params: Params, model_state: ModelState, z: Array | None, batch: Batch, *, key: Key | None
  ) -> Array:
    # Without noise, a method that draws in its loss still needs a key: always the same one.
    apply_key, loss_key = (None, jax.random.key(0)) if key is None else jax.random.split(key)
    replaced = contextlib.nullcontext() if z is None else nn.intercept_methods(_replacing(path, z))
    with replaced:
      outputs, _ = program.apply_fn(
        params, model_state, batch["inputs"], key=apply_key, train=key is not None
      )
    return losses_of(loss_key, outputs, batch)

  def losses_of(key: Key | None, outputs: Mapping[str, Array], batch: Batch) -> Array:
    labels, weights = jnp.maximum(batch["labels"], 0), batch["weights"]
    terms = program.method.loss(key, labels=labels, **outputs, **program.loss_options)
    losses = jnp.where(weights > 0, sum(terms.values(), start=jnp.zeros(())) * weights, 0)
    return losses.reshape(len(weights), -1).sum(axis=1)

  def outputs_with(model_state: ModelState) -> Outputs | None:
    forward = lambda params, batch: program.apply_fn(
      params, model_state, batch["inputs"], key=None, train=False
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
    # If there is noise before the layer, or BatchNorm, `head_fn` cannot reproduce the training's noise.
    if state.model_state or not bool((noisy[0][0] == inputs).all()):
      return None
    # A pytree, so that the parameters do not become constants of the compiled function.
    head = jax.tree_util.Partial(examples_fn, state.params, state.model_state)
    return DenseLayer(inputs, preactivations, head, bias)

  def subject(state: TrainState) -> Subject:
    loss_fn, outputs = plain, plain_outputs
    if state.model_state:
      loss_fn = loss_with(state.model_state)
      outputs = functools.cache(lambda: outputs_with(state.model_state))
    return Subject(loss_fn, state.params, batch, where, layer_at(state), outputs)

  return subject


def _dense_path(params: Params, where: tuple[str, ...]) -> tuple[str, bool]:
  """The path of the dense layer whose kernel, and perhaps bias, is all that is selected; else empty.

  The second value says whether the bias is selected.
  """
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

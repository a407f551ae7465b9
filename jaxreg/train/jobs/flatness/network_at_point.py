"""A network at one point of its training, and what `job = flatness` measures there."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import flatness
from jaxreg.flatness._common import analysis
from jaxreg.flatness._covariance import Alignment
from jaxreg.flatness._noise import gradients_of_parts
from jaxreg.flatness._sharpness import IntervalFlatness
from jaxreg.train.data.dataset import known
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.forward import named_terms
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, LossFn, ModelState, Params

AT_ONCE = 250  # examples of a loss or a product at once
PROBES = 3  # random vectors along which the Gauss-Newton matrix must agree with the Hessian
AGREEMENT = 1e-4  # relative; a network that is not piecewise linear differs by some per cent or more

Calls = list[tuple[Array, Array]]  # the input and the output of a module at each call
# The outputs of each example, `(params, batch, *, key) -> [n, outputs]`, and the loss as a function of them,
# `(outputs, batch) -> scalar`.
Split = tuple[Callable[..., Array], Callable[..., Array]]


@dataclasses.dataclass(frozen=True)
class NetworkAtPoint:
  """A network at one point of its training, and the parameters that are analysed.

  With `key=None`, `loss_fn` drops nothing, and BatchNorm uses its running averages.
  """

  loss_fn: LossFn
  params: Params
  batch: Batch  # from `with_weights`
  mask: tuple[str, ...]  # selects the parameters that are analysed
  layer: flatness.DenseLayer | None  # if the analysed parameters belong to one dense layer
  all_noise: bool = False  # whether the layer's head draws all noise, and there is no BatchNorm
  find_split: Callable[[], Split | None] = lambda: None  # None unless each example's outputs are one vector
  parts: int = 1  # of the examples, of whose gradients noise is sampled; 1 for whole gradients
  coupled: bool = False  # whether the training couples the examples, as by BatchNorm

  @functools.cached_property
  def curvature(self) -> flatness.Curvature:
    """The Hessian as products."""
    return flatness.Curvature(self.loss_fn, self.params, self.batch, mask=self.mask, chunk_size=AT_ONCE)

  @property
  def size(self) -> int:
    """The number of parameters that are analysed."""
    return flatness.subset(self.params, self.mask).flat.size

  @analysis
  def loss(self) -> float:
    """The mean loss over the examples, without noise."""
    return float(self.loss_fn(self.params, self.batch, key=None))

  def hessian(self) -> Array:
    """The Hessian of the loss, `[size, size]`."""
    if self.layer is not None:
      return self.layer.hessian().matrix()
    split = self.find_split()
    if split is not None and self.hessian_by == "jacobians":
      return flatness.gauss_newton_matrix(*split, self.params, self.batch, mask=self.mask)
    return flatness.hessian(self.loss_fn, self.params, self.batch, mask=self.mask)

  @functools.cached_property
  def hessian_by(self) -> str:
    """The fastest exact way to the Hessian: `dense layer`, `jacobians` or `products`.

    `jacobians` gives the Gauss-Newton matrix. It counts as the Hessian if their products with random vectors
    agree, as in one layer of a piecewise linear network.
    """
    if self.layer is not None:
      return "dense layer"
    split = self.find_split()
    if split is None:
      return "products"
    hessian = self.curvature
    newton = hessian.gauss_newton(*split)
    for number in range(PROBES):
      vector = jax.random.normal(jax.random.key(number), (self.size,), hessian.like.dtype)
      exact = hessian(vector)
      if not jnp.linalg.norm(newton(vector) - exact) <= AGREEMENT * jnp.linalg.norm(exact):
        return "products"
    return "jacobians"

  def covariance(self, key: Key, num_samples: int) -> Array:
    """The covariance of the gradient under noise that is drawn for each example or part, `[size, size]`."""
    if self.parts > 1:
      noise = flatness.sample_noise_by_parts(
        self.loss_fn, self.params, self.in_parts, key=key, num_samples=num_samples, mask=self.mask
      )
      return noise.T @ noise / len(noise)
    if self.layer is None or not self.all_noise:
      return flatness.per_example_noise_covariance(
        self.loss_fn, self.params, self.batch, key=key, num_samples=num_samples, mask=self.mask
      )
    return self.layer.noise_covariance(key=key, num_samples=num_samples).matrix()

  def alignment(self, key: Key, num_samples: int) -> Alignment:
    """The alignment of the Hessian with `covariance`."""
    if self.layer is None or not self.all_noise or self.parts > 1:
      return flatness.hessian_variance_alignment(self.hessian(), self.covariance(key, num_samples))
    noise = self.layer.noise_covariance(key=key, num_samples=num_samples)
    return flatness.hessian_variance_alignment(self.layer.hessian(), noise)

  def intervals(self, directions: Array, factor: float) -> IntervalFlatness:
    """The interval flatness along each row of `directions`."""
    if self.layer is not None:
      return self.layer.interval_flatness(directions, factor=factor)
    loss_fn = flatness.chunked(self.loss_fn, AT_ONCE)  # on a CPU also faster than all examples at once
    return flatness.interval_flatness(
      loss_fn, self.params, directions, self.batch, mask=self.mask, factor=factor
    )

  def gradients(self, key: Key, first: int, num: int) -> Array:
    """Samples `first` to `first + num` of the gradient under noise, `[num, size]`."""
    return flatness.sample_gradients(
      self.loss_fn, self.params, self.batch, key=key, num_samples=num, first=first, mask=self.mask
    )

  @functools.cached_property
  def in_parts(self) -> list[Batch]:
    """The examples as equal batches, each with every `parts`-th example."""
    return [jax.tree.map(lambda x, j=j: x[j :: self.parts], self.batch) for j in range(self.parts)]

  def part_gradients(self, key: Key, first: int, num: int) -> Array:
    """Draws `first` to `first + num` of the gradient of each part, `[num, parts, size]`."""
    return gradients_of_parts(self.loss_fn, self.params, self.in_parts, key, first, num, self.mask)


def with_weights(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The batch with weights such that its mean, and the mean of any part of it, weighs each label equally.

  So an example with more tokens has more weight. A label that is not known has none.
  """
  counts = known(batch["labels"])
  return {**batch, "weights": (counts * (len(counts) / counts.sum())).astype(np.float32)}


def draws_noise(program: Program, batch: Batch) -> bool:
  """Whether the network or its loss on a training batch draws random numbers; `batch` is for its shapes."""
  state = program.abstract

  def terms(key: Key, params: Params, model_state: ModelState, batch: Batch) -> dict[str, Array]:
    apply_key, loss_key = jax.random.split(key)
    outputs, _ = program.apply_fn(
      params, model_state, program.examples(batch).inputs, key=apply_key, train=True
    )
    own, labels = program.method.key_for("loss", loss_key), {program.method.labels: batch["labels"]}
    return program.method.loss(*own, **labels, **outputs)

  # Keys are passed even without noise; only `random_bits` shows a draw.
  traced = jax.make_jaxpr(terms)(jax.random.key(0), state.params, state.model_state, batch)
  return "random_bits" in str(traced)


def make_networks(
  program: Program, params: Params, batch: Batch, mask: tuple[str, ...], parts: int = 1
) -> Callable[[TrainState], NetworkAtPoint]:
  """Builds `state -> NetworkAtPoint`; all states share the compiled functions."""
  path, bias = _dense_path(params, mask)

  def examples_fn(
    params: Params, model_state: ModelState, z: Array | None, batch: Batch, *, key: Key | None
  ) -> Array:
    # Without noise, a method that draws in its loss still needs a key: always the same one.
    apply_key, loss_key = (None, jax.random.key(0)) if key is None else jax.random.split(key)
    examples = program.examples(batch)
    if z is None:
      weights = examples.label_weights
      losses = program.losses(params, model_state, examples, key=key)
      losses = jnp.where(weights > 0, losses * weights, 0)
    else:
      with intercept(path, [], z):
        outputs, _ = program.apply_fn(
          params, model_state, examples.inputs, key=apply_key, train=key is not None
        )
      losses = losses_of(loss_key, outputs, examples)
    return losses.reshape(len(losses), -1).sum(axis=1)

  def losses_of(key: Key, outputs: Mapping[str, Array], examples: Examples) -> Array:
    """The weighted loss of each label."""
    weights = examples.label_weights
    own, labels = program.method.key_for("loss", key), {program.method.labels: examples.labels}
    terms = named_terms(program.method, program.method.loss(*own, **labels, **outputs))
    return jnp.where(weights > 0, sum(terms.values(), start=jnp.zeros(())) * weights, 0)

  def split_with(model_state: ModelState) -> Split | None:
    forward = lambda params, batch: program.apply_fn(
      params, model_state, program.examples(batch).inputs, key=None, train=False
    )[0]
    shapes = jax.eval_shape(forward, params, batch)
    # A sequence has a vector of outputs for each token, and `Split` needs one for each example.
    if set(shapes) != {"logits"} or shapes["logits"].ndim != 2:
      return None
    return (
      lambda params, batch, *, key: forward(params, batch)["logits"],
      lambda logits, batch: losses_of(jax.random.key(0), {"logits": logits}, program.examples(batch)).mean(),
    )

  def functions(model_state: ModelState) -> tuple[LossFn, Callable[[], Split | None]]:
    loss_fn = lambda params, batch, *, key: examples_fn(params, model_state, None, batch, key=key).mean()
    return loss_fn, functools.cache(lambda: split_with(model_state))

  plain = functions({})

  @analysis
  def layer_at(state: TrainState) -> tuple[flatness.DenseLayer | None, bool]:
    if not path:
      return None, False
    calls: Calls = []
    inputs = program.examples(batch).inputs
    with intercept(path, calls):
      program.apply_fn(state.params, state.model_state, inputs, key=None, train=False)
    if len(calls) != 1 or calls[0][1].ndim != 2:
      return None, False
    (inputs, preactivations), noisy = calls[0], []
    with intercept(path, noisy):
      examples = program.examples(batch)
      program.apply_fn(state.params, state.model_state, examples.inputs, key=jax.random.key(0), train=True)
    all_noise = not state.model_state and bool((noisy[0][0] == inputs).all())
    # A pytree, so that the parameters do not become constants of the compiled function.
    head = jax.tree_util.Partial(examples_fn, state.params, state.model_state)
    return flatness.DenseLayer(head, preactivations, inputs, batch, bias), all_noise

  def network(state: TrainState) -> NetworkAtPoint:
    coupled = bool(state.model_state)
    loss_fn, split = functions(state.model_state) if coupled else plain
    return NetworkAtPoint(loss_fn, state.params, batch, mask, *layer_at(state), split, parts, coupled)

  return network


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


def intercept(path: str, calls: Calls, output: Array | None = None) -> AbstractContextManager[None]:
  """Intercepts the module at `path`: `output` replaces its output, or both its ends are added to `calls`."""

  def intercept(call, args, kwargs, context):
    if context.method_name != "__call__" or "/".join(context.module.path) != path:
      return call(*args, **kwargs)
    if output is not None:
      return output
    result = call(*args, **kwargs)
    calls.append((args[0], result))
    return result

  return nn.intercept_methods(intercept)

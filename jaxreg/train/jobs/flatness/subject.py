"""The subject of the flatness analyses: a network at one point, and what is measured there."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg import flatness
from jaxreg.flatness._common import analysis
from jaxreg.flatness._noise import gradients_of_parts
from jaxreg.typing import Array, Batch, Key, LossFn, Params

AT_ONCE = 250  # examples of a loss or a product at once
PROBES = 3  # random vectors along which the Gauss-Newton matrix must agree with the Hessian
AGREEMENT = 1e-4  # relative; a network that is not piecewise linear differs by some per cent or more


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The network as outputs of each example, and the loss as a function of them.

  Attributes:
    apply_fn: `(params, batch, *, key) -> [n, outputs]`.
    outer_loss_fn: `(outputs, batch) -> scalar`.
  """

  apply_fn: Callable[..., Array]
  outer_loss_fn: Callable[..., Array]


@dataclasses.dataclass(frozen=True)
class Subject:
  """A network at one point of its training, and the parameters that are analysed.

  Attributes:
    loss_fn: `(params, batch, *, key) -> scalar`; with `key=None` nothing is dropped, and BatchNorm uses its
      running averages.
    params: all parameters.
    batch: the examples, from `with_weights`.
    mask: selects the parameters that are analysed.
    layer: the layer, if the analysed parameters belong to one dense layer; else None.
    all_noise: whether the layer's head draws all noise: there is none before the layer, and no BatchNorm.
    find_outputs: returns the network's outputs, if they are one vector for each example; else None.
    parts: the parts of the examples of whose gradients noise is sampled; 1 for whole gradients.
    coupled: whether the training couples the examples, as by BatchNorm.
  """

  loss_fn: LossFn
  params: Params
  batch: Batch
  mask: tuple[str, ...]
  layer: flatness.DenseLayer | None
  all_noise: bool = False
  find_outputs: Callable[[], Outputs | None] = lambda: None
  parts: int = 1
  coupled: bool = False

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
    outputs = self.find_outputs()
    if outputs is not None and self.hessian_by == "jacobians":
      return flatness.gauss_newton_matrix(
        outputs.apply_fn, outputs.outer_loss_fn, self.params, self.batch, mask=self.mask
      )
    return flatness.hessian(self.loss_fn, self.params, self.batch, mask=self.mask)

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
    hessian = self.curvature
    newton = hessian.gauss_newton(outputs.apply_fn, outputs.outer_loss_fn)
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

  def alignment(self, key: Key, num_samples: int) -> flatness.Alignment:
    """The alignment of the Hessian with `covariance`."""
    if self.layer is None or not self.all_noise or self.parts > 1:
      return flatness.hessian_variance_alignment(self.hessian(), self.covariance(key, num_samples))
    noise = self.layer.noise_covariance(key=key, num_samples=num_samples)
    return flatness.hessian_variance_alignment(self.layer.hessian(), noise)

  def intervals(self, directions: Array, factor: float) -> flatness.IntervalFlatness:
    """The interval flatness along each row of `directions`."""
    if self.layer is None:
      loss_fn = flatness.chunked(self.loss_fn, AT_ONCE)  # on a CPU also faster than all examples at once
      return flatness.interval_flatness(
        loss_fn, self.params, directions, self.batch, mask=self.mask, factor=factor
      )
    return self.layer.interval_flatness(directions, factor=factor)

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

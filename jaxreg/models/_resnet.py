"""Residual networks: the CIFAR family of depth 6n + 2, and ResNet-18 to -152 with either stem."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import check_choice, check_count
from jaxreg._errors import ArgumentError
from jaxreg.models._hidden_noise import DROPOUTS, make_drop, noisy
from jaxreg.models._layers import Conv, check_images
from jaxreg.models._residual_parts import BRANCH_NOISES, LayerScale, StandardizedConv, branch
from jaxreg.typing import Array, Key

_Conv = partial(Conv, use_bias=False, kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"))


class _Options(nn.Module):
  """The fields of every residual network, as `CifarResNet` explains them."""

  depth: int = 32
  width: int = 16
  axis_name: str | None = None
  remat: bool = False
  dropout_rate: float = 0.0
  dropout: str = "dropout"
  block_size: int = 3
  branch_noise: str = ""
  branch_rate: float = 0.5
  branch_schedule: str = "linear"
  layer_scale: float = 0.0
  standardized: bool = False
  hidden_noise_std: float = 0.0


class CifarResNet(_Options):
  """The CIFAR family: three stages of n basic blocks, of `width`, 2 `width` and 4 `width` channels.

  `[batch, height, width, channels] -> [batch, 4 width]`. Shortcuts have no parameters: where the size
  changes they subsample and pad with zero channels (option A of the source).

  Attributes:
    depth: 6n + 2: 20, 32, 44, 56, 110.
    width: channels of the first stage.
    axis_name: the axis over which BatchNorm averages its moments under `pmap`; under a sharded `jit` the
      moments cover the whole batch anyway.
    remat: whether to recompute each block in the backward pass: less memory, a third more arithmetic.
    dropout_rate: probability of dropping a unit, after each convolution of each block, before its BatchNorm:
      Zhang et al.'s "after the convolutional layers", as we read it. He et al. have none.
    dropout: `dropout` or `gaussian_dropout` of single units, or a function of `jaxreg.noise` for feature
      maps: `spatial_dropout` or `drop_block`.
    block_size: side of the squares of `drop_block`.
    branch_noise: noise on the branch that a block adds to its shortcut: `stochastic_depth`, `shake_drop`, or
      `shake_shake`, which gives each block two branches; empty for none.
    branch_rate: its probability for the last block; it grows linearly with depth.
    branch_schedule: how it grows, a schedule of `noise.drop_path_rates`.
    layer_scale: if not 0, each branch ends in `LayerScale` with this initial value.
    standardized: whether convolutions have standardised kernels, `StandardizedConv`.
    hidden_noise_std: standard deviation of Gaussian noise on the output of each block in training.

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 4.2.
    Huang et al., `Deep Networks with Stochastic Depth`, 2016, section 3 (rates that grow with depth).
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    appendix A (dropout).
  """

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    n, rest = divmod(self.depth - 2, 6)
    if rest or n < 1:
      raise ArgumentError("depth", f"must be 6n + 2, such as 20, 32 or 56, got {self.depth}")
    return _apply(self, x, BasicBlock, [n, n, n], train=train, projected=False)


# Blocks per stage by depth: basic blocks, and bottlenecks.
_BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class ResNet(_Options):
  """ResNet-18, -34, -50, -101 or -152: four stages of blocks with projected shortcuts.

  `[batch, height, width, channels] -> [batch, 8 width]` with basic blocks at depths 18 and 34, and `[batch,
  32 width]` with bottlenecks from depth 50 on.

  Attributes:
    depth: 18, 34, 50, 101 or 152.
    width: channels of the first stage, before the factor 4 of a bottleneck.
    stem: `imagenet` (7x7 convolution of stride 2, then pooling) or, for small images, `cifar` (3x3).
    axis_name, remat, dropout_rate, dropout, block_size, branch_noise, branch_rate: as in `CifarResNet`.
    branch_schedule, layer_scale, standardized, hidden_noise_std: as in `CifarResNet`.

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, table 1; the strides of bottlenecks are
    in their 3x3 convolution, as in the usual implementations, and not in the first 1x1.
  """

  depth: int = 34
  width: int = 64
  stem: Literal["cifar", "imagenet"] = "cifar"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    blocks = _BASIC | _BOTTLENECK
    if self.depth not in blocks:
      raise ArgumentError("depth", f"must be one of {', '.join(map(str, blocks))}, got {self.depth}")
    check_choice(self.stem, "stem", ("cifar", "imagenet"))
    block = BasicBlock if self.depth in _BASIC else Bottleneck
    return _apply(self, x, block, blocks[self.depth], train=train, stem=self.stem)


class _Block(nn.Module):
  """The fields of a block."""

  width: int
  stride: int
  norm: Any
  drop: Callable[[Key, Array], Array] | None = None
  branch_noise: str = ""
  branch_rate: float = 0.0
  train: bool = False
  conv: Any = _Conv
  layer_scale: float = 0.0


class BasicBlock(_Block):
  """Two 3x3 convolutions with dropout, BatchNorm and a shortcut; the first has the `stride`."""

  projected: bool = True

  @nn.compact
  def __call__(self, x: Array) -> Array:
    pad = [(1, 1), (1, 1)]

    def two_convolutions() -> Array:
      y = _dropped(self, self.conv(self.width, (3, 3), strides=self.stride, padding=pad)(x))
      y = nn.relu(self.norm()(y))
      return _scaled(self, self.norm()(_dropped(self, self.conv(self.width, (3, 3), padding=pad)(y))))

    y = branch(self, two_convolutions, kind=self.branch_noise, rate=self.branch_rate, train=self.train)
    return nn.relu(self._shortcut(x, y) + y)

  def _shortcut(self, x: Array, y: Array) -> Array:
    if x.shape != y.shape:
      if self.projected:
        x = self.norm()(self.conv(self.width, (1, 1), strides=self.stride)(x))
      else:
        x = x[:, :: self.stride, :: self.stride]
        more = self.width - x.shape[-1]
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (more // 2, more - more // 2)))
    return x


class Bottleneck(_Block):
  """1x1, 3x3 and 1x1 convolutions with dropout, BatchNorm and a shortcut.

  There are `width` channels inside, and 4 `width` at the end.
  """

  @nn.compact
  def __call__(self, x: Array) -> Array:
    pad = [(1, 1), (1, 1)]

    def three_convolutions() -> Array:
      y = nn.relu(self.norm()(_dropped(self, self.conv(self.width, (1, 1))(x))))
      y = _dropped(self, self.conv(self.width, (3, 3), strides=self.stride, padding=pad)(y))
      y = nn.relu(self.norm()(y))
      return _scaled(self, self.norm()(_dropped(self, self.conv(4 * self.width, (1, 1))(y))))

    y = branch(self, three_convolutions, kind=self.branch_noise, rate=self.branch_rate, train=self.train)
    if x.shape != y.shape:
      x = self.norm()(self.conv(4 * self.width, (1, 1), strides=self.stride)(x))
    return nn.relu(x + y)


def _apply(
  module: Any,
  x: Array,
  block: type[nn.Module],
  blocks: Sequence[int],
  *,
  train: bool,
  stem: str = "cifar",
  **options: Any,
) -> Array:
  """Applies the stem, the stages of `blocks`, each twice as wide as the last, and averages over positions."""
  check_images(x, type(module).__name__)
  check_count(module.width, "width")
  check_choice(module.dropout, "dropout", DROPOUTS)
  check_choice(module.branch_noise, "branch_noise", BRANCH_NOISES)
  conv = partial(StandardizedConv, **_Conv.keywords) if module.standardized else _Conv
  norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, axis_name=module.axis_name)
  if stem == "cifar":
    x = nn.relu(norm()(conv(module.width, (3, 3))(x)))
  else:
    x = nn.relu(norm()(conv(module.width, (7, 7), strides=2, padding=[(3, 3), (3, 3)])(x)))
    x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=[(1, 1), (1, 1)])  # type: ignore[arg-type]
  make = partial(
    nn.remat(block) if module.remat else block,
    norm=norm,
    conv=conv,
    drop=make_drop(module) if train and module.dropout_rate else None,
    branch_noise=module.branch_noise,
    layer_scale=module.layer_scale,
    train=train,
    **options,
  )
  rate, schedule = module.branch_rate if module.branch_noise else 0.0, module.branch_schedule
  rates = iter(noise.drop_path_rates(rate, sum(blocks), schedule=schedule))
  for stage, number in enumerate(blocks):
    for index in range(number):
      stride = 2 if stage and index == 0 else 1
      # An explicit name, so that parameters have the same names with and without rematerialisation.
      name = f"stage{stage}_block{index}"
      x = make(module.width * 2**stage, stride, branch_rate=next(rates), name=name)(x)
      x = noisy(module, x, train=train)
  return x.mean(axis=(1, 2))


def _dropped(block: Any, x: Array) -> Array:
  return x if block.drop is None else block.drop(block.make_rng("dropout"), x)


def _scaled(block: Any, y: Array) -> Array:
  return LayerScale(block.layer_scale)(y) if block.layer_scale else y

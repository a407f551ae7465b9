"""The Vision Transformer, whose blocks run in one scan."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import check_choice, check_count
from jaxreg._errors import ArgumentError
from jaxreg._sharding import partitioned
from jaxreg.models._hidden_noise import dropped
from jaxreg.models._layers import check_images
from jaxreg.models._residual_parts import LayerScale
from jaxreg.typing import Array

# Names in `jax.checkpoint_policies`.
POLICIES = ("", "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")


class ViT(nn.Module):
  r"""A Vision Transformer: square patches as tokens, and blocks that normalise before each branch.

  `[batch, height, width, channels] -> [batch, width]`. A block computes

  .. math:: x \leftarrow x + s_1 \odot \operatorname{attention}(\operatorname{LayerNorm}(x)), \qquad
    x \leftarrow x + s_2 \odot \operatorname{MLP}(\operatorname{LayerNorm}(x))

  with GELU in the MLP. A LayerNorm follows the last block, before the pooling. The defaults are ViT-S/16.

  All blocks are one compiled body that `nn.scan` repeats, so that the time to compile does not grow with
  `depth`. Their parameters `stacked/...` have a leading axis `[depth, ...]`. Norms per unit treat each block
  by itself. An optimizer with one factor per parameter, such as LAMB, treats each stack as one parameter.

  Attributes:
    patch_size: side of a patch, which divides height and width.
    width: size of a token.
    depth: number of blocks.
    num_heads: heads of an attention; they divide `width`.
    d_ff: hidden units of the MLP.
    positions: `sincos`, fixed sines and cosines of both coordinates, or `learned`.
    pooling: `mean` over the tokens, or the output of a learned `token` that precedes them.
    dropout_rate: probability of dropping a unit of the embedded tokens, in the MLP and at the end of each
      branch.
    attention_dropout_rate: probability of dropping a weight of the attention.
    dropkey_rate: probability of hiding a key from a query, drawn for each head before the softmax. The
      remaining weights sum to 1. A query that sees no key attends to all keys equally.
    branch_rate: probability that stochastic depth drops a branch of the last block, for each example.
    branch_schedule: how it grows with depth, a schedule of `noise.drop_path_rates`.
    layer_scale: initial value of the factors `s`; 0 for none.
    remat: the policy in `jax.checkpoint_policies` that chooses which values of a block the backward pass
      keeps and does not compute again: `nothing_saveable`, `dots_saveable` or
      `dots_with_no_batch_dims_saveable`; empty to keep all.
    unroll: how many blocks a turn of the scan has. On a CPU a step with all blocks in one turn takes two
      thirds of the time, and longer to compile.

  References:
    Dosovitskiy et al., `An Image is Worth 16x16 Words`, 2021, section 3.1.
    Beyer, Zhai & Kolesnikov, `Better plain ViT baselines for ImageNet-1k`, 2022 (`sincos` and `mean`).
    Li et al., `DropKey`, 2023, algorithm 1; Touvron et al., `Going deeper with Image Transformers`, 2021.
  """

  patch_size: int = 16
  width: int = 384
  depth: int = 12
  num_heads: int = 6
  d_ff: int = 1536
  positions: Literal["sincos", "learned"] = "sincos"
  pooling: Literal["mean", "token"] = "mean"
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  dropkey_rate: float = 0.0
  branch_rate: float = 0.0
  branch_schedule: str = "linear"
  layer_scale: float = 0.0
  remat: str = ""
  unroll: int = 1

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    check_images(x, "ViT")
    self._check(*x.shape[1:3])
    rows, columns = (side // self.patch_size for side in x.shape[1:3])
    x = partitioned(functools.partial(_patches, size=self.patch_size), x, kept=slice(1))
    x = nn.Dense(self.width, name="patches")(x)
    if self.positions == "learned":
      initial = nn.initializers.normal(self.width**-0.5)
      first = self.param("positions", initial, (rows * columns, self.width))
    else:
      first = jnp.asarray(_sincos(rows, columns, self.width), x.dtype)
    if self.pooling == "token":
      token = self.param("token", nn.initializers.zeros, (1, self.width))
      # Padded, not concatenated: the token has no axis of examples that devices could split.
      x = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))
      first = jnp.concatenate([token, first])
    x = dropped(self, x + first.astype(x.dtype)[None], self.dropout_rate, train=train)
    block = _Block
    if self.remat:
      # A scan keeps the compiler from merging both computations.
      policy = getattr(jax.checkpoint_policies, self.remat)
      block = nn.remat(_Block, policy=policy, prevent_cse=False)
    # Each block has parameters and a key `dropout` of its own; it takes its entry of the rates.
    blocks = nn.scan(
      block,
      variable_axes={"params": 0},
      split_rngs={"params": True, "dropout": True},
      length=self.depth,
      # Draws of all blocks in one turn would take XLA several times as long to compile.
      unroll=1 if self.is_initializing() else self.unroll,
    )
    rates = None
    if train and self.branch_rate:
      rates = noise.drop_path_rates(self.branch_rate, self.depth, schedule=self.branch_schedule)
      rates = jnp.asarray(rates, jnp.float32)
    x, _ = blocks(
      num_heads=self.num_heads,
      d_ff=self.d_ff,
      dropout_rate=self.dropout_rate,
      attention_dropout_rate=self.attention_dropout_rate,
      dropkey_rate=self.dropkey_rate,
      layer_scale=self.layer_scale,
      train=train,
      name="stacked",
    )(x, rates)
    x = nn.LayerNorm(name="norm")(x)
    return x.mean(axis=1) if self.pooling == "mean" else x[:, 0]

  def _check(self, *size: int) -> None:
    for name in ("patch_size", "width", "depth", "num_heads", "d_ff", "unroll"):
      check_count(getattr(self, name), name)
    check_choice(self.positions, "positions", ("sincos", "learned"))
    check_choice(self.pooling, "pooling", ("mean", "token"))
    check_choice(self.remat, "remat", POLICIES)
    if any(side % self.patch_size for side in size):
      raise ArgumentError("patch_size", f"must divide the sides of the images, {size}, got {self.patch_size}")
    if self.width % self.num_heads:
      raise ArgumentError("num_heads", f"must divide width={self.width}, got {self.num_heads}")
    if self.positions == "sincos" and self.width % 4:
      raise ArgumentError("width", f"must be a multiple of 4 with positions=sincos, got {self.width}")


class _Block(nn.Module):
  """Attention and an MLP, each a branch after a LayerNorm: the body of the scan."""

  num_heads: int
  d_ff: int
  dropout_rate: float
  attention_dropout_rate: float
  dropkey_rate: float
  layer_scale: float
  train: bool

  @nn.compact
  def __call__(self, x: Array, rate: Array | None) -> tuple[Array, None]:
    width = x.shape[-1]
    y = nn.LayerNorm(name="attention_norm")(x)
    y = self._attention(*(_dense(width, name)(y) for name in ("query", "key", "value")))
    x = self._add(x, _dense(width, "out")(y), rate, "attention_scale")
    y = nn.gelu(_dense(self.d_ff, "hidden")(nn.LayerNorm(name="mlp_norm")(x)))
    y = _dense(width, "mlp")(dropped(self, y, self.dropout_rate, train=self.train))
    return self._add(x, y, rate, "mlp_scale"), None

  def _attention(self, query: Array, key: Array, value: Array) -> Array:
    """Attends with all heads: `[batch, tokens, width]` each, to the same shape."""
    split = (*query.shape[:-1], self.num_heads, query.shape[-1] // self.num_heads)
    query, key, value = (x.reshape(split) for x in (query, key, value))
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=wide) * query.shape[-1] ** -0.5
    if self.train and self.dropkey_rate:
      seen = dropped(self, jnp.ones_like(scores), self.dropkey_rate, train=True)
      # Not minus infinity: a query that sees no key would have NaN weights.
      scores = jnp.where(seen > 0, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    weights = dropped(self, weights, self.attention_dropout_rate, train=self.train)
    attended = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return attended.reshape(*attended.shape[:-2], attended.shape[-2] * attended.shape[-1])

  def _add(self, x: Array, y: Array, rate: Array | None, scale: str) -> Array:
    y = dropped(self, y, self.dropout_rate, train=self.train)
    if self.layer_scale:
      y = LayerScale(self.layer_scale, name=scale)(y)
    if rate is not None:
      y = noise.stochastic_depth(self.make_rng("dropout"), y, rate=rate)
    return x + y


def _patches(x: Array, size: int) -> Array:
  """Cuts images into patches: `[batch, rows * columns, size * size * channels]`."""
  batch, height, width, channels = x.shape
  x = x.reshape(batch, height // size, size, width // size, size, channels)
  x = x.transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(batch, height * width // size**2, size * size * channels)


def _sincos(rows: int, columns: int, width: int) -> np.ndarray:
  r"""Computes sines and cosines of the column and the row of each patch, `[rows * columns, width]`, float64.

  .. math:: (\sin(c\,\omega), \cos(c\,\omega), \sin(r\,\omega), \cos(r\,\omega)), \qquad
    \omega_i = 10000^{-i / (n - 1)},\ i = 0, \dots, n - 1,\ n = \text{width} / 4

  References:
    Beyer, Zhai & Kolesnikov, `Better plain ViT baselines for ImageNet-1k`, 2022, section 3, as released.
  """
  number = width // 4
  omega = 10000.0 ** (-np.arange(number) / max(number - 1, 1))
  row, column = (grid.reshape(-1, 1) * omega for grid in np.indices((rows, columns)))
  return np.concatenate([np.sin(column), np.cos(column), np.sin(row), np.cos(row)], axis=1)


def _dense(features: int, name: str) -> Any:
  return nn.Dense(features, kernel_init=nn.initializers.glorot_uniform(), name=name)

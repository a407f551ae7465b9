"""The encoder-decoder transformer."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import check_count
from jaxreg._initializers import initializers
from jaxreg._sharding import partitioned
from jaxreg.models._hidden_noise import dropped
from jaxreg.typing import Array

PAD = 0  # the padding token


class Transformer(nn.Module):
  r"""An attention encoder of the source and decoder of the target; the head has the last projection.

  It maps tokens `[batch, source_length + target_length]` to features `[batch, target_length, d_model]`. The
  tokens are the source and then the decoder's inputs, which start with the begin token. Position `i` sees the
  source and the decoder's inputs up to `i`; token 0 is padding, which is masked. Every sub-layer `f` is
  :math:`\operatorname{LayerNorm}(x + \operatorname{dropout}(f(x)))`; dropout is also on the sums of
  embeddings and positions, and nowhere else. Source and target share one embedding.

  Attributes:
    vocab_size: number of tokens.
    source_length: number of source tokens in the inputs.
    d_model: width of the features.
    d_k: width of a head's queries and keys.
    d_v: width of a head's values.
    d_ff: hidden units of the feed-forward layers.
    num_heads: number of heads per attention.
    num_layers: layers of the encoder, and of the decoder.
    dropout_rate: probability of dropping.
    embedding_noise_alpha: `alpha` of `noise.embedding_noise`, on the scaled embeddings of all tokens that are
      not padding; 0 for none.

  References:
    Vaswani et al., `Attention Is All You Need`, 2017, section 3; section 5.4 for dropout.
  """

  vocab_size: int
  source_length: int
  d_model: int = 50
  d_k: int = 20
  d_v: int = 20
  d_ff: int = 256
  num_heads: int = 4
  num_layers: int = 3
  dropout_rate: float = 0.0
  embedding_noise_alpha: float = 0.0

  def setup(self) -> None:
    sizes = ("vocab_size", "source_length", "d_model", "d_k", "d_v", "d_ff", "num_heads", "num_layers")
    for name in sizes:
      check_count(getattr(self, name), name)
    # Embeddings have variance 1 after the multiplication by sqrt(d_model).
    initial = nn.initializers.normal(self.d_model**-0.5)
    self.embedding = nn.Embed(self.vocab_size, self.d_model, embedding_init=initial)
    attention = {"num_heads": self.num_heads, "d_k": self.d_k, "d_v": self.d_v}

    def layers():
      return [_Layer(attention, self.d_ff, self.dropout_rate) for _ in range(self.num_layers)]

    self.encoder, self.decoder = layers(), layers()

  def __call__(self, x: Array, *, train: bool) -> Array:
    if not jnp.issubdtype(x.dtype, jnp.integer):
      raise TypeError(f"Transformer needs integer tokens, got {x.dtype}")
    if x.ndim != 2 or x.shape[1] <= self.source_length:
      raise ValueError(
        f"Transformer needs tokens [batch, source_length + target_length] with source_length = "
        f"{self.source_length}, got {x.shape}"
      )
    source, target = x[:, : self.source_length], x[:, self.source_length :]
    return self.decode(target, self.encode(source, train=train), source, train=train)

  def encode(self, source: Array, *, train: bool) -> Array:
    """Encodes the source for the decoder: `[batch, source_length]` to `[batch, source_length, d_model]`."""
    mask = _not_padding(source)
    x = self._embed(source, train)
    for layer in self.encoder:
      x = layer(x, mask, train=train)
    return x

  def decode(self, target: Array, memory: Array, source: Array, *, train: bool) -> Array:
    """Computes the features after each token of the target, `[batch, target_length, d_model]`.

    Args:
      target: the decoder's inputs, `[batch, target_length]`.
      memory: `encode(source)`.
      source: the source tokens, for their padding.
      train: whether there is dropout.
    """
    length = target.shape[1]
    causal = jnp.tril(jnp.ones((1, 1, length, length), bool))
    x = self._embed(target, train)
    for layer in self.decoder:
      x = layer(x, causal & _not_padding(target), memory, _not_padding(source), train=train)
    return x

  def _embed(self, tokens: Array, train: bool) -> Array:
    # Linen's own look-up refuses explicit axes.
    def look_up(tokens, table):
      return jnp.take(table, tokens, axis=0)

    x = partitioned(look_up, tokens, self.embedding.embedding) * self.d_model**0.5
    if train and self.embedding_noise_alpha:
      alpha, key = self.embedding_noise_alpha, self.make_rng("dropout")
      x = noise.embedding_noise(key, x, alpha=alpha, where=tokens != PAD)
    x += jnp.asarray(_positional_encoding(tokens.shape[1], self.d_model), x.dtype)[None]
    return dropped(self, x, self.dropout_rate, train=train)


def _positional_encoding(length: int, d_model: int) -> np.ndarray:
  r"""Computes sines and cosines of the position, `[length, d_model]`, float64.

  .. math:: P_{p, 2i} = \sin(p / 10000^{2i/d}), \quad P_{p, 2i + 1} = \cos(p / 10000^{2i/d})

  References:
    Vaswani et al., `Attention Is All You Need`, 2017, section 3.5.
  """
  angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)[None]
  return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, -1)[:, :d_model]


class _Attention(nn.Module):
  """Multi-head attention of `x` to `memory` where `mask` is true, with one matrix per projection.

  A matrix holds all heads. Flax's own module has kernels with three axes and one width for keys and values.
  """

  num_heads: int
  d_k: int
  d_v: int

  @nn.compact
  def __call__(self, x: Array, memory: Array, mask: Array) -> Array:
    def heads(name: str, inputs: Array, width: int) -> Array:
      projected = _dense(self.num_heads * width, name, use_bias=False)(inputs)
      return projected.reshape(*inputs.shape[:-1], self.num_heads, width)

    query, key = heads("query", x, self.d_k), heads("key", memory, self.d_k)
    # A row that sees nothing takes the mean of everything and stays finite.
    attended = nn.dot_product_attention(query, key, heads("value", memory, self.d_v), mask=mask)
    joined = attended.reshape(*x.shape[:-1], self.num_heads * self.d_v)
    return _dense(x.shape[-1], "out", use_bias=False)(joined)


class _FeedForward(nn.Module):
  """Two affine layers with ReLU between them, at each position."""

  d_ff: int

  @nn.compact
  def __call__(self, x: Array) -> Array:
    return _dense(x.shape[-1], "out")(nn.relu(_dense(self.d_ff, "hidden")(x)))


class _Layer(nn.Module):
  """Self-attention, in the decoder attention to the encoder's output `memory`, and feed-forward."""

  attention: Any  # options of `_Attention`
  d_ff: int
  dropout_rate: float

  @nn.compact
  def __call__(
    self, x: Array, mask: Array, memory: Array | None = None, memory_mask: Any = None, *, train: bool
  ) -> Array:
    def add(x: Array, y: Array, name: str) -> Array:
      return nn.LayerNorm(name=name)(x + dropped(self, y, self.dropout_rate, train=train))

    x = add(x, _Attention(**self.attention, name="self_attention")(x, x, mask), "self_attention_norm")
    if memory is not None:
      attended = _Attention(**self.attention, name="cross_attention")(x, memory, memory_mask)
      x = add(x, attended, "cross_attention_norm")
    return add(x, _FeedForward(self.d_ff, name="feed_forward")(x), "feed_forward_norm")


def _dense(features: int, name: str, *, use_bias: bool = True) -> nn.Dense:
  return nn.Dense(features, use_bias=use_bias, name=name, **initializers("glorot"))


def _not_padding(tokens: Array) -> Array:
  """Builds the mask of visible keys: `[batch, length]` to `[batch, heads=1, queries=1, keys]`."""
  return (tokens != PAD)[:, None, None, :]

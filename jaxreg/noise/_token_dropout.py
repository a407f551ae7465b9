"""Dropout of tokens or image patches, leaving shorter sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_array, check_count, check_key
from jaxreg._errors import ArgumentError
from jaxreg.typing import Array, Key


def token_dropout(key: Key | None, x: ArrayLike, *, num_kept: int, num_prefix: int = 0) -> Array:
  r"""Keeps a random subset of the tokens, in order, with the same number in each sequence.

  .. math:: y_i = x_{s_i}, \qquad s_1 < \dots < s_k \ \text{a uniform subset of size}\ k
    \ \text{of}\ \{1, \dots, n\}

  The number is fixed, so shapes stay static and the following layers cost less: attention by the square.
  Apply it after adding the positions. Nothing is scaled, and at test time all tokens are used. The same key
  keeps the same tokens of another array `[..., tokens, features]`, such as padding masks or targets.

  Args:
    key: one draw for the whole of `x`, independent between sequences; None keeps all tokens.
    x: `[..., tokens, features]`, of any dtype.
    num_kept: number of tokens to keep, besides the prefix.
    num_prefix: number of leading tokens that always stay, such as a class token.

  Returns:
    `[..., num_prefix + num_kept, features]`, in the dtype of `x`.

  Raises:
    ValueError: if there are fewer tokens than that.

  Example:
    >>> token_dropout(jax.random.key(0), jnp.arange(6.0)[:, None], num_kept=2, num_prefix=1).ravel()
    Array([0., 3., 4.], dtype=float32)

  References:
    Liu et al., `PatchDropout: Economizing Vision Transformers Using Patch Dropout`, 2022.
  """
  x = check_array(x, "x")
  if x.ndim < 2:
    raise ValueError(f"x must have shape [..., tokens, features], got {x.shape}")
  check_count(num_kept, "num_kept")
  check_count(num_prefix, "num_prefix", least=0)
  tokens = x.shape[-2]
  if num_kept + num_prefix > tokens:
    raise ArgumentError(
      "num_kept", f"must be at most {tokens} tokens minus num_prefix={num_prefix}, got {num_kept}"
    )
  if key is None:
    return x
  indices = _indices(key, x.shape[:-1], num_kept, num_prefix)
  return jnp.take_along_axis(x, indices[..., None], axis=-2)


def _indices(key: Key, shape: tuple[int, ...], num_kept: int, num_prefix: int) -> Array:
  """Draws the tokens to keep, increasing: `[..., num_prefix + num_kept]` for the shape `[..., tokens]`."""
  *leading, tokens = shape
  noise = jax.random.uniform(check_key(key), (*leading, tokens - num_prefix))
  chosen = jnp.sort(jnp.argsort(noise, axis=-1)[..., :num_kept].astype(jnp.int32), axis=-1) + num_prefix
  prefix = jnp.broadcast_to(jnp.arange(num_prefix, dtype=jnp.int32), (*leading, num_prefix))
  return jnp.concatenate([prefix, chosen], axis=-1)

"""The names of types used throughout, and the argument checks that every public function begins with."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

__all__ = [
  "ApplyFn",
  "Array",
  "Batch",
  "Key",
  "LossFn",
  "Mask",
  "Metrics",
  "ModelState",
  "Objective",
  "Params",
  "check_batch",
  "check_count",
  "check_floating",
  "check_key",
  "check_labels",
  "check_loss_fn",
  "check_range",
  "check_wide",
]

Array = jax.Array
Key = jax.Array
Params = Any
Batch = Any
ModelState = Any
Metrics = dict[str, tuple[jax.Array, jax.Array]]
Mask = Callable[[Params], Any]


class LossFn(Protocol):
  """`(params, batch, *, key) -> scalar`; `batch` is any pytree and always an argument, never a closure.

  `key` is always given, by its name, and a loss without noise ignores it. Where a function says so,
  `key=None` asks for no noise.
  """

  def __call__(self, params: Params, batch: Batch, *, key: Key | None) -> Array: ...


class ApplyFn(Protocol):
  """`(params, model_state, x, *, key, train) -> (outputs, model_state)`; hides the module system."""

  def __call__(
    self, params: Params, model_state: ModelState, x: Array, *, key: Key | None, train: bool
  ) -> tuple[Any, ModelState]: ...


class Objective(Protocol):
  """`(params, state, batch, key) -> (loss, (model_state, metrics))`, with the whole train state in view."""

  def __call__(
    self, params: Params, state: Any, batch: Batch, key: Key
  ) -> tuple[Array, tuple[ModelState, Metrics]]: ...


def check_floating(x: ArrayLike, name: str, *, shape: tuple[int, ...] | None = None) -> Array:
  """Returns `x` as an array.

  Raises:
    TypeError: if `x` is not floating.
    ValueError: if `shape` is given and `x` has another.
  """
  x = jnp.asarray(x)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise TypeError(f"{name} must be floating, got {x.dtype}")
  if shape is not None and x.shape != shape:
    raise ValueError(f"{name} must have shape {shape}, got {x.shape}")
  return x


def check_wide(x: ArrayLike, name: str, *, shape: tuple[int, ...] | None = None) -> Array:
  """`check_floating`, then widened to at least float32: losses, logs and masks lose too much in bfloat16."""
  x = check_floating(x, name, shape=shape)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def check_labels(labels: ArrayLike, scores: Array, name: str = "logits") -> Array:
  """Returns integer `labels` as an array of 32 bits or more, shaped like `scores` without its last axis.

  Raises:
    TypeError: if `labels` are not integers.
    ValueError: if their shape does not fit.
  """
  labels = jnp.asarray(labels)
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(f"labels must be integers, got {labels.dtype}")
  if scores.ndim == 0 or labels.shape != scores.shape[:-1]:
    raise ValueError(
      f"labels must have the shape of {name} without the class axis, "
      f"got labels {labels.shape} for {name} {scores.shape}"
    )
  # In 8 bits, what is computed with labels wraps around: `1 << label`, or a number of classes as a label.
  return labels.astype(jnp.promote_types(labels.dtype, jnp.int32))


def check_key(key: Key) -> Key:
  """Returns `key`.

  Raises:
    TypeError: if it is not a typed key, for instance a seed or a raw uint32 array.
  """
  if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
    got = getattr(key, "dtype", type(key).__name__)
    raise TypeError(f"key must be a typed key, as jax.random.key(0) gives, got {got}")
  if key.ndim:
    raise ValueError(f"key must be a single key, got keys of shape {key.shape}; use jax.vmap for several")
  return key


def check_batch(batch: Any, *names: str) -> None:
  """Checks that a batch has what is needed of it.

  Raises:
    TypeError: if it is no mapping.
    ValueError: if one of `names` is not in it.
  """
  wanted = " and ".join(repr(name) for name in names)
  if not isinstance(batch, Mapping):
    raise TypeError(f"batch must be a mapping with {wanted}, got a {type(batch).__name__}")
  for name in names:
    if name not in batch:
      raise ValueError(f"batch must have {name!r}, got {sorted(batch)}")


def check_loss_fn(loss_fn: Callable[..., Any], name: str = "loss_fn") -> None:
  """Checks that `loss_fn` can be called as `LossFn` says.

  Raises:
    TypeError: if it is no function, or does not take `(params, batch, *, key)`.
  """
  if not callable(loss_fn):
    raise TypeError(f"{name} must be a function (params, batch, *, key), got {loss_fn!r}")
  try:
    # A wrapper may take what the function that it wraps does not.
    signature = inspect.signature(loss_fn, follow_wrapped=not inspect.isfunction(loss_fn))
  except ValueError:  # some built-in functions do not say what they take
    return
  try:
    signature.bind(None, None, key=None)
  except TypeError as error:
    raise TypeError(
      f"{name} must take (params, batch, *, key), also if it ignores key, got one of {signature}: {error}"
    ) from None


def check_range(
  value: Any,
  name: str,
  *,
  low: float = float("-inf"),
  high: float = float("inf"),
  open_low: bool = False,
) -> None:
  """Checks a hyper-parameter where its value is known; a traced one passes.

  Raises:
    ValueError: if `value` is NaN or outside `[low, high]` (`(low, high]` with `open_low`).
  """
  if isinstance(value, Tracer):
    return
  # On the host: inside jit a comparison of arrays is traced, even where their values are known.
  known = np.asarray(value) if isinstance(value, jax.Array) else value
  if not ((low < known if open_low else low <= known) and known <= high):
    bracket = "(" if open_low else "["
    raise ValueError(f"{name} must lie in {bracket}{low:g}, {high:g}], got {value}")


def check_count(value: Any, name: str) -> None:
  """Checks a number of things, which is part of a shape and so never traced.

  Raises:
    TypeError: if `value` is not an integer.
    ValueError: if it is below 1.
  """
  if isinstance(value, bool) or not hasattr(value, "__index__"):
    raise TypeError(f"{name} must be an integer, got {value!r}")
  if operator.index(value) < 1:
    raise ValueError(f"{name} must be at least 1, got {value}")


def __dir__() -> list[str]:
  return __all__

"""Type names used throughout, and the argument checks at the start of every public function."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

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
P = ParamSpec("P")
R = TypeVar("R")


class LossFn(Protocol):
  """`(params, batch, *, key) -> scalar`; `batch` is any pytree and always an argument, never a closure.

  `key` is always passed, by name, and a loss without noise ignores it. If a function says so, `key=None` asks
  for no noise.
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
  """Like `check_floating`, but widens to at least float32: bfloat16 is too coarse for losses and logs."""
  x = check_floating(x, name, shape=shape)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def known_values(x: Any) -> np.ndarray | None:
  """Returns the values of `x` if reading them is nearly free, else None.

  Known are NumPy arrays, numbers, and outside of `jit` JAX arrays on the CPU. To compare 128 labels there
  takes 10 microseconds, less than one eager operation. An accelerator would have to be waited for.
  """
  if isinstance(x, np.ndarray | np.generic | int | float):
    return np.asarray(x)
  if isinstance(x, Tracer) or not isinstance(x, jax.Array) or not x.is_fully_addressable:
    return None
  return np.asarray(x) if all(device.platform == "cpu" for device in x.devices()) else None


def check_labels(
  labels: ArrayLike,
  scores: Array,
  name: str = "logits",
  *,
  num_classes: int | None = None,
  bounded: bool = True,
) -> Array:
  """Returns integer `labels` as an array of 32 bits or more, shaped like `scores` without its last axis.

  Labels must be in `[0, num_classes)`, by default the length of the last axis of `scores`. The range is
  checked if `bounded` is set and the labels are known, as `known_values` says.

  Raises:
    TypeError: if `labels` are not integers.
    ValueError: if their shape does not fit, or a known label is out of range.
  """
  given, labels = labels, jnp.asarray(labels)
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    soft = labels.ndim == scores.ndim > 0
    hint = "; soft labels are not supported here: give one class, labels.argmax(axis=-1)" if soft else ""
    raise TypeError(f"labels must be integers, got {labels.dtype}{hint}")
  if num_classes is None:
    num_classes = scores.shape[-1] if scores.ndim else 0
  if scores.ndim == 0 or labels.shape != scores.shape[:-1]:
    one_hot = labels.shape == (*scores.shape[:-1], num_classes)
    hint = "; convert one-hot labels with labels.argmax(axis=-1)" if one_hot else ""
    raise ValueError(
      f"labels must have the shape of {name} without the class axis, "
      f"got labels {labels.shape} for {name} {scores.shape}{hint}"
    )
  known = known_values(given) if bounded else None
  if known is not None and known.size:
    low, high = known.min(), known.max()
    if low < 0 or high >= num_classes:
      raise ValueError(f"labels must lie in [0, {num_classes}), got {low if low < 0 else high}")
  # In 8 bits, arithmetic on labels wraps around: `1 << label`, or the number of classes as a label. For
  # uint64 the promoted type would be a float.
  wide = jnp.promote_types(labels.dtype, jnp.int32) if labels.dtype != jnp.uint64 else jnp.int64
  return labels.astype(wide)


def check_hard_or_soft_labels(labels: ArrayLike, logits: Array) -> Array:
  """Returns integer `labels` `[...]` as `check_labels` does, or probabilities `[..., classes]`, widened.

  Raises:
    TypeError: if `labels` are neither.
    ValueError: if their shape does not fit, a known label is out of range or a known probability is negative.
  """
  array = jnp.asarray(labels)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    return check_labels(labels, logits)
  if array.ndim == logits.ndim - 1:
    raise TypeError(
      f"labels must be integers {array.shape} or probabilities {logits.shape}, "
      f"got {array.dtype} {array.shape}"
    )
  if array.ndim == 0 or array.shape != logits.shape:
    raise ValueError(f"soft labels (probabilities) must have shape {logits.shape}, got {array.shape}")
  known = known_values(labels)
  if known is not None and known.min(initial=0) < 0:
    raise ValueError(f"labels must be probabilities, at least 0, got {known.min()}")
  return array.astype(jnp.promote_types(array.dtype, logits.dtype))


def check_key(key: Key) -> Key:
  """Returns `key` if it is a single typed key.

  Raises:
    TypeError: if it is not a typed key, for instance a seed or a raw uint32 array.
    ValueError: if `key` holds several keys.
  """
  if not _is_key(key):
    raise TypeError(f"key must be a typed key, such as jax.random.key(0), got {_no_key(key)}")
  if key.ndim:
    raise ValueError(f"key must be a single key, got keys of shape {key.shape}; use jax.vmap for several")
  return key


def key_first(function: Callable[P, R]) -> Callable[P, R]:
  """Makes a call without the key, the first argument, say so: Python's error would name the last argument.

  Raises:
    TypeError: from the decorated function, if a required argument is missing and the first is no key.
  """
  parameters = inspect.signature(function).parameters.values()
  required = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD and p.default is p.empty]

  @functools.wraps(function)
  def call(*args: P.args, **kwargs: P.kwargs) -> R:
    first = next(iter(args), None)
    if first is not None and not _is_key(first) and not kwargs.keys() >= set(required[len(args) :]):
      raise TypeError(
        f"{function.__name__}: the first argument is a key, such as jax.random.key(0), got {_no_key(first)}"
      )
    return function(*args, **kwargs)

  return call


def _is_key(given: Any) -> bool:
  return isinstance(given, jax.Array) and jnp.issubdtype(given.dtype, jax.dtypes.prng_key)


def _no_key(given: Any) -> str:
  """Describes the value given instead of a key, and the way out."""
  if given is None:
    return "None; a key is needed here"
  dtype, shape = getattr(given, "dtype", None), getattr(given, "shape", ())
  if dtype is None:
    return type(given).__name__
  if dtype == np.uint32 and len(shape) == 1:
    return f"uint32 {shape}; convert a legacy jax.random.PRNGKey with jax.random.wrap_key_data(key)"
  if jnp.issubdtype(dtype, jnp.floating):
    return f"{dtype} {shape}; is the key missing or in the wrong position?"
  return f"{dtype} {shape}"


def check_batch(batch: Any, *names: str) -> None:
  """Checks that a batch is a mapping with the given names.

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


def loss_and_aux(value: Any, has_aux: bool) -> tuple[Array, Any]:
  """Splits the value of a loss function into the scalar loss and the aux value, None without `has_aux`.

  Raises:
    TypeError: if the loss is a tuple or not floating, or if `has_aux` is set and `value` is no pair.
    ValueError: if the loss is no scalar.
  """
  loss, aux = value, None
  if has_aux:
    if not (isinstance(value, tuple) and len(value) == 2):
      raise TypeError(f"loss_fn must return (loss, aux) with has_aux=True, got a {type(value).__name__}")
    loss, aux = value
  if not jax.tree_util.all_leaves([loss]):
    raise TypeError(f"the loss must be a scalar, got a {type(loss).__name__}; (loss, aux) needs has_aux=True")
  return check_floating(loss, "the value of loss_fn", shape=()), aux


def check_loss_fn(loss_fn: Callable[..., Any], name: str = "loss_fn", also: tuple[str, ...] = ()) -> None:
  """Checks that `loss_fn` can be called as `LossFn` says, and with the keywords `also`.

  Raises:
    TypeError: if it is no function, or does not take `(params, batch, *, key)` and `also`.
  """
  form = f"({', '.join(('params', 'batch', '*', 'key', *also))})"
  if not callable(loss_fn):
    raise TypeError(f"{name} must be a function {form}, got {one_line(loss_fn)}")
  try:
    # A wrapper may take arguments that the wrapped function does not.
    signature = inspect.signature(loss_fn, follow_wrapped=not inspect.isfunction(loss_fn))
  except ValueError:  # some built-in functions have no signature
    return
  try:
    signature.bind(None, None, key=None, **dict.fromkeys(also))
  except TypeError as error:
    raise TypeError(
      f"{name} must take {form}, even if it ignores key, got the signature {signature}: {error}"
    ) from None


def check_function(function: Any, name: str, form: str, *, takes: int) -> None:
  """Checks that `function` can be called with `takes` positional arguments.

  Args:
    function: the function to check.
    name: name of the argument, for the message.
    form: the expected form, for the message, such as `params -> params`.
    takes: the number of arguments in a call.

  Raises:
    TypeError: if it is no function, or needs other arguments.
  """
  if not callable(function):
    raise TypeError(f"{name} must be a function {form}, got {one_line(function)}")
  try:
    signature = inspect.signature(function)
  except ValueError:  # some built-in functions have no signature
    return
  try:
    signature.bind(*[None] * takes)
  except TypeError as error:
    called = getattr(function, "__name__", type(function).__name__)
    raise TypeError(
      f"{name} must be a function {form}, got {called}: {error}; functools.partial binds options"
    ) from None


def one_line(value: Any) -> str:
  """A value in a message: its repr, or only its type if the repr is long, as for a module."""
  text = repr(value)
  return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def check_range(
  value: Any,
  name: str,
  *,
  low: float = float("-inf"),
  high: float = float("inf"),
  open_low: bool = False,
) -> None:
  """Checks the range of a hyper-parameter, entry by entry; a traced value passes.

  Raises:
    ValueError: if an entry of `value` is NaN or outside `[low, high]` (`(low, high]` with `open_low`).
  """
  if isinstance(value, Tracer):
    return
  # On the host: inside jit, comparisons of arrays are traced even if the values are known.
  known = value if isinstance(value, int | float) else np.asarray(value)
  if not np.all((low < known if open_low else low <= known) & (known <= high)):
    bracket = "(" if open_low else "["
    got = f"values from {np.min(known):g} to {np.max(known):g}" if np.ndim(known) else value
    raise ValueError(f"{name} must lie in {bracket}{low:g}, {high:g}], got {got}")


def check_count(value: Any, name: str) -> None:
  """Checks a count, which is part of a shape and so never traced.

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

"""Checks of arguments at the start of public functions; most return the argument, ready for use."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._errors import ArgumentError, ArgumentTypeError
from jaxreg.typing import Array, Key

# The smallest normal and the largest number of JAX's floats, without 64 bits and with them.
HELD = tuple((float(info.tiny), float(info.max)) for info in map(np.finfo, (np.float32, np.float64)))


def check_array(x: ArrayLike, name: str) -> Array:
  """Returns `x` as an array; without 64 bits, larger integers become the largest of 32 bits."""
  if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
    kept = np.iinfo(jax.dtypes.canonicalize_dtype(x.dtype))
    if kept.bits < 8 * x.dtype.itemsize:  # the conversion would keep the last bits: another label
      x = x.clip(kept.min, kept.max).astype(kept.dtype)
  try:
    return jnp.asarray(x)
  except OverflowError:  # a Python integer of more than 32 bits
    return check_array(np.asarray(x), name)
  except (TypeError, ValueError):  # a text, None, or a list of lists of unequal lengths
    raise ArgumentTypeError(name, f"must be an array of numbers, got {one_line(x)}") from None


def check_floating(x: ArrayLike, name: str, *, shape: tuple[int, ...] | None = None) -> Array:
  """Returns `x` as an array."""
  x = check_array(x, name)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise ArgumentTypeError(name, f"must be floating, got {x.dtype}")
  if shape is not None and x.shape != shape:
    raise ArgumentError(name, f"must have shape {shape}, got {x.shape}")
  return x


def check_batched(x: ArrayLike, name: str) -> Array:
  """Like `check_floating`, for `[batch, ...]`."""
  x = check_floating(x, name)
  if x.ndim == 0:
    raise ArgumentError(name, "must have a batch axis, got a scalar")
  return x


def check_wide(x: ArrayLike, name: str, *, shape: tuple[int, ...] | None = None) -> Array:
  """Like `check_floating`, but widens to at least float32: bfloat16 is too coarse for losses and logs."""
  x = check_floating(x, name, shape=shape)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def check_logits(x: ArrayLike, name: str = "logits", *, shape: tuple[int, ...] | None = None) -> Array:
  """Like `check_wide`, for logits `[..., classes]`: a softmax of one logit per example would always be 1."""
  x = check_wide(x, name, shape=shape)
  if x.ndim == 0:
    raise ArgumentError(name, "must be [..., classes], got a scalar")
  if x.shape[-1] == 1:
    raise ArgumentError(
      name,
      f"must have at least 2 classes, got {x.shape}; make two of one logit z per example: "
      "jnp.concatenate([jnp.zeros_like(z), z], axis=-1)",
    )
  return x


def check_log_probs(x: ArrayLike, name: str) -> Array:
  """Like `check_logits`, for log-probabilities; known values must sum to 1 as probabilities."""
  given, x = x, check_logits(x, name)
  known = known_values(given if isinstance(given, np.ndarray) else x)
  if known is not None and known.size:
    with np.errstate(over="ignore"):
      totals = np.exp(known.astype(x.dtype)).sum(axis=-1).ravel()
    # Coarse dtypes round a sum of many. NaN passes: a diverged network must show as NaN.
    wrong = totals[np.abs(totals - 1) > 0.1]
    if wrong.size:
      raise ArgumentError(
        name,
        f"must be log-probabilities, whose exponentials have the sum 1, got a sum of {wrong[0]:g}; "
        "take jax.nn.log_softmax of logits, or jnp.log of probabilities",
      )
  return x


def known_values(x: Any) -> np.ndarray | None:
  """Returns the values of `x` if reading them is nearly free, else None.

  That is so for NumPy arrays, numbers, and outside of `jit` JAX arrays on the CPU. Comparing 128 labels there
  takes 10 microseconds, less than one eager operation. Reading from an accelerator would wait for it.
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
  """
  given, labels = labels, check_array(labels, "labels")
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    soft = labels.ndim == scores.ndim > 0
    hint = "; soft labels are not supported here: give one class, labels.argmax(axis=-1)" if soft else ""
    raise ArgumentTypeError("labels", f"must be integers, got {labels.dtype}{hint}")
  if num_classes is None:
    num_classes = scores.shape[-1] if scores.ndim else 0
  if scores.ndim == 0 or labels.shape != scores.shape[:-1]:
    one_hot = labels.shape == (*scores.shape[:-1], num_classes)
    hint = "; convert one-hot labels with labels.argmax(axis=-1)" if one_hot else ""
    raise ArgumentError(
      "labels",
      f"must have the shape of {name} without the class axis, "
      f"got labels {labels.shape} for {name} {scores.shape}{hint}",
    )
  known = known_values(given) if bounded else None
  if known is not None and known.size:
    low, high = known.min(), known.max()
    if low < 0 or high >= num_classes:
      raise ArgumentError("labels", f"must lie in [0, {num_classes}), got {low if low < 0 else high}")
  return wide_integers(labels)


def wide_integers(x: Any) -> Any:
  """Returns an array of NumPy or JAX with its integers in 32 bits or more."""
  if not jnp.issubdtype(x.dtype, jnp.integer):
    return x
  # In 8 bits, arithmetic on labels wraps around: `1 << label`, or the number of classes as a label. For
  # uint64 the promoted type would be a float.
  return x.astype(jnp.promote_types(x.dtype, jnp.int32) if x.dtype != jnp.uint64 else jnp.int64)


def check_hard_or_soft_labels(labels: ArrayLike, logits: Array) -> Array:
  """Returns integer `labels` `[...]` as `check_labels` does, or probabilities `[..., classes]`, widened."""
  array = check_array(labels, "labels")
  if not jnp.issubdtype(array.dtype, jnp.floating):
    return check_labels(labels, logits)
  if array.ndim == logits.ndim - 1:
    raise ArgumentTypeError(
      "labels",
      f"must be integers {array.shape} or probabilities {logits.shape}, got {array.dtype} {array.shape}",
    )
  if array.ndim == 0 or array.shape != logits.shape:
    raise ValueError(f"soft labels (probabilities) must have shape {logits.shape}, got {array.shape}")
  known = known_values(labels)
  if known is not None and known.size:
    if known.min() < 0:
      raise ArgumentError("labels", f"must be probabilities, at least 0, got {known.min()}")
    # A bfloat16 rounds by 0.2 per cent. NaN passes: a diverged teacher must show as NaN.
    totals = known.astype(np.float64).sum(axis=-1).ravel()
    wrong = totals[np.abs(totals - 1) > 0.01]
    if wrong.size:
      raise ArgumentError("labels", f"must be probabilities with the sum 1, got a sum of {wrong[0]:g}")
  return array.astype(jnp.promote_types(array.dtype, logits.dtype))


def check_key(key: Key) -> Key:
  """Returns `key` if it is a single typed key."""
  if not _is_key(key):
    raise ArgumentTypeError("key", f"must be a typed key, such as jax.random.key(0), got {_no_key(key)}")
  if key.ndim:
    raise ArgumentError(
      "key", f"must be a single key, got keys of shape {key.shape}; use jax.vmap for several"
    )
  return key


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


def check_no_function(leaf: Any, name: str) -> None:
  """Checks that a leaf is no function: Equinox models hold activation functions as leaves."""
  if callable(leaf):
    raise TypeError(
      f"params/{name} must be an array, got a function: keep only the arrays, in Equinox with "
      "eqx.filter(model, eqx.is_array) or eqx.partition(model, eqx.is_array)[0]"
    )


def check_batch(batch: Any, *names: str) -> None:
  """Checks that a batch is a mapping with the given names."""
  wanted = " and ".join(repr(name) for name in names)
  if not isinstance(batch, Mapping):
    raise ArgumentTypeError("batch", f"must be a mapping with {wanted}, got a {type(batch).__name__}")
  for name in names:
    if name not in batch:
      raise ArgumentError("batch", f"must have {name!r}, got {sorted(batch)}")


def unpack(value: Any, has_aux: bool) -> tuple[Any, Any]:
  """Unpacks the value of a loss function: the loss, and the aux value, None without `has_aux`."""
  if has_aux and not (isinstance(value, tuple) and len(value) == 2):
    raise TypeError(f"loss_fn must return (loss, aux) with has_aux=True, got a {type(value).__name__}")
  return value if has_aux else (value, None)


def check_loss(loss: Any, allowed: str, *, shape: tuple[int, ...] | None = None) -> Array:
  """Checks that a loss is one array; `allowed` is for the message, such as `a scalar`."""
  if not jax.tree_util.all_leaves([loss]):
    raise TypeError(
      f"the loss must be {allowed}, got a {type(loss).__name__}; (loss, aux) needs has_aux=True"
    )
  return check_floating(loss, "the value of loss_fn", shape=shape)


def check_loss_fn(loss_fn: Callable[..., Any], name: str = "loss_fn", also: tuple[str, ...] = ()) -> None:
  """Checks that `loss_fn` can be called as `LossFn` says, and with the keywords `also`."""
  form = f"({', '.join(('params', 'batch', '*', 'key', *also))})"
  if not callable(loss_fn):
    raise ArgumentTypeError(name, f"must be a function {form}, got {one_line(loss_fn)}")
  try:
    # A wrapper may take arguments that the wrapped function does not.
    signature = inspect.signature(loss_fn, follow_wrapped=not inspect.isfunction(loss_fn))
  except ValueError:  # some built-in functions have no signature
    return
  try:
    signature.bind(None, None, key=None, **dict.fromkeys(also))
  except TypeError as error:
    raise ArgumentTypeError(
      name, f"must take {form}, even if it ignores key, got the signature {signature}: {error}"
    ) from None


def check_function(function: Any, name: str, form: str, *, takes: int) -> None:
  """Checks that `function` takes `takes` arguments; `form` is for the message, such as `params -> params`."""
  if not callable(function):
    raise ArgumentTypeError(name, f"must be a function {form}, got {one_line(function)}")
  plain = getattr(function, "func", function)  # of `functools.partial`
  inputs, options = (None,) * takes, {}
  try:
    try:
      signature = inspect.signature(function)
    except ValueError:
      if not isinstance(function, functools.partial):
        raise
      signature = inspect.signature(plain)
      inputs, options = (*function.args, *inputs), function.keywords  # an option that `plain` does not have
  except ValueError:  # some built-in functions have no signature
    return
  try:
    signature.bind(*inputs, **options)
  except TypeError as error:
    own = [option for option, each in signature.parameters.items() if each.kind is each.KEYWORD_ONLY]
    advice = f"its options are {', '.join(own)}" if options and own else "functools.partial binds options"
    called = getattr(plain, "__name__", type(plain).__name__)
    raise ArgumentTypeError(name, f"must be a function {form}, got {called}: {error}; {advice}") from None


def one_line(value: Any) -> str:
  """Shows a value in a message: by its repr, or by its type if the repr is long, as for a module."""
  text = repr(value)
  return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def check_range(
  value: Any,
  name: str,
  *,
  low: float = float("-inf"),
  high: float | None = None,
  open_low: bool = False,
  open_high: bool = False,
  float64: bool = False,
) -> None:
  """Checks that all entries lie between the ends, by default finite ones; a traced value passes.

  NaN lies nowhere. Infinity lies in no interval without `high=inf`, which says that it has a meaning. A
  number that JAX's floats round to infinity, to 0 or to an open end is refused as that, unless it stays in
  NumPy's `float64`.
  """
  if isinstance(value, Tracer):
    return
  # On the host: inside jit, comparisons of arrays are traced even if the values are known.
  known = value if isinstance(value, int | float) else np.asarray(check_number(value, name))
  if high is None:
    high, open_high = float("inf"), True
  open_low |= low == float("-inf")

  def inside(x: Any, rounded: Any) -> Any:
    above = low < rounded if open_low else low <= x
    return above & (rounded < high if open_high else x <= high)

  if not np.all(inside(*((known, known) if float64 else _held(known)))):
    interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    got = f"values from {np.min(known):g} to {np.max(known):g}" if np.ndim(known) else value
    rounded = ", which JAX's floats round" if np.all(inside(known, known)) else ""
    raise ArgumentError(name, f"must lie in {interval}, got {got}{rounded}")


def _held(known: Any) -> tuple[Any, Any]:
  """Returns numbers with infinity and 0 for those beyond JAX's floats, and rounded, as an open end needs."""
  x64 = bool(jax.config.jax_enable_x64)
  tiny, most = HELD[x64]
  if isinstance(known, int | float):
    if abs(known) > most:
      known = float("inf") if known > 0 else float("-inf")
    elif abs(known) < tiny:
      known = 0.0
    return known, known if x64 or isinstance(known, int) else float(np.float32(known))
  if known.dtype.kind in "biu":
    return known, known
  size = np.abs(known := known.astype(np.float64))
  held = np.where(size > most, np.copysign(np.inf, known), np.where(size < tiny, 0, known))
  return held, held if x64 else held.astype(np.float32)


def check_number(value: Any, name: str) -> Any:
  """Returns a number or an array of numbers; a text would end in an error of NumPy without the name."""
  if not isinstance(value, int | float | Tracer | jax.Array):
    kind = getattr(value, "dtype", None)
    kind = np.asarray(value).dtype if kind is None else kind
    if not (
      jnp.issubdtype(kind, np.bool_) or jnp.issubdtype(kind, np.integer) or jnp.issubdtype(kind, np.floating)
    ):
      raise ArgumentTypeError(name, f"must be a number, got {one_line(value)}")
  return value


def check_ends(ends: Any, name: str) -> tuple[Any, Any]:
  """Returns both ends of an interval, the low one first."""
  several = isinstance(ends, tuple | list) or getattr(ends, "ndim", 0) == 1
  if not several or len(ends) != 2:
    raise ArgumentError(name, f"must be two numbers, low and high, got {one_line(ends)}")
  low, high = (check_number(end, name) for end in ends)
  return low, high


def check_axes(axes: Any, name: str, ndim: int, owner: str = "x") -> tuple[int, ...]:
  """Returns one axis or several of an array as numbers from 0; `owner` names the array."""
  several = axes if isinstance(axes, tuple | list) else (axes,)
  if not all(hasattr(axis, "__index__") and -ndim <= axis < ndim for axis in several):
    raise ArgumentError(name, f"must name axes of {owner}, which has {ndim} axes, got {axes!r}")
  return tuple(axis % ndim for axis in several)


def check_channel_axis(axis: Any, allowed: Collection[int]) -> None:
  """Checks the axis of the channels; the `allowed` ones are in ascending order."""
  if isinstance(axis, bool) or not hasattr(axis, "__index__") or axis not in allowed:
    listed = ", ".join(map(str, allowed))
    raise ArgumentError("channel_axis", f"must be one of the axes {listed}, got {one_line(axis)}")


def check_option(
  value: Any,
  name: str,
  shape: tuple[int, ...],
  *,
  low: float = float("-inf"),
  high: float | None = None,
  open_low: bool = False,
  open_high: bool = False,
  entrywise: bool = False,
) -> None:
  """Checks the range of a hyper-parameter, which may be traced, and its shape: () or that of the result.

  Any other shape would change the shape of the result, often without an error. With `entrywise`, shapes that
  broadcast to `shape` are allowed, too, such as one number per feature.
  """
  got = np.shape(value)
  if got not in ((), shape) and not (entrywise and _broadcasts(got, shape)):
    fits = "broadcast to" if entrywise else "have"
    allowed = f"be a scalar or {fits} shape {shape}" if shape else "be a scalar"
    raise ArgumentError(name, f"must {allowed}, got shape {got}")
  check_range(value, name, low=low, high=high, open_low=open_low, open_high=open_high)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
  pairs = zip(reversed(shape), reversed(to))
  return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def per_class(option: ArrayLike, dtype: Any) -> Array:
  """Returns a scalar or `[...]` in a shape that broadcasts to `[..., classes]`."""
  option = jnp.asarray(option, dtype)
  return option[..., None] if option.ndim else option


def check_count(value: Any, name: str, least: int = 1) -> None:
  """Checks a count, which is part of a shape and so never traced."""
  if isinstance(value, bool) or not hasattr(value, "__index__"):
    raise ArgumentTypeError(name, f"must be an integer, got {value!r}")
  if operator.index(value) < least:
    raise ArgumentError(name, f"must be at least {least}, got {value}")


def check_choice(value: Any, name: str, allowed: Collection[str]) -> None:
  """Checks an option that is one of several names."""
  if value not in allowed:
    raise ArgumentError(name, f"must be one of {', '.join(allowed)}, got {value!r}")

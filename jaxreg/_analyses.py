"""Parts common to analyses of networks: full precision, functions as arguments, fixed noise."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxreg._checks import check_key, check_loss_fn
from jaxreg.typing import Array, Batch, Key, LossFn, Params

ONE_BATCH = "join all batches along the first axis, and give chunked(loss_fn, chunk_size) if they are large"

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def full_precision(function: F) -> F:
  """Runs and traces a function with matrix products in the precision of their operands.

  Accelerators default to TF32 or bfloat16, which leaves few correct digits of a curvature.
  """

  @functools.wraps(function)
  def run(*args: Any, **kwargs: Any) -> Any:
    with jax.default_matmul_precision("highest"):
      return function(*args, **kwargs)

  return run  # type: ignore[return-value]


def as_pytree(function: Callable[..., Any]) -> Any:
  """Wraps a function as an argument of compiled code; a function that carries arrays is a pytree already."""
  return jax.tree_util.Partial(function) if jax.tree_util.all_leaves([function]) else function


def widened(tree: T) -> T:
  """Turns float16 and bfloat16 leaves into float32: a curvature needs more digits than they have."""
  return jax.tree.map(_widened_leaf, tree)


def _widened_leaf(leaf: Any) -> Any:
  dtype = getattr(leaf, "dtype", None)
  if dtype is None and isinstance(leaf, Iterable):
    raise TypeError(f"batch must be a tree of arrays, got a {type(leaf).__name__}; {ONE_BATCH}")
  narrow = dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
  return leaf.astype(jnp.float32) if narrow else leaf


def is_list_of_batches(batch: Batch) -> bool:
  """Tells whether `batch` is a list of trees of one structure, which is seldom one batch."""
  parts = [jax.tree.structure(part) for part in batch] if isinstance(batch, list | tuple) else []
  return len(set(parts)) == 1 and not jax.tree_util.treedef_is_leaf(parts[0])


def num_examples(batch: Batch) -> int:
  """Returns the length of the leading axis, which all leaves must share."""
  shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(batch)]
  sizes = {shape[0] if shape else None for shape in shapes}
  if is_list_of_batches(batch) and len(sizes) != 1:
    raise ValueError(f"batch must be one batch, got a list of {len(batch)}; {ONE_BATCH}")
  if len(sizes) != 1 or None in sizes or 0 in sizes:
    raise ValueError(f"batch: its leaves must share a leading axis of examples, got shapes {shapes}")
  return next(iter(sizes))  # type: ignore[return-value]


def same(key: Key | None) -> Key | None:
  """Clones the key, on purpose: every evaluation of an analysis sees the same noise."""
  return None if key is None else jax.random.clone(check_key(key))


@contextlib.contextmanager
def _explained(batch: Batch, key: Key | None, noisy: str) -> Iterator[None]:
  """Raises a TypeError of one line where a function fails without a key, or on a list of batches."""
  try:
    yield
  except (TypeError, AttributeError, LookupError, ValueError) as error:
    if key is None and "key type <class 'NoneType'>" in str(error):
      raise TypeError(noisy) from error
    if is_list_of_batches(batch) and ONE_BATCH not in str(error):
      raise TypeError(f"batch must be one batch, got a list of {len(batch)}; {ONE_BATCH}") from error
    raise


def outputs_at(apply_fn: Callable[..., Any], params: Params, batch: Batch, key: Key | None = None) -> Any:
  """Computes the outputs in at least float32, with the same noise in every call."""
  with _explained(batch, key, "apply_fn must draw no noise when it gets key=None"):
    return widened(apply_fn(params, batch, key=same(key)))


def outputs_of_leaves(
  apply_fn: Callable[..., Any], tree: Any, leaves: list[Array], batch: Batch, key: Key | None = None
) -> Any:
  """Computes the outputs as a function of the leaves of the parameters."""
  return outputs_at(apply_fn, jax.tree.unflatten(tree, leaves), batch, key)


def mean_loss(loss_fn: LossFn, params: Params, batch: Batch, key: Key | None) -> Array:
  """Computes the mean loss, with the same noise in every call."""
  return mean_and_count(loss_fn, params, batch, key)[0]


def mean_and_count(
  loss_fn: LossFn, params: Params, batch: Batch, key: Key | None
) -> tuple[Array, Array | None]:
  """Computes the mean loss and how many examples it counts, with the same noise in every call."""
  check_loss_fn(loss_fn)
  with _explained(batch, key, "key must be given, because loss_fn draws noise, got None"):
    loss = loss_fn(params, batch, key=same(key))
  return as_mean_and_count(loss, "loss_fn")


def as_mean_and_count(loss: Any, name: str) -> tuple[Array, Array | None]:
  """Returns the mean and the count of a loss: `(mean, count)` as it is, and a mean with the count None."""
  pair: Any = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, None)
  shapes = jax.tree.map(jnp.shape, loss)
  if shapes not in ((), ((), ())):
    raise ValueError(
      f"{name} must return a scalar, a mean over the examples, or (mean, count), got shape {shapes}"
    )
  return pair


def example_count(count: Array | None, batch: Batch, dtype: Any) -> Array:
  """Returns the count of a loss, or else how many examples the batch has, as a scalar of `dtype`."""
  return jnp.asarray(num_examples(batch) if count is None else count, dtype)


def times_count(x: Array, count: Array) -> Array:
  """Multiplies the mean of a part by its count; the mean may be NaN where nothing counts."""
  return jnp.where(count > 0, x * count, 0)

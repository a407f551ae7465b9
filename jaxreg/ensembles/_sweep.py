"""A grid of strengths and seeds, trained in one program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax

from jaxreg._checks import check_choice, check_function
from jaxreg.ensembles._deep import ensemble_apply
from jaxreg.typing import Key, PyTree


def sweep(
  function: Callable[[Mapping[str, Any], Key], PyTree],
  strengths: Mapping[str, PyTree],
  keys: Key,
  *,
  by: Literal["vmap", "map"] = "vmap",
) -> PyTree:
  """Calls a function, such as a whole training, for all combinations of strengths, and for several keys.

  All runs are one compiled program. Other values of the strengths or keys compile nothing, as long as
  `function` is the same object. The result of a run is that of `function` alone, up to rounding.

  Args:
    function: `(strengths, key) -> result`, with one value of each strength, traced. It may call
      `objective.compose` with them: `objective.penalty(penalties.l2, weight=strengths["l2"])`.
    strengths: the values of each strength, `[n]`, by name. An entry may be a pytree, whose leaves `[n, ...]`
      then change together.
    keys: `[seeds]`, as `jax.random.split` makes them; every combination gets the same ones.
    by: "vmap" runs all at once. "map" runs one combination after another, each with all keys.

  Returns:
    The results, every leaf with an axis for each strength, in their order, and one for the keys in front.

  Example:
    >>> def train(strengths, key):
    ...   return strengths["l2"] + strengths["std"] * jax.random.normal(key)
    >>> strengths = {"l2": jnp.array([0.0, 1.0, 2.0]), "std": jnp.array([0.0, 0.1])}
    >>> sweep(train, strengths, jax.random.split(jax.random.key(0), 4)).shape
    (3, 2, 4)
  """
  check_choice(by, "by", ("vmap", "map"))
  check_function(function, "function", "(strengths, key) -> result", takes=2)
  return _grid(function, tuple(strengths), tuple(strengths.values()), keys, by)


@functools.partial(jax.jit, static_argnames=("function", "names", "by"))
def _grid(
  function: Callable[..., PyTree],
  names: tuple[str, ...],
  values: tuple[PyTree, ...],
  keys: Key,
  by: Literal["vmap", "map"],
) -> PyTree:
  def runs(*values: PyTree) -> PyTree:
    return jax.vmap(lambda key: function(dict(zip(names, values)), key))(keys)

  for axis in reversed(range(len(names))):
    runs = _along(runs, axis, by)
  return runs(*values)


def _along(runs: Callable[..., PyTree], axis: int, by: Any) -> Callable[..., PyTree]:
  """`runs` for each value of the strength at `axis`."""

  def several(*values: PyTree) -> PyTree:
    one = lambda value: runs(*values[:axis], value, *values[axis + 1 :])
    return ensemble_apply(one, values[axis], by=by)

  return several

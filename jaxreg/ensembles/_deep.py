"""Deep ensembles, bagging and sweeps: runs that differ in seeds, resampled sets or strengths."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax

from jaxreg._checks import check_choice, check_count, check_function, check_key, key_first
from jaxreg.typing import Array, Key, Params, PyTree


@key_first
def ensemble_init(key: Key, init_fn: Callable[[Key], Params], *, num_members: int) -> Params:
  """Initialises several members: member `i` is `init_fn(jax.random.split(key, num_members)[i])`.

  Args:
    key: split once.
    init_fn: `key -> params`, for one member.
    num_members: number of members.

  Returns:
    The stacked parameters, every leaf `[members, ...]`.

  Example:
    >>> ensemble_init(jax.random.key(0), lambda key: jax.random.normal(key, (4,)), num_members=3).shape
    (3, 4)

  References:
    Lakshminarayanan, Pritzel and Blundell, `Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles`, 2017.
  """
  check_count(num_members, "num_members")
  return jax.vmap(init_fn)(jax.random.split(check_key(key), num_members))


def ensemble_apply(
  function: Callable[..., Any], members: Any, *shared: Any, by: Literal["vmap", "map"] = "vmap"
) -> Any:
  """Calls a function once for each member, on the member's own arguments and on shared ones.

  Any function of one member becomes a function of an ensemble: `ensemble_apply(optimizer.init, params)`, a
  step `ensemble_apply(step, (params, opt_state), batch)` with `step((params, opt_state), batch)`, or a
  prediction. An argument with a value per member, such as a key or a bootstrap sample, goes into `members`.

  Args:
    function: `(member, *shared) -> outputs`.
    members: a pytree, every leaf `[members, ...]`.
    *shared: pytrees that every member sees whole.
    by: "vmap" runs all members at once. "map" runs one after the other, which needs the memory of one member
      and may be faster on CPUs with convolutions.

  Returns:
    The outputs stacked, every leaf `[members, ...]`.

  Example:
    >>> slopes = jnp.array([1.0, 2.0])
    >>> ensemble_apply(lambda slope, x: slope * x, slopes, jnp.arange(3.0))
    Array([[0., 1., 2.],
           [0., 2., 4.]], dtype=float32)

  References:
    Lakshminarayanan, Pritzel and Blundell, `Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles`, 2017.
  """
  check_choice(by, "by", ("vmap", "map"))
  one = lambda member: function(member, *shared)
  return jax.vmap(one)(members) if by == "vmap" else jax.lax.map(one, members)


def bootstrap_indices(key: Key, *, num_examples: int, num_members: int) -> Array:
  r"""Draws the examples that each member trains on: `num_examples` of them, with replacement.

  .. math:: i_{mj} \sim \mathrm{Uniform}\{0, \dots, n - 1\}

  A member sees each example with probability :math:`1 - (1 - 1/n)^n \to 1 - 1/e`; the unseen examples can
  measure it. Train a member on each row by `ensemble_apply`; `arithmetic` is the mean prediction.

  Args:
    key: one draw for all members.
    num_examples: `n`.
    num_members: number of resampled sets.

  Returns:
    `[num_members, num_examples]`, int32.

  Example:
    >>> bootstrap_indices(jax.random.key(0), num_examples=4, num_members=2).shape
    (2, 4)

  References:
    Breiman, `Bagging Predictors`, 1996.
  """
  check_count(num_examples, "num_examples")
  check_count(num_members, "num_members")
  return jax.random.randint(check_key(key), (num_members, num_examples), 0, num_examples, "int32")


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

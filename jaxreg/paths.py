"""Parameters by name: leaves have names such as `Dense_0/kernel`, and masks are trees of bools.

A name joins the keys on the way to a leaf by slashes: `Dense_0/kernel` in Linen, `layers/0/weight` in
Equinox, `mlp/~/linear_0/w` in Haiku. NNX's variables have the name of their attribute, `layer/kernel`, in a
module, in a state and in a pure dict.

The last part of a name determines the layout of a leaf, unless an argument does:

- `kernel`, in Flax: `[..., in, out]`, units on the last axis;
- `embedding`, in Flax: `[rows, size]`, one vector per row;
- `weight`, and `weight_ih` and `weight_hh` of recurrent cells, in Equinox and PyTorch: `[out, in, ...]`,
  units on the first axis; an embedding called `weight` also has one vector per row. A `weight` with one axis
  is the scale of a normalisation.

So `kernels_only`, the usual default mask, takes the first two kinds, and the third if it has two axes or
more. `incoming_axes`, the default of `axis`, uses the same names. Give `mask` and `axis` for
leaves with another name or layout. Below a part of the name called `stacked`, the first axis counts layers,
as in `models.ViT`, and the rest is the layout of one layer. Examples of other layouts are Haiku's kernels,
`mask="*/w"`, whose layout is the default; PyTorch's transposed convolutions, `[in, out, ...]`; and the scale
of a LayerNorm over several axes, which is called `weight` but is not a kernel.

An argument `mask` selects parameters. It is a glob on the whole name (`*/kernel`; `*` also crosses slashes,
so `*` selects all), a compiled regular expression that is searched for, or several of these. It can also be a
tree of bools like the parameters, as for Optax, or a function from the parameters to such a tree:
`kernels_only`, or `functools.partial(select, exclude="head/*")`.
"""

import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxreg._checks import check_no_function, one_line
from jaxreg.typing import Mask

__all__ = [
  "everything",
  "incoming_axes",
  "kernels_only",
  "labels",
  "leaf_names",
  "no_branches",
  "select",
]

Pattern = str | re.Pattern[str] | Callable[[str], bool]

UNITS_FIRST = ("weight", "weight_ih", "weight_hh")


def leaf_names(tree: Any) -> list[str]:
  """Returns the names of the leaves of `tree`, in flattening order.

  Example:
    >>> leaf_names({"Dense_0": {"kernel": 1.0, "bias": 2.0}})
    ['Dense_0/bias', 'Dense_0/kernel']
  """
  names = []
  for above, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_variable):
    for below, _ in jax.tree_util.tree_leaves_with_path(node):
      # The first key below a variable of NNX is `value`, which names nothing.
      names.append(jax.tree_util.keystr(above + below[_is_variable(node) :], simple=True, separator="/"))
  return names


def select(
  tree: Any, include: Pattern | Iterable[Pattern] = "*", exclude: Pattern | Iterable[Pattern] = ()
) -> Any:
  """Returns a mask over `tree`: true for leaves whose name matches `include` and not `exclude`.

  A pattern is a glob on the whole name (`*/kernel`; `*` also crosses slashes), a compiled regular
  expression that is searched for, or a callable on the name; several patterns are alternatives.

  Example:
    >>> select({"Dense_0": {"kernel": 1.0, "bias": 2.0}}, "*/kernel")
    {'Dense_0': {'bias': False, 'kernel': True}}
  """
  include, exclude = _alternatives(include), _alternatives(exclude)

  def matches(name, patterns):
    return any(_match(name, pattern) for pattern in patterns)

  def chosen(name):
    return matches(name, include) and not matches(name, exclude)

  return _with_names(chosen, tree)


def labels(tree: Any, patterns: Sequence[Pattern]) -> Any:
  """Returns for each leaf of `tree` the index of the pattern that its name matches, as for `optax.partition`.

  If several patterns match, the last one counts, so that a first pattern `*` gives all other leaves a label.

  Raises:
    ValueError: if a name matches no pattern.

  Example:
    >>> labels({"Dense_0": {"kernel": 1.0}, "Dense_1": {"kernel": 2.0}}, ["*", "Dense_1/*"])
    {'Dense_0': {'kernel': 0}, 'Dense_1': {'kernel': 1}}
  """

  def label(name: str) -> int:
    matching = [index for index, pattern in enumerate(patterns) if _match(name, pattern)]
    if not matching:
      raise ValueError(f"patterns must match all parameters, got none of {tuple(patterns)} for {name!r}")
    return matching[-1]

  return _with_names(label, tree)


def everything(params: Any) -> Any:
  """Returns the mask that is true everywhere."""
  return select(params)


def kernels_only(params: Any) -> Any:
  """Returns the usual mask of weight decay: kernels and embeddings, no biases or normalisation scales.

  It selects leaves named `kernel` or `embedding`. It also selects leaves named `weight`, `weight_ih` or
  `weight_hh`, as in Equinox and PyTorch, if they have two axes or more; with one axis they are scales. The
  axis of layers below `stacked` does not count.

  Example:
    >>> kernels_only({"Dense_0": {"kernel": 1.0, "bias": 2.0}})
    {'Dense_0': {'bias': False, 'kernel': True}}
  """
  leaves, tree = jax.tree.flatten(params)

  def is_kernel(name: str, leaf: Any) -> bool:
    last = last_name(name)
    return last in ("kernel", "embedding") or (
      last in UNITS_FIRST and np.ndim(leaf) - is_below_stacked(name) > 1
    )

  return tree.unflatten(map(is_kernel, leaf_names(params), leaves))


def is_below_stacked(name: str) -> bool:
  """Tells whether the first axis of a leaf counts layers."""
  return "stacked" in name.split("/")[:-1]


def chosen(params: Any, mask: Mask, *, default: Mask = kernels_only) -> list[bool]:
  """Returns which leaves a `mask` selects, in flattening order: every argument `mask` is read here.

  Each pattern must match a leaf. An Equinox module of bools counts as a tree, although it can be called.
  """
  mask = default if mask is None else mask
  if _is_patterns(mask):
    for pattern in _alternatives(mask):
      if not any(jax.tree.leaves(select(params, pattern))):
        raise ValueError(f"mask: {pattern!r} selects no parameter; {_listed(params)}")
    tree = select(params, mask)
  else:
    tree = mask(params) if _is_function(mask) else mask
  if jax.tree.structure(tree) != jax.tree.structure(params):
    raise ValueError(
      "mask must be globs, a tree of bools with the structure of params, or a function that returns such a "
      f"tree, got {_difference(tree, params)}"
    )
  taken = [bool(leaf) for leaf in jax.tree.leaves(tree)]
  if not any(taken):
    usual = (
      ". kernels_only, the usual default, takes leaves named kernel or embedding, and those named weight "
      'that have two axes or more; for others give mask="*" or globs'
    )
    hint = usual if mask is kernels_only else ""
    raise ValueError(f"mask selects no parameter of params; {_listed(params)}{hint}")
  for name, leaf, one in zip(leaf_names(params), jax.tree.leaves(params), taken, strict=True):
    if one:
      check_no_function(leaf, name)
  return taken


def incoming_axes(name: str, ndim: int) -> tuple[int, ...]:
  """Returns the axes of a parameter that hold one unit's incoming weights, by the conventions of its name.

  In Flax these are all axes but the last for dense and convolutional kernels and for the output projection of
  attention. For attention's query, key and value kernels, `[features, heads, size]`, it is the first axis;
  for an embedding, with one vector per row, the last. In Equinox and PyTorch, where the name is `weight`,
  `weight_ih` or `weight_hh`, these are all axes but the first. A single axis is one unit. Kernels with
  another layout (transposed convolutions) need explicit axes. Below `stacked`, each layer has its own units.

  Example:
    >>> incoming_axes("Conv_0/kernel", 4), incoming_axes("attention/query/kernel", 3)
    ((0, 1, 2), (0,))
    >>> incoming_axes("stacked/hidden/kernel", 3)
    (1,)
    >>> incoming_axes("layers/0/weight", 4)
    (1, 2, 3)
  """
  *above, last = name.split("/")
  if "stacked" in above:
    rest = "/".join([*above[above.index("stacked") + 1 :], last])
    return tuple(axis + 1 for axis in incoming_axes(rest, ndim - 1))
  if last == "embedding":
    return tuple(range(ndim))[-1:]
  if last in UNITS_FIRST and ndim > 1:
    return tuple(range(1, ndim))
  if ndim == 3 and above and above[-1] in ("query", "key", "value"):
    return (0,)
  return tuple(range(max(ndim - 1, min(ndim, 1))))


def no_branches(params: Any) -> Any:
  """Returns the mask of DropMax's released code: biases decay too, the head's two mask branches do not.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code.
  """
  return select(params, exclude=re.compile(r"(^|/)(prior|residual)/(kernel|bias)$"))


def _is_patterns(mask: Any) -> bool:
  """Whether a mask is a pattern or several; an empty tuple is a tree, of no parameters."""
  several = mask if isinstance(mask, tuple | list) and mask else (mask,)
  return all(isinstance(one, str | re.Pattern) for one in several)


def _is_function(mask: Any) -> bool:
  """Whether to call a mask, by Optax's rule: a module of bools is callable, but counts as a tree."""
  return callable(mask) and (isinstance(mask, functools.partial) or all(map(callable, jax.tree.leaves(mask))))


def _listed(params: Any) -> str:
  names = leaf_names(params)
  if names == [""]:
    return "params is a single array, which has no name"
  return f"there are {', '.join(names) or 'none'}"


def _difference(tree: Any, params: Any) -> str:
  """Where two structures differ, in short: the text of a module's structure takes many lines."""
  got, want = leaf_names(tree), leaf_names(params)
  missing, unknown = ([n or "(no name)" for n in a if n not in b] for a, b in ((want, got), (got, want)))

  def few(names):
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

  lists = [f"{word} {few(names)}" for word, names in (("without", missing), ("with", unknown)) if names]
  kinds = f"a {type(tree).__name__} for a {type(params).__name__}"
  return f"{kinds}, {' and '.join(lists) or 'with leaves of the same names'}"


def last_name(name: str) -> str:
  """Returns the last part of a leaf's name, such as `kernel` or `bias`."""
  return name.rpartition("/")[2]


def _with_names(function: Callable[[str], Any], tree: Any) -> Any:
  """Replaces each leaf by a function of its name."""
  return jax.tree.structure(tree).unflatten(map(function, leaf_names(tree)))


def _is_variable(node: Any) -> bool:
  """Whether a node is a variable of NNX, by the name of its class: so Flax is not imported."""
  return any(
    one.__name__ == "Variable" and one.__module__.startswith("flax.nnx") for one in type(node).__mro__
  )


def _alternatives(patterns: Pattern | Iterable[Pattern]) -> tuple[Pattern, ...]:
  several = isinstance(patterns, Iterable) and not isinstance(patterns, str)
  return tuple(patterns) if several else (patterns,)  # type: ignore[return-value]


def _match(name: str, pattern: Pattern) -> bool:
  if isinstance(pattern, str):
    return fnmatch.fnmatchcase(name, pattern)
  if isinstance(pattern, re.Pattern):
    return pattern.search(name) is not None
  if callable(pattern):
    return bool(pattern(name))
  raise TypeError(
    f"a pattern must be a glob, a compiled regular expression or a callable, got {one_line(pattern)}"
  )

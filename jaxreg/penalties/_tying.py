"""Penalties that keep parameters close to one another, or to their start."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from jaxreg import paths
from jaxreg._errors import ArgumentError
from jaxreg._leaves import floating, selected, total, wide
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


def tying(params: Params, *, pairs: Iterable[tuple[str, str]]) -> Array:
  r"""Computes the sum of squared distances between pairs of parameters.

  .. math:: \Omega(w) = \sum_{(A, B)} \|w^{(A)} - w^{(B)}\|_2^2, \qquad
    \nabla_{w^{(A)}} \Omega = 2 (w^{(A)} - w^{(B)}) = -\nabla_{w^{(B)}} \Omega

  There is no factor of one half, unlike in `l2`; the lecture has none. An infinite weight shares the two
  parameters.

  Args:
    params: any pytree.
    pairs: names of two leaves (`("Dense_0/kernel", "Dense_1/kernel")`), or of two subtrees whose leaves have
      the same names below them (`("Dense_0", "Dense_1")`).

  Returns:
    A scalar, float32 or wider.

  Raises:
    ValueError: for no pair, a name without parameters, or two sides that differ in leaves or shapes.

  Example:
    >>> tying({"a": jnp.array([1.0, 2.0]), "b": jnp.array([1.0, 4.0])}, pairs=[("a", "b")])
    Array(4., dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, parameter tying and
    parameter sharing.
  """
  pairs = list(pairs)
  if not pairs:
    raise ArgumentError("pairs", "must hold at least one pair of names, got none")
  leaves = dict(zip(paths.leaf_names(params), jax.tree.leaves(params)))
  terms = []
  for first, second in pairs:
    a, b = _below(leaves, first), _below(leaves, second)
    if a.keys() != b.keys() or any(a[rest].shape != b[rest].shape for rest in a):
      raise ArgumentError(
        "pairs", f"{first!r} and {second!r} must have equal shapes, got {_shapes(a)} and {_shapes(b)}"
      )
    terms += [jnp.square(a[rest] - b[rest]).sum() for rest in a]
  return total(terms)


def l2_sp(params: Params, *, reference: Params, mask: Mask = kernels_only) -> Array:
  r"""Computes half the squared distance from reference parameters, such as the start of fine-tuning.

  .. math:: \Omega(w) = \tfrac12 \|w - w^0\|_2^2

  New layers have no reference: for these use `l2` with the opposite mask.

  Args:
    params, mask: as in `l2`.
    reference: a pytree with leaves of the same names and shapes; leaves that are not selected may be missing.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> l2_sp({"kernel": jnp.array([3.0, 1.0])}, reference={"kernel": jnp.array([1.0, 1.0])})
    Array(2., dtype=float32)

  References:
    Li, Grandvalet and Davoine, `Explicit Inductive Bias for Transfer Learning with Convolutional Networks`,
    2018, section 3.
  """
  start = dict(zip(paths.leaf_names(reference), jax.tree.leaves(reference)))
  terms = []
  for name, w in selected(params, mask):
    if name not in start or jnp.shape(start[name]) != w.shape:
      got = f"shape {jnp.shape(start[name])}" if name in start else "none"
      raise ValueError(f"reference must have {name!r} of shape {w.shape}, got {got}")
    terms.append(0.5 * jnp.square(w - start[name]).sum())
  return total(terms)


def _below(leaves: dict[str, Array], name: str) -> dict[str, Array]:
  inside = [leaf for leaf in leaves if leaf == name or leaf.startswith(f"{name}/")]
  leaves_by_place = {leaf[len(name) :]: wide(floating(leaves[leaf], leaf)) for leaf in inside}
  if not leaves_by_place:
    raise ArgumentError("pairs", f"there is no parameter {name!r}; there are {', '.join(leaves)}")
  return leaves_by_place


def _shapes(leaves: dict[str, Array]) -> str:
  return ", ".join(f"{rest or 'itself'} {x.shape}" for rest, x in leaves.items())

"""Penalties that keep parameters close to one another, to their start, or a low-rank change small."""

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


def l2_sp(
  params: Params, *, reference: Params, fisher: Params | None = None, mask: Mask = kernels_only
) -> Array:
  r"""Computes half the squared distance from reference parameters, such as the start of fine-tuning.

  .. math:: \Omega(w) = \tfrac12 \sum_i F_i (w_i - w^0_i)^2

  Without `fisher` all `F` are 1. With the diagonal of the Fisher matrix of an earlier task at its optimum, it
  is elastic weight consolidation (EWC): what that task depends on stays. New layers have no reference: for
  these use `l2` with the opposite mask.

  Args:
    params, mask: as in `l2`.
    reference: a pytree with leaves of the same names and shapes; leaves that are not selected may be missing.
    fisher: a pytree like `reference` of numbers >= 0, such as means over examples of squared gradients.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> l2_sp({"kernel": jnp.array([3.0, 1.0])}, reference={"kernel": jnp.array([1.0, 1.0])})
    Array(2., dtype=float32)

  References:
    Li, Grandvalet and Davoine, `Explicit Inductive Bias for Transfer Learning with Convolutional Networks`,
    2018, section 3.
    Kirkpatrick et al., `Overcoming catastrophic forgetting in neural networks`, 2017, Eq. 3.
  """
  start = dict(zip(paths.leaf_names(reference), jax.tree.leaves(reference)))
  importance = None if fisher is None else dict(zip(paths.leaf_names(fisher), jax.tree.leaves(fisher)))
  terms = []
  for name, w in selected(params, mask):
    squares = jnp.square(w - _like(w, start, name, "reference"))
    if importance is not None:
      squares = _like(w, importance, name, "fisher") * squares
    terms.append(0.5 * squares.sum())
  return total(terms)


def lora_l2(params: Params, *, names: tuple[str, str] = ("lora_a", "lora_b")) -> Array:
  r"""Computes half the squared Frobenius norm of the products of LoRA's factors, without forming them.

  .. math:: \Omega(w) = \tfrac12 \sum \|A B\|_F^2 = \tfrac12 \sum \operatorname{tr} (A^\top A)(B B^\top)

  This is `l2_sp` of the adapted weights: it depends on the product alone, where `l2` of the factors also
  depends on how they share it. The matrices that are formed have the side of the rank.

  Args:
    params: any pytree.
    names: the last parts of the names of `A` `[..., inputs, rank]` and `B` `[..., rank, outputs]`, which lie
      below one path; by default as in Flax NNX.

  Returns:
    A scalar, float32 or wider.

  Raises:
    ValueError: for no pair of factors, one without the other, or ranks that differ.

  Example:
    >>> lora_l2({"lora_a": jnp.array([[1.0], [2.0]]), "lora_b": jnp.array([[2.0, 0.0]])})  # 20 / 2
    Array(10., dtype=float32)

  References:
    Hu et al., `LoRA: Low-Rank Adaptation of Large Language Models`, 2022, Eq. 3 (the product).
  """
  if len(names) != 2 or names[0] == names[1]:
    raise ArgumentError("names", f"must be two different names, got {names!r}")
  factors: tuple[dict[str, Array], ...] = ({}, {})
  for path, leaf in zip(paths.leaf_names(params), jax.tree.leaves(params)):
    above, _, last = path.rpartition("/")
    if last in names:
      factors[names.index(last)][above] = wide(floating(leaf, path))
  first, second = factors
  if not first or first.keys() != second.keys():
    apart = ", ".join(sorted(first.keys() ^ second.keys())) or "none at all"
    raise ArgumentError("names", f"must name pairs of factors, {names[0]} and {names[1]}, got one: {apart}")
  terms = []
  for above, a in first.items():
    b = second[above]
    if a.ndim < 2 or b.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
      raise ArgumentError(
        "names",
        "must name factors [..., inputs, rank] and [..., rank, outputs], "
        f"got {a.shape} and {b.shape} at {above!r}",
      )
    grams = _product(jnp.swapaxes(a, -1, -2), a), _product(b, jnp.swapaxes(b, -1, -2))
    terms.append(0.5 * (grams[0] * grams[1]).sum())
  return total(terms)


def _like(w: Array, leaves: dict[str, Array], name: str, argument: str) -> Array:
  """Returns the leaf of this name, if it has the shape of `w`."""
  if name not in leaves or jnp.shape(leaves[name]) != w.shape:
    got = f"shape {jnp.shape(leaves[name])}" if name in leaves else "none"
    raise ValueError(f"{argument} must have {name!r} of shape {w.shape}, got {got}")
  return leaves[name]


def _product(a: Array, b: Array) -> Array:
  return jnp.matmul(a, b, precision="highest")


def _below(leaves: dict[str, Array], name: str) -> dict[str, Array]:
  inside = [leaf for leaf in leaves if leaf == name or leaf.startswith(f"{name}/")]
  leaves_by_place = {leaf[len(name) :]: wide(floating(leaves[leaf], leaf)) for leaf in inside}
  if not leaves_by_place:
    raise ArgumentError("pairs", f"there is no parameter {name!r}; there are {', '.join(leaves)}")
  return leaves_by_place


def _shapes(leaves: dict[str, Array]) -> str:
  return ", ".join(f"{rest or 'itself'} {x.shape}" for rest, x in leaves.items())

"""The contribution of every term of an objective to the loss and to its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._leaves import wide
from jaxreg.typing import Array, Params, PyTree


class Report(NamedTuple):
  """The contribution of every term by name, as `Composed.report` says; `print` shows a table."""

  value: dict[str, Array]
  norm: dict[str, Array]
  cosine: dict[str, Array]

  def __str__(self) -> str:
    width = max(map(len, ("term", *self.value)))
    lines = [f"{'term':<{width}} {'value':>12} {'gradient':>9} {'cosine':>7}"]
    # `jit` sorts the names.
    for name in ("data", *(name for name in self.value if name not in ("data", "loss")), "loss"):
      value, norm, cosine = (np.asarray(column[name]) for column in self)
      if value.ndim:
        return repr(self)
      lines.append(f"{name:<{width}} {value:12.4f} {norm:9.4f} {cosine:7.2f}")
    return "\n".join(lines)


def make_report(
  contributions: Callable[[Params], dict[str, Array]],
  without: Mapping[str, Callable[[Params], dict[str, Array]]],
  params: Params,
) -> Report:
  """Measures values, gradients and cosines of `contributions(params)`, which include `"data"`.

  `without` has the contributions without each perturbation. A perturbation contributes the difference of
  `"data"` with and without it.
  """
  values, gradient = _gradients(contributions, params)
  terms = {name: (value, gradient(name)) for name, value in values.items()}
  data = terms["data"][1]
  for name, others in without.items():
    plain, plain_gradient = _gradients(others, params)
    change = jax.tree.map(jnp.subtract, data, plain_gradient("data"))
    terms[name] = values["data"] - plain["data"], change
  first, last = terms.pop("data"), terms.pop("loss")
  terms = {"data": first, **terms, "loss": last}
  norms = {name: _norm(grads) for name, (_, grads) in terms.items()}
  return Report(
    {name: value for name, (value, _) in terms.items()},
    norms,
    {name: _ratio(_dot(grads, data), norms[name] * norms["data"]) for name, (_, grads) in terms.items()},
  )


def _gradients(
  contributions: Callable[[Params], dict[str, Array]], params: Params
) -> tuple[dict[str, Array], Callable[[str], list[Array]]]:
  values, pull = jax.vjp(contributions, params)
  zeros = jax.tree.map(jnp.zeros_like, values)

  def gradient(name: str) -> list[Array]:
    leaves = jax.tree.leaves(pull({**zeros, name: jnp.ones_like(values[name])})[0])
    return [wide(leaf) for leaf in leaves if leaf.dtype != jax.dtypes.float0]  # counters and keys have none

  return values, gradient


def _dot(one: PyTree, other: PyTree) -> Array:
  def product(x: Array, y: Array) -> Array:
    return (x * y).sum()

  return jax.tree.reduce(jnp.add, jax.tree.map(product, one, other))


def _norm(grads: PyTree) -> Array:
  return jnp.sqrt(_dot(grads, grads))


def _ratio(product: Array, lengths: Array) -> Array:
  return jnp.where(lengths > 0, product / jnp.where(lengths > 0, lengths, 1), 0)

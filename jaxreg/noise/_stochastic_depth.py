"""Stochastic depth: dropout of whole residual branches."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import check_batched, key_first
from jaxreg.noise._dropout import dropout
from jaxreg.typing import Array, Key


@key_first
def stochastic_depth(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike,
  per_example: bool = True,
  inverted: bool = True,
) -> Array:
  r"""Sets a residual branch to zero with probability `rate`: `h + stochastic_depth(key, f(h), rate=0.2)`.

  .. math:: y = \frac{b\, x}{1 - \text{rate}}, \qquad b \sim \mathrm{Ber}(1 - \text{rate})

  The paper's rates grow linearly with depth, `rate * l / L` for block `l` of `L`, and it is not inverted.
  Also known as drop path. DropConnect is another method: it drops single weights.

  Args:
    key: one draw for the whole of `x`; None for no noise.
    x: the output of a residual branch, `[batch, ...]`, floating.
    rate: probability of dropping the branch, in [0, 1]; may be traced.
    per_example: whether each example draws, or, as in the paper, the whole batch once.
    inverted: whether a kept branch is scaled to keep the mean; otherwise apply `dropout_mean` at test time.

  Returns:
    An array of the shape and dtype of `x`.

  Example:
    >>> stochastic_depth(jax.random.key(0), jnp.ones((4, 2)), rate=0.5)
    Array([[0., 0.],
           [0., 0.],
           [2., 2.],
           [2., 2.]], dtype=float32)

  References:
    Huang et al., `Deep Networks with Stochastic Depth`, 2016, section 3.
  """
  x = check_batched(x, "x")
  axes = tuple(range(1 if per_example else 0, x.ndim))
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=axes)

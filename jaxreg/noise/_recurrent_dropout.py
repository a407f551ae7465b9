"""Recurrent dropout: one mask for a whole sequence."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import check_floating, key_first
from jaxreg.noise._dropout import dropout
from jaxreg.typing import Array, Key


@key_first
def recurrent_dropout(
  key: Key | None, x: ArrayLike, *, rate: ArrayLike, time_axis: int = -2, inverted: bool = True
) -> Array:
  r"""Drops the same entries at every time step, with probability `rate`.

  .. math:: y_t = \frac{m \odot x_t}{1 - \text{rate}}, \qquad m \sim \mathrm{Ber}(1 - \text{rate})
    \ \text{once for all}\ t

  This is the variational dropout of Gal and Ghahramani, also known as locked dropout. Semeniuta et al. (2016)
  and Keras use the name recurrent dropout for dropout of the recurrent state, which is another method. Use
  this function for the inputs of a recurrent network. The hidden state is computed inside the scan: draw
  `mask = dropout(key, jnp.ones(h.shape), rate=rate)` before the scan and use `h * mask` in every step.

  Args:
    key: one draw for the whole of `x`; None for no noise.
    x: sequences, `[..., time, features]`, floating.
    rate: probability of dropping, in [0, 1]; may be traced.
    time_axis: the axis of time.
    inverted: whether the kept entries are scaled to keep the mean.

  Returns:
    An array of the shape and dtype of `x`.

  Example:
    >>> recurrent_dropout(jax.random.key(0), jnp.ones((3, 4)), rate=0.5)
    Array([[0., 0., 2., 2.],
           [0., 0., 2., 2.],
           [0., 0., 2., 2.]], dtype=float32)

  References:
    Gal and Ghahramani, `A Theoretically Grounded Application of Dropout in Recurrent Neural Networks`, 2016,
    section 4.
  """
  x = check_floating(x, "x")
  if not -x.ndim <= time_axis < x.ndim:
    raise ValueError(f"time_axis must be an axis of x, which has {x.ndim} axes, got {time_axis}")
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=(time_axis,))

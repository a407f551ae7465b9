"""Deep ensembles: members of one architecture from different seeds, with stacked parameters."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxreg._checks import check_choice, check_count, check_key, key_first
from jaxreg.typing import Key, Params


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

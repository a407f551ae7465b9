# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""The initial state of a run."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from jaxreg import models, symmetry
from jaxreg._checks import acts
from jaxreg.train import keys
from jaxreg.train.step.extras import Extras
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Key, Params


def make_init(
  model: models.Classifier,
  optimizer: optax.GradientTransformation,
  extras: Extras,
  *,
  input_shape: Sequence[int],
  dtype: jnp.dtype,
  unbalanced: float = 0.0,
) -> Callable[[Array | int], TrainState]:
  """Builds `init(seed) -> TrainState`.

  Args:
    input_shape, dtype: shape and dtype of one example, as the model sees it.
    unbalanced: the `std` of `unbalance`; 0 leaves the units as they are.
  """

  def init(seed: Array | int) -> TrainState:
    run_key, init_key = keys.root(seed)
    variables = dict(model.init(init_key, jnp.zeros((1, *input_shape), dtype), train=False))
    params = variables.pop("params")
    if acts(unbalanced):
      params = unbalance(keys.unbalance(run_key), params, unbalanced)
    state = TrainState(jnp.int32(0), run_key, params, variables, optimizer.init(params))
    return state.replace(extras=extras.init(state.variables))

  return init


def unbalance(key: Key, params: Params, std: float) -> Params:
  """Rescales the hidden units of dense layers by log-normal factors; the network's function stays the same.

  Args:
    key: a typed key.
    params: the parameters of a `models.MLP` and a head.
    std: the standard deviation of the factors' logarithms.
  """
  layers = len(params["backbone"])
  for i, subkey in enumerate(jax.random.split(key, layers)):
    units = params["backbone"][f"Dense_{i}"]["bias"].shape[0]
    after = f"backbone/Dense_{i + 1}/kernel" if i + 1 < layers else "head/*kernel"
    scales = jnp.exp(std * jax.random.normal(subkey, (units,)))
    params = symmetry.rescale_units(params, scales, incoming=f"backbone/Dense_{i}/*", outgoing=after)
  return params

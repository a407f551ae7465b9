"""The wrappings of the one training step: `jit` over a mesh, or `pmap`."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.data import gather, place
from jaxreg.train.state import TrainState
from jaxreg.typing import Array

PARALLEL = ("jit", "pmap")


def make_step(
  train_step: Callable[..., Any], mesh: jax.sharding.Mesh, parallel: str
) -> tuple[Callable[..., tuple[TrainState, dict[str, Any]]], Callable[[np.ndarray], Array]]:
  """Wraps `train_step` for resident data.

  Under `jit` the losses, BatchNorm and masks are those of the whole batch, on any number of devices. Under
  `pmap` each device has its own part: BatchNorm's moments are those of the part, and the masks depend on the
  number of devices.

  Args:
    train_step: as `make_train_step` gives it.
    mesh: of one axis, `data`.
    parallel: `jit` or `pmap`.

  Returns:
    `step(state, data, indices, weights) -> (state, metrics)`, which donates the state, and the function that
    places a batch of indices or weights for it.
  """
  if parallel == "pmap":
    step = jax.pmap(
      lambda state, data, indices, weights: train_step(
        state, gather(data, indices, weights), axis_name="data"
      ),
      axis_name="data",
      in_axes=(None, None, 0, 0),
      out_axes=None,  # type: ignore[arg-type]
      donate_argnums=0,
    )
    return step, lambda x: place(mesh, x.reshape(mesh.size, -1), P("data"))
  step = jax.jit(
    lambda state, data, indices, weights: train_step(state, gather(data, indices, weights)),
    donate_argnums=0,
    out_shardings=NamedSharding(mesh, P()),
  )
  return step, lambda x: place(mesh, x, P("data"))

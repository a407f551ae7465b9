"""Wraps the one training step: over devices, over replicas, over steps."""

import functools
from collections.abc import Callable

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.data.batches import batch_axes, gather, place
from jaxreg.train.devices.sharding import Layout, gathered, lay_out
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Metrics, PyTree

TrainStep = Callable[..., tuple[TrainState, Metrics]]
Step = Callable[[PyTree, dict[str, Array], Batch], tuple[PyTree, PyTree]]
Place = Callable[[Batch], Batch]


def make_step(
  train_step: TrainStep,
  mesh: jax.sharding.Mesh,
  parallel: str = "jit",
  *,
  layout: Layout | None = None,
  replicas: bool = False,
  scan: bool = False,
) -> tuple[Step, Place]:
  """Wraps `train_step` for batches that `Source.batch` describes.

  Under `jit`, losses, BatchNorm's moments and masks belong to the whole batch, on any number of devices.
  Under `pmap`, each device has its own part of the batch. BatchNorm's moments then belong to the part, and
  the masks depend on the number of devices.

  Three arguments are for `jit` alone. `layout` says where the state lies (None: a copy on each device). With
  `replicas`, state and batch have a leading axis of replicas. With `scan`, the batch has an axis of steps
  after it.

  Returns `step(state, arrays, batch) -> (state, metrics)`, which donates the state, and the function that
  places a batch of host arrays on the devices. Metrics have the leading axes of the batch.
  """
  if parallel == "pmap":
    step = jax.pmap(
      lambda state, arrays, batch: train_step(state, gather(arrays, batch), axis_name="data"),
      axis_name="data",
      in_axes=(None, None, 0),
      out_axes=None,  # type: ignore[arg-type]
      donate_argnums=0,
    )

    def place_parts(batch: Batch) -> Batch:
      parts = jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), batch)
      return place(mesh, parts, P("data"))

    return step, place_parts

  whole = NamedSharding(mesh, P())
  options = {}
  if isinstance(layout, TrainState):
    split = layout.params
    options["gather"] = functools.partial(gathered, layout=split)
    options["scatter"] = functools.partial(lay_out, layout=split)

  def one(state, arrays, batch):
    return train_step(state, gather(arrays, batch), **options)

  def several(state, arrays, batch):
    return jax.lax.scan(lambda state, batch: one(state, arrays, batch), state, batch)

  step = several if scan else one
  if replicas:
    step = jax.vmap(step, in_axes=(0, None, 0))
  step = jax.jit(step, donate_argnums=0, out_shardings=(whole if layout is None else layout, whole))
  leading = (None,) * (scan + replicas)
  return step, lambda batch: place(mesh, batch, P(*leading, batch_axes(mesh)))

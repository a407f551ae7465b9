"""Several runs that differ only in their seed, trained side by side.

A replica is the run that its seed would give alone: its own initialisation, data order and noise. A single
run is a loop over one replica. In either form, states are saved with a leading axis of replicas.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train.devices.sharding import Layout, gathered, stacked_layout
from jaxreg.train.devices.wrap import Place, Step, TrainStep, make_step
from jaxreg.train.step.state import States, TrainState
from jaxreg.typing import Array, Batch, Params, PyTree


@dataclasses.dataclass(frozen=True)
class Vmap:
  """One program for all replicas; states, batches and metrics have a leading axis of replicas."""

  mesh: Mesh

  @property
  def stacked_layout(self) -> Layout:
    """Where a stacked state lies."""
    return NamedSharding(self.mesh, P())

  def unpack(self, stacked: TrainState) -> States:
    return stacked

  def pack(self, states: PyTree) -> TrainState:
    return states

  def pick(self, states: PyTree, replica: int) -> TrainState:
    return jax.tree.map(lambda x: _cloned(x)[replica], states)

  def gathered(self, state: TrainState) -> TrainState:
    return state

  def make_step(self, train_step: TrainStep, *, scan: bool = False) -> tuple[Step, Place]:
    return make_step(train_step, self.mesh, replicas=True, scan=scan)

  def make_each(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Compiles `function(state, *args)`, to be called with all states and the same further arguments."""

    def each(states, *args):
      return jax.vmap(lambda state: function(state, *args))(states)

    return jax.jit(each, out_shardings=NamedSharding(self.mesh, P()))

  def make_update(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Compiles `function(state, value) -> state`, to be called with all states and a value for each."""
    return jax.jit(jax.vmap(function), donate_argnums=0, out_shardings=NamedSharding(self.mesh, P()))


@dataclasses.dataclass(frozen=True)
class Loop:
  """One program for one replica, called for each; states and metrics are tuples over the replicas."""

  mesh: Mesh
  parallel: str  # jit or pmap
  layout: Layout  # of a state

  @property
  def stacked_layout(self) -> Layout:
    """Where a stacked state lies."""
    return stacked_layout(self.layout)

  def unpack(self, stacked: TrainState) -> States:
    """Splits a stacked state into the states of the replicas."""
    number = jax.tree.leaves(stacked)[0].shape[0]
    return jax.jit(_split, out_shardings=(self.layout,) * number)(stacked)

  def pack(self, states: PyTree) -> TrainState:
    """Stacks the states in a copy: the reverse of `unpack`."""
    return jax.jit(_stack, out_shardings=self.stacked_layout)(*states)

  def pick(self, states: PyTree, replica: int) -> TrainState:
    return states[replica]

  def gathered(self, state: TrainState) -> TrainState:
    """Returns the state of one replica with the parameters laid out as a forward pass reads them."""
    if isinstance(self.layout, NamedSharding):
      return state
    return state.replace(params=gathered(state.params, self.layout.params))

  def make_step(self, train_step: TrainStep, *, scan: bool = False) -> tuple[Step, Place]:
    step, place = make_step(train_step, self.mesh, self.parallel, layout=self.layout, scan=scan)

    def each(states, arrays, batches):
      results = [step(state, arrays, batch) for state, batch in zip(states, batches, strict=True)]
      return tuple(state for state, _ in results), tuple(metrics for _, metrics in results)

    def place_each(batch: dict[str, Array]) -> list[Batch]:
      number = len(next(iter(batch.values())))
      return [place({name: x[r] for name, x in batch.items()}) for r in range(number)]

    return each, place_each

  def make_each(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Compiles as `Vmap.make_each` does."""
    one = jax.jit(function, out_shardings=NamedSharding(self.mesh, P()))

    def each(states: tuple[TrainState, ...], *args: PyTree) -> tuple[PyTree, ...]:
      return tuple(one(state, *args) for state in states)

    return each

  def make_update(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Compiles as `Vmap.make_update` does."""
    one = jax.jit(function, donate_argnums=0, out_shardings=self.layout)

    def update(states: tuple[TrainState, ...], values: PyTree) -> tuple[PyTree, ...]:
      return tuple(one(*pair) for pair in zip(states, values, strict=True))

    return update


def _split(stacked: TrainState) -> tuple[TrainState, ...]:
  number = jax.tree.leaves(stacked)[0].shape[0]
  return tuple(jax.tree.map(lambda x, r=r: x[r], stacked) for r in range(number))


def _stack(*states: TrainState) -> TrainState:
  return jax.tree.map(lambda *leaves: jnp.stack([_cloned(x) for x in leaves]), *states)


def _cloned(x: Array) -> Array:
  """Clones keys, because storing a key does not consume it; other arrays are returned as they are."""
  return jax.random.clone(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def stacked(state: TrainState, number: int) -> TrainState:
  """Returns the shapes of an abstract state with a leading axis of `number` replicas, as states are saved."""
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct((number, *x.shape), x.dtype), state)


def make_replicas(
  mesh: Mesh, *, number: int, params: Params, parallel: str, layout: Layout | None = None
) -> Vmap | Loop:
  """Returns `number` replicas as one program where that is possible and faster, else as a loop.

  One program fits neither `pmap` nor a state that is split by its `layout`. Without a layout, each device has
  a copy.
  """
  whole = NamedSharding(mesh, P())
  layout = whole if layout is None else layout
  possible = parallel != "pmap" and layout == whole
  return Vmap(mesh) if possible and vmap_is_faster(number, params) else Loop(mesh, parallel, layout)


def vmap_is_faster(number: int, params: Params) -> bool:
  """Tells whether one program for several replicas is faster: not for convolutions on a CPU."""
  # A kernel with more than two axes belongs to a convolution.
  convolves = any(len(x.shape) > 2 for x in jax.tree.leaves(params))
  return number > 1 and not (convolves and jax.default_backend() == "cpu")

"""Batches: which examples make each, how these are read or decoded ahead, and the way to the devices.

A batch is a function of (seed, step) alone, for images and arrays alike. `Order` says which example stands at
each position of a step's batch, and a generator of (seed, step, position in the global batch) draws its crop.
Each process decodes the positions that its own devices hold, and a resumed run begins at its step. So no
iterator's state is saved. A run with any number of processes and of workers can resume at any step,
bit for bit. A saved iterator could not do that, because it belongs to one process.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator

import jax
import numpy as np
from absl import flags
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg._extras import install
from jaxreg._sharding import rows
from jaxreg.train import keys
from jaxreg.train.data.dataset import Split, Standard
from jaxreg.train.data.images import Images
from jaxreg.train.errors import RunError, one_line
from jaxreg.typing import PyTree

MOST_THREADS = 16
AHEAD = 2  # batches that a worker keeps ready
WORTHWHILE = 5000  # images to evaluate on; threads decode fewer images before a worker has started

Feed = Callable[[range], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Order:
  """`order(step)`: the indices `[replicas, batch]` into `Dataset.training()`, the same in every process."""

  seeds: range  # one for each replica
  num_examples: int  # training examples with labels
  batch_size: int  # labelled examples in a batch
  drawn: tuple[np.ndarray, ...] = ()  # for each replica, its resampled set `[num_examples]`
  num_unlabelled: int = 0  # examples without labels, which follow the others
  unlabelled_batch_size: int = 0  # unlabelled examples that join each batch
  balanced: "Balanced | None" = None  # how an epoch draws all classes equally often

  def __call__(self, step: int) -> np.ndarray:
    rows = []
    for replica, seed in enumerate(self.seeds):
      row = batch_indices(
        seed, step, num_examples=self.num_examples, batch_size=self.batch_size, balanced=self.balanced
      )
      if self.drawn:
        row = self.drawn[replica][row]
      if self.unlabelled_batch_size:
        number, size = self.num_unlabelled, self.unlabelled_batch_size
        other = batch_indices(keys.unlabelled(seed), step, num_examples=number, batch_size=size)
        row = np.concatenate([row, self.num_examples + other])
      rows.append(row)
    return np.stack(rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Balanced:
  """`balanced(seed, epoch)`: indices `[num_examples]` of examples, as many of each class.

  The classes come in rounds, each class once in random order. The examples of a class come in random order,
  and none comes again before all others have come. Rare classes repeat their examples within an epoch; a
  frequent class shows others of its examples in the next one.
  """

  labels: np.ndarray  # `[num_examples]`, integers from 0

  @functools.lru_cache(maxsize=128)  # noqa: B019 - each replica has one, and a run has one `Balanced`
  def __call__(self, seed: int, epoch: int) -> np.ndarray:
    generator, number = keys.permutation(seed, epoch), len(self.labels)
    classes = np.unique(self.labels)
    rounds = -(-number // len(classes))
    of_class: list[np.ndarray] = []
    for label in classes:
      members = np.flatnonzero(self.labels == label)
      times = -(-rounds // len(members))
      of_class.append(np.concatenate([generator.permutation(members) for _ in range(times)])[:rounds])
    return generator.permuted(np.stack(of_class, axis=1), axis=1).ravel()[:number].astype(np.int32)


def batch_indices(
  seed: int, step: int, *, num_examples: int, batch_size: int, balanced: Balanced | None = None
) -> np.ndarray:
  """Returns the indices of a step's examples: `[batch_size]`, int32, the same in every process.

  Each epoch is a new permutation, or a new draw of `balanced`; its last, incomplete batch is left out.
  """
  steps_per_epoch = num_examples // batch_size
  epoch, position = divmod(step, steps_per_epoch)
  start = position * batch_size
  of_epoch = balanced(seed, epoch) if balanced else _permutation(seed, epoch, num_examples)
  return of_epoch[start : start + batch_size]


@functools.lru_cache(maxsize=128)  # each replica has one
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
  return keys.permutation(seed, epoch).permutation(num_examples).astype(np.int32)


@functools.lru_cache(maxsize=128)
def bootstrap(seed: int, num_examples: int) -> np.ndarray:
  """Returns the indices `[num_examples]` of the training set resampled for the run with this seed."""
  # Each example is in the set with probability 1 - (1 - 1/n)^n, which tends to 1 - 1/e: Breiman, 1996.
  return np.asarray(jax.random.randint(keys.bootstrap(seed), (1, num_examples), 0, num_examples, "int32")[0])


def padded_indices(num_examples: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields every example once, in order, as `(indices, weights)` of one size; padding has weight 0."""
  for start in range(0, num_examples, batch_size):
    index = np.arange(start, start + batch_size, dtype=np.int32)
    yield np.minimum(index, num_examples - 1), (index < num_examples).astype(np.float32)


def batch_axes(mesh: jax.sharding.Mesh) -> str | tuple[str, str]:
  """Returns the entry of a `PartitionSpec` that splits the examples of a batch."""
  return ("slice", "data") if "slice" in mesh.shape else "data"


def place(mesh: jax.sharding.Mesh, tree: PyTree, spec: P) -> PyTree:
  """Puts host arrays, the same in every process, on the devices of `mesh`.

  `P()` puts a copy on each device, `P(batch_axes(mesh))` a part. A process passes only the parts of its own
  devices.
  """
  sharding = NamedSharding(mesh, spec)
  return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, sharding, lambda index: x[index]), tree)


@dataclasses.dataclass(frozen=True)
class Source:
  """A split that makes batches: from examples that lie on every device, or from examples on the host."""

  split: Split  # the examples on the host
  arrays: dict[str, jax.Array]  # the same examples on the devices, or empty
  standard: Standard | None = None  # of labels that are numbers, which reach the devices standardised

  def __len__(self) -> int:
    return len(self.split)

  def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the arrays that the devices need for a batch of these examples: indices, or the examples."""
    if self.arrays:
      return {"indices": indices}
    return {"inputs": self.split.inputs[indices], **self.targets(indices)}

  def targets(self, indices: np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
    """Returns the labels of these examples, and their weights if there are any, as the devices take them."""
    labels = self.split.labels[indices]
    if self.standard is not None:
      labels = self.standard.learned(labels)
    targets = {"labels": labels.astype(np.float32 if labels.dtype.kind == "f" else np.int32)}
    if self.split.weights is not None:
      targets["weights"] = self.split.weights[indices].astype(np.float32)
    return targets


def make_source(
  mesh: jax.sharding.Mesh, split: Split, *, resident: bool, standard: Standard | None = None
) -> Source:
  """Makes the source of a split; if `resident`, the whole split is placed on every device.

  `standard` standardises labels that are numbers.
  """
  source = Source(split, {}, standard)
  arrays = {"inputs": split.inputs, **source.targets()} if resident else {}
  return dataclasses.replace(source, arrays=place(mesh, arrays, P()))


def gather(arrays: dict[str, jax.Array], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """Builds the batch from the arrays of `Source.batch`, inside a compiled step."""
  batch = dict(batch)
  if "indices" in batch:
    indices = batch.pop("indices")
    # Weights of a batch, as for padding in evaluation, come before those of training examples.
    batch = {name: rows(array, indices) for name, array in arrays.items()} | batch
  return batch


def local_positions(mesh: jax.sharding.Mesh, batch_size: int) -> np.ndarray:
  """Lists the positions of a global batch that this process's devices hold, in order."""
  slices = NamedSharding(mesh, P(batch_axes(mesh))).addressable_devices_indices_map((batch_size,)).values()
  return np.unique(np.concatenate([np.arange(batch_size)[index] for index in slices]))


def decoded(
  element: Callable[[int], np.ndarray], size: int, *, start: int, stop: int, workers: int
) -> contextlib.closing[Generator[np.ndarray]]:
  """Decodes the elements of steps `start`, `start + 1`, ... to arrays `[size, ...]`; close the result."""
  try:
    import grain
  except ImportError as error:
    raise RunError(f"decoding during training needs grain ({error}); {install('data')}") from error
  elements = grain.MapDataset.range(start * size, stop * size).map(element).batch(size)
  threads = 1 if workers else min(MOST_THREADS, os.cpu_count() or 1)
  ahead = AHEAD if workers else max(AHEAD, threads)
  batches = elements.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead))
  if workers:
    if not flags.FLAGS.is_parsed():  # grain reads absl's flags; our program has its own
      flags.FLAGS.mark_as_parsed()
    # Batches come in messages, not in shared memory: containers have little of it, and a killed run leaks it.
    messages = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    batches = grain.experimental.WithOptionsIterDataset(batches, messages)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=AHEAD)
    batches = batches.mp_prefetch(options, worker_init_fn=_follow_parent)

  def arrays() -> Generator[np.ndarray]:
    with contextlib.closing(iter(batches)) as stream:
      try:
        yield from stream
      except RuntimeError as error:  # grain raises it if a worker is gone
        lost = f"a worker that decodes images is lost ({one_line(error)})"
        raise RunError(f"{lost}; the same command continues from the last checkpoint") from error

  return contextlib.closing(arrays())


@contextlib.contextmanager
def make_feed(
  mesh: jax.sharding.Mesh, source: Source, order: Order, *, start: int, stop: int
) -> Iterator[Feed]:
  """Yields `feed(steps)`: the host arrays that have to reach the devices for these steps, numbered from 1.

  Each array is `[replicas, batch, ...]`, and `[replicas, steps, batch, ...]` for several steps. For images,
  the steps must be asked for in order, from `start + 1` to `stop`.
  """

  def joined(each: list[np.ndarray]) -> np.ndarray:
    return each[0] if len(each) == 1 else np.stack(each, axis=1)

  def indices(steps: range) -> np.ndarray:
    return joined([order(step - 1) for step in steps])

  images = source.split.inputs
  if not isinstance(images, Images):
    yield lambda steps: source.batch(indices(steps))
    return

  replicas, batch_size = order(start).shape
  positions = local_positions(mesh, batch_size)

  def crop(number: int) -> np.ndarray:
    """Cuts a random crop of the image at a step, replica and position, counted in this order."""
    number, at = divmod(number, len(positions))
    step, replica = divmod(number, replicas)
    position = int(positions[at])
    return images.cut(order(step)[replica, position], keys.crop(order.seeds[replica], step, position))

  size, workers = replicas * len(positions), images.decoding.workers
  with decoded(crop, size, start=start, stop=stop, workers=workers) as stream:

    def feed(steps: range) -> dict[str, np.ndarray]:
      inputs = joined([next(stream).reshape(replicas, len(positions), *images.shape[1:]) for _ in steps])
      return {"inputs": spread(inputs, positions, batch_size), **source.targets(indices(steps))}

    yield feed


def in_turn(mesh: jax.sharding.Mesh, source: Source, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
  """Yields every example once, in order, in equal batches; padding examples have weight 0."""
  images = source.split.inputs
  if not isinstance(images, Images):
    for indices, weights in padded_indices(len(source), batch_size):
      yield {**source.batch(indices), "weights": weights}
    return

  positions = local_positions(mesh, batch_size)
  batches = list(padded_indices(len(source), batch_size))

  def centre(number: int) -> np.ndarray:
    """Cuts the centre of the image at a batch and position, counted in this order; black past the end."""
    batch, at = divmod(number, len(positions))
    index = batch * batch_size + int(positions[at])
    return images.cut(index) if index < len(images) else np.zeros(images.shape[1:], np.uint8)

  workers = images.decoding.workers if len(images) >= WORTHWHILE else 0
  with decoded(centre, len(positions), start=0, stop=len(batches), workers=workers) as stream:
    for inputs, (indices, weights) in zip(stream, batches, strict=True):
      inputs = spread(inputs, positions, batch_size)
      yield {"inputs": inputs, **source.targets(indices), "weights": weights}


def spread(inputs: np.ndarray, positions: np.ndarray, batch_size: int) -> np.ndarray:
  """Builds the global batch `[..., batch, height, width, channels]`, filled only at these positions.

  The other positions belong to other processes and are never read; untouched memory costs nothing.
  """
  if len(positions) == batch_size:
    return inputs
  whole = np.zeros((*inputs.shape[:-4], batch_size, *inputs.shape[-3:]), inputs.dtype)
  whole[..., positions, :, :, :] = inputs
  return whole


def _follow_parent(worker: int, count: int) -> None:
  """Prepares a worker: it ignores signals, which the parent handles, and ends when the parent ends."""
  del worker, count
  for number in (signal.SIGINT, signal.SIGTERM):  # terminals and batch systems signal the whole group
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()
  if parent is not None:

    def follow() -> None:
      parent.join()
      os._exit(1)

    threading.Thread(target=follow, daemon=True).start()

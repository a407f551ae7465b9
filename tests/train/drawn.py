"""What two steps draw and see, over all devices of all processes; as a script, in one of several processes.

python tests/train/drawn.py FILE [COORDINATOR NUM_PROCESSES PROCESS_ID]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import augment, losses, noise
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.order import batch_indices
from jaxreg.train.data.placement import gather, make_source, place
from jaxreg.train.devices import processes
from jaxreg.train.devices.mesh import make_mesh

SEED, EXAMPLES, SIZE = 3, 100, 32


def drawn():
  """Indices, augmented images, and the masks of a layer, of a loss and of labels, by name and step."""
  generator = np.random.default_rng(0)
  images = generator.integers(0, 256, (EXAMPLES, 8, 8, 1), np.uint8)
  mesh = make_mesh()
  split = Split(images, generator.integers(0, 10, EXAMPLES))

  def draw(step, arrays, batch):
    key = jax.random.fold_in(jax.random.key(SEED), step)
    keys = jax.random.split(key, 5)
    seen = gather(arrays, batch)
    moved = augment.translate(keys[0], augment.flip(keys[1], seen), max_shift=2)
    return {
      "images": moved["inputs"],
      "layer": noise.dropout(keys[2], moved["inputs"] + jnp.float32(1), rate=0.5),
      "mask": losses.dropmax_log_mask(keys[3], jnp.zeros((SIZE, 10)), seen["labels"]),
      "labels": noise.label_noise(keys[4], seen["labels"], rate=0.3, num_classes=10),
    }

  found = {}
  for resident in (True, False):  # on every device, or on the host
    source = make_source(mesh, split, resident=resident)
    run = jax.jit(draw, out_shardings=NamedSharding(mesh, P()))
    for step in (0, 4):  # of the first epoch and of the next
      indices = batch_indices(SEED, step, num_examples=EXAMPLES, batch_size=SIZE)
      batch = place(mesh, source.batch(indices), P("data"))
      values = run(np.int32(step), source.arrays, batch) | {"indices": indices}
      found |= {f"{name}, {step}, {resident}": np.asarray(value) for name, value in values.items()}
  return found


if __name__ == "__main__":
  file, *where = sys.argv[1:]
  if where:
    processes.start(where[0], int(where[1]), int(where[2]))
  values = drawn()
  if processes.is_first():
    np.savez(file, **values)

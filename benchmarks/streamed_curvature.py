"""Curvature of a ResNet-18 of 10 million parameters on streamed images: time and peak memory.

python benchmarks/streamed_curvature.py [--examples 10000] [--size 32] [--stem cifar|imagenet] [--batch 16]
  [--products 20] [--probes 8]

The stem `imagenet` halves the sides twice before the first block: a product takes a twentieth of the
arithmetic of `cifar`, with the same parameters but for the stem's. The loader makes each batch when it is
asked for: no data are in memory. The script computes the top 5 eigenvalues and the traces of all layers, and
prints what they took. With fewer examples it prints what all 10000 would take: the products of the analyses
times the measured time of an example. Memory depends on the batch, not on the number of examples.
"""

import resource
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _report import flags

from jaxreg import flatness, losses, models

CLASSES = 10


class Images:
  """Normal images and random labels, the same each time."""

  def __init__(self, examples, size, batch):
    self.sizes = [min(batch, examples - first) for first in range(0, examples, batch)]
    self.size = size

  def __iter__(self):
    for number, examples in enumerate(self.sizes):
      rng = np.random.default_rng(number)
      x = rng.standard_normal((examples, self.size, self.size, 3), np.float32)
      yield x, rng.integers(CLASSES, size=examples)


def make_loss_fn(net):
  def loss_fn(params, batch, *, key, model_state):
    features = net.apply({"params": params["net"], **model_state}, batch[0], train=False)
    return losses.softmax_cross_entropy(features @ params["head"]["kernel"], batch[1]).mean()

  return loss_fn


def make_weights(net, size):
  """Weights by He's rule: to compile the initialisation would take longer."""
  shapes = jax.eval_shape(
    lambda key: net.init(key, jnp.zeros((1, size, size, 3)), train=False), jax.random.key(0)
  )
  rng = np.random.default_rng(0)

  def draw(leaf):
    fan_in = np.prod(leaf.shape[:-1])
    return (
      np.sqrt(2 / fan_in) * rng.standard_normal(leaf.shape, np.float32)
      if leaf.ndim > 1
      else np.ones(leaf.shape)
    )

  drawn = jax.tree.map(lambda leaf: jnp.asarray(draw(leaf), jnp.float32), shapes["params"])
  state = {
    "batch_stats": jax.tree_util.tree_map_with_path(
      lambda path, leaf: jnp.full(leaf.shape, float("var" in str(path[-1]))), shapes["batch_stats"]
    )
  }
  head = jnp.asarray(rng.standard_normal((61 * 8, CLASSES), np.float32)) / np.sqrt(61 * 8)
  return {"net": drawn, "head": {"kernel": head}}, state


def peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(what, function):
  began = time.perf_counter(), time.process_time()
  result = jax.block_until_ready(function())
  wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
  print(f"{what}: {wall:.1f} s, {cpu:.1f} CPU s, peak {peak():.2f} GiB", flush=True)
  return result, cpu


def main():
  parser = flags(__doc__, rounds=1)
  for name, default in (("examples", 10000), ("size", 32), ("batch", 16), ("products", 20), ("probes", 8)):
    parser.add_argument(f"--{name}", type=int, default=default)
  parser.add_argument("--stem", choices=("cifar", "imagenet"), default="cifar")
  options = parser.parse_args()
  examples, size, products = (
    (64, 8, 6) if options.quick else (options.examples, options.size, options.products)
  )
  net = models.ResNet(depth=18, width=61, stem=options.stem)
  params, state = make_weights(net, size)
  data = Images(examples, size, options.batch)
  curvature = flatness.Curvature(make_loss_fn(net), params, data, model_state=state)
  vector = jnp.ones_like(curvature.like)
  print(f"{vector.size} parameters, {examples} images of {size} x {size}, start {peak():.2f} GiB", flush=True)
  timed("first product, with compilation", lambda: curvature(vector))
  _, cpu = timed("second product", lambda: curvature(vector))
  every = cpu * (products + options.probes) * 10000 / examples / 3600
  print(f"all on 10000 examples would take {every:.1f} CPU hours", flush=True)
  top, _ = timed(
    "top 5",
    lambda: curvature.top_eigenpairs(key=jax.random.key(0), num=5, num_matvecs=products, check=False),
  )
  print("eigenvalues", top.values, "residuals", top.residuals, flush=True)
  del top
  found = lambda: flatness.layerwise(
    curvature, key=jax.random.key(1), num_probes=options.probes, num_matvecs=0
  )
  layers, _ = timed("traces", lambda: found()._replace(names=()))
  names = dict.fromkeys(name.rpartition("/")[0] for name in curvature.names)
  for name, mean, error in zip(names, *layers.traces, strict=True):
    print(f"{name}: {float(mean):.4g} +- {float(error):.2g}")


if __name__ == "__main__":
  main()

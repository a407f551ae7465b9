"""Curvature of a ResNet-18 of 10 million parameters on streamed images: time and peak memory.

python benchmarks/streamed_curvature.py [--examples 10000] [--size 32] [--stem cifar|imagenet] [--batch 16]
  [--products 20]

The stem `imagenet` halves the sides twice before the first block: a product takes a twentieth of the
arithmetic of `cifar`, with the same parameters but for the stem's. The loader makes each batch when it is
asked for: no data are in memory. The script computes the top 5 eigenvalues by Lanczos, and the traces of all
layers exactly: the network is piecewise linear, so within a layer the Hessian is the Gauss-Newton matrix. It
prints what they took. Memory depends on the batch, not on the number of examples.
"""

import collections
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


def outer_loss(logits, batch):
  return losses.softmax_cross_entropy(logits, batch[1]).mean()


def make_functions(net):
  """The loss and the logits, with BatchNorm's running averages as an argument."""

  def logits_fn(params, batch, *, key, model_state):
    features = net.apply({"params": params["net"], **model_state}, batch[0], train=False)
    return features @ params["head"]["kernel"]

  def loss_fn(params, batch, *, key, model_state):
    return outer_loss(logits_fn(params, batch, key=key, model_state=model_state), batch)

  return loss_fn, logits_fn


def make_weights(net, size):
  """Weights by He's rule: to compile the initialisation would take longer."""
  shapes = jax.eval_shape(
    lambda key: net.init(key, jnp.zeros((1, size, size, 3)), train=False), jax.random.key(0)
  )
  rng = np.random.default_rng(0)

  def draw(path, leaf):
    if leaf.ndim == 1:  # of BatchNorm; less than 1, so that the residual blocks do not grow
      return np.full(leaf.shape, 0.5 * ("scale" in str(path[-1])))
    return np.sqrt(2 / np.prod(leaf.shape[:-1])) * rng.standard_normal(leaf.shape, np.float32)

  drawn = jax.tree_util.tree_map_with_path(
    lambda path, leaf: jnp.asarray(draw(path, leaf), jnp.float32), shapes["params"]
  )
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
  return result


def main():
  parser = flags(__doc__, rounds=1)
  for name, default in (("examples", 10000), ("size", 32), ("batch", 16), ("products", 20)):
    parser.add_argument(f"--{name}", type=int, default=default)
  parser.add_argument("--stem", choices=("cifar", "imagenet"), default="cifar")
  options = parser.parse_args()
  examples, size, products = (
    (64, 8, 6) if options.quick else (options.examples, options.size, options.products)
  )
  net = models.ResNet(depth=18, width=61, stem=options.stem)
  params, state = make_weights(net, size)
  data = Images(examples, size, options.batch)
  loss_fn, logits_fn = make_functions(net)
  curvature = flatness.Curvature(loss_fn, params, data, model_state=state)
  vector = jnp.ones_like(curvature.like)
  print(f"{vector.size} parameters, {examples} images of {size} x {size}, start {peak():.2f} GiB", flush=True)
  timed("first product, with compilation", lambda: curvature(vector))
  timed("second product", lambda: curvature(vector))
  top = timed(
    "top 5",
    lambda: curvature.top_eigenpairs(key=jax.random.key(0), num_pairs=5, num_steps=products, check=False),
  )
  print("eigenvalues", top.values, "residuals", top.residuals, flush=True)
  del top
  found = timed("traces", lambda: curvature.gauss_newton_diagonal(logits_fn, outer_loss))
  layers = collections.defaultdict(float)
  entries = jax.tree_util.tree_leaves_with_path(flatness.subset(params).merge(found))
  for name, (_, values) in zip(curvature.names, entries, strict=True):
    layers[name.rpartition("/")[0]] += float(values.sum())
  for name, trace in layers.items():
    print(f"{name}: {trace:.4g}")
  print(f"all layers: {sum(layers.values()):.4g}")


if __name__ == "__main__":
  main()

"""Our side of the benchmark of training steps, a process of its own; see `_steps_torch.py` for the lines.

With `--onednn` convolutions are oneDNN's.
A task is a network's step, or

- `NETWORK, forward`, its prediction of a batch;
- `NETWORK, products`, its matrix products and convolutions alone, with their gradients;
- `NETWORK, dispatch`, a program that takes and returns the arrays of the step, and computes nothing;
- `NETWORK, sums`, the sum of its gradients over the devices.
"""

import argparse
import json
import os
import sys
from functools import partial

from _clock import now
from _products import make_products
from _steps import make_steps
from jax import block_until_ready, device_put, distributed, jit, lax, random, shard_map  # after `_steps`
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg._cpu.onednn import request_onednn
from jaxreg.train.devices.sharding import make_mesh

# The optimizer of `_steps_torch.py`.
COMMON = {"method.name": "softmax", "optimizer.name": "sgd", "optimizer.sgd.momentum": 0.9}
FIELDS = {
  "MLP": ((28, 28, 1), 128, {"model.name": "MLP", "model.MLP.widths": (1024, 1024)}),
  "LeNet": ((28, 28, 1), 50, {"model.name": "LeNet"}),
  "ResNet-20": (
    (32, 32, 3),
    128,
    {"model.name": "CifarResNet", "model.CifarResNet.depth": 20, "augment.names": ("pad_crop", "flip")},
  ),
  "ViT": (
    (32, 32, 3),
    128,
    {
      "model.name": "ViT",
      "model.ViT.patch_size": 4,
      "model.ViT.width": 128,
      "model.ViT.depth": 6,
      "model.ViT.unroll": 6,
      "model.ViT.num_heads": 4,
      "model.ViT.d_ff": 256,
      "augment.names": ("pad_crop", "flip"),
    },
  ),
}


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--onednn", action="store_true")
  options = parser.parse_args()
  if options.onednn:
    request_onednn()  # as `run.py` does for `onednn=True`, before the first use of a device
  if "JAX_COORDINATOR_ADDRESS" in os.environ:
    number, one = (int(os.environ[f"JAX_{name}"]) for name in ("NUM_PROCESSES", "PROCESS_ID"))
    # A process that is stopped while others run gives no sign of life.
    options = {"num_processes": number, "process_id": one, "heartbeat_timeout_seconds": 3600}
    distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], **options)
  # What libraries print must not get among the answers.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  runs = {}
  for line in sys.stdin:
    task = json.loads(line)
    name = task["task"]
    if name not in runs:
      runs[name] = make(name)
    began = now()
    runs[name](task["options"]["number"])
    print(json.dumps({"seconds": now() - began, "notes": {}}), file=answers, flush=True)


def make(name):
  network, _, part = name.partition(", ")
  if part == "products":
    return make_products(network)
  image, batch_size, fields = FIELDS[network]
  steps = make_steps(image, batch_size, {**COMMON, **fields})
  if part == "forward":
    state, inputs = steps.program.init(0), random.uniform(random.key(0), (batch_size, *image))
    return Calls(jit(steps.program.predict_fn), state, inputs, random.key(1))
  if part == "dispatch":
    return Calls(jit(lax.optimization_barrier), (steps.state, steps.arrays, steps.batch))
  if part == "sums":
    mesh = make_mesh()
    total = partial(lax.psum, axis_name=mesh.axis_names)
    everywhere = PartitionSpec()
    program = shard_map(
      total, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )  # each device has a gradient of the whole
    params = device_put(steps.program.init(0).params, NamedSharding(mesh, everywhere))
    return Calls(jit(program), params)
  return steps


class Calls:
  """Calls a function with the same arguments, one call after another."""

  def __init__(self, function, *arguments):
    self.function, self.arguments = function, arguments

  def __call__(self, number):
    for _ in range(number):
      block_until_ready(self.function(*self.arguments))


if __name__ == "__main__":
  main()

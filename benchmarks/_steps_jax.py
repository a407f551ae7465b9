"""Our side of the benchmark of training steps, a process of its own; see `_steps_torch.py` for the lines.

With `--onednn` convolutions are oneDNN's.
"""

import json
import sys

from _clock import now
from _convolutions import NAME, make_convolutions
from _steps import make_steps

from jaxreg._cpu.onednn import request_onednn

if "--onednn" in sys.argv:
  request_onednn()  # as `run.py` does for `onednn=True`

import jax

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
      "model.ViT.num_heads": 4,
      "model.ViT.d_ff": 256,
      "augment.names": ("pad_crop", "flip"),
    },
  ),
}


def main() -> None:
  runs = {}
  for line in sys.stdin:
    task = json.loads(line)
    name = task["task"]
    if name not in runs:
      runs[name] = make(name)
    began = now()
    runs[name](task["options"]["number"])
    print(json.dumps({"seconds": now() - began, "notes": {}}), flush=True)


def make(name):
  if name == NAME:
    return make_convolutions()
  network, _, forward = name.partition(", ")
  image, batch_size, fields = FIELDS[network]
  steps = make_steps(image, batch_size, {**COMMON, **fields})
  if not forward:
    return steps
  predict, state = jax.jit(steps.program.predict_fn), steps.program.init(0)
  inputs = jax.random.uniform(jax.random.key(0), (batch_size, *image))

  def run(number):
    for _ in range(number):
      jax.block_until_ready(predict(state, inputs, jax.random.key(1)))

  return run


if __name__ == "__main__":
  main()

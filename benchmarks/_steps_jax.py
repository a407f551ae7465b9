"""Our side of the benchmark of training steps, a process of its own; see `_steps_torch.py` for the lines.

With `--xla` convolutions have the programs that XLA chooses, on every CPU; with `--onednn` they are oneDNN's.
"""

import json
import sys

from _clock import now
from _convolutions import NAME, make_convolutions
from _steps import make_steps

from jaxreg._onednn import request_onednn
from jaxreg.models import _convolution

if "--xla" in sys.argv:
  _convolution._has_avx2 = lambda: False
if "--onednn" in sys.argv:
  request_onednn()  # as `run.py` does for `onednn=True`

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
  return make_steps(*FIELDS[name][:2], {**COMMON, **FIELDS[name][2]})


if __name__ == "__main__":
  main()

"""Our side of the benchmark of training steps, a process of its own; see `_steps_torch.py` for the lines."""

import json
import sys

from jaxreg._host_memory import keep_freed_memory

keep_freed_memory()  # as `run.py` does

from _clock import now  # noqa: E402
from _convolutions import NAME, make_convolutions  # noqa: E402
from _steps import make_steps  # noqa: E402

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
  return make_steps(*FIELDS[name][:2], {"method.name": "softmax", **FIELDS[name][2]})


if __name__ == "__main__":
  main()

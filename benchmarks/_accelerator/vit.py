"""Training steps of ViT-S/16: their time, and the model FLOP utilisation (MFU) in bfloat16.

The operations are counted from the program, in which the body of a scan counts as often as it runs. The peak
is the published one of `jaxreg/train/devices/flops.py`; without one, the MFU is left out.
"""

from typing import Any

import jax
import jax.numpy as jnp
from _accelerator import AHEAD
from _report import Report, milliseconds, spread
from _steps import Steps, made_up

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.devices.flops import count_flops, peak_flops

FIELDS = {"model.name": "ViT", "method.name": "softmax", "optimizer.name": "adamw"}
# Name, shape, classes, batch size, fields.
CASES = {
  "ViT-S/16 at 224, batch 256": ((224, 224, 3), 1000, 256, {}),
  "ViT-S/16 at 224, batch 256, remat": (
    (224, 224, 3),
    1000,
    256,
    {"model.ViT.remat": "nothing_saveable"},
  ),
}
TOY = {
  f"model.ViT.{name}": size
  for name, size in {"patch_size": 4, "width": 8, "depth": 2, "num_heads": 2}.items()
}
TOYS = {"ViT, toy": ((8, 8, 3), 10, 8, {**TOY, "model.ViT.d_ff": 8})}
PRECISIONS = ("bfloat16", "float32")


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  rounds, seconds = (2, 0.05) if quick else (rounds, 0.4)
  peak = peak_flops(jax.devices()[0].device_kind)
  report.table(
    "vit", "network", "precision", "ms a step", "images a second", "GFLOP a step", "MFU in bfloat16"
  )
  for name, (shape, num_classes, batch_size, more) in (TOYS if quick else CASES).items():
    dataset = made_up(shape, 2 * batch_size, num_classes=num_classes)
    for precision in PRECISIONS:
      fields = {**FIELDS, **more, "precision": precision}
      flops = count({**fields, "model.ViT.remat": ""}, dataset, batch_size)
      steps = Steps(dataset, batch_size, fields, ahead=AHEAD)
      steps(2)
      number = max(1, round(seconds / steps(2)))
      times = [steps(number) for _ in range(rounds)]
      known = peak and precision == "bfloat16"
      report.row(
        name,
        precision,
        spread(milliseconds(times), ".3g"),
        spread([batch_size / value for value in times], ".0f"),
        f"{flops / 1e9:.3g}",
        spread([flops / (value * peak) for value in times], ".1%") if known else "",
        numbers={"seconds": times, "flops": flops},
      )


def count(fields: dict[str, Any], dataset: Dataset, batch_size: int) -> float:
  """Counts the operations of a step without what rematerialisation repeats."""
  config = train.base_config()
  config.update_from_flattened_dict({"batch_size": batch_size, **fields})
  program = build(config, dataset.describe())
  examples = {
    "inputs": jax.ShapeDtypeStruct((batch_size, *dataset.train.inputs.shape[1:]), jnp.uint8),
    "labels": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
  }
  return count_flops(program.train_step, program.abstract, examples)

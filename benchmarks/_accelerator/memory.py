"""The memory of one and of two seeds in one program."""

import gc

import jax
from _accelerator import TOYS
from _report import Report
from _steps import Steps, made_up
from _steps_jax import FIELDS


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  del rounds
  case, (image, batch_size, fields) = (
    next(iter(TOYS.items())) if quick else ("ResNet-20, batch 128", FIELDS["ResNet-20"])
  )
  columns = "peak of the device, MiB", "arguments and temporary memory of the program, MiB"
  report.table("memory", "network, DropMax", "seeds", *columns)
  for seeds in (1, 2):  # the greater last: a device does not forget its peak
    steps = Steps(
      made_up(image), batch_size, {**fields, "method.name": "dropmax"}, replicas=seeds, form="vmap"
    )
    used = steps.compiled()[1].memory_analysis()
    program = used.argument_size_in_bytes + used.temp_size_in_bytes + used.output_size_in_bytes
    program -= used.alias_size_in_bytes
    steps(2)
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    del steps
    gc.collect()
    report.row(
      case,
      seeds,
      "" if peak is None else f"{peak / 2**20:.1f}",
      f"{program / 2**20:.1f}",
      numbers={"peak": peak, "program": program},
    )

"""`steps_per_dispatch`: the time of a step where one dispatch makes several."""

from _accelerator import AHEAD, CASES, TOYS
from _report import Report, milliseconds, ratios, spread
from _steps import alternate, make_steps

SIZES = (1, 8, 32)


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  cases, sizes, rounds, seconds = (TOYS, SIZES[:2], 2, 0.05) if quick else (CASES, SIZES, rounds, 0.4)
  report.table("dispatch", "network", "steps of a dispatch", "ms a step", f"time of {sizes[0]} step's")
  for case, (image, batch_size, fields) in cases.items():
    fields = {"method.name": "softmax", **fields}
    runs = {str(size): make_steps(image, batch_size, fields, size=size, ahead=AHEAD) for size in sizes}
    times = alternate(runs, rounds=rounds, seconds=seconds)
    for size, values in times.items():
      cells = spread(milliseconds(values), ".3g"), spread(ratios(values, times[str(sizes[0])]))
      report.row(case, size, *cells, numbers=values)

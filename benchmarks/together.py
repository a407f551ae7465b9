"""What `compare.together=auto` gains: a whole comparison, its rows in one program against one after another.

python benchmarks/together.py [--rounds 3]

A grid of 6 strengths of one penalty, each from 3 seeds, with all evaluations, checkpoints and figures.
"""

import contextlib
import io
import statistics
import tempfile
import time
from pathlib import Path

from _report import Report, flags, ratios, spread

from jaxreg import train

FORMS = ("never", "auto")
WEIGHTS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def main() -> None:
  options = flags(__doc__, rounds=3).parse_args()
  rounds, epochs = (1, 1) if options.quick else (options.rounds, 10)
  report = Report(options.json)
  report.table("together", "6 rows, 3 seeds", "apart, s", "one program, s", "program / apart")
  times: dict[str, list[float]] = {form: [] for form in FORMS}
  for _ in range(rounds):
    for form in FORMS:
      times[form].append(seconds(form, epochs))
  medians = [f"{statistics.median(values):.0f}" for values in times.values()]
  name = f"digits, MLP 64-100-10, {epochs} epochs"
  report.row(name, *medians, spread(ratios(times["auto"], times["never"])), numbers=times)
  report.close()


def seconds(form: str, epochs: int) -> float:
  """How long a comparison takes, from its configuration to its figures."""
  config = train.base_config()
  config.method.name = "softmax"
  config.model.MLP.widths, config.epochs = (100,), epochs
  config.regularizers.names = ("l2",)
  config.compare.rows = {f"L2 {weight}": {"regularizers.l2.weight": weight} for weight in WEIGHTS}
  config.compare.seeds, config.compare.together = 3, form
  with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
    start = time.perf_counter()
    train.compare(config, Path(folder) / "run")
    return time.perf_counter() - start


if __name__ == "__main__":
  main()

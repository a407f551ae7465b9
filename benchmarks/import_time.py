"""What importing costs: fresh interpreters started in turn.

python benchmarks/import_time.py [--rounds 11]
"""

import os
import subprocess
import sys
import time

from _report import Report, flags, ratios, spread

STATEMENTS = ("import jax, optax", "import jaxreg, jax, optax", "import jaxreg", "from jaxreg import losses")


def main() -> None:
  options = flags(__doc__, rounds=11).parse_args()
  rounds = 2 if options.quick else options.rounds
  report = Report(options.json)
  times = {statement: [] for statement in STATEMENTS}
  # Without bytecode each start would compile jaxreg again, but not the installed JAX.
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
  for _ in range(rounds + 1):
    for statement in STATEMENTS:
      began = time.perf_counter()
      subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
      times[statement].append(time.perf_counter() - began)
  # The first round warms the file cache.
  times = {statement: values[1:] for statement, values in times.items()}
  base = times[STATEMENTS[0]]
  report.table("import_time", "statement", "seconds", f"over `{STATEMENTS[0]}`")
  for statement, values in times.items():
    report.row(f"`{statement}`", spread(values), spread(ratios(values, base)), numbers=values)
  report.close()


if __name__ == "__main__":
  main()

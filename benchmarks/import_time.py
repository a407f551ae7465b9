"""What importing costs: fresh interpreters started alternately, medians of 11.

python benchmarks/import_time.py
"""

import json
import statistics
import subprocess
import sys
import time

STATEMENTS = ("import jax, optax", "import jaxreg, jax, optax", "import jaxreg", "from jaxreg import losses")
ROUNDS = 11


def main() -> None:
  times = {statement: [] for statement in STATEMENTS}
  for _ in range(ROUNDS + 1):
    for statement in STATEMENTS:
      began = time.perf_counter()
      subprocess.run([sys.executable, "-c", statement], check=True)
      times[statement].append(time.perf_counter() - began)
  # The first round warms the file cache.
  medians = {statement: statistics.median(values[1:]) for statement, values in times.items()}
  base = medians[STATEMENTS[0]]
  print(f"| statement | median of {ROUNDS}, s | over `{STATEMENTS[0]}` |\n|---|---|---|")
  for statement, median in medians.items():
    print(f"| `{statement}` | {median:.3f} | {median / base:.2f}x, {median - base:+.3f} s |")
  print(json.dumps(medians))


if __name__ == "__main__":
  main()

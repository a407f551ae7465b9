"""Runs the measurements of speed one after another, and writes tables and numbers into the pages.

    python -m benchmarks [NAME ...] [--quick] [--peer-python PYTHON]

Each is a process of its own, `benchmarks/NAME.py`. What it measured goes into `benchmarks/results.json` when
it ends, with the machine and the versions; a measurement that fails is a line, and the rest goes on. Then the
tables of `benchmarks/README.md`, `docs/speed.md` and `docs/toolbox.md` are made again from that file. So are
all tables and numbers of the README, docs/ and papers/ with a record in `benchmarks/records` (`_records.py`
says how a page asks for them), and the figures of comparisons. `--render` does only that. `--quick` takes a
few minutes, shows that everything runs, and writes no page. `--peer-python` has PyTorch. The measurements in
`NAMED` run only if they are named; their docstrings say what they read and how long they take.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _records
from _report import instructions

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results.json"
ROOT = FOLDER.parent
PAGES = (
  ROOT / "README.md",
  FOLDER / "README.md",
  *sorted((ROOT / "docs").glob("*.md")),
  *sorted((ROOT / "docs/guides").glob("*.md")),
  *sorted((ROOT / "papers").glob("*/README.md")),
)
NAMES = (
  "steps",
  "products",
  "dropmax_overhead",
  "group_softmax",
  "replicas",
  "input",
  "first_step",
  "waits",
  "devices",
  "import_time",
  "flatness",
  "flatness_layer",
)
NAMED = (
  "accelerator",
  "toolbox",
  "pyhessian_readme",
  "conformance",
  "install",
  "others_networks",
  "robust_networks",
  "ood_features",
  "recalibration",
  "update_sharpness",
  "uci",
  "dropout_ensemble",
  "flatness_resnet20",
)  # those that run only if they are named
PEERS = (
  "steps",
  "products",
  "input",
  "flatness",
  "flatness_layer",
  "pyhessian_readme",
  "conformance",
  "others_networks",
  "robust_networks",
  "flatness_resnet20",
)  # those that run a peer too
VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")
# <!-- table NAME --> ... <!-- end -->. Lines behind the name choose: `columns: network; ms` by the beginnings
# of the headings, and `network: MLP; LeNet` the rows by the cells of a column.
TABLE = re.compile(r"(<!-- table (\w+)\s(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
# <!-- tables MEASUREMENT --> ... <!-- end -->: all of them
TABLES = re.compile(r"(<!-- tables (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
  parser = argparse.ArgumentParser(
    "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "names",
    nargs="*",
    metavar="NAME",
    help=f"of {', '.join(NAMES + NAMED)}; without one all but the last {len(NAMED)}",
  )
  parser.add_argument("--quick", action="store_true", help="little of everything: only to see that it runs")
  parser.add_argument("--render", action="store_true", help="only make tables and figures of the pages again")
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch")
  options = parser.parse_args()
  if unknown := [name for name in options.names if name not in NAMES + NAMED]:
    parser.error(f"there is no measurement {', '.join(unknown)}; there are {', '.join(NAMES + NAMED)}")
  failed = []
  for name in () if options.render else options.names or NAMES:
    if not run(name, options):
      failed.append(name)
  if RESULTS.is_file() and not options.quick:
    results = json.loads(RESULTS.read_text())
    for page in PAGES:
      page.write_text(_records.render(render(page.read_text(), results), up(page)))
    _records.draw(ROOT / "docs/figures")
  if failed:
    print(f"failed: {', '.join(failed)}", file=sys.stderr)
  return bool(failed)


def run(name: str, options: argparse.Namespace) -> bool:
  """Runs one measurement and keeps its results; False if it failed."""
  flags = ["--quick"] if options.quick else []
  if name in PEERS:
    flags += ["--peer-python", options.peer_python]
  print(f"\n== {name}", flush=True)
  began = time.perf_counter()
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "found.json"
    status = subprocess.run(
      [sys.executable, str(FOLDER / f"{name}.py"), *flags, "--json", str(path)]
    ).returncode
    if status or not path.is_file():
      print(f"{name} ended with status {status}", file=sys.stderr)
      return False
    found = json.loads(path.read_text())
  seconds = time.perf_counter() - began
  print(f"{name} took {seconds:.0f} s", flush=True)
  if not options.quick:
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    keep({**results, name: {**described(), "seconds": round(seconds), **found}})
  return True


def described() -> dict[str, Any]:
  """The day, the machine and the versions."""
  model = (
    re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if os.path.exists("/proc") else None
  )
  return {
    "date": datetime.date.today().isoformat(),
    "machine": {
      "processor": model[1].strip() if model else platform.processor(),
      "instructions": instructions(),
      "cores": len(os.sched_getaffinity(0)),
      "load": round(os.getloadavg()[0], 1),
    },
    "versions": {
      "python": platform.python_version(),
      **{name: importlib.metadata.version(name) for name in VERSIONS},
    },
  }


def keep(results: dict[str, Any]) -> None:
  """Replaces the file in one move, so that no half of it is ever there."""
  new = RESULTS.with_suffix(".new")
  new.write_text(
    json.dumps({name: results[name] for name in (*NAMES, *NAMED) if name in results}, indent=1) + "\n"
  )
  new.replace(RESULTS)


def up(page: Path) -> str:
  """The way from a page to the root, such as `../`."""
  return "../" * (len(page.relative_to(ROOT).parts) - 1)


def render(page: str, results: dict[str, Any]) -> str:
  """The page with each marked table of `results.json`."""
  measured = {table: (name, found) for name, found in results.items() for table in found["tables"]}

  def block(match: re.Match[str]) -> str:
    if match[2] not in measured:
      return match[0]
    name, found = measured[match[2]]
    table = chosen(found["tables"][match[2]], _records.options(match[3]))
    return f"{match[1]}{markdown(table)}\n\n{caption(name, found)}\n{match[4]}"

  def blocks(match: re.Match[str]) -> str:
    if match[2] not in results:
      return match[0]
    found = results[match[2]]
    tables = "\n\n".join(map(markdown, found["tables"].values()))
    return f"{match[1]}{tables}\n\n{caption(match[2], found)}\n{match[3]}"

  return TABLES.sub(blocks, TABLE.sub(block, page))


def chosen(table: dict[str, Any], choices: dict[str, str]) -> dict[str, Any]:
  """Returns the rows and the columns of a table that a page chooses."""

  def index(heading: str) -> int:
    return next(i for i, column in enumerate(table["columns"]) if column.startswith(heading))

  shown = choices.pop("columns", "")
  rows = table["rows"]
  for heading, cells in choices.items():
    rows = [row for row in rows if row[index(heading)] in cells.split("; ")]
  kept = [index(heading) for heading in shown.split("; ")] if shown else range(len(table["columns"]))
  return {"columns": [table["columns"][i] for i in kept], "rows": [[row[i] for i in kept] for row in rows]}


def markdown(table: dict[str, Any]) -> str:
  lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def caption(name: str, found: dict[str, Any]) -> str:
  machine, versions = found["machine"], found["versions"]
  device = f"{found['device']}, " if "device" in found else ""
  cores = f"{machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['processor']}"
  if machine.get("instructions"):
    cores += f" with {machine['instructions']}"
  if machine.get("load", 0) > machine["cores"]:  # more processes than cores wanted to run
    cores += f", load {machine['load']}"
  return (
    f"`python -m benchmarks {name}`, {found['date']}: {device}{cores}, "
    f"Python {versions['python']},\njax {versions['jax']}."
  )


if __name__ == "__main__":
  sys.exit(main())

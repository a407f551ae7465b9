"""What an installation costs: fresh virtual environments, the files in them and the seconds of pip.

    python benchmarks/install.py [--rounds 1]

The seconds depend on the index and on pip's cache; the sizes, with compiled Python, do not. The second table
has the packages that jaxreg itself asks for, each with what nothing else brings.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from _report import Report, flags, spread

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"the functions": "", "`[train]`": "[train]", "`[train,data,text]`": "[train,data,text]"}
INSIDE = ("report", "train", "data", "text")
CORE = ("jax", "optax", "numpy")
# Prints the MB of each installed package, and the packages that each of them asks for.
LOOK = """
import importlib.metadata, json, re
from packaging.requirements import Requirement
name = lambda text: re.sub(r"[-_.]+", "-", text).lower()
files = lambda of: (path for file in of.files or () if (path := file.locate()).is_file())
applies = lambda need: not need.marker or need.marker.evaluate({"extra": ""})
wants = lambda of: [name(need.name) for need in map(Requirement, of.requires or ()) if applies(need)]
found = {name(of.name): of for of in importlib.metadata.distributions()}
for other in ("pip", "setuptools", "jaxreg"):
  found.pop(other, None)
size = lambda of: sum(path.stat().st_size for path in files(of)) / 1e6
print(json.dumps({key: (size(of), wants(of)) for key, of in found.items()}))
"""


def main() -> None:
  options = flags(__doc__, rounds=1).parse_args()
  rounds = 1 if options.quick else options.rounds
  extras = dict(list(EXTRAS.items())[:1]) if options.quick else EXTRAS
  report = Report(options.json)
  report.table("install", "what", "packages", "MB", "seconds of pip")
  for name, extra in extras.items():
    seconds, found = zip(*(install(extra) for _ in range(rounds)), strict=True)
    megabytes = sum(size for size, _ in found[0].values())
    report.row(
      name,
      len(found[0]),
      f"{megabytes:.0f}",
      spread(list(seconds), ".0f") if rounds > 1 else f"{seconds[0]:.0f}, one run",
      numbers=seconds,
    )
  if not options.quick:
    by_package(report, found[0])
  report.close()


def by_package(report: Report, packages: dict) -> None:
  roots = needed(packages)
  whole = closure([*CORE, *roots], packages)
  alone = {
    root: whole - closure([*CORE, *(name for name in roots if name != root)], packages) for root in roots
  }
  size = lambda root: sum(packages[name][0] for name in alone[root])
  report.table("install_packages", "package", "MB with what it alone brings", "packages")
  for root in sorted(filter(size, roots), key=size, reverse=True):
    report.row(root, f"{size(root):.0f}", len(alone[root]))


def install(extra: str) -> tuple[float, dict]:
  """The seconds of pip in a fresh environment, and what is in it."""
  with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = f"{folder}/bin/python"
    began = time.perf_counter()
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-e", f"{ROOT}{extra}"], check=True)
    seconds = time.perf_counter() - began
    subprocess.run([python, "-m", "pip", "install", "--quiet", "packaging"], check=True)
    return seconds, json.loads(subprocess.check_output([python, "-c", LOOK], cwd=folder))


def needed(packages: dict) -> list[str]:
  """The packages that jaxreg's own extras name."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = project["optional-dependencies"]
  names = (
    re.match(r"[\w-]+", need)[0].replace("_", "-").lower() for extra in INSIDE for need in extras[extra]
  )
  return sorted({*names} & {*packages})


def closure(roots: list[str], packages: dict) -> set[str]:
  """These packages and all that they need."""
  found, left = set(), list(roots)
  while left:
    name = left.pop()
    if name in packages and name not in found:
      found.add(name)
      left += packages[name][1]
  return found


if __name__ == "__main__":
  main()

"""Measures what the tests notice: samples mutants of the package and runs the tests that can see each.

    python tests/mutants.py --map                                     which test runs which function; once
    python tests/mutants.py --sample 400 --seed 0 --record FILE       one JSON row a mutant; resumes
    python tests/mutants.py --report FILE
    python tests/mutants.py --map --thorough                          the same with the thorough tests:
    python tests/mutants.py --sample 400 --seed 0 --thorough --again FILE --record OTHER    of the survivors

A mutant lives in the memory of a forked process: no file changes, and several samples may run at once. A test
can see a mutant if it calls the function around it. What a test's own subprocess imports is not mutated.
"""

import argparse
import ast
import builtins
import collections
import contextlib
import fnmatch
import importlib
import importlib.util
import json
import os
import pathlib
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import PathFinder, SourceFileLoader

import mutate

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAPS = ROOT / ".cache" / "mutants"  # a map of each set of tests
SETS = {"default": [], "thorough": ["-m", "not slow and not multiprocess"]}
# Imported once, before the forks. Nothing here may start JAX's devices, or import jaxreg.
SHARED = (
  "jax.test_util flax.nnx optax chex hypothesis.extra.numpy pytest ml_collections equinox scipy.optimize "
)
SHARED += (
  "sklearn.datasets matplotlib.pyplot orbax.checkpoint grain tensorflow_datasets tensorboardX PIL.Image"
)
CAP = 120.0  # seconds of processor time of the tests of one mutant: those of its name, then the cheapest


def import_shared() -> None:
  sys.path.insert(0, str(ROOT))  # this checkout's package, whatever is installed
  os.environ.setdefault("MPLBACKEND", "agg")
  for name in SHARED.split():
    importlib.import_module(name)


def sources() -> dict[str, str]:
  return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "jaxreg").rglob("*.py"))}


class Changed:
  """A finder that compiles what `change(file, text)` makes of a source; None leaves it."""

  def __init__(self, change: Callable[[str, str], ast.Module | None]):
    self.change = change

  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] not in ("jaxreg", "papers"):
      return None
    spec = PathFinder.find_spec(name, path, target)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
      return spec
    file = pathlib.Path(spec.loader.path)
    tree = self.change(str(file.relative_to(ROOT)), file.read_text())
    if tree is not None:
      spec.loader.get_code = lambda name: compile(tree, str(file), "exec")
    return spec


class Watch:
  """A pytest plugin: the processor time of each test, and the functions that it was the first to call."""

  def __init__(self):
    self.rows, self.common = {}, set()

  def pytest_runtest_logstart(self, nodeid, location):
    self.common |= builtins.__dict__["_called"]  # by imports and collection: of every test of the file
    self.start = time.process_time()

  def pytest_runtest_logreport(self, report):
    if report.when == "setup":  # and by fixtures
      self.common |= builtins.__dict__["_called"]
    if report.when == "call" and report.passed:
      self.rows[report.nodeid] = [0.0, sorted(builtins.__dict__["_called"])]

  def pytest_runtest_logfinish(self, nodeid, location):
    if nodeid in self.rows:
      self.rows[nodeid][0] = round(time.process_time() - self.start, 3)
    builtins.__dict__["_called"].clear()


class Chosen:
  """A pytest plugin: only these tests, in this order. An id on the command line may not hold `::` twice."""

  def __init__(self, tests: list[str]):
    self.place = {test: i for i, test in enumerate(tests)}

  def pytest_collection_modifyitems(self, items):
    items[:] = sorted((x for x in items if x.nodeid in self.place), key=lambda x: self.place[x.nodeid])


def forked(child: Callable[[], int], cpu: float, output: pathlib.Path) -> int:
  """The status of `child` in a process of its own; 124 if it takes more than `cpu` seconds, or sleeps."""
  pid = os.fork()
  if not pid:
    status = 70
    with contextlib.suppress(BaseException):
      os.setsid()
      resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 1))
      with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
      status = child()
    os._exit(status)
  deadline = time.monotonic() + 6 * cpu
  while True:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done or time.monotonic() > deadline:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
      if not done:
        os.waitpid(pid, 0)
      return os.waitstatus_to_exitcode(status) if done and os.WIFEXITED(status) else 124
    time.sleep(0.05)


def pytest_main(arguments: list[str], plugins: list[object]) -> int:
  import pytest

  return int(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", "-W", "ignore", *arguments], plugins))


def measure_map(only: str, chosen: str) -> None:
  """A row for each test file: what each of its tests costs and calls. Resumes."""
  place = MAPS / f"{chosen}.jsonl"
  place.parent.mkdir(parents=True, exist_ok=True)
  known = {json.loads(line)["file"] for line in place.read_text().splitlines()} if place.exists() else set()
  mark = lambda name: ast.parse(f"__import__('builtins')._called.add({name!r})").body[0]
  for path in sorted((ROOT / "tests").rglob("test_*.py")):
    file = str(path.relative_to(ROOT))
    if file in known or not fnmatch.fnmatch(file, only):
      continue

    def child(file=file) -> int:
      builtins.__dict__["_called"] = set()
      sys.meta_path.insert(0, Changed(lambda name, text: mutate.marked(text, name, mark)))
      watch = Watch()
      status = pytest_main([*SETS[chosen], file], [watch])
      row = {"file": file, "status": status, "common": sorted(watch.common), "tests": watch.rows}
      with place.open("a") as out:
        out.write(json.dumps(row) + "\n")
      return status

    status = forked(child, 900, place.with_suffix(".log"))
    print(file, status, flush=True)


def read_rows(file: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in file.read_text().splitlines()]


def seen_by(mutant: mutate.Mutant, table: dict[str, dict], cap: float) -> tuple[list[str], float]:
  """The tests that call the mutant's function, and what they cost together.

  First come tests that call a rarely tested function of the changed line, then tests that name the mutant's
  file, then the cheapest file.
  """
  exact = f"{mutant.file}:{mutant.scope}"
  functions = {name for row in table.values() for names in row["calls"].values() for name in names}
  inside = exact in functions
  matches = lambda names: (
    exact in names if inside else any(name.startswith(f"{mutant.file}:") for name in names)
  )
  files = {}
  for file, row in table.items():
    everywhere = matches(row["common"])
    tests = [
      (row["tests"][test][0], test) for test, names in row["calls"].items() if everywhere or matches(names)
    ]
    if tests:
      files[file] = sorted(tests)
  ordered = sorted(files.values(), key=lambda tests: sum(cost for cost, _ in tests[:10]))
  stem = pathlib.Path(mutant.file).stem.strip("_")
  words = set(re.findall(r"\w+", mutant.old))
  meant = {name for name in functions if re.split(r"[:.]", name)[-1] in words}
  called = {test: names & meant for row in table.values() for test, names in row["calls"].items()}
  number = collections.Counter(name for names in called.values() for name in names)
  fewest = lambda test: min((number[name] for name in called[test]), default=len(called))
  place = lambda pair: (fewest(pair[1]), stem not in pair[1])
  pairs = sorted((pair for tests in ordered for pair in tests), key=place)
  chosen, total = [], 0.0
  for cost, test in pairs:
    if total + cost > cap and chosen:
      break
    chosen.append(test)
    total += cost
  return chosen, total


def sample(files: str, count: int, seed: int) -> list[mutate.Mutant]:
  """One mutant of each of `count` lines, drawn among all lines that have any."""
  lines = collections.defaultdict(list)
  for file, text in sources().items():
    if fnmatch.fnmatch(file, files):
      for mutant in mutate.mutants(file, text):
        lines[file, mutant.line].append(mutant)
  rng = random.Random(seed)
  places = sorted(lines)
  rng.shuffle(places)
  return [rng.choice(lines[place]) for place in places[:count]]


def run(mutant: mutate.Mutant, table: dict[str, dict], cap: float, chosen: str) -> dict:
  text = (ROOT / mutant.file).read_text()
  tests, cost = seen_by(mutant, table, cap)
  row = {**mutant.__dict__, "name": mutant.name, "tests": len(tests), "cost": round(cost, 1)}
  if not tests:
    return {**row, "result": "not called"}
  tree = mutate.mutated(text, mutant)

  def child() -> int:
    sys.meta_path.insert(0, Changed(lambda name, _: tree if name == mutant.file else None))
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return pytest_main(["-x", *SETS[chosen], *files], [Chosen(tests)])

  used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
  start, before = time.monotonic(), used()
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder) / "output"
    status = forked(child, 30 + 3 * cost, output)
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []
  # 1: a test failed; 2 and 4: a file could not be imported.
  result = {0: "survived", 1: "killed", 2: "killed", 4: "killed", 124: "killed"}.get(
    status, f"status {status}"
  )
  by = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "time" if status == 124 else "")
  took = {"seconds": round(time.monotonic() - start, 1), "processor": round(used() - before, 1)}
  return {**row, "result": result, "by": by[:160], **took}


def report(record: pathlib.Path) -> None:
  """Counts by folder, then the survivors. A row may get an `equivalent` with the reason, by hand."""
  rows = read_rows(record)
  counts = collections.defaultdict(collections.Counter)
  for row in rows:
    result = "equivalent" if row.get("equivalent") else row["result"]
    for folder in (row["file"].split("/")[1].removesuffix(".py"), "all"):
      counts[folder][result] += 1
  for folder, found in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
    real = sum(found.values()) - found["equivalent"]
    print(f"{folder:12} {100 * found['killed'] / max(real, 1):4.0f} % killed", dict(found))
  for row in rows:
    if row["result"] != "killed":
      print(f"{row['result']}: {row['name']} [{row['scope']}]\n  {row['old']}\n  {row['new']}")
      print(
        f"  {row['tests']} tests" + (f"; equivalent: {row['equivalent']}" if row.get("equivalent") else "")
      )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--map", action="store_true")
  parser.add_argument("--tests", default="*", help="with --map: a pattern of test files")
  parser.add_argument("--sample", type=int, default=400)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--cap", type=float, default=CAP, help="processor seconds of the tests of one mutant")
  parser.add_argument("--files", default="*", help="a pattern of source files, such as jaxreg/train/*")
  parser.add_argument("--only", default="*", help="a pattern of source files: which of the sample to run now")
  parser.add_argument("--thorough", action="store_true", help="with the thorough tests, too")
  parser.add_argument(
    "--again", type=pathlib.Path, help="a record: only the mutants that it has not as killed"
  )
  parser.add_argument("--record", type=pathlib.Path)
  parser.add_argument("--report", type=pathlib.Path)
  flags = parser.parse_args()
  if flags.report:
    return report(flags.report)
  os.chdir(ROOT)
  import_shared()
  chosen = "thorough" if flags.thorough else "default"
  if flags.map:
    return measure_map(flags.tests, chosen)
  table = {row["file"]: row for row in read_rows(MAPS / f"{chosen}.jsonl")}
  for row in table.values():
    row["calls"] = {test: set(names) for test, (_, names) in row["tests"].items()}
  done = {row["name"] for row in read_rows(flags.record)} if flags.record.exists() else set()
  if flags.again:
    done |= {row["name"] for row in read_rows(flags.again) if row["result"] == "killed"}
  for mutant in sample(flags.files, flags.sample, flags.seed):
    if mutant.name not in done and fnmatch.fnmatch(mutant.file, flags.only):
      row = run(mutant, table, flags.cap, chosen)
      with flags.record.open("a") as out:
        out.write(json.dumps(row) + "\n")
      print(row["result"], row["name"], row.get("seconds"), row.get("by", ""), flush=True)


if __name__ == "__main__":
  main()

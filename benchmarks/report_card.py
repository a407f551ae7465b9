"""Measures whole report cards of two runs: an MLP on digits and, with `--mnist`, LeNet on MNIST.

    python benchmarks/report_card.py --mnist DIR
    python benchmarks/report_card.py --cards RUN [RUN ...]

DIR has the four idx files. Each card is the command `run.py report` in a process of its own, with its
compilation. The trainings before are not measured. It writes `benchmarks/records/report_card.json`.

With `--cards` nothing is measured: the numbers of the cards of these work directories, one card a seed,
become `benchmarks/records/report_card_mnist1k.json`.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _records

ROOT = Path(__file__).resolve().parent.parent
SHOWN = {
  "test/error": ("errors", "error"),
  "test/nll": ("calibration", "nll"),
  "test/ece": ("calibration", "ece"),
  "AURC, thousandths": ("selective", "aurc"),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--mnist", type=Path, help="the folder of the four idx files")
  parser.add_argument("--cards", nargs="+", type=Path, metavar="RUN", help="work directories that have cards")
  options = parser.parse_args()
  if options.cards:
    _keep(options.cards)
    return
  configs = {"digits, MLP": ["configs/softmax_digits.py"]}
  if options.mnist:
    flags = [f"--config.data.idx.path={options.mnist}", "--config.method.name=softmax", "--config.epochs=20"]
    configs["MNIST, LeNet"] = ["configs/dropmax_mnist.py:1k", *flags]
  found = _records.Found()
  for name, (config, *flags) in configs.items():
    with tempfile.TemporaryDirectory() as folder:
      given = ["--config", config, *flags, "--workdir", folder]
      _run("train", *given)
      before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
      _run("report", *given)
      wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    found.add(name, "seconds", wall, 0)
    found.add(name, "CPU seconds", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 0)
    found.add(name, "processes that waited for a core", os.getloadavg()[1], 1)
  found.write("report_card", "python benchmarks/report_card.py" + " --mnist DIR" * bool(options.mnist))


def _keep(runs: list[Path]) -> None:
  found = _records.Found()
  for run in runs:
    cards = [
      json.loads(file.read_text())["sections"] for file in sorted(run.glob("report/seed-*/report.json"))
    ]
    if not cards:
      raise SystemExit(f"--cards: {run} has no report/seed-*/report.json; `run.py report` writes it")
    for quantity, (section, key) in SHOWN.items():
      factor = 1000 if "thousandths" in quantity else 1
      values = [factor * card[section]["numbers"][key]["value"] for card in cards]
      found.add(run.name, quantity, values)
  found.write(
    "report_card_mnist1k", "python benchmarks/report_card.py --cards runs/softmax runs/dropmax runs/sam"
  )


def _run(*arguments: str) -> None:
  with tempfile.TemporaryDirectory() as cache:  # an empty one, so that each command compiles
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": "", "XDG_CACHE_HOME": cache}
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
  main()

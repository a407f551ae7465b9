"""Trains the scripts of this folder before and after the changes of docs/porting.md, and prints a table.

`python examples/porting/measure.py --seeds 3` takes scikit-learn's digits; `--mnist DIR` takes MNIST from a
folder with its four idx files. `--record` keeps the values of all runs. The changes are read from the page,
so that it shows what was measured.
"""

import argparse
import gzip
import importlib.metadata
import json
import re
import types
from pathlib import Path

import numpy as np
from scipy import stats
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs/porting.md"


def changes():
  """The diffs of the page: `{(script, name of the change): diff}`."""
  pattern = r"^```diff\n--- (\w+)\.py\n\+\+\+ ([^\n]+)\n(.*?)^```$"
  found = re.findall(pattern, PAGE.read_text(), re.DOTALL | re.MULTILINE)
  return {(script, name): diff for script, name, diff in found}


def changed(source, diff):
  """The source after a diff, whose hunks are found by their text and not by line numbers."""
  for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
    lines = hunk.splitlines(keepends=True)
    old, new = ("".join(line[1:] or "\n" for line in lines if line[0] != sign) for sign in "+-")
    if source.count(old) != 1:
      raise ValueError(f"the page's hunk is {source.count(old)} times in the script:\n{hunk}")
    source = source.replace(old, new)
  return source


def load(script, diff=""):
  """The script as a module, with the change."""
  module = types.ModuleType(script)
  exec(compile(changed((HERE / f"{script}.py").read_text(), diff), f"{script}.py", "exec"), vars(module))
  return module


def digits():
  images, labels = load_digits(return_X_y=True)
  images, labels = images.reshape(-1, 8, 8, 1).astype("float32") / 16, labels.astype("int32")
  order = np.random.default_rng(0).permutation(len(labels))
  return [{"image": images[rows], "label": labels[rows]} for rows in (order[:1437], order[1437:])]


def mnist(folder):
  def read(name, header):
    file = next(file for file in (folder / name, folder / f"{name}.gz") if file.is_file())
    raw = file.read_bytes()
    return np.frombuffer(gzip.decompress(raw) if file.suffix == ".gz" else raw, np.uint8, offset=header)

  return [
    {
      "image": read(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1).astype("float32") / 255,
      "label": read(f"{part}-labels-idx1-ubyte", 8).astype("int32"),
    }
    for part in ("train", "t10k")
  ]


def batches_of(train, seed):
  """`batches(size)`: an endless stream of batches, without replacement within an epoch."""

  def batches(size):
    random = np.random.default_rng(seed)
    while True:
      order = random.permutation(len(train["label"]))
      for start in range(0, len(order) - size + 1, size):
        yield {name: array[order[start : start + size]] for name, array in train.items()}

  return batches


def interval(values, form):
  """Mean and 95 % interval of Student's t."""
  text = format(np.mean(values), form)
  if len(values) > 1:
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    text += f" ± {half:{form}}"
  return text


def table(scripts, train, test, seeds, marks, kept):
  """Yields the rows of the table, a line each; the values of all runs go into `kept`."""
  yield "| script, loss | steps | test accuracy, % | test NLL | training loss |"
  yield "|---|---|---|---|---|"
  found = changes()
  for script in scripts:
    for name, diff in [("before", ""), *((name, diff) for (of, name), diff in found.items() if of == script)]:
      module = load(script, diff)
      runs = [list(module.run(seed, batches_of(train, seed), test, marks)) for seed in range(seeds)]
      for step, rows in zip(marks, np.asarray(runs, np.float64).transpose(1, 2, 0)):
        loss, nll, accuracy = rows
        values = {"test accuracy, %": 100 * accuracy, "test NLL": nll, "training loss": loss}
        kept[f"`{script}`, {name}, {step} steps"] = {"runs": {key: list(of) for key, of in values.items()}}
        cells = interval(100 * accuracy, ".1f"), interval(nll, ".3f"), interval(loss, ".2f")
        yield f"| `{script}`, {name} | {step} | " + " | ".join(cells) + " |"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("scripts", nargs="*", default=["nnx_mnist", "equinox_mnist", "optax_mnist"])
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--steps", type=int, nargs="+", default=[150, 600], help="evaluate after these")
  parser.add_argument("--mnist", type=Path, metavar="DIR", help="the four idx files; default: digits")
  parser.add_argument("--record", type=Path, metavar="FILE", help="keep the values of all runs there")
  given = parser.parse_args()
  train, test = mnist(given.mnist) if given.mnist else digits()
  kept = {}
  for line in table(given.scripts, train, test, given.seeds, sorted(given.steps), kept):
    print(line, flush=True)
  if given.record:
    record = {
      "command": f"python examples/porting/measure.py --seeds {given.seeds}",
      "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "equinox", "optax")},
      "digits": {"test accuracy, %": 1, "test NLL": 3, "training loss": 2},
      "rows": kept,
    }
    given.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
  main()

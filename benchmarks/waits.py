"""What a user waits for outside of the step: eager calls, tracing and compilation, and whole commands.

    python benchmarks/waits.py [--rounds 2]

An eager call is one of our functions beside the same of Optax, or beside the few lines of JAX that it
replaces, on 128 examples. Tracing and compilation are those of the trainer's step, without oneDNN; of each
row of `toolbox_digits`, the tracing. A command runs twice in a process of its own: first without any compiled
program, then with those that the first run kept.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from _report import Report, flags, ratios, spread
from _steps import Steps, made_up
from _steps_jax import COMMON, FIELDS

from jaxreg import calibration, losses, noise, penalties
from jaxreg.train.config.choices import flatten

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from configs import toolbox_digits  # noqa: E402


def main() -> None:
  parser = flags(__doc__, rounds=2)
  options = parser.parse_args()
  rounds = 1 if options.quick else options.rounds
  report = Report(options.json)
  eager(report, 3 if options.quick else 40)
  programs(report, rounds)
  regularizers(report, 2 if options.quick else len(toolbox_digits.TOOLBOX))
  commands(report, 2 if options.quick else 100)
  report.close()


def eager(report: Report, calls: int) -> None:
  """Times calls outside of `jit`, one after another, until the result is there."""
  key = jax.random.key(0)
  logits, labels = jax.random.normal(key, (128, 10)), jnp.arange(128) % 10
  log_probs, one_hot = jax.nn.log_softmax(logits), jax.nn.one_hot(labels, 10)
  hidden = jax.random.normal(key, (128, 512))
  params = {"kernel": hidden, "bias": logits}

  def dropout() -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, hidden.shape), hidden / 0.5, 0)

  def brier() -> Any:
    return jnp.square(jnp.exp(log_probs) - one_hot).sum(-1).mean()

  pairs: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "losses.focal": (
      lambda: losses.focal(logits, labels),
      "optax.losses.sigmoid_focal_loss",
      lambda: optax.losses.sigmoid_focal_loss(logits, one_hot),
    ),
    "losses.label_smoothing": (
      lambda: losses.label_smoothing(logits, labels, smoothing=0.1),
      "optax: smooth_labels, softmax_cross_entropy",
      lambda: optax.losses.softmax_cross_entropy(logits, optax.losses.smooth_labels(one_hot, 0.1)),
    ),
    "losses.sparsemax": (
      lambda: losses.sparsemax(logits, labels),
      "optax.losses.multiclass_sparsemax_loss",
      lambda: optax.losses.multiclass_sparsemax_loss(logits, labels),
    ),
    "noise.dropout": (lambda: noise.dropout(key, hidden, rate=0.5), "one line of JAX", dropout),
    "calibration.nll": (
      lambda: calibration.nll(log_probs, labels),
      "optax: cross-entropy, mean",
      lambda: optax.losses.softmax_cross_entropy_with_integer_labels(log_probs, labels).mean(),
    ),
    "calibration.brier": (lambda: calibration.brier(log_probs, labels), "one line of JAX", brier),
    "penalties.l2": (
      lambda: penalties.l2(params),
      "optax.tree.norm(squared=True)",
      lambda: optax.tree.norm(params, squared=True),
    ),
  }
  report.table("waits_eager", "function", "microseconds", "beside", "microseconds of that", "ratio")
  for name, (ours, other, theirs) in pairs.items():
    times: list[list[float]] = [[], []]
    for number in range(calls + 2):
      for run, values in zip((ours, theirs), times):
        began = time.perf_counter()
        jax.block_until_ready(run())
        if number > 1:  # the first compiles
          values.append(1e6 * (time.perf_counter() - began))
    report.row(
      name,
      spread(times[0], ".0f"),
      other,
      spread(times[1], ".0f"),
      spread(ratios(*times)),
      numbers=[statistics.median(values) for values in times],
    )


def programs(report: Report, rounds: int) -> None:
  """Times the two parts of a first step: Python makes the program, and XLA compiles it."""
  report.table("waits_programs", "step", "tracing, s", "compilation, s")
  digits = ((8, 8, 1), 64, {"model.name": "MLP"})
  for name in ("digits", "LeNet", "ResNet-20", "ViT"):
    times = []
    for _ in range(rounds):
      image, batch_size, fields = digits if name == "digits" else FIELDS[name]
      times.append(parts(image, batch_size, {**COMMON, **fields}))
    report.row(name, *(spread([each[part] for each in times]) for part in range(2)), numbers=times)


def regularizers(report: Report, number: int) -> None:
  """Times the tracing of the digits' step with each row of the toolbox; the first, `none`, is the plain step.

  Only Python works, so its own seconds count, which do not depend on other programs.
  """
  report.table("waits_regularizers", "row", "tracing, CPU s", "times the plain step's")
  first = 0.0
  for name in [*toolbox_digits.TOOLBOX][:number]:
    config = toolbox_digits.get_config(name)
    arguments = (8, 8, 1), config.batch_size, flatten(config)
    seconds = parts(*arguments, compiles=False, clock=time.process_time)[0]
    first = first or seconds
    report.row(name, f"{seconds:.2f}", f"{seconds / first:.1f}", numbers=seconds)


def commands(report: Report, epochs: int) -> None:
  """Runs commands on scikit-learn's digits; the comparison has 6 rows with 5 seeds each."""
  report.table("waits_commands", "command", "first, s", "first, CPU s", "again, s", "again, CPU s")
  with tempfile.TemporaryDirectory() as folder:
    run, compared = f"{folder}/run", f"{folder}/compared"
    number = f"--config.epochs={epochs}"
    lines = {
      "train": ["--config", "configs/dropmax_digits.py", number, "--workdir", run],
      "evaluate": ["evaluate", "--workdir", run],
      "report": ["report", "--workdir", run],
      "compare": ["compare", "--config", "configs/multilabel_digits.py", number, "--workdir", compared],
    }
    results = {"train": run, "report": f"{run}/report", "compare": compared}
    for name, line in lines.items():
      times: list[float] = []
      for _ in range(2):
        if name in results:
          shutil.rmtree(results[name], ignore_errors=True)
        times += timed(line, f"{folder}/cache_of_{name}")
      report.row(name, *(f"{value:.1f}" for value in times), numbers=times)


def timed(line: list[str], cache: str) -> tuple[float, float]:
  """Runs a command with a folder for compiled programs; returns its seconds and those of the CPU."""

  def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

  others = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
  began, before = time.perf_counter(), used()
  subprocess.run(
    [sys.executable, "run.py", *line],
    cwd=ROOT,
    env={**others, "XDG_CACHE_HOME": cache},
    check=True,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  return time.perf_counter() - began, used() - before


def parts(
  image: tuple[int, ...],
  batch_size: int,
  fields: dict[str, Any],
  *,
  compiles: bool = True,
  clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
  """Returns the seconds of tracing and of compiling, without what JAX remembers."""
  jax.clear_caches()
  steps = Steps(made_up(image, 256), batch_size, fields)
  began = clock()
  lowered = steps.lowered()
  traced = clock()
  if compiles:
    lowered.compile()
  return traced - began, clock() - traced


if __name__ == "__main__":
  main()

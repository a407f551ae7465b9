"""Curvature, noise covariance and intervals on the network of the paper on dropout; our side only."""

from _flatness_jax import Side
from _flatness_problem import make_problem
from _report import Report, spread
from accelerator import in_a_line


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  examples, steps, hidden = (200, 20, 16) if quick else (10_000, 300, 50)
  samples, number, rounds = (20, 3, 2) if quick else (1000, 50, rounds)
  side = Side(*make_problem(examples, steps, hidden))
  calls = {
    "hessian": side.hessian,
    "top_eigenpairs": side.top_eigenpairs,
    f"noise_covariance of {samples} samples": lambda: side.sampled_covariance(samples),
    f"interval_flatness, {number} directions": lambda: side.intervals(directions()),
  }
  directions = lambda: side.kept("directions", lambda: side.components(number))
  report.table("flatness", f"{side.size} parameters, {examples} examples", "seconds")
  for name, call in calls.items():
    try:
      run = side.runner(call)
      run(1)
      times = [run(1) for _ in range(rounds)]
    except Exception as error:
      report.row(name, f"failed: {in_a_line(error)}")
      continue
    report.row(name, spread(times, ".3g"), numbers=times)
  report.table("flatness_memory", "program", "results and temporary memory, MB")
  for name, size in side.memory(samples, number, most=1 if quick else None).items():
    report.row(name, f"{size / 1e6:.0f}", numbers=size)

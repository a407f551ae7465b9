"""PyHessian's README beside ours, on a small convolutional network: top 1 and top 5, trace, density.

    python benchmarks/pyhessian_readme.py [--rounds 7] [--examples 200] [--peer-python PYTHON]

A residual ReLU network with 1448 weights, trained a little on made-up images of 16x16; all of its weights
count. PyHessian runs as in its README, with its own limits and tolerances, in a process of its own; its
density, here of two probes on both sides, calls `torch.eig`, which PyTorch has removed: the peer puts it back
by `torch.linalg.eigh`. Ours takes only the products that PyHessian's errors ask for: 14 a probe of the
density, where PyHessian takes 100, and eigenvalues until their residuals are below 3 %. Our trace is exact:
the network is piecewise linear, so its Hessian has the diagonal of the Gauss-Newton matrix. Both sides start
from the pixels. Compiling is not timed: another checkpoint compiles nothing. Errors are against all
eigenvalues of the Hessian in float64: of eigenvalues the largest relative one, of the density half the
integral of the difference. An error is the median over the rounds, each with random numbers of its own.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _flatness_problem import convolution_loss, logits, make_convolutions, outer_loss
from _peer import Peer
from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate

from jaxreg import flatness

WIDTH = 0.01  # of the density's Gaussians, as a share of the spectrum
# Residuals of 3 % of an eigenvalue leave about 0.02 % in it. The peer does not check the products either.
CONVERGED = {"until_converged": True, "tol": 0.03, "check": False}


def make_problem(examples, steps):
  """Trained parameters and images: noise around a prototype of each class."""
  params, batch = make_convolutions(examples, channels=8)
  prototypes = jax.random.normal(jax.random.key(1), (10, 16, 16, 3))
  batch["inputs"] = 0.5 * batch["inputs"] + 0.5 * prototypes[batch["labels"]]
  optimizer = optax.adam(3e-3)

  def step(carry, _):
    params, moments = carry
    gradients = jax.grad(convolution_loss)(params, batch, key=None)
    updates, moments = optimizer.update(gradients, moments)
    return (optax.apply_updates(params, updates), moments), None

  train = jax.jit(lambda params: jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[0][0])
  return train(params), batch


def exact(params, batch):
  """All eigenvalues of the Hessian, in float64."""
  with jax.enable_x64(True):
    wide = lambda tree: jax.tree.map(
      lambda x: jnp.asarray(np.asarray(x), jnp.float64 if x.dtype == jnp.float32 else x.dtype), tree
    )
    hessian = flatness.Curvature(convolution_loss, wide(params), wide(batch)).matrix()
    return np.linalg.eigvalsh(np.asarray(hessian))[::-1]


def smooth(values, weights, grid, width):
  """The density at `grid` of eigenvalues with these weights."""
  gaussians = np.exp(-0.5 * ((grid[:, None] - values[None]) / width) ** 2) / (width * np.sqrt(2 * np.pi))
  return gaussians @ weights


class Ours:
  """The tasks on our side; each call draws anew, as PyHessian does."""

  def __init__(self, params, batch, grid):
    self.params, self.batch, self.grid = params, batch, grid
    self.calls, self.found = 0, {}

  def run(self, task):
    def many(number):
      began = time.perf_counter()
      for _ in range(number):
        self.calls += 1
        curvature = flatness.Curvature(convolution_loss, self.params, self.batch)
        found = jax.block_until_ready(getattr(self, task)(curvature, jax.random.key(self.calls)))
      seconds = (time.perf_counter() - began) / number
      self.found.setdefault(task, []).append(np.asarray(found))
      return seconds

    return many

  def top_1(self, curvature, key):
    return curvature.top_eigenpairs(key=key, num_pairs=1, **CONVERGED).values

  def top_5(self, curvature, key):
    return curvature.top_eigenpairs(key=key, num_pairs=5, **CONVERGED).values

  def trace(self, curvature, key):
    return curvature.gauss_newton_diagonal(logits, outer_loss).sum()

  def density(self, curvature, key):
    options = {"num_samples": 2, "num_steps": 14, "grid": self.grid, "width": WIDTH}
    return curvature.density(key=key, **options).density


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument("--examples", type=int, default=200)
  parser.add_argument("--steps", type=int, default=100, help="of training before")
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch and PyHessian")
  options = parser.parse_args()
  rounds, examples = (2, 20) if options.quick else (options.rounds, options.examples)
  report = Report(options.json)
  params, batch = make_problem(examples, options.steps)
  values = exact(params, batch)
  if -values[-1] >= values[4]:  # the power iteration would find it among the five
    raise SystemExit(f"the least eigenvalue, {values[-1]:.3g}, is as large as the fifth; give more --steps")
  width = WIDTH * (values[0] - values[-1])
  grid = np.linspace(values[-1] - 5 * width, values[0] + 5 * width, 1000)
  true_density = smooth(values, np.full(len(values), 1 / len(values)), grid, width)
  apart = lambda density: np.abs(density - true_density).sum() * (grid[1] - grid[0]) / 2
  relative = lambda found, true: np.abs(np.asarray(found) / true - 1).max()
  errors = {
    "top_1": lambda found: relative(found, values[:1]),
    "top_5": lambda found: relative(found, values[:5]),
    "trace": lambda found: relative(found, values.sum()),
    "density": apart,
  }
  print(f"{len(values)} weights, {examples} images, eigenvalues {values[-1]:.3g} to {values[0]:.3g}")
  ours = Ours(params, batch, grid)
  report.table("pyhessian_readme", "task", "PyHessian, ms", "jaxreg, ms", "PyHessian / jaxreg", "errors")
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "problem.npz"
    np.savez(path, **{name: np.asarray(value) for name, value in {**params, **batch}.items()})
    peer = Peer(options.peer_python, "_pyhessian_peer.py", path)
    for task, error in errors.items():
      theirs = []

      def run(number, task=task, theirs=theirs):
        seconds = 0.0
        for _ in range(number):
          seconds += peer.ask(task, save=Path(folder) / "found.npy")
        theirs.append(np.load(Path(folder) / "found.npy"))
        return seconds / number

      times = alternate({"jaxreg": ours.run(task), "PyHessian": run}, rounds=rounds, seconds=0.5)
      if task == "density":
        theirs = [smooth(*found, grid, width) for found in theirs]
      wrong = [statistics.median(map(error, found)) for found in (theirs, ours.found[task])]
      report.row(
        task.replace("_", " "),
        *(spread(milliseconds(times[side]), ".0f") for side in ("PyHessian", "jaxreg")),
        spread(ratios(times["PyHessian"], times["jaxreg"]), ".1f"),
        f"{wrong[0]:.0e} and {wrong[1]:.0e}",
        numbers=times,
      )
    peer.close()
  report.close()


if __name__ == "__main__":
  main()

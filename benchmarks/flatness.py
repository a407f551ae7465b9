"""Products, KFAC, trace, eigenpairs and density beside curvlinops and hessian-eigenthings, on one network.

    python benchmarks/flatness.py [--rounds 5] [--parts hessian_product,gauss_newton_product,kfac,
      kfac_inverse,trace,eigenpairs,density] [--steps 300] [--peer-python PYTHON] [--clock cpu|wall] [--quick]

784-50-50-10 with all its 42 310 parameters, 10 000 made-up images, mean cross-entropy in float32, dropout
after the last hidden layer. Both sides get the same weights and data and start from the pixels; the peer runs
in a process of its own (`pip install -e '.[bench]'`, or the Python of another environment), and the two are
timed in turn. With `--clock cpu` seconds are those of all cores together: others use the machine, whose load
is printed with each part. `flatness_layer.py` has the parts of one layer.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

# Where others use the cores, the threads of an eigendecomposition wait for each other up to seconds.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from _flatness_jax import Side
from _flatness_problem import make_problem, save, trace_in_float64
from _peer import Peer
from _report import Report, flags, ratios, spread
from _steps import alternate, median_and_quartiles

# Part, what is promised to be at least so many times faster, than what, how many times.
PROMISES = [
  ("kfac", "kfac", "curvlinops", 2),
  ("eigenpairs", "Curvature.top_eigenpairs", "curvlinops, eigsh", 1.5),
  ("density", "Curvature.density", "curvlinops", 2),
  ("hessian", "hessian", "curvlinops ~", 2),
  ("hessian", "hessian", "torch.func.hessian ~", 2),
  ("convolution", "gauss_newton_matrix", "products, Curvature ~", 50),
  ("noise", "sample_gradients", "PyTorch loop ~", 4),
  ("intervals", "interval_flatness", "PyTorch loop ~", 10),
]
MEMORY = 2e9
LIBRARIES = ("curvlinops", "hessian-eigenthings")
WHOLE = {"problem": "whole"}
DAMPING = 1e-3  # of KFAC's inverse
PAIRS, TOL = 10, 1e-3  # of the eigenpairs


class Bench:
  """The two sides, their sizes, and what was measured."""

  def __init__(self, options):
    self.options = options
    self.rounds = 3 if options.quick else options.rounds
    quick = options.quick
    self.examples, steps, hidden = (1000, 100, 16) if quick else (10_000, options.steps, 50)
    self.samples, self.drawn, self.rows = (40, 10, 8) if quick else (1000, 50, 50)
    self.number, self.peer_number = (6, 2) if quick else (50, 10)
    self.probes, self.quadrature = (4, (2, 10)) if quick else (32, (2, 30))
    self.folder = Path(options.folder)
    params, batch = make_problem(self.examples, steps, hidden)
    self.side = Side(params, batch)
    save(self.folder / "problem.npz", params, batch)
    self.peer = Peer(options.peer_python, "_flatness_torch.py", self.folder / "problem.npz")
    cores, loss = len(os.sched_getaffinity(0)), float(self.side.loss())
    self.results = {"threads": cores, "loss": loss, "clock": options.clock}

  def fetch(self, task, **options):
    path = self.folder / "answer.npy"
    self.peer.ask(task, save=path, **options)
    return np.load(path)

  def timed(self, part, runs):
    """Seconds of each round; ours are functions without arguments, theirs `(task, options)`."""
    running = {
      name: self.peer.runner(run[0], **run[1]) if isinstance(run, tuple) else self.side.runner(run)
      for name, run in runs.items()
    }
    before = os.getloadavg()[0]
    times = alternate(running, rounds=self.rounds, seconds=0.5)
    self.results[part] = {"seconds": times, "load": [before, os.getloadavg()[0]]}
    return self.results[part]


def apart(found, reference):
  """The largest difference over the largest entry."""
  return f"{np.abs(np.asarray(found) - reference).max() / np.abs(reference).max():.0e}"


def whole(task, **options):
  """A task of the peer for each library, of all layers."""
  return {name: (task, {**WHOLE, "library": name, **options}) for name in LIBRARIES}


def vector(bench):
  """A random vector over all parameters, and the file that has it."""
  path = bench.folder / "vector.npy"
  drawn = np.random.default_rng(0).normal(size=bench.side.whole().like.size).astype(np.float32)
  np.save(path, drawn)
  return drawn, str(path)


def hessian_product(bench):
  return product(bench, "hessian")


def gauss_newton_product(bench):
  return product(bench, "gauss_newton")


def product(bench, matrix):
  drawn, path = vector(bench)
  ours = {name: partial(apply, drawn) for name, apply in bench.side.products(matrix).items()}
  theirs = whole("product", matrix=matrix, vector=path)
  result = bench.timed(f"{matrix}_product", {**ours, **theirs})
  reference = bench.fetch("product", **theirs["curvlinops"][1], double=True)
  found = {name: run() for name, run in ours.items()}
  found |= {name: bench.fetch(task, **options) for name, (task, options) in theirs.items()}
  result["notes"] = {name: apart(product, reference) for name, product in found.items()}
  return "largest error / largest entry, against curvlinops in float64"


def kfac(bench):
  return kronecker(bench, "kfac", None)


def kfac_inverse(bench):
  return kronecker(bench, "kfac_inverse", DAMPING)


def kronecker(bench, part, damping):
  drawn, path = vector(bench)
  ours = lambda: bench.side.kfac(drawn, damping)
  options = {**WHOLE, "vector": path, "damping": damping}
  result = bench.timed(part, {"kfac": ours, "curvlinops": ("kfac", options)})
  reference = bench.fetch("kfac", **options, double=True)
  result["notes"] = {
    "kfac": apart(ours(), reference),
    "curvlinops": apart(bench.fetch("kfac", **options), reference),
  }
  return "largest error of the product / largest entry, against curvlinops in float64"


def trace(bench):
  side, probes = bench.side, bench.probes
  theirs = whole("trace", num=probes)
  ours = {"Curvature.trace": lambda: side.trace(probes)}
  exact = {"Curvature.gauss_newton_diagonal, exact": side.exact_trace}
  result = bench.timed("trace", {**ours, **theirs, **exact})
  true, estimate = trace_in_float64(side.params, side.batch), side.trace(probes)
  found = {"Curvature.trace": estimate.mean} | {name: run() for name, run in exact.items()}
  found |= {name: bench.fetch(task, **options) for name, (task, options) in theirs.items()}
  result["notes"] = {name: f"{100 * (float(value) / true - 1):.2g} %" for name, value in found.items()}
  error = float(estimate.standard_error) / true
  return f"error against the closed form in float64; the standard error of {probes} probes is {error:.0%}"


def eigenpairs(bench):
  side, multiply = bench.side, bench.side.whole()
  options = {**WHOLE, "num": PAIRS, "tol": TOL}

  def residual(values, vectors):
    products = np.stack([multiply(v) for v in vectors])
    return np.linalg.norm(products - values[:, None] * vectors, axis=1) / values

  def of_peer(**options):
    found = bench.fetch("eigenpairs", **options).astype(np.float32)
    return found[:, 0], found[:, 1:]

  curvlinops = {**options, "library": "curvlinops"}
  # Its number of steps is fixed: the least multiple of 10 that is enough.
  for steps in range(2 * PAIRS, 201, 10):
    eigenthings = {**options, "library": "hessian-eigenthings", "steps": steps}
    if residual(*of_peer(**eigenthings)).max() <= TOL:
      break
  theirs = {"curvlinops, eigsh": curvlinops, f"hessian-eigenthings, {steps} steps": eigenthings}
  ours = lambda: side.eigenpairs(PAIRS, TOL)
  tasks = {name: ("eigenpairs", options) for name, options in theirs.items()}
  result = bench.timed("eigenpairs", {"Curvature.top_eigenpairs": ours, **tasks})
  pairs = ours()
  found = {"Curvature.top_eigenpairs": (np.asarray(pairs.values), np.asarray(pairs.vectors))}
  found |= {name: of_peer(**options) for name, options in theirs.items()}
  true = found["curvlinops, eigsh"][0]
  result["notes"] = {
    name: f"{residual(*pair).max():.0e}, {np.abs(pair[0] / true - 1).max():.0e}"
    for name, pair in found.items()
  }
  return f"of {PAIRS} pairs the largest residual / eigenvalue, and difference from curvlinops's eigenvalue"


def density(bench):
  side, (probes, steps) = bench.side, bench.quadrature
  ours = lambda: side.density(probes, steps)
  ends = [float(end) for end in ours().grid[np.array([0, -1])]]
  theirs = whole("density", probes=probes, steps=steps, ends=ends)
  result = bench.timed("density", {"Curvature.density": ours, **theirs})
  found = {"Curvature.density": ours()[:2]}
  found |= {name: bench.fetch(task, **options) for name, (task, options) in theirs.items()}
  true = trace_in_float64(side.params, side.batch)
  of_mean = lambda values, weights: side.whole().like.size * np.average(values, weights=weights)
  result["notes"] = {name: f"{of_mean(*pair):.3g}" for name, pair in found.items()}
  return f"{probes} probes of {steps} products; mean of the density times size; the trace is {true:.3g}"


def hessian(bench):
  side, rows = bench.side, bench.rows
  result = bench.timed(
    "hessian",
    {
      "hessian": side.hessian,
      "curvlinops ~": ("hessian_curvlinops", {"rows": rows}),
      "torch.func.hessian ~": ("hessian_functional", {"examples": 200}),
    },
  )
  reference = bench.fetch("hessian_reference", rows=8, examples=bench.examples, double=True)
  found = {"hessian": np.asarray(side.hessian()), "curvlinops ~": bench.fetch("hessian_curvlinops", rows=8)}
  notes = {name: apart(rows[:8], reference) for name, rows in found.items()}
  part = bench.fetch("hessian_reference", rows=8, examples=200, double=True)
  notes["torch.func.hessian ~"] = apart(bench.fetch("hessian_functional", examples=200), part)
  result["notes"] = notes
  return "largest error of 8 rows / largest entry, against float64"


def convolution(bench):
  """A block of 2304 weights of a residual network, with Jacobians and by products."""
  path = bench.folder / "convolutions.npz"
  blocks, multiply = bench.side.convolution(16 if bench.options.quick else 128, path)
  size, units = multiply.like.size, str(bench.folder / "unit.npy")
  unit = np.eye(1, size, dtype=np.float32)[0]
  np.save(units, unit)
  options = {"problem": "convolutions", "matrix": "hessian", "vector": units}
  theirs = {f"products, {name} ~": ("product", {**options, "library": name}) for name in LIBRARIES}
  products = {"products, Curvature ~": lambda: multiply(unit), **theirs}
  result = bench.timed("convolution", {"gauss_newton_matrix": blocks, **products})
  for name in products:
    result["seconds"][name] = [seconds * size for seconds in result["seconds"][name]]
  reference = bench.fetch("product", **options, library="curvlinops", double=True)
  found = {"gauss_newton_matrix": blocks()[0], "products, Curvature ~": multiply(unit)}
  found |= {name: bench.fetch(task, **options) for name, (task, options) in theirs.items()}
  result["notes"] = {name: apart(row, reference) for name, row in found.items()}
  return "largest error of a row / largest entry, against curvlinops in float64"


def noise(bench):
  loop = {"samples": bench.samples, "drawn": bench.drawn}
  ours = lambda: bench.side.sampled_covariance(bench.samples)
  bench.timed("noise", {"sample_gradients": ours, "PyTorch loop ~": ("gradients", loop)})
  return f"the covariance of {bench.samples} gradients under dropout"


def intervals(bench):
  side = bench.side
  # Spread over all ranks, so that neighbours are less alike than in a whole figure.
  directions = side.components(bench.number)
  paths = {}
  for name, chosen in (("all", directions), ("some", directions[:: bench.number // bench.peer_number])):
    paths[name] = str(bench.folder / f"{name}.npy")
    np.save(paths[name], chosen)
  options = {"directions": paths["some"], "number": bench.number, "rtol": 1e-3}
  ours = lambda: side.intervals(directions)
  result = bench.timed("intervals", {"interval_flatness": ours, "PyTorch loop ~": ("intervals", options)})
  result["directions"] = bench.number
  widths, found = bench.fetch("intervals", **{**options, "directions": paths["all"]}), ours()
  both = np.isfinite(widths) & np.isfinite(found.width)
  apart = np.abs(np.asarray(found.width)[both] / widths[both] - 1).max()
  agree = bool((np.isfinite(widths) == np.isfinite(found.width)).all())
  result["notes"] = {
    "PyTorch loop ~": f"{bench.peer.notes['intervals']['evaluations']:.1f}",
    "interval_flatness": f"{np.asarray(found.evaluations).mean():.1f} (widths within {apart:.0e}, "
    f"{(~both).sum()} infinite{'' if agree else ' on one side'})",
  }
  return f"evaluations a direction; seconds are of {bench.number} directions"


def memory(bench):
  sizes = bench.side.memory(bench.samples, bench.number)
  bench.results["memory"] = sizes


OF_ALL_LAYERS = (hessian_product, gauss_newton_product, kfac, kfac_inverse, trace, eigenpairs, density)
OF_ONE = (hessian, convolution, noise, intervals, memory)
PARTS = {f.__name__: f for f in (*OF_ALL_LAYERS, *OF_ONE)}


def table(report, name, result, note, clock) -> None:
  load = " to ".join(f"{x:.1f}" for x in result["load"])
  first, *_ = result["seconds"]
  report.table(
    f"flatness_{name}",
    f"{name.replace('_', ' ')} (load {load})",
    f"{'CPU ' * (clock == 'cpu')}seconds",
    f"time of {first}'s",
    note,
  )
  for method, seconds in result["seconds"].items():
    ratio = spread(ratios(seconds, result["seconds"][first]), ".3g")
    report.row(method, spread(seconds, ".3g"), ratio, result.get("notes", {}).get(method, ""))


def verdicts(results) -> list[dict]:
  found = []
  for part, ours, theirs, bound in PROMISES:
    if part not in results:
      continue
    pair = [results[part]["seconds"][name] for name in (ours, theirs)]
    median, low, high = median_and_quartiles([b / a for a, b in zip(*pair, strict=True)])
    kept = median >= bound
    text = f"{part}: {ours} over {theirs}: {median:.1f} ({low:.1f} to {high:.1f}), promised {bound}"
    found.append({"text": text, "kept": bool(kept)})
  if "memory" in results:
    most = max(results["memory"], key=results["memory"].get)
    size = results["memory"][most]
    found.append({"text": f"memory: at most {size / 1e9:.2f} GB ({most})", "kept": size < MEMORY})
  return found


def main(doc=__doc__, parts=OF_ALL_LAYERS, clock="cpu") -> None:
  parser = flags(doc, rounds=5)
  parser.add_argument("--parts", default=",".join(part.__name__ for part in parts))
  parser.add_argument("--peer-python", default=sys.executable)
  parser.add_argument("--steps", type=int, default=300, help="of training before; 0 leaves random weights")
  parser.add_argument("--clock", choices=("cpu", "wall"), default=clock)
  options = parser.parse_args()
  os.environ["BENCH_CLOCK"] = options.clock
  asked = options.parts.split(",")
  if unknown := set(asked) - set(PARTS):
    parser.error(f"--parts: {', '.join(sorted(unknown))} unknown; there are {', '.join(PARTS)}")
  report = Report(options.json)
  with tempfile.TemporaryDirectory() as options.folder:
    bench = Bench(options)
    report.numbers = bench.results
    print("loss {loss:.3g}, {threads} cores, {clock} seconds".format(**bench.results), flush=True)
    for name, part in PARTS.items():
      if name not in asked:
        continue
      note = part(bench)
      if note:
        table(report, name, bench.results[name], note, options.clock)
    bench.peer.close()
  if "memory" in bench.results:
    report.table("flatness_memory", "program of jaxreg", "results and temporary memory, MB")
    for name, size in bench.results["memory"].items():
      report.row(name, f"{size / 1e6:.0f}")
  bench.results["verdicts"] = verdicts(bench.results)
  print()
  if options.quick:
    print("a small network and few examples: the verdicts mean nothing")
  for verdict in bench.results["verdicts"]:
    print(f"{'kept  ' if verdict['kept'] else 'MISSED'} {verdict['text']}")
  report.close()


if __name__ == "__main__":
  main()

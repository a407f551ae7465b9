"""Products, trace, top eigenvalues and KFAC of a public ResNet-20 beside curvlinops: time and memory.

    JAXREG_TEST_DATA=DIR python -m benchmarks flatness_resnet20 --peer-python PYTHON

akamaster's ResNet-20 with its published weights, the first 2000 training images of CIFAR-10 (500 for the
eigenvalues, which take about 40 products), 250 at a time. All of its 269,722 parameters count. KFAC takes the
convolutions and the head. BatchNorm uses its running averages. Both sides get the same weights and images.
The seconds of all cores are added up, as in `flatness.py`. `peak` is the resident memory of the process at
its highest during one call. DIR has `networks` and `tfds_full`; PYTHON has PyTorch, curvlinops and
hessian-eigenthings.
"""

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in `flatness.py`
os.environ["BENCH_CLOCK"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from _clock import now
from _peer import Peer
from _public_networks import variables
from _report import Report, flags, ratios, spread
from flatness import apart
from others_networks import Study

from jaxreg import flatness
from jaxreg._cpu.onednn import request_onednn

NAME = "aka_resnet20-12fca82f"
KERNELS = ("*kernel", "head/*")
AT_ONCE, PAIRS, PROBES, TOL = 250, 5, 4, 1e-2
IMAGES = {2000: ("product", "kfac", "trace"), 500: ("eigenpairs",)}  # of each part


class Side:
  """Our side: the network, its images, and each measurement as a method."""

  def __init__(self, study: Study, data: dict[str, np.ndarray], at_once: int) -> None:
    self.params, self.images, self.at_once = study.params, jnp.asarray(data["inputs"]), at_once
    self.logits_fn = lambda params, batch, *, key: study.predict(params, batch)
    batch = {name: jnp.asarray(each) for name, each in data.items()}
    self.curvature = flatness.Curvature(study.mean_loss, study.params, batch, chunk_size=at_once)

  def trace(self) -> Any:
    return self.curvature.trace(key=jax.random.key(0), num_samples=PROBES)

  def eigenpairs(self) -> Any:
    # curvlinops does not check its products either.
    options = {"num_pairs": PAIRS, "num_steps": 200, "until_converged": True, "tol": TOL, "check": False}
    return self.curvature.top_eigenpairs(key=jax.random.key(0), **options)

  def kfac(self, places: Any, vector: Any) -> Any:
    """The product of KFAC and a vector in the order of `subset`; builds the factors first."""
    options = {"num_samples": None, "mask": KERNELS, "chunk_size": self.at_once}
    blocks = flatness.kfac(self.logits_fn, self.params, self.images, **options)
    result = jnp.zeros_like(vector)
    for block in blocks.values():
      own = flatness.subset(places, block.names).flat.astype(int)
      result = result.at[own].set(block(vector[own]))
    return result


def save(path: Path, study: Study, data: dict[str, np.ndarray], at_once: int) -> Any:
  """Writes what the peer reads, and returns the place of each number in a vector of KFAC.

  Our tree of the places in the peer's vector tells the places in ours.
  """
  with np.load(study.folder / "networks" / f"{study.name}.npz") as file:
    tensors = dict(file)
  mean, std = (np.float32(each) for each in (study.network.mean, study.network.std))
  arrays = {**tensors, **data, "inputs": (data["inputs"] - mean) / std, "at_once": np.array(at_once)}
  trained = [name for name in tensors if "running_" not in name and "num_batches" not in name]
  kernels = [name for name in trained if tensors[name].ndim > 1 or name.startswith("linear")]
  for which, names, mask in (("resnet20", trained, "*"), ("resnet20_kernels", kernels, KERNELS)):
    first, placed = 0, dict(tensors)
    for name in names:
      placed[name] = (first + np.arange(tensors[name].size, dtype=np.float32)).reshape(tensors[name].shape)
      first += tensors[name].size
    tree = variables(placed, study.network)["params"]
    chosen = flatness.subset(jax.tree.map(jnp.asarray, tree), mask)
    arrays |= {f"{which}_names": np.array(names), f"{which}_order": np.asarray(chosen.flat, np.int64)}
  np.savez(path, **arrays)
  return chosen.merge(jnp.arange(chosen.flat.size, dtype=jnp.float32))


def with_peak(pid: int, run: Callable[[], float]) -> tuple[float, float]:
  """The seconds that a process reports, and its most resident memory meanwhile, in GiB."""
  Path(f"/proc/{pid}/clear_refs").write_text("5")
  seconds = run()
  line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
  return seconds, int(line[1]) / 2**20 if line else float("nan")


def main() -> None:
  parser = flags(__doc__ or "", rounds=3)
  parser.add_argument("--peer-python", default=sys.executable)
  options = parser.parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    parser.error("JAXREG_TEST_DATA must name the folder of the networks and their data, got none")
  at_once, rounds = (32, 1) if options.quick else (AT_ONCE, options.rounds)
  request_onednn()
  report = Report(options.json)
  columns = "CPU seconds", "curvlinops's", "curvlinops / ours", "peak, GiB", "curvlinops's", "difference"
  report.table("flatness_resnet20", "part", "images", *columns)
  for images, parts in IMAGES.items():
    with tempfile.TemporaryDirectory() as folder:
      study = Study(NAME, Path(given), Path(folder))
      data = study.train(64 if options.quick else images)
      places = save(Path(folder) / "resnet20.npz", study, data, at_once)
      side, peer = (
        Side(study, data, at_once),
        Peer(options.peer_python, "_flatness_torch.py", f"{folder}/problem.npz"),
      )
      measure(report, parts, side, peer, places, Path(folder), rounds)
      peer.close()
  report.close()


def measure(
  report: Report, parts: Sequence[str], side: Side, peer: Peer, places: Any, folder: Path, rounds: int
) -> None:
  rng, vectors = np.random.default_rng(0), {}
  sizes = {"all": side.curvature.like.size, "kernels": flatness.subset(places, KERNELS).flat.size}
  for which, size in sizes.items():
    vectors[which] = jnp.asarray(rng.normal(size=size).astype(np.float32))
    np.save(folder / f"{which}.npy", vectors[which])
  every = {"problem": "resnet20", "library": "curvlinops"}
  products = {**every, "matrix": "hessian", "vector": str(folder / "all.npy")}
  kernels = {"problem": "resnet20_kernels", "vector": str(folder / "kernels.npy")}
  ours = {
    "product": partial(side.curvature, vectors["all"]),
    "kfac": partial(side.kfac, places, vectors["kernels"]),
    "trace": side.trace,
    "eigenpairs": side.eigenpairs,
  }
  theirs = {
    "product": ("product", products),
    "kfac": ("kfac", kernels),
    "trace": ("trace", {**every, "num": PROBES}),
    "eigenpairs": ("eigenpairs", {**every, "num": PAIRS, "tol": TOL}),
  }
  agreement = {
    "product": lambda a, b: f"{apart(a, b)} of the largest entry",
    "kfac": lambda a, b: f"{apart(a, b)} of the product's largest entry",
    "trace": lambda a, b: f"{a.mean:.4g} and {b:.4g} by {PROBES} probes each",
    "eigenpairs": lambda a, b: f"{apart(a.values, b[:, 0])} of the largest of {PAIRS} eigenvalues",
  }
  for part in parts:
    call, (task, options) = ours[part], theirs[part]
    result, answer = jax.block_until_ready(call()), folder / "answer.npy"
    times: list[list[float]] = [[], []]
    peaks: list[list[float]] = [[], []]
    for _ in range(rounds if part in ("product", "kfac") else 1):
      peer.ask("trim", problem=options["problem"])
      ctypes.CDLL(None).malloc_trim(0)
      for number, pid, run in (
        (0, os.getpid(), partial(timed, call)),
        (1, peer.process.pid, partial(peer.ask, task, save=answer, **options)),
      ):
        seconds, memory = with_peak(pid, run)
        times[number].append(seconds)
        peaks[number].append(memory)
    report.row(
      part,
      len(side.images),
      *(spread(seconds, ".3g") for seconds in times),
      spread(ratios(times[1], times[0])),
      *(f"{max(memory):.2f}" for memory in peaks),
      agreement[part](result, np.load(answer)),
      numbers=times,
    )


def timed(call: Callable[[], Any]) -> float:
  began = now()
  jax.block_until_ready(call())
  return now() - began


if __name__ == "__main__":
  main()

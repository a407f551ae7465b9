"""What eight networks that other people trained look like: errors, report cards and curvature.

    JAXREG_TEST_DATA=DIR python -m benchmarks others_networks --peer-python PYTHON

PYTHON has PyTorch and curvlinops, for the eigenvalues of two networks. DIR has the state dicts in `networks`,
CIFAR-10 and CIFAR-100 in `tfds_full`, lossless training images of CIFAR-10 in `tfds`, and the idx files in
`mnist`. Each stage of each network leaves its results in `--workdir`. After an interruption the same command
continues with the next stage. At its end, the script writes the record `others_networks`, and
`python -m benchmarks --render` draws the figure.
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _public_networks import NETWORKS, Network, variables
from _records import Found
from _report import Report, flags

import jaxreg
from jaxreg import adversarial, flatness
from jaxreg._cpu.onednn import request_onednn
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.sources import idx, tfds
from jaxreg.train.user_cache import keep_compiled_programs

WHOLE = ("errors", "calibration", "selective", "conformal")
ELSEWHERE = {"cifar10": "cifar100", "cifar100": "cifar10"}
RADII = {"cifar10": (1, 2, 4, 8), "cifar100": (1, 2, 4, 8), "mnist": (13, 26, 51, 77)}  # 255ths
ATTACKED = 64  # images
STEPS = 10  # of an attack
SHIFTED = 256  # images of each kind of shift and corruption
FOREIGN = 1000  # images of the other CIFAR
LOSSLESS = 500  # training images of CIFAR-10 in both forms
PAIRS, PRODUCTS, PROBES = 5, 24, 4
RHO = 0.05
CURVED = 2000  # images of the Hessian
AT_ONCE = 250  # images of a product at a time
# Images of the eigenvalues that curvlinops computes, too; in float64 these take long.
AGREED = {"aka_resnet20-12fca82f": 32, "jjgo_mnistnet": 128}
AGREED_PRODUCTS = 60
QUICK = {"FOREIGN": 16, "SHIFTED": 16, "ATTACKED": 16, "CURVED": 16, "PRODUCTS": 8, "AGREED": {}}


class Study:
  """One network with its data."""

  def __init__(self, name: str, folder: Path, workdir: Path, peer_python: str = sys.executable) -> None:
    self.network: Network = NETWORKS[name]
    self.name, self.folder, self.workdir = name, folder, workdir / name
    self.peer_python = peer_python
    with np.load(folder / "networks" / f"{name}.npz") as tensors:
      read = variables(tensors, self.network)
    self.params, self.state = jax.tree.map(jnp.asarray, (read["params"], read["batch_stats"]))

  def predict(self, params: Any, x: Any) -> Any:
    """Logits of images with values from 0 to 1."""
    network = self.network
    x = (x - jnp.asarray(network.mean)) / jnp.asarray(network.std)
    state = {"batch_stats": self.state} if self.state else {}
    outputs: Any = network.module.apply({"params": params, **state}, x, train=False)
    return outputs["logits"]

  def losses(self, params: Any, x: Any, labels: Any) -> Any:
    return jaxreg.losses.softmax_cross_entropy(self.predict(params, x), labels)

  def test(self, number: int | None = None) -> dict[str, np.ndarray]:
    return as_batch(read(self.network.data, self.folder)["test"], number)

  def train(self, number: int) -> dict[str, np.ndarray]:
    name = "lossless" if self.network.data == "cifar10" else self.network.data
    return as_batch(read(name, self.folder)["train"], number)

  def report(self, name: str, data: dict[str, np.ndarray], sections: tuple[str, ...], **options: Any) -> Any:
    """Returns the numbers of a card; a section that failed ends the stage."""
    out = self.workdir / name
    title = f"{self.network.title}, {self.network.data}"
    fixed = {"params": self.params, "sections": sections, "value_range": (0, 1), "minutes": 10000}
    card = jaxreg.report(self.predict, data, out=out, title=title, **fixed, **options)
    for section in sections:
      if card["sections"][section]["status"] != "done":
        raise SystemExit(f"{self.name}: the section {section} of {out / 'report.html'} failed")
    return {section: numbers(card["sections"][section]) for section in sections}

  def card(self) -> dict[str, Any]:
    data = self.test()
    return {"images": len(data["labels"]), **self.report("card", data, WHOLE)}

  def shifts(self) -> dict[str, Any]:
    other = ELSEWHERE.get(self.network.data)
    others = {} if other is None else {other: as_batch(read(other, self.folder)["test"], FOREIGN)["inputs"]}
    return self.report("shifts", self.test(SHIFTED), ("ood", "corruptions"), others=others)

  def attacks(self) -> dict[str, Any]:
    data = self.test(ATTACKED)
    x, labels = jnp.asarray(data["inputs"]), jnp.asarray(data["labels"])
    answer = jax.jit(lambda x: self.predict(self.params, x).argmax(-1) != labels)

    @jax.jit
    def attack(eps: Any) -> Any:
      loss = lambda x: self.losses(self.params, x, labels)
      options = {"eps": eps, "step_size": 2.5 * eps / STEPS, "num_steps": STEPS, "clip": (0.0, 1.0)}
      return adversarial.pgd(jax.random.key(0), loss, x, **options)

    wrong = [np.asarray(answer(x))]
    for radius in RADII[self.network.data]:
      # A failed attack leaves an example as wrong as it was.
      wrong.append(np.asarray(answer(attack(radius / 255))) | wrong[0])
    return {"error": [float(each.mean()) for each in wrong]}

  def mean_loss(self, params: Any, batch: Any, *, key: Any) -> Any:
    return self.losses(params, batch["inputs"], batch["labels"]).mean()

  def agreement(self) -> dict[str, Any]:
    """The largest eigenvalues on few images, by jaxreg and by curvlinops."""
    if self.name not in AGREED:
      return {}
    data = self.train(AGREED[self.name])
    file = self.workdir / "agreement.npz"
    np.savez(file, inputs=data["inputs"], labels=data["labels"])
    curvature = flatness.Curvature(self.mean_loss, self.params, jax.tree.map(jnp.asarray, data))
    options = {"num_pairs": PAIRS, "num_steps": AGREED_PRODUCTS}
    values = curvature.top_eigenpairs(key=jax.random.key(3), **options).values
    script = Path(__file__).with_name("_public_networks_torch.py")
    command = [self.peer_python, script, self.folder / "networks", self.name, file, PAIRS]
    peer = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    return {
      "images": len(data["labels"]),
      "eigenvalues": values.tolist(),
      "curvlinops": json.loads(peer.stdout),
    }

  def curvature(self) -> dict[str, Any]:
    data = {name: jnp.asarray(each) for name, each in self.train(CURVED).items()}
    at_once, loss_fn = min(AT_ONCE, CURVED), self.mean_loss
    curvature = flatness.Curvature(loss_fn, self.params, data, chunk_size=at_once)
    options = {"num_pairs": PAIRS, "num_steps": PRODUCTS}
    pairs = curvature.top_eigenpairs(key=jax.random.key(1), **options)
    layers = flatness.layerwise(curvature, key=jax.random.key(2), num_samples=PROBES, num_steps=0)
    chunked = flatness.chunked(loss_fn, at_once)
    return {
      "images": CURVED,
      "loss": float(jax.jit(lambda params: chunked(params, data, key=None))(self.params)),
      "eigenvalues": pairs.values.tolist(),
      "residuals": pairs.residuals.tolist(),
      "layers": list(layers.names),
      "traces": layers.traces.mean.tolist(),
      "errors": layers.traces.standard_error.tolist(),
      "sharpness": float(flatness.sam_sharpness(chunked, self.params, data, rho=RHO)),
    }

  def lossless(self) -> dict[str, Any]:
    if self.network.data != "cifar10":
      return {}
    batches = {
      form: as_batch(read(name, self.folder)["train"], LOSSLESS)
      for form, name in (("lossless", "lossless"), ("stored", "cifar10"))
    }
    if not np.array_equal(batches["lossless"]["labels"], batches["stored"]["labels"]):
      raise SystemExit("tfds and tfds_full must have the same first training images of CIFAR-10")
    answer = jax.jit(lambda x: self.predict(self.params, x).argmax(-1))
    return {
      form: float(np.mean(np.asarray(answer(batch["inputs"])) != batch["labels"]))
      for form, batch in batches.items()
    }


@functools.cache
def read(name: str, folder: Path) -> dict[str, Split]:
  """Returns the splits of a set in their original order; `lossless` has training images of CIFAR-10."""
  if name == "mnist":
    data = idx(path=str(folder / "mnist"))
  else:
    root = folder / ("tfds" if name == "lossless" else "tfds_full")
    data = tfds(name="cifar10" if name == "lossless" else name, data_dir=str(root), val="test", order="id")
  return {"train": data.train, "test": data.test}


def as_batch(split: Split, number: int | None) -> dict[str, np.ndarray]:
  """Returns the first examples of a split, with values from 0 to 1."""
  return {
    "inputs": np.asarray(split.inputs[:number], np.float32).reshape(-1, *split.inputs.shape[1:]) / 255,
    "labels": np.asarray(split.labels[:number]),
  }


def numbers(section: dict[str, Any]) -> dict[str, float]:
  return {name: float(each["value"]) for name, each in section["numbers"].items()}


def stage(study: Study, name: str) -> None:
  """Computes one stage of one network, and writes its results."""
  file = study.workdir / f"{name}.json"
  if file.is_file():
    return
  print(f"{study.name}: {name} ...", flush=True)
  study.workdir.mkdir(parents=True, exist_ok=True)
  before = time.process_time()
  results = getattr(study, name)()
  partial = file.with_suffix(".partial")
  partial.write_text(json.dumps({**results, "cpu": time.process_time() - before}))
  partial.replace(file)


def recorded(workdir: Path) -> Found:
  """Returns the numbers of all stages that are done as a record."""
  record = Found()
  for name, network in NETWORKS.items():
    label = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST"}[network.data]
    add = functools.partial(record.add, f"{network.title}, {label}")
    add("stated error, %", network.error, 1)
    seconds = 0.0
    for stage_name, keep in ADD.items():
      file = workdir / name / f"{stage_name}.json"
      if file.is_file():
        results = json.loads(file.read_text())
        seconds += results["cpu"]
        keep(add, network, results)
    add("CPU minutes", seconds / 60, 1)
  return record


def add_card(add: Callable[..., None], network: Network, card: dict[str, Any]) -> None:
  add("error, %", 100 * card["errors"]["error"], 2)
  add("test images", card["images"], 0)
  for quantity, section, key, factor, digits in (
    ("NLL", "calibration", "nll", 1, 3),
    ("ECE, %", "calibration", "ece", 100, 1),
    ("temperature", "calibration", "temperature", 1, 2),
    ("ECE at the temperature, %", "calibration", "tempered_ece", 100, 1),
    ("error of the surest 80 %, %", "selective", "error_at_0.8", 100, 1),
    ("sets with the label, %", "conformal", "conformal_coverage", 100, 1),
    ("classes in a set", "conformal", "conformal_size", 1, 2),
  ):
    add(quantity, factor * card[section][key], digits)


def add_lossless(add: Callable[..., None], network: Network, errors: dict[str, Any]) -> None:
  if network.data == "cifar10":
    for form in ("lossless", "stored"):
      add(f"error of {form} training images, %", 100 * errors[form], 1)


def add_attacks(add: Callable[..., None], network: Network, attacks: dict[str, Any]) -> None:
  for radius, error in zip((0, *RADII[network.data]), attacks["error"], strict=True):
    add(f"attacked at {radius}/255, %", 100 * error, 1)
  add("attacked, %", 100 * attacks["error"][2], 1)  # at the second radius


def add_curvature(add: Callable[..., None], network: Network, curvature: dict[str, Any]) -> None:
  add("images of the Hessian", curvature["images"], 0)
  add("training loss", curvature["loss"], 4)
  pairs = zip(curvature["eigenvalues"], curvature["residuals"], strict=True)
  for number, (value, residual) in enumerate(pairs, 1):
    add(f"eigenvalue {number}", value, 2)
    add(f"residual {number}, %", 100 * residual / abs(value), 1)
  trace = sum(curvature["traces"])
  add("trace", trace, 1)
  head = curvature["traces"][curvature["layers"].index("head/classifier")]
  add("trace of the head, %", 100 * head / trace, 0)
  for layer, value in zip(curvature["layers"], curvature["traces"], strict=True):
    add(f"trace of {layer}", value, 3)
  add("sharpness", curvature["sharpness"], 4)


def add_shifts(add: Callable[..., None], network: Network, shifts: dict[str, Any]) -> None:
  if other := ELSEWHERE.get(network.data):
    add("AUROC, %", 100 * shifts["ood"][f"{other}/auroc"], 1)
  add("AUROC of noise, %", 100 * shifts["ood"]["noise/auroc"], 1)
  for kind, value in shifts["corruptions"].items():
    add("corrupted, %" if kind == "all" else f"error under {kind}, %", 100 * value, 1)


def add_agreement(add: Callable[..., None], network: Network, agreement: dict[str, Any]) -> None:
  if "images" in agreement:
    off = np.abs(np.divide(agreement["eigenvalues"], agreement["curvlinops"]) - 1)
    add("images of curvlinops's Hessian", agreement["images"], 0)
    add("largest difference from curvlinops, parts in a million", 1e6 * off.max(), 1)


ADD = {
  "card": add_card,
  "lossless": add_lossless,
  "attacks": add_attacks,
  "shifts": add_shifts,
  "agreement": add_agreement,
  "curvature": add_curvature,
}


def main() -> None:
  parser = flags(__doc__ or "", rounds=1)
  parser.add_argument("--workdir", type=Path, default=Path("runs/others_networks"))
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with PyTorch and curvlinops")
  parser.add_argument(
    "--record", action="store_true", help="measure nothing: record the stages that are done"
  )
  options = parser.parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    parser.error("JAXREG_TEST_DATA must name the folder of the networks and their data, got none")
  if options.quick:
    globals().update(QUICK)
  request_onednn()
  keep_compiled_programs("benchmarks")
  chosen = [*NETWORKS][-2:] if options.quick else [*NETWORKS]
  workdir = options.workdir / "quick" if options.quick else options.workdir
  for name in () if options.record else ADD:
    for network in chosen:
      if not (workdir / network / f"{name}.json").is_file():
        stage(Study(network, Path(given), workdir, options.peer_python), name)
  if not options.quick:
    recorded(workdir).write(
      "others_networks", "JAXREG_TEST_DATA=DIR python -m benchmarks others_networks --peer-python PYTHON"
    )
  Report(options.json).close()


if __name__ == "__main__":
  main()

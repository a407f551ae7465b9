"""Errors of robust networks of other people under our attacks, and under those of foolbox and torchattacks.

    JAXREG_TEST_DATA=DIR python -m benchmarks robust_networks --peer-python PYTHON

PYTHON has PyTorch, foolbox and torchattacks. The networks are CNN-A of alpha-beta-CROWN, which were trained
on attacked images of MNIST and of CIFAR-10. All attacks have the same images, and each run of an attack has
40 steps; targeted DLR makes up to nine runs. The script writes the record `robust_networks`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _records import Found
from _report import Report, flags
from others_networks import Study

from jaxreg import adversarial

# The network of each data set, and its radii as a page shows them.
NETWORKS = {
  "MNIST": ("abc_mnist_cnn_a_adv", {"0.1": 0.1, "0.2": 0.2, "0.3": 0.3}),
  "CIFAR-10": ("abc_cifar_cnn_a_adv", {"1/255": 1 / 255, "2/255": 2 / 255, "4/255": 4 / 255}),
}
IMAGES, STEPS, QUERIES = 256, 40, 500
METHODS = {"PGD": "PGD", "apgd_ce": "APGD", "apgd_dlr": "APGDT", "square": "Square"}
TITLES = {"PGD": "PGD", "apgd_ce": "Auto-PGD, cross-entropy", "apgd_dlr": "Auto-PGD, targeted DLR"}
TITLES |= {"square": "Square", "attack": "all three of ours"}
THEIRS = {"PGD": "foolbox"}


def ours(study: Study, data: dict[str, Any], radius: float) -> dict[str, np.ndarray]:
  """Returns which answers are wrong, by method."""
  x, labels = jnp.asarray(data["inputs"]), jnp.asarray(data["labels"])
  options: dict[str, Any] = {"eps": radius, "num_steps": STEPS, "clip": (0.0, 1.0)}

  def logits_fn(x: Any) -> Any:
    return study.predict(study.params, x)

  def run(name: str) -> Any:
    if name == "PGD":
      loss = lambda x: study.losses(study.params, x, labels)
      moved = adversarial.pgd(jax.random.key(0), loss, x, **options)
    else:
      moved = adversarial.attack(
        jax.random.key(0), logits_fn, x, labels, methods=(name,), num_queries=QUERIES, **options
      )
    return logits_fn(moved).argmax(-1) != labels

  return {name: np.asarray(jax.jit(run, static_argnums=0)(name)) for name in METHODS}


def measure(record: Found, label: str, folder: Path, python: str, *, quick: bool = False) -> None:
  """Adds the errors of a data set's network under each attack, ours and theirs, to the record."""
  name, radii = NETWORKS[label]
  radii = dict([*radii.items()][:1]) if quick else radii
  with tempfile.TemporaryDirectory() as workdir:
    study = Study(name, folder, Path(workdir))
    data = study.test(IMAGES)
    file = Path(workdir) / "data.npz"
    np.savez(file, **data, radii=np.array([*radii.values()]), steps=STEPS, queries=QUERIES)
    script = Path(__file__).with_name("_attacks_torch.py")
    command = [python, script, folder / "networks", name, file]
    peer = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
  theirs = json.loads(peer.stdout.splitlines()[-1])
  for shown, radius in radii.items():
    wrong = ours(study, data, radius)
    wrong["attack"] = np.any([wrong[method] for method in METHODS if method != "PGD"], axis=0)

    def add(row: str, each: np.ndarray, pgd: np.ndarray = wrong["PGD"], shown: str = shown) -> None:
      record.add(f"{label}, {row}", f"error at {shown}, %", 100 * each.mean(), 1)
      record.add(f"{label}, {row}", f"only PGD at {shown}, images", (pgd & ~each).sum(), 0)

    for method, each in wrong.items():
      add(TITLES[method], each)
      if method in METHODS:
        peers = np.array(theirs[f"{METHODS[method]} {radius:g}"])
        add(f"{TITLES[method]} of {THEIRS.get(method, 'torchattacks')}", peers)


def main() -> None:
  parser = flags(__doc__ or "", rounds=1)
  parser.add_argument("--peer-python", default=sys.executable)
  options = parser.parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    parser.error("JAXREG_TEST_DATA must name the folder of the networks and their data, got none")
  if options.quick:
    globals().update({"IMAGES": 16, "STEPS": 4, "QUERIES": 10})
  folder, record = Path(given), Found()
  for label in NETWORKS:
    measure(record, label, folder, options.peer_python, quick=options.quick)
  if not options.quick:
    record.write(
      "robust_networks", "JAXREG_TEST_DATA=DIR python -m benchmarks robust_networks --peer-python PYTHON"
    )
  Report(options.json).close()


if __name__ == "__main__":
  main()

"""Errors of a robust network of other people under our attacks, and under those of foolbox and torchattacks.

    JAXREG_TEST_DATA=DIR python -m benchmarks robust_networks --peer-python PYTHON

PYTHON has PyTorch, foolbox and torchattacks. The network is CNN-A of alpha-beta-CROWN, which was trained on
attacked images of MNIST. All attacks have the same images, and each run of an attack has 40 steps; targeted
DLR makes up to nine runs. The script writes the record `robust_networks`.
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

NAME = "abc_mnist_cnn_a_adv"
RADII = 0.1, 0.2, 0.3
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


def main() -> None:
  parser = flags(__doc__ or "", rounds=1)
  parser.add_argument("--peer-python", default=sys.executable)
  options = parser.parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    parser.error("JAXREG_TEST_DATA must name the folder of the networks and their data, got none")
  if options.quick:
    globals().update({"IMAGES": 16, "STEPS": 4, "QUERIES": 10, "RADII": (0.3,)})
  folder, record = Path(given), Found()
  with tempfile.TemporaryDirectory() as workdir:
    study = Study(NAME, folder, Path(workdir))
    data = study.test(IMAGES)
    file = Path(workdir) / "data.npz"
    np.savez(file, **data, radii=np.array(RADII), steps=STEPS, queries=QUERIES)
    script = Path(__file__).with_name("_attacks_torch.py")
    command = [options.peer_python, script, folder / "networks", NAME, file]
    peer = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
  theirs = json.loads(peer.stdout.splitlines()[-1])
  for radius in RADII:
    wrong = ours(study, data, radius)
    wrong["attack"] = np.any([wrong[name] for name in METHODS if name != "PGD"], axis=0)
    for name, each in wrong.items():
      record.add(TITLES[name], f"error at {radius:g}, %", 100 * each.mean(), 1)
      missed = wrong["PGD"] & ~each
      record.add(TITLES[name], f"only PGD at {radius:g}, images", missed.sum(), 0)
      print(f"{radius:g} {TITLES[name]}: {100 * each.mean():.1f} %, only PGD {missed.sum()}", flush=True)
      if name in METHODS:
        peer = np.array(theirs[f"{METHODS[name]} {radius:g}"])
        label = f"{TITLES[name]} of {THEIRS.get(name, 'torchattacks')}"
        record.add(label, f"error at {radius:g}, %", 100 * peer.mean(), 1)
        record.add(label, f"only PGD at {radius:g}, images", (wrong["PGD"] & ~peer).sum(), 0)
        print(f"{radius:g} {label}: {100 * peer.mean():.1f} %, differs {(peer != each).sum()}", flush=True)
  if not options.quick:
    record.write(
      "robust_networks", "JAXREG_TEST_DATA=DIR python -m benchmarks robust_networks --peer-python PYTHON"
    )
  Report(options.json).close()


if __name__ == "__main__":
  main()

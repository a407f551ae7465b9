"""How well scores of features and logits detect other images, on two networks that other people trained.

    JAXREG_TEST_DATA=DIR python -m benchmarks ood_features

DIR has what `others_networks` needs of it. The usual images are the test images of CIFAR-10, the others are
CIFAR-100 and uniform noise. Here CIFAR-10 is stored as JPEG and CIFAR-100 without loss, which a detector
could see. So the others are compressed with the quantization tables of CIFAR-10's images. The column of
lossless images shows what the compression alone would add. Detectors are fitted to training images of
CIFAR-10, which are JPEG, too. The script writes the record `ood_features`.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow_datasets
from _public_networks import NETWORKS, features_of
from _records import Found
from _report import Report, flags
from others_networks import read
from PIL import Image, JpegImagePlugin

from jaxreg import calibration, losses
from jaxreg._cpu.onednn import request_onednn
from jaxreg.train.user_cache import keep_compiled_programs

CHOSEN = ("aka_resnet20-12fca82f", "dis_WRN28_1_cifar10")
TRAINING, OTHERS, BATCH = 20_000, 5000, 500
QUICK = {"TRAINING": 500, "OTHERS": 100, "BATCH": 100}
KINDS = {
  "Mahalanobis": "mahalanobis",
  "relative Mahalanobis": "relative_mahalanobis",
  "nearest neighbours": "knn",
  "ViM": "vim",
  "ReAct": "react",
}


def jpeg_options(folder: Path) -> dict[str, Any]:
  """Returns the quantization tables and the subsampling of the stored images of CIFAR-10, which all share."""
  root = next((folder / "tfds_full" / "cifar10").iterdir())
  stored = {"image": tensorflow_datasets.decode.SkipDecoding()}
  source: Any = tensorflow_datasets.builder_from_directory(root).as_data_source("test", decoders=stored)
  found = set()
  for example in source.__getitems__(range(100)):
    image: Any = Image.open(io.BytesIO(example["image"]))
    tables = tuple((number, tuple(table)) for number, table in sorted(image.quantization.items()))
    found.add((tables, JpegImagePlugin.get_sampling(image)))
  if len(found) != 1:
    raise SystemExit(f"{root}: its images must share one quantization, got {len(found)}")
  ((tables, subsampling),) = found
  return {"qtables": dict(tables), "subsampling": subsampling}


def compressed(images: np.ndarray, options: dict[str, Any]) -> np.ndarray:
  """Stores uint8 images as JPEG and reads them again."""
  out = np.empty_like(images)
  for number, image in enumerate(images):
    stored = io.BytesIO()
    Image.fromarray(image).save(stored, "JPEG", **options)
    out[number] = np.asarray(Image.open(stored))
  return out


def measure(record: Found, name: str, folder: Path, sets: dict[str, np.ndarray]) -> None:
  """Adds a row for each score on one network."""
  network = NETWORKS[name]
  split = read(network.data, folder)
  train, test = split["train"], split["test"]
  features_fn, head = features_of(name, folder, BATCH)

  def both(images: np.ndarray) -> tuple[Any, Any]:
    features = features_fn(images)
    return features, features @ head["kernel"] + head["bias"]

  fitted, _ = both(np.asarray(train.inputs[:TRAINING]))
  labels = jnp.asarray(train.labels[:TRAINING])
  usual = both(np.asarray(test.inputs))
  error = float(np.mean(np.asarray(usual[1]).argmax(-1) != test.labels))
  others = {kind: both(images) for kind, images in sets.items()}
  scores: dict[str, Callable[[Any, Any], Any]] = {
    "confidence": lambda features, logits: calibration.least_confidence(jax.nn.log_softmax(logits)),
    "entropy": lambda features, logits: losses.entropy(jax.nn.log_softmax(logits)),
    "max logit": lambda features, logits: calibration.energy(logits, temperature=0),
    "energy": lambda features, logits: calibration.energy(logits),
  }
  for title, kind in KINDS.items():
    options: Any = {"kind": kind, "labels": labels, **head}
    detector = calibration.fit_detector(fitted, **options)
    scores[title] = lambda features, logits, detector=detector: detector(features)
  for title, score in scores.items():
    row, ours = f"{network.title}, {title}", score(*usual)
    record.add(row, "error, %", 100 * error, 2)
    for kind, other in others.items():
      theirs = score(*other)
      record.add(row, f"{kind}, AUROC, %", 100 * float(calibration.auroc(ours, theirs)), 1)
      record.add(row, f"{kind}, passing, %", 100 * float(calibration.fpr_at_tpr(ours, theirs)), 1)


def main() -> None:
  options = flags(__doc__ or "", rounds=1).parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    raise SystemExit("JAXREG_TEST_DATA must name the folder of the networks and their data, got none")
  if options.quick:
    globals().update(QUICK)
  request_onednn()
  keep_compiled_programs("benchmarks")
  folder, record = Path(given), Found()
  lossless = np.asarray(read("cifar100", folder)["test"].inputs[:OTHERS])
  jpeg = jpeg_options(folder)
  noise = np.random.default_rng(0).integers(0, 256, lossless.shape, np.uint8)
  sets = {
    "CIFAR-100": compressed(lossless, jpeg),
    "noise": compressed(noise, jpeg),
    "lossless CIFAR-100": lossless,
  }
  for name in CHOSEN[:1] if options.quick else CHOSEN:
    measure(record, name, folder, sets)
    if not options.quick:
      record.write("ood_features", "JAXREG_TEST_DATA=DIR python -m benchmarks ood_features")
  Report(options.json).close()


if __name__ == "__main__":
  main()

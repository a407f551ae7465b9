"""Draws the figures of the DropMax paper that need a trained model, from the work directory of a run.

    python run.py --config configs/dropmax_mnist.py:1k --config.data.idx.path=DIR \\
      --config.checkpoint.keep=1000 --workdir runs/dropmax
    python -m papers.dropmax.figures runs/dropmax

Into `runs/dropmax/figures`: where the retain probabilities settled, against theory (`equilibrium`); the
target's probability over sampled masks, under noise and by the examples' difficulty (`monte_carlo`); the
probabilities of all classes, for an easy and a distorted example (`predictive`); softmax and fixed retain
probabilities in the plane (`contours`); and the gradient norms of softmax and DropMax on the same logits, at
each kept checkpoint (`gradients`, which enumerates all masks: at most 16 classes).
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils.epath import Path
from scipy.special import expit

from jaxreg import losses
from jaxreg._atomic_files import write_figures
from jaxreg._dropmax_masks import dropmax_mask, dropmax_masked_logits
from jaxreg.train import RunError, base_config, load
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.data.dataset import Split
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.jobs.train import figure_title
from jaxreg.train.run.manifest import good_steps
from papers import dropmax
from papers._command import one_line_errors
from papers.dropmax import plots
from papers.dropmax._contours import draw_contours
from papers.dropmax._masks import MAX_CLASSES

SAMPLES = 1000
NOISE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # standard deviations, as fractions of the largest pixel
LOW_MARGIN = 0.1  # the fraction of the examples that counts as examples with a low margin
EXAMPLES = 1000


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("workdir", type=Path)
  workdir = parser.parse_args().workdir
  figures = draw(workdir)
  write_figures(workdir / "figures", figures)
  print(*(workdir / "figures" / f"{name}.png" for name in figures), sep="\n")


def draw(workdir: Path) -> dict[str, Any]:
  """The figures, by name.

  Raises:
    RunError: if the run in `workdir` is not one of DropMax on an array of images.
  """
  config = restore_config(base_config(), workdir)
  if config.method.name != "dropmax":
    raise RunError(f"{workdir}: these are figures of 'dropmax', got {config.method.name!r}")
  dataset = load_data(config)
  if dataset.streams() or dataset.test.inputs.ndim != 4:
    raise RunError(f"{workdir}: the figures need images in one array, got the data {config.data.name!r}")
  test, outputs = dataset.test, load(workdir).outputs
  title = f"DropMax, {figure_title(config)}, seed {config.seed}"
  heads = {name: np.asarray(value) for name, value in outputs(test.inputs).items()}
  figures = {
    "equilibrium": _equilibrium(heads, test.labels, title),
    "monte_carlo": _monte_carlo(outputs, heads, test.inputs, test.labels, title),
    "predictive": _predictive(outputs, heads, test.inputs, test.labels, title),
    "contours": draw_contours(config.seed),
  }
  if dataset.num_classes <= MAX_CLASSES:
    figures["gradients"] = _gradients(workdir, dataset.train, title)
  return figures


def sampled_probs(key: Any, logits: Any, retain_logits: Any, labels: Any = None) -> np.ndarray:
  """Class probabilities under `SAMPLES` masks of the prior, `[samples, ..., classes]`.

  With `labels`, the target's mask is replaced by its probability.
  """
  mask = dropmax_mask(key, retain_logits, num_samples=SAMPLES).astype(jnp.float32)
  if labels is not None:
    is_target = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    mask = jnp.where(is_target, jax.nn.sigmoid(retain_logits), mask)
  return np.asarray(jax.nn.softmax(dropmax_masked_logits(logits, mask)))


def _difficulty(heads: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
  """The probability of the true class; a small one means a difficult example."""
  log_probs = np.asarray(losses.dropmax_log_probs(heads["logits"], heads["retain_logits"]))
  return log_probs[np.arange(len(labels)), labels]


def _distorted(image: np.ndarray, level: float) -> np.ndarray:
  """The image with Gaussian noise; every level scales the same draw."""
  top = image.max()
  noise = np.random.default_rng(0).normal(size=image.shape) * level * top
  return np.clip(image + noise, 0, top).astype(image.dtype)


def _equilibrium(heads: dict[str, np.ndarray], labels: np.ndarray, title: str) -> Any:
  g = np.linspace(0, 1, 201)
  with np.errstate(divide="ignore"):
    logits = np.log(g) - np.log1p(-g)
  retain = expit(np.asarray(dropmax.dropmax_equilibrium(logits.astype(np.float32))))
  wrong = labels[:, None] != np.arange(heads["logits"].shape[-1])
  posterior = expit(heads["retain_logits"] + heads["residual_logits"])
  measured = posterior[wrong], expit(heads["retain_logits"])[wrong]
  title += f": wrong classes of {len(labels)} test examples"
  return plots.equilibrium(g, retain, measured=measured, title=title)


def _monte_carlo(
  outputs: Any, heads: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray, title: str
) -> Any:
  scores = _difficulty(heads, labels)
  shown = 1 if (labels == 1).any() else int(labels.max())
  members = np.flatnonzero(labels == shown)
  easy = members[scores[members].argmax()]
  noisy = np.stack([_distorted(inputs[easy], level) for level in NOISE])
  found = outputs(noisy)
  target = np.full(len(NOISE), labels[easy])
  key = jax.random.key(0)
  both = {}
  noises = {"(a) every mask drawn": None, "(b) the target's mask at its mean": target}
  for panel, known in noises.items():
    probs = sampled_probs(jax.random.clone(key), found["logits"], found["retain_logits"], known)
    both[panel] = {f"{level:g}": probs[:, i, target[i]] for i, level in enumerate(NOISE)}
  order = np.argsort(-scores)
  picked = order[np.linspace(0, len(order) - 1, 6).astype(int)]
  probs = sampled_probs(key, heads["logits"][picked], heads["retain_logits"][picked], labels[picked])
  both["(c) test examples, easy to difficult"] = {
    f"{100 * rank / 5:.0f} %": probs[:, rank, labels[i]] for rank, i in enumerate(picked)
  }
  return plots.monte_carlo(
    both,
    title=f"{title}: the target's probability under {SAMPLES} masks",
    xlabels=(f"noise on a {shown}, part of the largest pixel",) * 2 + ("rank by the target's probability",),
  )


def _predictive(
  outputs: Any, heads: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray, title: str
) -> Any:
  last = int(labels.max())
  members = np.flatnonzero(labels == last)
  easy = members[_difficulty(heads, labels)[members].argmax()]
  found = outputs(np.stack([inputs[easy], _distorted(inputs[easy], 0.5)]))
  probs = sampled_probs(jax.random.key(1), found["logits"], found["retain_logits"], np.full(2, labels[easy]))
  return plots.predictive(
    {f"an easy {last}": probs[:, 0], f"the same, distorted (noise {0.5:g})": probs[:, 1]},
    title=f"{title}: class probabilities under {SAMPLES} masks, the target's mask at its mean",
  )


def _gradients(workdir: Path, train: Split, title: str) -> Any:
  """Gradient norms with the target kept: for the examples with the smallest margin, and for all examples."""
  train = train.take(np.arange(min(EXAMPLES, len(train))))
  steps = sorted(good_steps(workdir))
  low, every = [], []
  for step in steps:
    found = load(workdir, checkpoint=step).outputs(train.inputs)
    norms = dropmax.dropmax_gradient_norms(
      found["logits"], found["retain_logits"] + found["residual_logits"], jnp.asarray(train.labels)
    )
    norms = {name: np.asarray(values) for name, values in norms.items()}
    hardest = np.argsort(norms.pop("margin"))[: max(1, round(LOW_MARGIN * len(train)))]
    low.append({name: values[hardest].mean() for name, values in norms.items()})
    every.append({name: values.mean() for name, values in norms.items()})
  labels = {
    "softmax": "softmax",
    "dropmax_rms": "DropMax, one mask (root mean square)",
    "dropmax": "DropMax, expected",
  }
  groups = {f"the {100 * LOW_MARGIN:.0f} % of examples with the smallest margin": low}
  groups[f"all {len(train)} training examples"] = every
  return plots.gradients(
    steps,
    {group: {labels[name]: [x[name] for x in found] for name in labels} for group, found in groups.items()},
    title=f"{title}: gradients of softmax and of DropMax at its logits",
  )


if __name__ == "__main__":
  main()

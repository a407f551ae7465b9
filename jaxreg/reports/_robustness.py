"""The sections that ask the model about other inputs, or with its noise on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import adversarial, augment, calibration, ensembles, noise
from jaxreg._log_odds import error_log_odds
from jaxreg.reports._model import Model, Section, Unavailable, losses_of
from jaxreg.reports._numbers import Number, mean, passing, ranked, resamples, share
from jaxreg.reports._statistics import noise_like, rotated
from jaxreg.typing import Array, Key

STRENGTHS = (1, 2, 3, 4, 5)
EPS = (0.01, 0.02, 0.05, 0.1, 0.2)  # of the range of the inputs
STEPS = (1, 2, 5, 10, 20)  # of an attack; the last is the attack, the others show its way
TARGETS, QUERIES = 3, 200  # of the targeted and of the black-box attack
DRAWS = 30  # of the model's noise
DETECTORS: dict[Any, str] = {
  "mahalanobis": "Mahalanobis",
  "relative_mahalanobis": "relative Mahalanobis",
  "knn": "neighbours",
}
OF_LAST_LAYER: dict[Any, str] = {"vim": "ViM", "react": "ReAct"}


CORRUPTIONS = ("noise", "rotation", "shift", "scale", "brightness", "contrast", "box")


def _corrupted(name: str, key: Key, x: Array, s: Array, low: float, high: float) -> Array:
  """Corrupts images with values from `low` to `high`, each by a draw up to the strength `s`, 1 to 5."""
  batch, side = {"inputs": x}, min(x.shape[1:3])

  def pixels(part: float) -> Any:
    return jnp.ceil(part * s * side).astype(int)

  jitter: Any = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "value_range": (low, high)}
  change: dict[str, Callable[[], Any]] = {
    "noise": lambda: {"inputs": noise.gaussian_noise(key, x, std=0.08 * s * (high - low))},
    "rotation": lambda: augment.rotate(key, batch, max_degrees=12.0 * s, fill=low),
    "shift": lambda: augment.translate(key, batch, max_shift=pixels(0.04), fill=low),
    "scale": lambda: augment.scale(key, batch, max_factor=1 + 0.15 * s, fill=low),
    "brightness": lambda: augment.color_jitter(key, batch, **{**jitter, "brightness": 0.2 * s}),
    "contrast": lambda: augment.color_jitter(key, batch, **{**jitter, "contrast": 0.2 * s}),
    "box": lambda: augment.cutout(key, batch, size=pixels(0.1), fill=low),
  }
  return change[name]()["inputs"]


def elsewhere(model: Model) -> Section:
  """Measures how well the confidence tells the data from out-of-distribution inputs."""
  _, inputs = model.function()
  rows = model.order[: model.affordable(3, 0.1)]
  sets = {"noise": noise_like(inputs[rows], *model.range())}
  images = np.moveaxis(inputs[rows], model.channel_axis, -1)
  if images.ndim == 4 and images.shape[1] == images.shape[2]:
    sets["rotated"] = np.moveaxis(rotated(images), -1, model.channel_axis)
  usual = model.shown.predictions[rows]
  numbers: dict[str, Number] = {}
  doubt = jax.jit(error_log_odds)
  arrays = {"the data": np.exp(usual.max(axis=-1))}
  for name, other in {**sets, **model.others}.items():
    strange = model.run(other)
    arrays[name] = np.exp(strange.max(axis=-1))
    ours, theirs = (np.asarray(doubt(each)) for each in (usual, strange))
    numbers[f"{name}/auroc"] = ranked(f"{name}: AUROC", ours, theirs)
    numbers[f"{name}/fpr95"] = passing(f"{name}: taken for data", ours, theirs)
  numbers |= _by_features(model, rows, {**sets, **model.others})
  sentence = (
    "The confidence as a detector; an AUROC of 50 % is guessing. The model should be less sure of an input "
    "that is none of its classes. The second number is the share of these that passes where 95 % of the data "
    "pass. Rotated images are turned by 90 degrees."
  )
  functions = "calibration.least_confidence, auroc, fpr_at_tpr"
  if model.features_fn is not None:
    sentence += (
      " Mahalanobis, relative Mahalanobis and neighbours are distances of the features from those of "
      "held-out examples."
    )
    if model.last_layer is not None:
      sentence += " ViM, ReAct, the energy and the largest logit also use the logits of the features."
    functions += ", fit_detector"
  cost = f"{sum(map(len, arrays.values())) - len(usual)} predictions"
  return Section(numbers, arrays, sentence, cost, functions)


def _by_features(model: Model, rows: np.ndarray, others: dict[str, np.ndarray]) -> dict[str, Number]:
  """Returns the AUROC of each detector that takes features, for each kind of inputs."""
  _, inputs = model.function()
  if model.features_fn is None:
    return {}
  held_out = model.held_out or {}
  if "inputs" in held_out:
    learned, labels = np.asarray(held_out["inputs"]), np.asarray(held_out["labels"])
  else:
    shown, apart = np.split(model.order, [len(model.order) // 2])
    rows, learned, labels = shown[: len(rows)], inputs[apart], model.shown.labels[apart]
  features, ours = model.features(learned), model.features(inputs[rows])
  theirs = {name: model.features(other) for name, other in others.items()}
  options: Any = {"labels": labels, "num_neighbors": min(50, max(1, len(labels) // 100))}
  kinds, layer = DETECTORS, model.last_layer
  if layer is not None:
    options["kernel"], options["bias"] = layer
    kinds = kinds | OF_LAST_LAYER
  detectors: dict[str, tuple[str, Callable[[Any], Any]]] = {
    kind: (title, calibration.fit_detector(features, kind=kind, **options)) for kind, title in kinds.items()
  }
  if layer is not None:
    detectors["energy"] = "energy", functools.partial(_energy, *layer, 1.0)
    detectors["max_logit"] = "largest logit", functools.partial(_energy, *layer, 0.0)
  numbers = {}
  for kind, (title, detector) in detectors.items():
    scores = np.asarray(detector(ours))
    for name, other in theirs.items():
      numbers[f"{name}/{kind}_auroc"] = ranked(f"{name}: AUROC, {title}", scores, np.asarray(detector(other)))
  return numbers


def _energy(kernel: Any, bias: Any, temperature: float, features: Any) -> Array:
  logits = np.asarray(features) @ np.asarray(kernel) + (0 if bias is None else np.asarray(bias))
  return calibration.energy(logits, temperature=temperature)


def corruptions(model: Model) -> Section:
  """Measures the error on corrupted images, at five strengths of the library's own augmentations."""
  images, (low, high) = model.images(), model.range()
  passes = len(CORRUPTIONS) * len(STRENGTHS)
  rows = model.order[: model.affordable(passes, 0.25)]
  labels = model.shown.labels[rows]
  clean = model.shown.predictions[rows].argmax(axis=-1) != labels
  arrays: dict[str, Any] = {"strengths": np.array([0, *STRENGTHS])}
  each: dict[str, Any] = {}

  @jax.jit  # a program for all corruptions compiles faster than one for each
  def changed(number: Array, key: Key, x: Array, strength: Array) -> Array:
    branches = [functools.partial(_corrupted, name, low=low, high=high) for name in CORRUPTIONS]
    x = jax.lax.switch(number, branches, key, jnp.asarray(x, jnp.float32), strength)
    changed = jnp.clip(x, low, high)
    return (changed.round() if images.dtype.kind in "iu" else changed).astype(images.dtype)

  for number, name in enumerate(CORRUPTIONS):
    wrong = [clean]
    for strength in STRENGTHS:
      key = jax.random.fold_in(jax.random.fold_in(model.key, 2 + number), strength)
      x = np.moveaxis(np.asarray(changed(number, key, images[rows], strength)), -1, model.channel_axis)
      wrong.append(model.run(x).argmax(axis=-1) != labels)
    arrays[name], each[name] = np.mean(wrong, axis=1), np.mean(wrong[1:], axis=0)
  each = {"all": np.mean([*each.values()], axis=0), **each}
  numbers = {name: share(f"mean error: {name}", x) for name, x in each.items()}
  sentence = (
    "Strength 0 is the data as it is. Each image draws its change up to the strength; two models see the "
    "same changed images. Where the error rises at once, the training had no variety."
  )
  cost = f"{passes * len(rows)} predictions on {len(rows)} examples"
  return Section(numbers, arrays, sentence, cost, "augment, noise.gaussian_noise", each)


def attacked(model: Model) -> Section:
  """Measures the error under an ensemble of attacks, and the loss of the steps of PGD."""
  predict, inputs = model.traced()
  if inputs.dtype.kind != "f":
    raise Unavailable(f"needs floating inputs, got {inputs.dtype}: give np.float32(inputs)")
  low, high = model.range()
  radii = tuple(sorted(model.eps or (part * (high - low) for part in EPS)))
  methods, classes, images = ["apgd_ce"], model.shown.predictions.shape[-1], inputs.ndim == 4
  methods += ["apgd_dlr"] * (classes >= 4) + ["square"] * images
  runs = 1 + min(TARGETS, classes - 1) * ("apgd_dlr" in methods)
  passes = len(radii) * (3 * runs * STEPS[-1] + QUERIES * images) + 3 * sum(STEPS)
  rows = model.order[: model.affordable(passes, 0.2)]
  clean = model.shown.predictions[rows].argmax(axis=-1) != model.shown.labels[rows]
  ball: Any = {"clip": (low, high)}
  axis = model.channel_axis if images else -1

  @functools.partial(jax.jit, static_argnums=0)
  def ensemble(name: str, params: Any, key: Any, x: Any, y: Any, eps: Any) -> Any:
    """Returns whether one method finds a wrong answer."""

    def logits_fn(x: Any) -> Any:
      return predict(params, jnp.moveaxis(x, -1, axis), None)

    budget: Any = {"num_steps": STEPS[-1], "num_targets": TARGETS, "num_queries": QUERIES}
    x = jnp.moveaxis(x, axis, -1)
    moved = adversarial.attack(key, logits_fn, x, y, eps=eps, methods=(name,), **budget, **ball)
    return logits_fn(moved).argmax(axis=-1) != y

  @jax.jit
  def way(params: Any, key: Any, x: Any, y: Any, num_steps: Any) -> tuple[Any, ...]:
    """Returns whether the answer is wrong, the loss, and whether the gradient at the data is 0."""

    def loss(x: Any) -> Any:
      return losses_of(predict(params, x, None), y)

    options: Any = {"eps": radii[-1], "step_size": 2.5 * radii[-1] / STEPS[-1], "num_steps": num_steps}
    moved = adversarial.pgd(key, loss, x, **options, **ball)
    silent = ~jnp.any(jax.grad(lambda x: loss(x).sum())(x) != 0, axis=tuple(range(1, x.ndim)))
    return predict(params, moved, None).argmax(axis=-1) != y, loss(moved), silent

  def on_batch(name: str, eps: float, key: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return ensemble(name, model.params, key, x, y, eps)

  # A wrong answer in a ball is one in every larger ball, so each attack takes the examples left by the last.
  wrong, each = clean.copy(), {}
  for eps in radii:
    for name in methods:
      left = np.flatnonzero(~wrong)
      if len(left):
        one = functools.partial(on_batch, name, eps)
        wrong[left] = model.batched(one, inputs[rows[left]], model.shown.labels[rows[left]], stream=100)
    each[f"eps {eps:.3g}"] = wrong.copy()

  def by_pgd(num_steps: int) -> list[np.ndarray]:
    def attack_batch(key: Any, x: Any, y: Any) -> tuple[Any, ...]:
      return way(model.params, key, x, y, num_steps)

    return model.batched(attack_batch, inputs[rows], model.shown.labels[rows], stream=101)

  # No step from a random point is the control.
  steps = [by_pgd(number) for number in (0, *STEPS)]
  largest = f"eps {radii[-1]:.3g}"
  numbers = {"clean": share("error without attack", clean)}
  numbers |= {name: share(f"error at {name}", wrong) for name, wrong in each.items()}
  numbers["pgd"] = share(f"error by PGD alone, {largest}", steps[-1][0] | clean)
  numbers["random"] = share(f"error at a random point, {largest}", steps[0][0])
  numbers["no_gradient"] = share("examples whose gradient is 0", steps[0][2])
  numbers["loss"] = mean(f"loss of PGD at {largest}", steps[-1][1], resamples(model.seed, len(rows)))
  arrays = {
    "eps": np.array([0.0, *radii]),
    "error": np.array([clean.mean(), *(wrong.mean() for wrong in each.values())]),
    "steps": np.array([0, *STEPS]),
    "loss": np.array([loss.mean() for _, loss, _ in steps]),
  }
  titles = {
    "apgd_ce": "Auto-PGD on the cross-entropy",
    "apgd_dlr": f"on the targeted DLR loss, {TARGETS} targets",
  }
  titles["square"] = f"Square with {QUERIES} queries"
  sentence = (
    f"Attacks in the maximum norm, one after another: {', '.join(titles[name] for name in methods)}; "
    f"{STEPS[-1]} steps each. eps is in units of the inputs, from {low:g} to {high:g}. The loss is that of "
    "plain PGD, and must rise with its steps. If it stays flat, many gradients are 0, PGD alone finds far "
    "fewer errors or a random point does as much harm, the gradient is masked, and the true error is higher."
  )
  cost = f"at most {passes * len(rows)} passes on {len(rows)} examples"
  return Section(numbers, arrays, sentence, cost, "adversarial.attack, pgd", each)


def with_noise(model: Model) -> Section:
  """Measures the spread of the predictions under the model's own noise, such as MC dropout."""
  predict, inputs = model.traced()
  if not model.draws:
    raise Unavailable("needs a predict_fn that takes a key")
  rows = model.order[: model.affordable(DRAWS, 0.1)]
  labels, apply_fn = model.shown.labels[rows], lambda params, x, *, key: predict(params, x, key)

  @jax.jit
  def draw(params: Any, key: Any, x: Any) -> tuple[Any, Any]:
    drawn = ensembles.mc_predict(apply_fn, params, x, key=key, num_samples=DRAWS, chunk_size=1)
    return drawn.mean_log_probs, drawn.mutual_information

  log_probs, spread = model.batched(lambda key, x: draw(model.params, key, x), inputs[rows], stream=200)
  if not spread.max() > 1e-6:
    raise Unavailable("the predictions are the same with every key")
  wrong, weights = log_probs.argmax(axis=-1) != labels, resamples(model.seed, len(rows))
  each = {"error": wrong, "nll": -log_probs[np.arange(len(rows)), labels], "disagreement": spread}
  numbers = {
    "error": share("error of the mean of the draws", wrong),
    "nll": mean("NLL of the mean of the draws", each["nll"], weights),
    "disagreement": mean("disagreement of the draws, nats", spread, weights),
  }
  if 1 < wrong.sum() < len(wrong) - 1:
    numbers["mistakes"] = ranked("AUROC of the disagreement for mistakes", spread[~wrong], spread[wrong])
  sentence = (
    f"{DRAWS} draws of the model's noise for each example. Disagreement is the mutual information between "
    "the label and the draw; it should be larger where the mean is wrong."
  )
  arrays, cost = {"right": spread[~wrong], "wrong": spread[wrong]}, f"{DRAWS * len(rows)} predictions"
  return Section(numbers, arrays, sentence, cost, "ensembles.mc_predict", each)

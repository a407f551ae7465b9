"""The contract's cases of functions that take functions, batches or states.

A row says how to call one on arrays. Their oracles are in the tests of their folders.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from contract import KEY, LABELS, LOG_PROBS, PREDICTED, SCORES, Case, Input

from jaxreg import (
  adversarial,
  augment,
  averaging,
  calibration,
  constraints,
  ensembles,
  losses,
  noise,
  objective,
  penalties,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Row(Case):
  """A case that says itself how its function is called, by the names of `inputs`."""

  call: Callable[..., Any] = dataclasses.field(kw_only=True)

  def __call__(self, inputs: Mapping[str, Any]) -> Any:
    return self.call(**inputs)


def row(function: str, inputs: Mapping[str, Any], call: Callable[..., Any], **options: Any) -> Row:
  return Row(function, inputs, None, call=call, **options)


# Small whole numbers of pixels, so that a turn or a shift is seen.
IMAGES = {"key": KEY, "x": Input("real", "BFFK", checked=False)}
FEATURES, WEIGHTS = Input("real", "BF"), Input("real", "FK")
TREE = {"kernel": Input("real", "BK"), "bias": Input("real", "K")}
SQUARE = {"kernel": Input("real", "KK"), "bias": Input("real", "K")}
ITERATES = {"iterates": {"kernel": Input("real", "BF"), "bias": Input("real", "B")}}


def augmented(name: str, **options: Any) -> Row:
  """An augmentation of the inputs; labels go through."""

  def call(key, x):
    batch = {"inputs": x, "labels": x[:, 0, 0]}
    out = getattr(augment, name)(key, batch, **options)
    return {"inputs": out["inputs"], "labels": out["labels"]}

  return same(f"augment.{name}", IMAGES, call)


def lit(key, x):
  """Three of the channels are colours."""
  out = augment.lighting(key, {"inputs": x[..., :3]}, value_range=(-8.0, 8.0))["inputs"]
  return {"inputs": jnp.concatenate([out, x[..., 3:]], axis=-1), "labels": x[:, 0, 0]}


def composed(key, x):
  both = augment.compose(augment.flip, functools.partial(augment.cutout, size=2))
  return both(key, {"inputs": x})["inputs"]


def mixed_inside(key, x):
  """One layer, the inputs."""
  out = augment.manifold_mixup(key, {"inputs": x, "labels": x[:, 0, 0]}, layers=["first"])
  return {"inputs": augment.mix_hidden(x, out["mixing"], layer="first"), "labels": out["labels"]}


def hinge(w):
  """The logistic loss of examples of one class; `[batch]`."""
  return lambda x: jax.nn.softplus(-x @ w[:, 0].astype(x.dtype))


def log_probs(w):
  """Not saturated, where power iteration has digits to lose."""
  return lambda x: jax.nn.log_softmax(0.1 * x @ w.astype(x.dtype))


def trained_adversarially(key, x, w):
  loss_fn = lambda w, batch, *, key: hinge(w)(noise.dropout(key, batch["inputs"], rate=0.5)).mean()
  attack = functools.partial(adversarial.pgd, eps=0.5, step_size=0.2, num_steps=2)
  return adversarial.adversarial_loss(loss_fn, attack)(w, {"inputs": x}, key=key)


def noisy_product(params, x, *, key):
  return noise.dropout(key, x, rate=0.5) @ params


def noisy_weights(key, params):
  carry = noise.rnn_weight_noise_init(params)
  return noise.rnn_weight_noise(key, params, carry, std=0.1, kind="multiplicative", cumulative=True)[0]


def averaged(average):
  """The parameters that an average over iterates gives in the end."""

  def call(iterates):
    state = average.init(jax.tree.map(lambda leaf: leaf[0], iterates))
    return average.params(
      jax.lax.scan(lambda state, one: (average.update(state, one), None), state, iterates)[0]
    )

  return call


def stopped(iterates, metrics):
  stopping = averaging.early_stopping(patience=3)
  state = stopping.init(jax.tree.map(lambda leaf: leaf[0], iterates))
  return stopping.params(
    jax.lax.scan(lambda state, one: (stopping.update(state, *one), None), state, (iterates, metrics))[0]
  )


def started(iterates):
  stopping = averaging.early_stopping(patience=3)
  return stopping.params(stopping.init(iterates))


def recalibrated(x, old):
  apply_fn = lambda params, mean, x, *, key, train: (x, 0.9 * mean + 0.1 * x.mean(axis=0))
  return averaging.batch_norm_statistics(apply_fn, None, old, (x, 2 * x), momentum=0.9)


def one_step(transform):
  """The updates that a transform at the end of a chain makes of given ones."""
  return lambda params, updates: transform.update(updates, transform.init(params), params)[0]


def square(params, batch, *, key):
  outputs = batch @ params["kernel"].T
  return jnp.square(outputs).mean(axis=-1) + params["bias"].sum(), outputs


def penalised(params, x):
  terms = {
    "l2": objective.penalty(penalties.l2, weight=0.5),
    "activity": objective.example_term(lambda key, view: penalties.l1_activity(view.aux), weight=0.25),
  }
  return objective.compose(square, terms, has_aux=True)(params, x)[0]


same = functools.partial(row, output="same")
CASES = (
  augmented("flip"),
  augmented("translate", max_shift=2),
  augmented("pad_crop", padding=2),
  augmented("rotate"),
  augmented("scale"),
  augmented("cutout", size=2),
  augmented("random_erasing"),
  augmented("rand_augment", value_range=(-8.0, 8.0)),
  augmented("trivial_augment", value_range=(-8.0, 8.0)),
  augmented("auto_augment", value_range=(-8.0, 8.0)),
  augmented("augmix", value_range=(-8.0, 8.0)),
  augmented("color_jitter", value_range=(-8.0, 8.0)),
  augmented("random_resized_crop", area=(0.3, 1.0)),
  same("augment.lighting", IMAGES, lit),
  augmented("mixup"),
  augmented("cutmix"),
  *(same(f"augment.{name}", IMAGES, mixed_inside) for name in ("manifold_mixup", "mix_hidden")),
  same("augment.compose", IMAGES, composed),
  same(
    "augment.normalize",
    {"x": IMAGES["x"], "mean": Input("real", "K"), "std": Input("positive", "K")},
    lambda x, mean, std: augment.normalize(None, {"inputs": x}, mean=mean, std=std)["inputs"],
  ),
  same(
    "adversarial.attack",
    {"key": KEY, "x": FEATURES, "w": WEIGHTS, "labels": LABELS},
    lambda key, x, w, labels: adversarial.attack(
      key, lambda x: x @ w.astype(x.dtype), x, labels, eps=0.5, num_steps=3, methods=("apgd_ce",)
    ),
  ),
  same(
    "adversarial.pgd",
    {"key": KEY, "x": FEATURES, "w": WEIGHTS},
    lambda key, x, w: adversarial.pgd(key, hinge(w), x, eps=0.5, step_size=0.2, num_steps=2, norm="l2"),
  ),
  same(
    "adversarial.virtual_adversarial",
    {"key": KEY, "x": FEATURES, "w": WEIGHTS},
    lambda key, x, w: adversarial.virtual_adversarial(key, log_probs(w), x, eps=0.5),
  ),
  row(
    "adversarial.vat_loss",
    {"key": KEY, "x": FEATURES, "w": WEIGHTS},
    lambda key, x, w: adversarial.vat_loss(key, log_probs(w), x, eps=0.5),
  ),
  row(
    "adversarial.trades_loss",
    {"key": KEY, "x": FEATURES, "w": WEIGHTS},
    lambda key, x, w: adversarial.trades_loss(key, log_probs(w), x, eps=0.5, step_size=0.2, num_steps=2),
  ),
  row("adversarial.adversarial_loss", {"key": KEY, "x": FEATURES, "w": WEIGHTS}, trained_adversarially),
  same("averaging.early_stopping", {**ITERATES, "metrics": Input("real", "B")}, stopped),
  same("averaging.early_stopping", ITERATES, started),
  *(
    row(f"averaging.{name}", ITERATES, averaged(getattr(averaging, name)()))
    for name in ("swa", "ema", "power_ema", "soup")
  ),
  same("averaging.batch_norm_statistics", {"x": FEATURES, "old": Input("real", "F")}, recalibrated),
  same("noise.rnn_weight_noise", {"key": KEY, "params": TREE}, noisy_weights),
  row("ensembles.arithmetic", {"log_probs": LOG_PROBS}, ensembles.arithmetic),
  row("ensembles.geometric", {"log_probs": LOG_PROBS}, ensembles.geometric),
  row("ensembles.uncertainty", {"log_probs": LOG_PROBS}, lambda log_probs: ensembles.uncertainty(log_probs)),
  row(
    "ensembles.probit_log_probs",
    {"logits": SCORES, "variance": Input("positive", "BK")},
    ensembles.probit_log_probs,
  ),
  *(
    row(
      f"ensembles.{name}",
      {"key": KEY, "params": WEIGHTS, "x": FEATURES},
      lambda key, params, x, name=name: getattr(ensembles, name)(
        noisy_product, params, x, key=key, num_samples=3
      ),
    )
    for name in ("mc_predict", "mc_regress")
  ),
  row(
    "calibration.ece_bins",
    PREDICTED,
    lambda log_probs, labels, weights: calibration.ece_bins(
      log_probs, labels, num_bins=3, kind="mass", weights=weights
    ),
    label="mass",
  ),
  row(
    "calibration.ece_bins",
    PREDICTED,
    lambda log_probs, labels, weights: calibration.ece_bins(
      log_probs, labels, num_bins=7, kind="classwise", weights=weights
    ),
    label="classwise",
  ),
  row(
    "calibration.smooth_ece",
    PREDICTED,
    lambda log_probs, labels, weights: calibration.smooth_ece(log_probs, labels, weights=weights),
  ),
  row(
    "calibration.risk_coverage",
    PREDICTED,
    lambda log_probs, labels, weights: calibration.risk_coverage(log_probs, labels, weights=weights),
  ),
  row(
    "calibration.ece",
    {name: Input("positive", "M") for name in calibration.Bins._fields},
    lambda **bins: calibration.ece(calibration.Bins(**bins), norm="max"),
    label="max",
  ),
  *(
    row(f"calibration.{name}", {"log_probs": LOG_PROBS}, getattr(calibration, name))
    for name in ("conformal_scores", "least_confidence")
  ),
  row("calibration.aps_scores", {"key": KEY, "log_probs": LOG_PROBS}, calibration.aps_scores),
  row(
    "calibration.conformal_threshold",
    {"scores": SCORES, "labels": LABELS},
    lambda scores, labels: calibration.conformal_threshold(scores, labels, alpha=0.3),
  ),
  row(
    "calibration.conformal_sets",
    {"scores": SCORES, "labels": LABELS},
    lambda scores, labels: calibration.conformal_sets(scores, scores, labels, alpha=0.3),
    output="bool",
  ),
  row(
    "calibration.conformal_intervals",
    dict.fromkeys(("low", "high", "targets"), Input("real", "B")),
    lambda low, high, targets: calibration.conformal_intervals(low, high, low, high, targets, alpha=0.3),
  ),
  row(
    "calibration.conformal_risk_threshold",
    {"scores": SCORES, "costs": Input("soft", "BK")},
    lambda scores, costs: calibration.conformal_risk_threshold(scores, costs, alpha=0.3),
  ),
  row(
    "calibration.interval_coverage",
    {**dict.fromkeys(("low", "high", "targets"), Input("real", "B")), "weights": Input("weight", "B")},
    calibration.interval_coverage,
  ),
  row(
    "calibration.interval_scores",
    dict.fromkeys(("low", "high", "targets"), Input("real", "B")),
    calibration.interval_scores,
  ),
  row("calibration.energy", {"logits": SCORES}, lambda logits: calibration.energy(logits, temperature=2.0)),
  *(
    row(
      f"calibration.{name}",
      {"scores": Input("real", "M"), "other_scores": Input("real", "B")},
      getattr(calibration, name),
    )
    for name in ("auroc", "fpr_at_tpr")
  ),
  row("calibration.temper", {"logits": SCORES}, lambda logits: calibration.temper(logits, temperature=2.0)),
  row("objective.compose", {"params": SQUARE, "x": SCORES}, penalised),
  same(
    "constraints.project",
    {"params": TREE, "updates": TREE},
    one_step(constraints.project(functools.partial(constraints.max_norm, limit=1.0))),
  ),
  same(
    "constraints.proximal",
    {"params": TREE, "updates": TREE},
    one_step(constraints.proximal(functools.partial(constraints.prox_l1, weight=0.5), 0.1)),
  ),
  row(
    "losses.semi_supervised",
    {"supervised": Input("real", "B"), "unsupervised": Input("real", "B"), "labels": LABELS},
    lambda supervised, unsupervised, labels: losses.semi_supervised(supervised, unsupervised, labels - 2),
  ),
)
# Their values in bfloat16 are not those of the same numbers in float32: the functions that they are given
# compute in bfloat16, and a sign may turn.
COMPUTE_NARROW = {
  "adversarial.attack",
  "adversarial.pgd",
  "adversarial.virtual_adversarial",
  "adversarial.vat_loss",
  "adversarial.trades_loss",
  "adversarial.adversarial_loss",
  "averaging.batch_norm_statistics",
  "ensembles.mc_predict",
  "ensembles.mc_regress",
  "penalties.gradient_penalty",
  "penalties.jacobian_penalty",
  "objective.compose",
}

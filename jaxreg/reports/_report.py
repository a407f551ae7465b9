"""A report card of a model: sections that are stored as they finish, and one page."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

import jaxreg
from jaxreg._atomic_files import to_path
from jaxreg._checks import check_channel_axis, check_choice, check_key, check_range
from jaxreg._errors import ArgumentError
from jaxreg.reports import _curvature, _predictions, _robustness
from jaxreg.reports._model import Model, Section, Unavailable, make_model
from jaxreg.reports._page import write_page
from jaxreg.reports._store import Store, Table, fingerprint
from jaxreg.typing import Key, LossFn, Params

OF_CLASSES: dict[str, Callable[[Model], Section]] = {
  "errors": _predictions.errors,
  "calibration": _predictions.calibrated,
  "selective": _predictions.selective,
  "conformal": _predictions.prediction_sets,
  "ood": _robustness.elsewhere,
  "corruptions": _robustness.corruptions,
  "adversarial": _robustness.attacked,
  "flatness": _curvature.flat,
  "noise": _robustness.with_noise,
}
OF_NUMBERS: dict[str, Callable[[Model], Section]] = {
  "residuals": _predictions.residuals,
  "conformal": _predictions.intervals,
  "flatness": _curvature.flat,
}


def report(
  predict_fn: Callable[..., Any] | Any,
  data: Mapping[str, Any],
  *,
  loss_fn: LossFn | None = None,
  params: Params = None,
  key: Key | None = None,
  out: str | os.PathLike[str] = "report",
  sections: Collection[str] | None = None,
  minutes: float = 5.0,
  in_units: Callable[[Any], Any] | None = None,
  held_out: Mapping[str, Any] | None = None,
  train: Mapping[str, Any] | None = None,
  others: Mapping[str, Any] | None = None,
  features_fn: Callable[..., Any] | None = None,
  last_layer: tuple[Any, Any] | None = None,
  title: str = "Report card",
  class_names: Collection[str] = (),
  alpha: float = 0.1,
  eps: Collection[float] = (),
  levels: Collection[float] = (),
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> Table:
  """Measures a trained model, and writes `report.html`, `report.json`, `report.npz` and figures into `out`.

  A section is stored when it is done. After an interruption, the same call continues, and a call with more
  `sections` adds them. A section that fails, or that model or data do not allow, is a line on the page.

  Args:
    predict_fn: `inputs -> predictions`; `(params, inputs) -> predictions` if `params` are given; either with
      the keyword `key`, None for no noise, if the model has noise. It is called on batches. Or an array, the
      predictions for `data`. Predictions are logits or log-probabilities `[n, classes]`. For labels that are
      numbers they are `[n]`, or means and variances `[n, 2]`, or a quantile for each of `levels`.
    data: `inputs` `[n, ...]`, which an array as `predict_fn` does not need, and `labels` `[n]`, integer
      classes or floating numbers. With `groups` `[n]`, integers or texts, here and in `held_out` if that is
      given, the section on conformal sets has the coverage of each group.
    loss_fn: `(params, batch, *, key) -> scalar` for the section on flatness; by default the mean negative
      log-likelihood, or squared error, of `predict_fn`.
    params: any pytree.
    key: the key of all draws; by default `jax.random.key(0)`. Models with the same key see the same examples
      and changes, and `compare` can pair them.
    out: the folder.
    sections: of classes, `errors`, `calibration`, `selective`, `conformal`, `ood`, `corruptions`,
      `adversarial`, `flatness` and `noise`; of numbers, `residuals`, `conformal` and `flatness`.
    minutes: a budget, which chooses examples, directions and products; compiling comes on top.
    in_units: maps what `predict_fn` returns, as NumPy's float64, to predictions in the unit of the labels: a
      model of standardised numbers keeps the digits that float32 loses far from 0.
    held_out: like `data`, for a temperature and conformal thresholds; with an array as `predict_fn`, it has
      `predictions`. By default half of `data`.
    train: a batch of the training for `loss_fn`; by default `data`.
    others: out-of-distribution inputs by name, for `ood`.
    features_fn: like `predict_fn`, without a key: the features `[n, ...]` of inputs, for the detectors of
      `calibration.fit_detector` in `ood`. They learn from `held_out`, or from the half of `data` that they
      are not measured on.
    last_layer: the kernel `[size, classes]` and the bias `[classes]`, or None, of the layer that maps the
      features to logits: with them `ood` also has `vim`, `react`, the energy and the largest logit.
    title, class_names: the title of the page, and the names of the classes on it.
    alpha: how often a conformal set may miss the label.
    eps: radii of the attacks; by default from 0.01 to 0.2 of the range of the inputs.
    levels: the levels of predicted quantiles, rising.
    value_range: the minimum and maximum of an input; by default those of `data`, or 0 and 255 for uint8.
    channel_axis: the axis of the channels of images, 1 for `[n, channels, height, width]`.

  Returns:
    The table of `report.json`.

  Example:
    >>> import tempfile
    >>> log_probs, labels = jnp.log(jnp.array([[0.9, 0.1]] * 4)), jnp.array([0, 1, 0, 0])
    >>> card = report(log_probs, {"labels": labels}, out=tempfile.mkdtemp(), sections=("errors",))
    >>> card["sections"]["errors"]["numbers"]["error"]["value"]
    0.25
  """
  key = jax.random.key(0) if key is None else check_key(key)
  check_range(minutes, "minutes", low=0, open_low=True)
  check_range(alpha, "alpha", low=0, high=1, open_low=True)
  check_channel_axis(channel_axis, (-3, -2, -1, 1, 2, 3))
  options: Table = {
    "minutes": minutes,
    "alpha": alpha,
    "eps": tuple(map(float, eps)),
    "levels": tuple(map(float, levels)),
    "value_range": value_range,
    "channel_axis": channel_axis,
    "class_names": _told_apart([*map(str, class_names)]),
  }
  if last_layer is not None and features_fn is None:
    raise ArgumentError("last_layer", "must come with features_fn")
  arrays: Table = {"params": params, "held_out": held_out, "train": train, "last_layer": last_layer}
  arrays["others"] = {name: np.asarray(each) for name, each in (others or {}).items()}
  functions: Table = {"loss_fn": loss_fn, "features_fn": features_fn}
  model = make_model(predict_fn, data, **arrays, **functions, in_units=in_units, key=key, **options)
  known = OF_NUMBERS if model.shown.labels.dtype.kind == "f" else OF_CLASSES
  if sections is not None:
    _check_sections(sections, known)
  inputs = {**arrays, "features": features_fn is not None}
  shown = jaxreg.__version__, options, model.shown, model.apart, model.groups, model.inputs, inputs, key
  head: Table = {
    "title": title,
    "about": f"{len(model.shown.labels)} examples, jaxreg {jaxreg.__version__}, JAX {jax.__version__}",
    "fingerprint": fingerprint(shown),
    "labels": fingerprint(model.shown.labels, held_out is None, key),
    "seed": model.seed,
    "examples": len(model.shown.labels),
    "minutes": minutes,
    "levels": [*options["levels"]],
    "alpha": alpha,
    "asked": [name for name in known if sections is None or name in sections],
  }
  folder, drawn = to_path(out), {}
  store = Store(folder, head, model.shown._asdict())
  cards = {title: [(store.table, store.arrays)]}
  left = [name for name in head["asked"] if name not in store.table["sections"]]
  for number, name in enumerate(left, 1):
    print(f"report: {name}, section {number} of {len(left)}", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
      section = known[name](model)
      store.keep(name, section, time.perf_counter() - start)
    except Unavailable as error:
      store.set(name, {"status": "unavailable", "reason": str(error)})
    except Exception as error:  # one section must not cost the others
      reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
      store.set(name, {"status": "failed", "reason": reason})
    write_page(folder, cards, title, drawn)
  if not left:
    write_page(folder, cards, title, drawn)
  return store.table


def _told_apart(names: list[str]) -> tuple[str, ...]:
  """Adds its number to the name of each class whose name another one has, too."""
  number = Counter(names)
  return tuple(f"{name} ({i})" if number[name] > 1 else name for i, name in enumerate(names))


def _check_sections(sections: Collection[str], known: Collection[str]) -> None:
  """Checks the names of the sections, of `known` ones for the kind of the labels."""
  if isinstance(sections, str):
    raise ArgumentError("sections", f"must be a collection of names, got the text {sections!r}")
  labels, others = ("classes", OF_NUMBERS) if known is OF_CLASSES else ("floating numbers", OF_CLASSES)
  for name in sections:
    if name in others and name not in known:
      problem = f"must be of {', '.join(known)} for labels that are {labels}, got {name!r}"
      raise ArgumentError("sections", problem)
    check_choice(name, "sections", known)

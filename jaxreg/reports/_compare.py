"""Several models beside each other: what differs beyond chance, and all sections with one curve each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from jaxreg.reports._model import RESAMPLES
from jaxreg.reports._numbers import Number, basic, over_resamples, resamples
from jaxreg.reports._page import TITLES, write_page
from jaxreg.reports._predictions import point
from jaxreg.reports._statistics import OF_CLASSES, OF_NUMBERS
from jaxreg.reports._store import TABLE, Table, load, write_json

LEVEL = 0.05  # the probability that any of the differences is called real by chance


def compare(
  cards: Mapping[str, str | Path | Sequence[str | Path]],
  *,
  out: str | Path = "comparison",
  title: str = "Comparison",
) -> Table:
  """Compares the cards of several models, each of one or several seeds, and writes a page like a card's.

  The first model is compared with each other one on the same examples: a bootstrap draws examples for both
  at once and, if a model has several seeds, seeds of each. The first table of the page has the differences
  that remain after Holm's correction at 5 %, with p-values of the bootstrap's normal approximation. Numbers
  that are no mean or statistic of examples, as those of `flatness`, are shown and not tested.

  Args:
    cards: by label, the folder that `report` wrote, or those of several seeds.
    out: the folder for `report.html`, `report.json` and the figures.
    title: of the page.

  Returns:
    The table of `report.json`: `differences` by the other model's label and the number's name.

  Raises:
    ValueError: if a folder has no card, or the cards are of other examples, keys or sections.

  References:
    Efron and Tibshirani, `An Introduction to the Bootstrap`, 1993, chapter 8.
    Holm, `A Simple Sequentially Rejective Multiple Test Procedure`, 1979.
  """
  if len(cards) < 2:
    raise ValueError(f"cards must have at least two models, got {[*cards]}")
  listed = {label: [each] if isinstance(each, str | Path) else [*each] for label, each in cards.items()}
  loaded = {label: [load(Path(folder)) for folder in folders] for label, folders in listed.items()}
  first, *others = loaded
  head = loaded[first][0][0]
  for label, seeds in loaded.items():
    for table, _ in seeds:
      if any(table[name] != head[name] for name in ("labels", "asked")):
        raise ValueError(
          f"cards must be of the same examples, key and sections; {label} differs from {first}"
        )
  values = {label: [_values(*card) for card in seeds] for label, seeds in loaded.items()}
  found = {label: _differences(values[first], values[label], head["seed"]) for label in others}
  order = sorted((each["p"], label, name) for label, table in found.items() for name, each in table.items())
  for rank, (p, label, name) in enumerate(order):
    if p > LEVEL / (len(order) - rank):
      break
    found[label][name]["real"] = True
  rows = [_row(each, label) for label, table in found.items() for each in table.values() if each["real"]]
  results = {
    "version": 1,
    "labels": {label: [*map(str, each)] for label, each in listed.items()},
    "differences": found,
  }
  write_json(Path(out) / TABLE, results)
  write_page(Path(out), loaded, title, {}, differences=rows, tested=len(order))
  return results


def _values(table: Table, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[Number, Any]]:
  """What can be paired: by name the number, and values of examples or a statistic with its predictions."""
  found: dict[str, tuple[Number, Any]] = {}
  predictions, labels = arrays["model/predictions"], arrays["model/labels"]
  statistics = OF_CLASSES if labels.dtype.kind != "f" else OF_NUMBERS
  given = predictions if statistics is OF_CLASSES else point(predictions, tuple(table["levels"]))
  for section, entry in table["sections"].items():
    numbers = entry.get("numbers", {})
    for name, number in numbers.items():
      known = Number(
        f"{TITLES[section]}: {number['title']}", float(number["value"]), percent=number["percent"]
      )
      each = arrays.get(f"each/{section}/{name}")
      if each is not None:
        found[f"{section}/{name}"] = known, np.asarray(each, float)
      elif name in statistics:
        found[f"{section}/{name}"] = known, (statistics[name], given, labels)
  return found


def _differences(first: Sequence[Any], other: Sequence[Any], seed: int) -> dict[str, Table]:
  """The other model less the first, for every number that both have: interval and p-value."""
  found: dict[str, Table] = {}
  rng = np.random.default_rng(seed)
  for name, (number, _) in first[0].items():
    if not all(name in each for each in (*first, *other)):
      continue
    # A section that could afford fewer examples has the first of the same order.
    lengths = [len(each[name][1]) for each in (*first, *other) if isinstance(each[name][1], np.ndarray)]
    size = min(lengths) if lengths else len(first[0][name][1][2])
    weights = resamples(seed, size, RESAMPLES)
    sides = [np.stack([_drawn(each[name][1], size, weights) for each in side]) for side in (first, other)]
    ours, theirs = (side[:, 0].mean() for side in sides)
    drawn = []
    for side in sides:
      chosen = rng.integers(0, len(side), (len(side), RESAMPLES))
      drawn.append(np.take_along_axis(side[:, 1:], chosen, axis=0).mean(axis=0))
    difference, spread = float(theirs - ours), drawn[1] - drawn[0]
    low, high = basic(difference, spread)
    deviation = float(spread.std(ddof=1))
    p = float(2 * norm.sf(abs(difference) / deviation)) if deviation > 0 else float(difference == 0)
    given = {"title": number.title, "percent": number.percent, "first": float(ours), "other": float(theirs)}
    found[name] = {
      **given,
      "value": difference,
      "low": low,
      "high": high,
      "p": p,
      "examples": size,
      "real": False,
    }
  return found


def _drawn(value: Any, size: int, weights: np.ndarray) -> np.ndarray:
  """The number of one seed: first of all examples, then of each resample."""
  if isinstance(value, np.ndarray):
    return np.concatenate([value[:size].mean(keepdims=True), weights @ value[:size] / size])
  statistic, predictions, labels = value
  return over_resamples({"": statistic}, predictions, labels, weights)[""]


def _row(entry: Table, label: str) -> dict[str, str]:
  number = Number(entry["title"], entry["value"], entry["low"], entry["high"], entry["percent"])
  first, other, value = (number.text(entry[name]) for name in ("first", "other", "value"))
  shown = {"first": first, "other": other, "value": value, "interval": number.interval}
  return {"title": number.title, "label": label, **shown}

"""Several models side by side: what differs beyond chance, and all sections with one curve each."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxreg._atomic_files import to_path
from jaxreg._intervals import welch
from jaxreg.reports._numbers import Number, resamples
from jaxreg.reports._page import TITLES, write_page
from jaxreg.reports._statistics import GAPS, by_chance, over_resamples
from jaxreg.reports._store import Table, below, load, write_table

LEVEL = 0.05  # the probability that any of the differences is called real by chance


def compare(
  cards: Mapping[str, str | os.PathLike[str] | Sequence[str | os.PathLike[str]]],
  *,
  out: str | os.PathLike[str] = "comparison",
  title: str = "Comparison",
) -> Table:
  """Compares the cards of several models, each of one or several seeds, and writes a page like a card's.

  The first model is compared with each other one on the same examples: a bootstrap draws examples for both
  at once. Its variance and, if there are several seeds, theirs give an interval and a p-value, by Student's t
  with Welch's degrees of freedom. If one model has one seed and the other several, the seeds of both count as
  varying alike, with the degrees of freedom of the several. With one seed each, the difference is that of
  these two networks, not of their methods. The first table of the page has the differences that remain after
  Holm's correction at 5 %. Chance raises a calibration error by at most what it gives a calibrated model, and
  intervals and p-values allow for that. Numbers that are not a mean or statistic of examples, such as
  `flatness` has, are shown and not tested; so are numbers that are not finite.

  Args:
    cards: by label, the folder that `report` wrote, or the folders of several seeds.
    out: the folder for `report.html`, `report.json` and the figures.
    title: of the page.

  Returns:
    The table of `report.json`: `differences` by the other model's label and the number's name.

  Raises:
    ValueError: if a folder has no card, or the cards are of other examples, keys or sections.

  References:
    Efron and Tibshirani, `An Introduction to the Bootstrap`, 1993, chapter 8.
    Holm, `A Simple Sequentially Rejective Multiple Test Procedure`, 1979.
    Welch, `The Generalization of Student's Problem when Several Different Population Variances are
    Involved`, 1947.
  """
  if len(cards) < 2:
    raise ValueError(f"cards must have at least two models, got {[*cards]}")
  alone = (str, os.PathLike)
  listed = {label: [each] if isinstance(each, alone) else [*each] for label, each in cards.items()}
  loaded = {label: [load(to_path(folder)) for folder in folders] for label, folders in listed.items()}
  first, *others = loaded
  head = loaded[first][0][0]
  for label, seeds in loaded.items():
    for table, _ in seeds:
      if any(table[name] != head[name] for name in ("labels", "asked")):
        what = "cards must be of the same examples, key and sections"
        raise ValueError(f"{what}; {label} differs from {first}")
  every = [card for seeds in loaded.values() for card in seeds]
  sizes = {
    name: min(len(arrays[f"each/{name}"]) for _, arrays in every)
    for name in below(every[0][1], "each/")
    if all(f"each/{name}" in arrays for _, arrays in every)
  }

  @functools.cache
  def weights(size: int) -> np.ndarray:
    return resamples(head["seed"], size)

  @functools.cache
  def chance(label: str) -> dict[str, float]:
    found = [
      by_chance(arrays["model/predictions"], weights(head["examples"]).shape) for _, arrays in loaded[label]
    ]
    return {name: float(np.mean([each[name] for each in found])) for name in GAPS}

  drawn = {label: [_drawn(card, sizes, weights) for card in seeds] for label, seeds in loaded.items()}
  names = [
    name for name in drawn[first][0] if all(name in each for seeds in drawn.values() for each in seeds)
  ]
  differences: dict[str, dict[str, Table]] = {label: {} for label in others}
  for label, name in itertools.product(others, names):
    ours, theirs = ([each[name] for each in drawn[side]] for side in (first, label))
    section, _, number = name.partition("/")
    entry = head["sections"][section]["numbers"][number]
    about = {"title": f"{TITLES[section]}: {entry['title']}", "percent": entry["percent"]}
    examples = sizes[name] if name in sizes else int(head["examples"])
    yes_or_no = name in sizes and all(set(np.unique(card[f"each/{name}"])) <= {0, 1} for _, card in every)
    raised = (0.0, 0.0) if number not in GAPS else (chance(first)[number], chance(label)[number])
    found = _difference(ours, theirs, examples, yes_or_no=yes_or_no, raised=raised)
    differences[label][name] = {**about, **found, "examples": examples}
  tested = [
    (each["p"], label, name)
    for label, table in differences.items()
    for name, each in table.items()
    if np.isfinite(each["p"])
  ]
  order = sorted(tested)
  for rank, (p, label, name) in enumerate(order):
    if p > LEVEL / (len(order) - rank):
      break
    differences[label][name]["real"] = True
  rows = [
    _row(each, label) for label, table in differences.items() for each in table.values() if each["real"]
  ]
  results = {
    "labels": {label: [*map(str, each)] for label, each in listed.items()},
    "differences": differences,
  }
  write_table(to_path(out), results)
  write_page(to_path(out), loaded, title, {}, differences=rows, tested=len(order))
  return results


def _drawn(
  card: tuple[Table, Mapping[str, np.ndarray]], sizes: Mapping[str, int], weights: Callable[[int], np.ndarray]
) -> dict[str, np.ndarray]:
  """Collects by `SECTION/NAME` the numbers that can be paired: for all examples, then for each resample."""
  table, arrays = card
  labels = arrays["model/labels"]
  statistics = over_resamples(arrays["model/predictions"], labels, table["levels"], weights(len(labels)))
  paired: dict[str, np.ndarray] = {}
  for section in table["asked"]:
    for name in table["sections"][section].get("numbers", ()):
      if (path := f"{section}/{name}") in sizes:
        # A section that could afford fewer examples has the first of the same order.
        values = arrays[f"each/{path}"][: sizes[path]].astype(float)
        paired[path] = np.append(values.mean(), weights(len(values)) @ values / len(values))
      elif name in statistics:
        paired[path] = statistics[name]
  return paired


def _difference(
  first: Sequence[np.ndarray],
  other: Sequence[np.ndarray],
  examples: int,
  *,
  yes_or_no: bool = False,
  raised: tuple[float, float] = (0.0, 0.0),
) -> Table:
  """Returns the other model less the first, with interval and p-value by Welch's t; NaN if not finite.

  To examples that are `yes_or_no` for each model it adds one that each model alone has, as Bonett and Price
  (2012) do: few errors would else have hardly a variance. `raised` is the most that chance may add to either
  model's number.
  """
  sides = [np.stack(side) for side in (first, other)]
  ours, theirs = (side.mean(axis=0) for side in sides)
  with np.errstate(invalid="ignore"):
    value, *spread = theirs - ours
  half, p = np.nan, np.nan
  if np.isfinite([value, *spread]).all():
    # The bootstrap's variance is that of a sample, which is too small by this factor.
    variance = np.var(spread) * examples / (examples - 1) + 2 * yes_or_no / examples**2
    surely = max(value - raised[1], 0) + min(value + raised[0], 0)
    half, p = welch(surely, _parts(sides, variance, examples))
  low, high = value - raised[1] - half, value + raised[0] + half
  numbers = {"first": ours[0], "other": theirs[0], "value": value, "low": low, "high": high, "p": p}
  return {**{name: float(each) for name, each in numbers.items()}, "real": False}


def _parts(sides: Sequence[np.ndarray], variance: float, examples: int) -> list[tuple[float, int]]:
  """Returns the variances of a difference by examples and by seeds, with their degrees of freedom."""
  seeds = [(side[:, 0].var(ddof=1), len(side)) for side in sides if len(side) > 1]
  if len(seeds) == 1:
    # One seed says nothing about its variance: it is taken for the other model's.
    [(spread, number)] = seeds
    return [(variance + spread * (1 + 1 / number), number - 1)]
  return [(variance, examples - 1), *((spread / number, number - 1) for spread, number in seeds)]


def _row(entry: Table, label: str) -> dict[str, str]:
  number = Number(entry["title"], entry["value"], entry["low"], entry["high"], entry["percent"])
  first, other, value = (number.text(entry[name]) for name in ("first", "other", "value"))
  shown = {"first": first, "other": other, "value": value, "interval": number.interval}
  return {"title": number.title, "label": label, **shown}

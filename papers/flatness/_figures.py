"""The paper's figures 1 to 4 from the arrays of the analyses, and the numbers as text."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks._records import Found
from jaxreg import plots
from papers.flatness._analyses import rises

Table = dict[str, Any]


def make_figures(rows: Mapping[str, Table], *, title: str) -> Table:
  """Draws the figures of the analyses in `rows`, by name."""
  figures = {}
  if profiles := _with("profile", rows):
    alphas = next(iter(profiles.values()))["alphas"]
    figures["profile"] = plots.profiles(
      alphas, {label: each["losses"] for label, each in profiles.items()}, title=title
    )
  if measured := _with("variance_flatness", rows):
    labels = {"xlabel": r"interval flatness $F$", "ylabel": r"variance $\lambda(\Sigma)$"}
    figures["variance_flatness"] = plots.power_laws(_over_flatness(measured), **labels, title=title)
    spectra = {label: each["spectra"] for label, each in measured.items()}
    figures["spectra"] = plots.spectra(spectra, title=title)
  if measured := _with("projected_variance", rows):
    labels = {"xlabel": r"eigenvalue $\lambda(H)$", "ylabel": "projected variance"}
    figures["projected_variance"] = plots.power_laws(_over_curvature(measured), **labels, title=title)
  if series := _with("alignment", rows):
    points = {f"{label}, {noise}": each for label, noises in series.items() for noise, each in noises.items()}
    figures["alignment"] = plots.alignment(points, title=title)
  return figures


def _with(name: str, rows: Mapping[str, Table]) -> dict[str, Any]:
  """Returns the arrays of an analysis by row, for the rows that have it."""
  return {label: arrays[name] for label, arrays in rows.items() if name in arrays}


def _over_flatness(rows: Mapping[str, Table]) -> Table:
  """Returns the clouds and fits of figure 2, by the kind of samples and the label of the row."""
  panels: Table = {}
  for label, row in rows.items():
    for kind, arrays in row["measured"].items():
      width = np.where(arrays["mask"], arrays["width"], np.nan)
      panels.setdefault(kind, {})[label] = (width, arrays["variances"], row["fits"][kind])
  return panels


def _over_curvature(rows: Mapping[str, Table]) -> Table:
  """Returns the clouds and fits of figure 3, by the kind of samples and the label of the row."""
  panels: Table = {}
  for label, row in rows.items():
    for kind, variances in row["variances"].items():
      values = np.where(row["mask"], row["values"], np.nan)
      panels.setdefault(kind, {})[label] = (values, variances, row["fits"][kind])
  return panels


def compare_profiles(profiles: Mapping[str, Any]) -> Table:
  """Compares the rises of every profile with those of the first, direction by direction."""
  compared: Table = {}
  first: Any = None
  for label, profile in profiles.items():
    rise = rises(profile)
    compared[label] = {}
    for distance, values in rise.items():
      entry: Table = {"rises": values.tolist(), "mean": float(values.mean()), "sd": float(values.std(ddof=1))}
      if first:
        lower = int((values < first[1][distance]).sum())
        entry["flatter_than"] = {"row": first[0], "directions": lower, "of": len(values)}
      compared[label][distance] = entry
    first = first or (label, rise)
  return compared


def lines(results: Mapping[str, Table]) -> str:
  """Puts the results into text, a line for each measure."""
  text = []
  for label, row in results.items():
    text.append(f"{label}: step {row['step']}, training loss {row['train/loss']:.3g}")
    for distance, rise in row.get("profile", {}).items():
      verdict = ""
      if flatter := rise.get("flatter_than"):
        verdict = f"; lower than {flatter['row']} along {flatter['directions']} of {flatter['of']}"
      text.append(f"  rise at ±{distance}: {rise['mean']:.3g} ± {rise['sd']:.2g}{verdict}")
    for kind, each in row.get("variance_flatness", {}).items():
      text.append(f"  variance over flatness, {kind}: {_fit(each['fit'])}")
    for kind, fit in row.get("projected_variance", {}).get("fits", {}).items():
      text.append(f"  variance over curvature, {kind}: {_fit(fit)}")
    for noise, each in row.get("alignment", {}).items():
      text.append(f"  alignment, {noise}: least ratio {each['least_ratio']:.2f} of {each['points']} points")
  return "\n".join(text)


def recorded(results: Mapping[str, Table]) -> Found:
  """Collects the numbers of the results for a record: seeds are runs, and so are a profile's directions."""
  values: dict[tuple[str, str], list[float]] = {}
  for label, row in results.items():
    label = re.sub(r",? ?seed \d+$", "", label)
    name = f"{label}, " if label else ""
    numbers = {(label, f"rise at {at}"): each["rises"] for at, each in row.get("profile", {}).items()}
    for kind, each in row.get("variance_flatness", {}).items():
      numbers[f"{name}{kind}", "correlation with flatness"] = [each["fit"]["correlation"]]
    for kind, fit in row.get("projected_variance", {}).get("fits", {}).items():
      numbers[f"{name}{kind}", "correlation with curvature"] = [fit["correlation"]]
    for noise, each in row.get("alignment", {}).items():
      for quantity in ("least", "last"):
        numbers[f"{name}{noise}", f"{quantity} ratio"] = [each[f"{quantity}_ratio"]]
    for key, runs in numbers.items():
      values.setdefault(key, []).extend(runs)
  found = Found()
  for (label, quantity), runs in values.items():
    found.add(label, quantity, runs, 1 if "ratio" in quantity else 3)
  return found


def _fit(fit: Table) -> str:
  """Returns one slope for one power law, else both slopes and the place where they meet."""
  test = f"linearity p {fit['linearity']:.2g}, correlation {fit['correlation']:.3f}"
  if "slopes" in fit:
    below, above = fit["slopes"]
    return f"no single law: slope {below:.3f} below {fit['breakpoint'][0]:.3g}, {above:.3f} above, {test}"
  low, high = fit["slope_interval"]
  return f"slope {fit['slope']:.3f} [{low:.3f}, {high:.3f}], {test}"

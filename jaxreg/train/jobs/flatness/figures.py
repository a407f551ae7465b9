"""The figures and the lines of `job = flatness`, from the results of its rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxreg import plots


def make_figures(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """The figures of all analyses in `rows`."""
  having = lambda name: {label: arrays[name] for label, arrays in rows.items() if name in arrays}
  figures = {}
  if found := having("profile"):
    alphas = next(iter(found.values()))["alphas"]
    figures["profile"] = plots.profiles(alphas, {label: each["losses"] for label, each in found.items()})
  if found := having("variance_flatness"):
    kinds = list(next(iter(found.values()))["found"])
    panels = {}
    for kind in kinds:
      panels[kind] = {}
      for label, each in found.items():
        # The paper's factor, if it was measured; the widths come in the order of the fits.
        factor = "2" if "2" in each["fits"][kind] else next(iter(each["fits"][kind]))
        width = each["found"][kind]["width"][list(each["fits"][kind]).index(factor)]
        shown = np.where(each["found"][kind]["mask"], width, np.nan)
        panels[kind][label] = (shown, each["found"][kind]["variances"], each["fits"][kind][factor])
    figures["variance_flatness"] = plots.power_laws(
      panels,
      xlabels=[r"interval flatness $F$"] * len(kinds),
      ylabels=[r"variance $\lambda(\Sigma)$"] * len(kinds),
    )
    figures["spectra"] = plots.spectra({label: each["spectra"] for label, each in found.items()})
  if found := having("projected_variance"):
    kinds = list(next(iter(found.values()))["variances"])
    panels = {
      kind: {
        label: (
          np.where(each["mask"], each["values"], np.nan),
          each["variances"][kind],
          each["fits"][kind],
        )
        for label, each in found.items()
      }
      for kind in kinds
    }
    figures["projected_variance"] = plots.power_laws(
      panels,
      xlabels=[r"eigenvalue $\lambda(H)$"] * len(kinds),
      ylabels=["projected variance"] * len(kinds),
    )
  if found := having("alignment"):
    series = {f"{label}, {noise}": each for label, noises in found.items() for noise, each in noises.items()}
    figures["alignment"] = plots.alignment(series)
  return figures


def markdown(results: Mapping[str, Any]) -> str:
  """The results as text, a line for each measure."""
  lines = []
  for label, row in results["rows"].items():
    lines.append(f"{label}: step {row['step']}, training loss {row['train/loss']:.3g}")
    for distance, rise in row.get("profile", {}).items():
      flatter = rise.get("flatter_than")
      verdict = (
        f"; lower than {flatter['row']} along {flatter['directions']} of {flatter['of']}" if flatter else ""
      )
      lines.append(f"  rise at ±{distance}: {rise['mean']:.3g} ± {rise['sd']:.2g}{verdict}")
    for kind, each in row.get("variance_flatness", {}).items():
      for factor, fit in each["fits"].items():
        lines.append(f"  variance over flatness, {kind}, factor {factor}: {_fit(fit)}")
    curvature = row.get("projected_variance", {})
    if curvature:
      lines.append(f"  eigenpairs of the Hessian by: {curvature['eigenpairs_by']}")
    for kind, fit in curvature.get("fits", {}).items():
      lines.append(f"  variance over curvature, {kind}: {_fit(fit)}")
    for noise, each in row.get("alignment", {}).items():
      lines.append(f"  alignment, {noise}: least ratio {each['least_ratio']:.2f} of {each['points']} points")
  return "\n".join(lines)


def _fit(fit: Mapping[str, Any]) -> str:
  """One slope if it is one power law; else both slopes, and where they meet."""
  test = f"linearity p {fit['linearity']:.2g}, correlation {fit['correlation']:.3f}"
  if "slopes" in fit:
    below, above = fit["slopes"]
    return f"no single law: slope {below:.3f} below {fit['breakpoint'][0]:.3g}, {above:.3f} above, {test}"
  low, high = fit["slope_interval"]
  return f"slope {fit['slope']:.3f} [{low:.3f}, {high:.3f}], {test}"

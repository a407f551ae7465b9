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
  for name, (panels, xlabel, ylabel) in power_law_panels(rows).items():
    figures[name] = plots.power_laws(panels, xlabels=[xlabel] * len(panels), ylabels=[ylabel] * len(panels))
  if found := having("variance_flatness"):
    figures["spectra"] = plots.spectra({label: each["spectra"] for label, each in found.items()})
  if found := having("alignment"):
    series = {f"{label}, {noise}": each for label, noises in found.items() for noise, each in noises.items()}
    figures["alignment"] = plots.alignment(series)
  return figures


def power_law_panels(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[dict[str, Any], str, str]]:
  """The clouds and fits of `plots.power_laws`, with the labels of the axes, by the name of the figure."""
  having = lambda name: {label: arrays[name] for label, arrays in rows.items() if name in arrays}
  figures: dict[str, tuple[dict[str, Any], str, str]] = {}
  if found := having("variance_flatness"):
    panels: dict[str, Any] = {kind: {} for kind in next(iter(found.values()))["found"]}
    for kind in panels:
      for label, each in found.items():
        # The paper's factor, if it was measured; the widths come in the order of the fits.
        factor = "2" if "2" in each["fits"][kind] else next(iter(each["fits"][kind]))
        width = each["found"][kind]["width"][list(each["fits"][kind]).index(factor)]
        shown = np.where(each["found"][kind]["mask"], width, np.nan)
        panels[kind][label] = (shown, each["found"][kind]["variances"], each["fits"][kind][factor])
    figures["variance_flatness"] = (panels, r"interval flatness $F$", r"variance $\lambda(\Sigma)$")
  if found := having("projected_variance"):
    panels = {
      kind: {
        label: (np.where(each["mask"], each["values"], np.nan), each["variances"][kind], each["fits"][kind])
        for label, each in found.items()
      }
      for kind in next(iter(found.values()))["variances"]
    }
    figures["projected_variance"] = (panels, r"eigenvalue $\lambda(H)$", "projected variance")
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

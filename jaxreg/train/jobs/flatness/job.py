"""`job = flatness`: trains or restores networks, and analyses their minima and dropout's noise at them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxreg import plots
from jaxreg._atomic_files import write_figures, write_json, write_text
from jaxreg.plots._power_laws import power_law_table
from jaxreg.train.config.choices import Config
from jaxreg.train.config.rows import checked_rows
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.jobs.flatness.analysed_run import AnalysedRun
from jaxreg.train.jobs.flatness.analyses import rises
from jaxreg.train.jobs.flatness.requirements import check_analyses, check_row
from jaxreg.train.jobs.row_config import check_replicas, row_config, row_folder
from jaxreg.train.jobs.train import figure_title, train
from jaxreg.train.run.log import progress
from jaxreg.train.run.workdir import check_folder
from jaxreg.train.sealed_tables import Table
from jaxreg.train.user_paths import local_path


def flatness(config: Config, workdir: Path) -> Table:
  """Runs the analyses that `config.flatness` asks for; writes `flatness.json` and figures.

  Each row of `flatness.rows` is trained as by `train`, in a folder of its own below `workdir`, and then
  analysed. If `flatness.workdir` is given, that run is analysed instead. An interrupted job continues where
  it was. Mistakes in the rows or options raise a RunError, if possible before anything is trained.
  """
  if jax.process_count() > 1:
    raise RunError(f"job: flatness runs in one process, here are {jax.process_count()}")
  check_folder(workdir)
  rows = _rows(config)
  found: dict[str, Table] = {}
  for number, (label, row) in enumerate(rows.items(), 1):
    part = f"row {number} of {len(rows)}: {label}"
    progress(f"flatness: {part}")
    if config.flatness.workdir:
      folder = local_path(config.flatness.workdir, "flatness.workdir")
    else:
      folder = workdir / "rows" / row_folder(label, row)
      train(row, folder, part=part)
    try:
      found[label] = AnalysedRun(row, folder, cache=workdir / "kept").analyse()
    except (ValueError, TypeError) as error:
      raise RunError(f"flatness, row {label!r}: {one_line(error)}") from error
  results = {label: row["summary"] for label, row in found.items()}
  _compare_profiles(found, results)

  arrays = {label: row["arrays"] for label, row in found.items()}
  write_figures(workdir / "figures", make_figures(arrays, title=figure_title(config)))
  for name, (panels, *_) in power_law_panels(arrays).items():
    write_text(workdir / "figures" / f"{name}.md", power_law_table(panels) + "\n")
  write_json(workdir / "flatness.json", results)
  return {"rows": results}


def _rows(config: Config) -> dict[str, Config]:
  """The configuration of each row, checked."""
  options = config.flatness
  if options.workdir:
    if options.rows:
      raise RunError("flatness.rows, flatness.workdir: give either rows to train or a run to look at")
    check_analyses(config)
    return {Path(options.workdir).name: config}
  check_replicas(config)
  fields = checked_rows(config, "flatness.rows") if options.rows else {"run": {}}
  found = {}
  for label, row in fields.items():
    try:
      found[label] = row_config(config, label, row, seeds=1)
      check_row(found[label])
    except (RunError, ValueError, TypeError) as error:
      raise RunError(f"flatness, row {label!r}: {error}") from error
  return found


def _compare_profiles(found: Mapping[str, Table], results: Table) -> None:
  """Compares every row with the first, direction by direction; all rows have the same directions."""
  arrays = {label: row["arrays"] for label, row in found.items()}
  compared = {label: rises(profile) for label, profile in _having(arrays, "profile").items()}
  for label, row in compared.items():
    first = next(iter(compared))
    for distance, rise in row.items():
      sd = float(rise.std(ddof=1)) if len(rise) > 1 else 0.0
      entry = {"rises": rise.tolist(), "mean": float(rise.mean()), "sd": sd}
      if label != first and distance in compared[first]:
        lower = int((rise < compared[first][distance]).sum())
        entry["flatter_than"] = {"row": first, "directions": lower, "of": len(rise)}
      results[label]["profile"][distance] = entry


def _having(rows: Mapping[str, Table], name: str) -> dict[str, Any]:
  """The arrays of an analysis, of the rows that made it."""
  return {label: arrays[name] for label, arrays in rows.items() if name in arrays}


def make_figures(rows: Mapping[str, Table], *, title: str = "") -> Table:
  """The figures of all analyses in `rows`."""
  figures = {}
  if found := _having(rows, "profile"):
    alphas = next(iter(found.values()))["alphas"]
    losses = {label: each["losses"] for label, each in found.items()}
    figures["profile"] = plots.profiles(alphas, losses, title=title)
  for name, (panels, xlabel, ylabel) in power_law_panels(rows).items():
    figures[name] = plots.power_laws(panels, xlabel=xlabel, ylabel=ylabel, title=title)
  if found := _having(rows, "variance_flatness"):
    spectra = {label: each["spectra"] for label, each in found.items()}
    figures["spectra"] = plots.spectra(spectra, title=title)
  if found := _having(rows, "alignment"):
    series = {f"{label}, {noise}": each for label, noises in found.items() for noise, each in noises.items()}
    figures["alignment"] = plots.alignment(series, title=title)
  for number, (label, layers) in enumerate(_having(rows, "layerwise").items()):
    ending, of_row = (f"_{number}", f"{title}, {label}") if len(rows) > 1 else ("", title)
    figures[f"layerwise{ending}"] = plots.layerwise(layers, title=of_row)
    densities = dict(zip(layers.names, layers.densities, strict=True))
    figures[f"layerwise_density{ending}"] = plots.density(densities, title=of_row)
  return figures


def power_law_panels(rows: Mapping[str, Table]) -> dict[str, tuple[Table, str, str]]:
  """The clouds and fits of `plots.power_laws`, with the labels of the axes, by the name of the figure."""
  figures: dict[str, tuple[Table, str, str]] = {}
  if found := _having(rows, "variance_flatness"):
    panels: Table = {kind: {} for kind in next(iter(found.values()))["found"]}
    for kind, series in panels.items():
      for label, each in found.items():
        arrays, fits = each["found"][kind], each["fits"][kind]
        # The paper's factor, if it was measured; the widths come in the order of the fits.
        factor = "2" if "2" in fits else next(iter(fits))
        width = np.where(arrays["mask"], arrays["width"][list(fits).index(factor)], np.nan)
        series[label] = (width, arrays["variances"], fits[factor])
    figures["variance_flatness"] = (panels, r"interval flatness $F$", r"variance $\lambda(\Sigma)$")
  if found := _having(rows, "projected_variance"):
    panels = {
      kind: {
        label: (np.where(each["mask"], each["values"], np.nan), each["variances"][kind], each["fits"][kind])
        for label, each in found.items()
      }
      for kind in next(iter(found.values()))["variances"]
    }
    figures["projected_variance"] = (panels, r"eigenvalue $\lambda(H)$", "projected variance")
  return figures


def markdown(results: Table) -> str:
  """The results as text, a line for each measure."""
  lines = []
  for label, row in results["rows"].items():
    lines.append(f"{label}: step {row['step']}, training loss {row['train/loss']:.3g}")
    for distance, rise in row.get("profile", {}).items():
      verdict = ""
      if flatter := rise.get("flatter_than"):
        verdict = f"; lower than {flatter['row']} along {flatter['directions']} of {flatter['of']}"
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
    for name, layer in row.get("layerwise", {}).items():
      lines.append(
        f"  {name}: largest eigenvalue {layer['top_eigenvalue']:.3g} (residual {layer['residual']:.1g}), "
        f"trace {layer['trace']:.3g} ± {layer['trace_error']:.1g}, "
        f"Frobenius norm {layer['frobenius_norm']:.3g} ± {layer['frobenius_norm_error']:.1g}"
      )
  return "\n".join(lines)


def _fit(fit: Table) -> str:
  """One slope if it is one power law; else both slopes, and where they meet."""
  test = f"linearity p {fit['linearity']:.2g}, correlation {fit['correlation']:.3f}"
  if "slopes" in fit:
    below, above = fit["slopes"]
    return f"no single law: slope {below:.3f} below {fit['breakpoint'][0]:.3g}, {above:.3f} above, {test}"
  low, high = fit["slope_interval"]
  return f"slope {fit['slope']:.3f} [{low:.3f}, {high:.3f}], {test}"

"""The results of a job in a few lines for people."""

import re

from etils.epath import Path

from jaxreg._metrics import metric
from jaxreg.train.config.choices import Config
from jaxreg.train.jobs.check_data import report_lines
from jaxreg.train.jobs.compare import markdown
from jaxreg.train.jobs.compile import report_lines as compile_lines
from jaxreg.train.jobs.export import lines as export_lines
from jaxreg.train.jobs.merge import lines as merge_lines
from jaxreg.train.jobs.predict import lines as prediction_lines
from jaxreg.train.jobs.report import lines as report_card_lines
from jaxreg.train.run.workdir import read
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.metrics import few_runs, shown


def summary(results: Table, config: Config, workdir: Path) -> str:
  """Formats the results as a few lines for people, with the paths of the figures."""
  figures = [str(file) for file in sorted((workdir / "figures").glob("*.png"))]
  if config.job == "compare":
    where = f"in {workdir}: compare.md, compare.json, and a folder for each run"
    return "\n".join([markdown(results), where, *figures])
  if config.job == "predict":
    return prediction_lines(results)
  if config.job == "export":
    return export_lines(results)
  if config.job == "merge":
    return "\n".join([merge_lines(results), *figures])
  if config.job == "report":
    return report_card_lines(results)
  if config.job == "check_data":
    return "\n".join(report_lines(results))
  if config.job == "compile":
    return "\n".join(compile_lines(results))
  lines = [line for split in ("train", "val", "test") for line in _split_lines(results, split)]
  for name in results:
    if re.fullmatch(r"ood/.*_auroc", name):
      kind, score = name.removeprefix("ood/").removesuffix("_auroc").split("/")
      auroc, fpr = (_as_percent(results, f"ood/{kind}/{score}_{end}", 1) for end in ("auroc", "fpr95"))
      lines.append(f"{kind:8} by {score:10} AUROC {auroc}   FPR at 95 % {fpr}")
  what = f"{config.method.name}, checkpoint of step {results['step']}"
  number, members = config.replicas // config.ensemble, config.ensemble
  if number > 1:
    each = "seeds" if members == 1 else f"ensembles of {members}"
    what += f", {number} {each}, mean ± 95 % confidence interval"
    lines += filter(None, [few_runs(number)])
  elif members > 1:
    what += f", an ensemble of {members}"
  if config.job == "train":
    lines += [*_goodput(workdir), f"in {workdir}: results.json, metrics.jsonl, checkpoints/", *figures]
  return "\n".join([what, *lines])


def _goodput(workdir: Path) -> list[str]:
  """Formats the share of the time in useful steps, and the largest lost times, if they are known."""
  results = read(workdir, "results.json") if (workdir / "results.json").is_file() else {}
  goodput = results.get("goodput")
  if goodput is None:
    return []
  wall = goodput["wall_seconds"]
  lost = sorted(
    ((seconds, name) for name, seconds in goodput["seconds"].items() if name != "steps"), reverse=True
  )
  shown = ", ".join(f"{name} {seconds / wall:.0%}" for seconds, name in lost if seconds >= 0.01 * wall)
  return [f"goodput {goodput['share']:.1%} of {wall:.0f} s" + (f"; lost: {shown}" if shown else "")]


def _as_percent(results: Table, name: str, digits: int = 2) -> str:
  """Formats a fraction in per cent."""
  return f"{shown(results, name, factor=100, digits=digits)}%"


def _split_lines(results: Table, split: str) -> list[str]:
  """Formats the metrics of a split, and its `evaluate.measures`."""

  def has(name: str) -> bool:
    return f"{split}/{name}" in results

  def number(name: str, digits: int = 4) -> str:
    return shown(results, f"{split}/{name}", digits=digits)

  def percent(name: str, digits: int = 2) -> str:
    return _as_percent(results, f"{split}/{name}", digits)

  lines, further = [], []
  if has("error"):
    lines.append(f"{split:5} error {percent('error')}   NLL {number('nll')}   ECE {percent('ece')}")
  if has("rmse"):
    measures = [name for name in ("rmse", "mae", "r2", "nlpd", "pinball") if has(name)]
    lines.append(f"{split:5} {'   '.join(f'{metric(name).title} {number(name)}' for name in measures)}")
    if has("coverage"):
      hold = percent("coverage", 1)
      further.append(f"intervals hold {hold} of the targets, mean width {number('width')}")
  if errors := [
    name for name in ("mce", "adaptive_ece", "classwise_ece", "smooth_ece", "debiased_ece") if has(name)
  ]:
    further.append("   ".join(f"{metric(name).title} {percent(name)}" for name in errors))
  if has("temperature"):
    tempered = f"NLL {number('tempered_nll')}   ECE {percent('tempered_ece')}"
    further.append(f"at temperature {number('temperature')}: {tempered}")
  for name in ("vector", "matrix", "isotonic"):
    if has(f"{name}_nll"):
      further.append(f"{name} scaling: NLL {number(f'{name}_nll')}   ECE {percent(f'{name}_ece')}")
  if has("aurc"):
    further.append(f"AURC {number('aurc')}   AUGRC {number('augrc')}")
  if has("laplace_nll"):
    likelihood = f"NLL {number('laplace_nll')}   ECE {percent('laplace_ece')}"
    further.append(f"by Laplace: error {percent('laplace_error')}   {likelihood}")
  for name in ("conformal", "conformal_by_class", "aps", "raps"):
    if has(f"{name}_size"):
      covered = percent(f"{name}_coverage")
      further.append(f"{name} sets: {number(f'{name}_size', 3)} classes, with the label in {covered}")
  if has("conformal_width"):
    hold, width = percent("conformal_coverage"), number("conformal_width")
    further.append(f"conformal intervals hold {hold}, mean width {width}")
  if has("laplace_nlpd"):
    hold = f"90 % intervals hold {percent('laplace_coverage')}, mean width {number('laplace_width')}"
    further.append(f"by Laplace: NLPD {number('laplace_nlpd')}, {hold}")
  if has("conformal_risk_size"):
    size, missed = number("conformal_risk_size", 3), percent("conformal_risk_missed")
    further.append(f"conformal_risk sets: {size} labels, {missed} of an example's labels missed")
  for name in ("auroc", "average_precision", "f1", "tuned_f1"):
    if has(f"{name}_macro"):
      macro, micro = percent(f"{name}_macro"), percent(f"{name}_micro")
      further.append(f"{metric(name).title}: {macro} as the mean over labels, {micro} over all answers")
  return [*lines, *(" " * 6 + line for line in further)]

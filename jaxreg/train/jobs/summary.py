"""The results of a job in a few lines for people."""

import re
from pathlib import Path

from jaxreg.train.config.choices import Config
from jaxreg.train.files import Table
from jaxreg.train.jobs.check_data import report_lines
from jaxreg.train.jobs.compare import markdown
from jaxreg.train.jobs.flatness.job import markdown as flatness_lines
from jaxreg.train.jobs.report import lines as report_card_lines
from jaxreg.train.step.metrics import few_runs, shown


def summary(results: Table, config: Config, workdir: Path) -> str:
  """The results as a few lines for people, with the paths of the figures."""
  if config.job == "compare":
    where = f"in {workdir}: compare.md, compare.json, and a folder a run"
    return "\n".join([markdown(results), where, *_figures(workdir)])
  if config.job == "flatness":
    where = f"in {workdir}: flatness.json, and a folder a run"
    return "\n".join([flatness_lines(results), where, *_figures(workdir)])
  if config.job == "translate":
    found = "   ".join(
      f"{name} BLEU {shown(results, f'{name}/bleu', digits=2)}" for name in ("greedy", "beam")
    )
    where = f"in {workdir}: translations.txt, translate.json"
    return f"{config.evaluate.split}, checkpoint of step {results['step']}\n{found}\n{where}"
  if config.job == "report":
    return report_card_lines(results)
  if config.job == "check_data":
    return "\n".join(report_lines(results))
  lines = []
  for split in ("train", "val", "test"):
    if f"{split}/error" in results:
      error = shown(results, f"{split}/error", factor=100, digits=2)
      nll = shown(results, f"{split}/nll", digits=4)
      ece = shown(results, f"{split}/ece", factor=100, digits=2)
      lines.append(f"{split:5} error {error}%   NLL {nll}   ECE {ece}%")
      lines += _further(results, split)
    if f"{split}/rmse" in results:
      names = {"rmse": "RMSE", "mae": "MAE", "r2": "R2", "nlpd": "NLPD", "pinball": "pinball loss"}
      found = {title: f"{split}/{name}" for name, title in names.items() if f"{split}/{name}" in results}
      lines.append(
        f"{split:5} "
        + "   ".join(f"{title} {shown(results, name, digits=4)}" for title, name in found.items())
      )
      if f"{split}/coverage" in results:
        coverage = shown(results, f"{split}/coverage", factor=100, digits=1)
        width = shown(results, f"{split}/width", digits=4)
        lines.append(f"      intervals hold {coverage}% of the targets, mean width {width}")
      lines += _further(results, split)
  for name in results:
    if re.fullmatch(r"ood/.*_auroc", name):
      kind, score = name.removeprefix("ood/").removesuffix("_auroc").split("/")
      auroc, fpr = (
        shown(results, f"ood/{kind}/{score}_{end}", factor=100, digits=1) for end in ("auroc", "fpr95")
      )
      lines.append(f"{kind:8} by {score:10} AUROC {auroc}%   FPR at 95 % {fpr}%")
  what = f"{config.method.name}, checkpoint of step {results['step']}"
  number, members = config.replicas // config.ensemble, config.ensemble
  if number > 1:
    each = "seeds" if members == 1 else f"ensembles of {members}"
    what += f", {number} {each}, mean ± 95 % confidence interval"
    lines += filter(None, [few_runs(number)])
  elif members > 1:
    what += f", an ensemble of {members}"
  if config.job == "train":
    lines.append(f"in {workdir}: results.json, metrics.jsonl, checkpoints/")
    lines += _figures(workdir)
  return "\n".join([what, *lines])


def _further(results: Table, split: str) -> list[str]:
  """Lines on `evaluate.measures`."""
  lines, indent = [], " " * 6
  percent = lambda name: f"{shown(results, f'{split}/{name}', factor=100, digits=2)}%"
  if errors := [name for name in ("mce", "adaptive_ece", "classwise_ece") if f"{split}/{name}" in results]:
    texts = [f"{name.replace('_ece', ' ECE').replace('mce', 'MCE')} {percent(name)}" for name in errors]
    lines.append(indent + "   ".join(texts))
  if f"{split}/temperature" in results:
    temperature, nll = (
      shown(results, f"{split}/{name}", digits=4) for name in ("temperature", "tempered_nll")
    )
    lines.append(f"{indent}at temperature {temperature}: NLL {nll}   ECE {percent('tempered_ece')}")
  if f"{split}/laplace_nll" in results:
    likelihood = f"NLL {shown(results, f'{split}/laplace_nll', digits=4)}   ECE {percent('laplace_ece')}"
    lines.append(f"{indent}by Laplace: error {percent('laplace_error')}   {likelihood}")
  for name in ("conformal", "aps"):
    if f"{split}/{name}_size" in results:
      size = shown(results, f"{split}/{name}_size", digits=3)
      lines.append(f"{indent}{name} sets: {size} classes, with the label in {percent(f'{name}_coverage')}")
  if f"{split}/conformal_width" in results:
    width = shown(results, f"{split}/conformal_width", digits=4)
    lines.append(f"{indent}conformal intervals hold {percent('conformal_coverage')}, mean width {width}")
  if f"{split}/laplace_nlpd" in results:
    nlpd = shown(results, f"{split}/laplace_nlpd", digits=4)
    lines.append(
      f"{indent}by Laplace: NLPD {nlpd}, 90 % intervals hold {percent('laplace_coverage')}, "
      f"mean width {shown(results, f'{split}/laplace_width', digits=4)}"
    )
  if f"{split}/conformal_risk_size" in results:
    size = shown(results, f"{split}/conformal_risk_size", digits=3)
    missed = percent("conformal_risk_missed")
    lines.append(f"{indent}conformal_risk sets: {size} labels, {missed} of an example's labels missed")
  titles = {"auroc": "AUROC", "average_precision": "average precision", "f1": "F1", "tuned_f1": "F1, tuned"}
  for name, title in titles.items():
    if f"{split}/{name}_macro" in results:
      macro, micro = percent(f"{name}_macro"), percent(f"{name}_micro")
      lines.append(f"{indent}{title}: {macro} in the mean of the labels, {micro} of all answers")
  return lines


def _figures(workdir: Path) -> list[str]:
  """The paths of the figures, a line each."""
  return [str(file) for file in sorted((workdir / "figures").glob("*.png"))]

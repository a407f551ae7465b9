"""`job = evaluate`: the metrics of a checkpoint on a split."""

from pathlib import Path

from jaxreg.train.config.choices import Config
from jaxreg.train.files import Table
from jaxreg.train.jobs.measures import further_measures
from jaxreg.train.jobs.out_of_distribution import detection
from jaxreg.train.jobs.restored_run import restore_states
from jaxreg.train.run.whole_split import make_evaluate
from jaxreg.train.step.metrics import averaged, summarize


def evaluate(config: Config, workdir: Path) -> Table:
  """Evaluates a checkpoint of `workdir`, as `config.evaluate` says.

  Raises:
    RunError: if `workdir` holds nothing usable, or if it was trained under another configuration.
  """
  run, options = restore_states(config, workdir), config.evaluate
  split = run.dataset.splits()[options.split]
  sums = make_evaluate(run.program, run.replicas, run.batch_size)(run.states, run.source(split))
  values = summarize(sums, options.split)
  if options.measures:
    laplace = config.laplace.to_dict()
    values |= further_measures(run, options.split, options.measures, alpha=options.alpha, laplace=laplace)
  if options.ood:
    values |= detection(run, split, options.ood)
  return {"step": run.step, **averaged(values)}

"""The trainer behind `run.py`.

Its parts, from the top down; each imports from those below it::

  cli       flags to a checked configuration
  summary   the results of a job in a few lines
  estimator a configuration as an estimator of scikit-learn
  jobs      train, evaluate, predict, compare, report, check_data, compile, merge,
            export
  finished  a finished run: restore, load, its loss, measures
  assemble  the last part that sees a configuration: from a configuration to pure functions
  run       one run and its work directory: loop, checkpoints, log, results
  config    the fields, what they mean, what they may hold
  devices   mesh, jit and pmap, replicas, processes
  registry  the functions and classes that a configuration can name, a row each
  step      pure and compiled: `step.py` is the training step on one page; prediction, metrics
  data      sources, order, batches
  methods   a file for each kind of method: head, loss, prediction rule, row
  modules   Linen, NNX, Equinox and plain functions as pairs of pure functions, `init` and `apply`

`train(config, workdir)` trains. `load(workdir)` returns the prediction function of a trained model.
`make_program(config, ...)` returns the pure step for a loop of your own. `docs/how_a_step_works.md` follows a
step, a batch and a field from end to end.
"""

import importlib
from typing import TYPE_CHECKING

from jaxreg._extras import needs

if TYPE_CHECKING:
  from jaxreg.train.assemble.from_config import make_program as make_program
  from jaxreg.train.config.checks import check as check
  from jaxreg.train.config.choices import Config as Config
  from jaxreg.train.config.choices import add_options as add_options
  from jaxreg.train.config.choices import base_config as base_config
  from jaxreg.train.data.dataset import Dataset as Dataset
  from jaxreg.train.data.dataset import Split as Split
  from jaxreg.train.errors import RunError as RunError
  from jaxreg.train.estimator import Estimator as Estimator
  from jaxreg.train.finished.load import load as load
  from jaxreg.train.jobs.compare import compare as compare
  from jaxreg.train.jobs.evaluate import evaluate as evaluate
  from jaxreg.train.jobs.report import report as report
  from jaxreg.train.jobs.train import train as train
  from jaxreg.train.methods.method import Method as Method
  from jaxreg.train.modules.functions import Backbone as Backbone
  from jaxreg.train.run.interrupt import Interrupted as Interrupted

# Where each public name is: it is imported on first use, because help and mistakes need no program.
_PLACES = {
  "Backbone": "modules.functions",
  "Config": "config.choices",
  "Dataset": "data.dataset",
  "Estimator": "estimator",
  "Interrupted": "run.interrupt",
  "Method": "methods.method",
  "RunError": "errors",
  "Split": "data.dataset",
  "add_options": "config.choices",
  "base_config": "config.choices",
  "check": "config.checks",
  "compare": "jobs.compare",
  "evaluate": "jobs.evaluate",
  "load": "finished.load",
  "make_program": "assemble.from_config",
  "report": "jobs.report",
  "train": "jobs.train",
}
__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
  if name not in _PLACES:
    raise AttributeError(f"module 'jaxreg.train' has no attribute {name!r}; it has {', '.join(__all__)}")
  try:
    value = getattr(importlib.import_module(f"jaxreg.train.{_PLACES[name]}"), name)
  except ModuleNotFoundError as error:
    if (error.name or "").startswith("jaxreg"):
      raise
    raise needs(f"jaxreg.train.{name}", error) from error
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return __all__

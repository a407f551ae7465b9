"""The trainer behind `run.py`.

Its rooms, from the top down; a room imports from those below it::

  cli       flags to a checked configuration
  jobs      train, evaluate, compare, translate, flatness, dropmax_figures; load
  build     the door: from a configuration to pure functions
  run       one run and its work directory: loop, checkpoints, log, results
  config    the fields, what they mean, what they may hold
  devices   mesh, jit and pmap, replicas, processes
  step      pure and compiled: objective, training step, prediction
  data      sources, order, batches

`train(config, workdir)` trains. `load(workdir)` returns the prediction function of a trained model.
`make_program(config, ...)` returns the pure step for a loop of your own.
"""

from jaxreg.train.build.program import make_program
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import add_options
from jaxreg.train.config.fields import Config, base_config, flatten
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.compare import compare
from jaxreg.train.jobs.dropmax_figures import dropmax_figures
from jaxreg.train.jobs.evaluate import evaluate
from jaxreg.train.jobs.flatness.job import flatness
from jaxreg.train.jobs.load import load, load_outputs
from jaxreg.train.jobs.report import report
from jaxreg.train.jobs.train import train
from jaxreg.train.jobs.translate import translate
from jaxreg.train.run.interrupt import Interrupted
from jaxreg.train.step.methods import METHODS, Method
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState

__all__ = [
  "METHODS",
  "Config",
  "Dataset",
  "Interrupted",
  "Method",
  "Program",
  "RunError",
  "Split",
  "TrainState",
  "add_options",
  "base_config",
  "check",
  "compare",
  "dropmax_figures",
  "evaluate",
  "flatness",
  "flatten",
  "load",
  "load_outputs",
  "make_program",
  "report",
  "train",
  "translate",
]


def __dir__() -> list[str]:
  return __all__

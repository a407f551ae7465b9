"""The trainer behind `run.py`: a program of pure steps, in the order config, setup, training, loop.

`train(config, workdir)` trains, `load(workdir)` gives the predictions of a trained model back.
"""

from jaxreg.train.config.checks import check
from jaxreg.train.config.fields import Config, base_config, flatten
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.compare import compare
from jaxreg.train.jobs.dropmax_figures import dropmax_figures
from jaxreg.train.jobs.evaluate import evaluate, report
from jaxreg.train.jobs.flatness.job import flatness
from jaxreg.train.jobs.load import load, load_outputs
from jaxreg.train.jobs.train import train
from jaxreg.train.jobs.translate import translate
from jaxreg.train.run.interrupt import Interrupted
from jaxreg.train.step.methods import METHODS, Method
from jaxreg.train.step.state import TrainState

__all__ = [
  "METHODS",
  "Config",
  "Interrupted",
  "Method",
  "RunError",
  "TrainState",
  "base_config",
  "check",
  "compare",
  "dropmax_figures",
  "evaluate",
  "flatness",
  "flatten",
  "load",
  "load_outputs",
  "report",
  "train",
  "translate",
]


def __dir__() -> list[str]:
  return __all__

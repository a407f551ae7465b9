"""The trainer behind `run.py`: a program of pure steps, in the order config, setup, training, loop.

`train(config, workdir)` trains, `load(workdir)` gives the predictions of a trained model back.
"""

from jaxreg.train.checks import check
from jaxreg.train.compare import compare
from jaxreg.train.config import Config, base_config, flatten
from jaxreg.train.dropmax_figures import dropmax_figures
from jaxreg.train.errors import RunError
from jaxreg.train.flatness import flatness
from jaxreg.train.job import evaluate, report
from jaxreg.train.load import load, load_outputs
from jaxreg.train.loop import Interrupted
from jaxreg.train.methods import METHODS, Method
from jaxreg.train.state import TrainState
from jaxreg.train.training import train
from jaxreg.train.translate import translate

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

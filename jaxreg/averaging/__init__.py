"""What is kept of the parameters along training, as pure states: the best copy, means of the iterates.

Exponential moving averages of parameters are Optax's (`optax.ema`, `optax.incremental_update`) and Flax's
(`nnx.EMA`), and not repeated here but for `mean_teacher_update`, which begins as a plain mean.
"""

from jaxreg.averaging._early_stopping import EarlyStopping, EarlyStoppingState, early_stopping
from jaxreg.averaging._mean_teacher import MeanTeacherState, mean_teacher_init, mean_teacher_update
from jaxreg.averaging._swa import SWAState, batch_norm_statistics, swa_init, swa_update

__all__ = [
  "EarlyStopping",
  "EarlyStoppingState",
  "MeanTeacherState",
  "SWAState",
  "batch_norm_statistics",
  "early_stopping",
  "mean_teacher_init",
  "mean_teacher_update",
  "swa_init",
  "swa_update",
]


def __dir__() -> list[str]:
  return __all__

"""What is kept of the parameters along training, as pure states: the best copy, means of the iterates.

All have one form: `<name>_init(params) -> state`, `<name>_update(state, params, ...) -> state`, and
`state.params` are the parameters to use. Options are those of the update. A state is a pytree: it goes
through `jit`, `scan`, `vmap` and checkpoints. Floating leaves are averaged, in float32 or wider. Of other
arrays, such as the counters and keys of `nnx.split(model)[1]`, the newest are kept.
"""

from jaxreg.averaging._early_stopping import EarlyStoppingState, early_stopping_init, early_stopping_update
from jaxreg.averaging._ema import EMAState, ema_init, ema_update
from jaxreg.averaging._mean_teacher import mean_teacher_init, mean_teacher_update
from jaxreg.averaging._swa import SWAState, batch_norm_statistics, swa_init, swa_update

__all__ = [
  "EMAState",
  "EarlyStoppingState",
  "SWAState",
  "batch_norm_statistics",
  "early_stopping_init",
  "early_stopping_update",
  "ema_init",
  "ema_update",
  "mean_teacher_init",
  "mean_teacher_update",
  "swa_init",
  "swa_update",
]


def __dir__() -> list[str]:
  return __all__

"""What is kept of the parameters along training, as pure states: the best copy, the mean of the iterates.

Exponential moving averages of parameters are Optax's (`optax.ema`, `optax.incremental_update`) and Flax's
(`nnx.EMA`), and not repeated here.
"""

from jaxreg.averaging._early_stopping import EarlyStopping, EarlyStoppingState, early_stopping
from jaxreg.averaging._swa import SWAState, batch_norm_statistics, swa_init, swa_update

__all__ = [
  "EarlyStopping",
  "EarlyStoppingState",
  "SWAState",
  "batch_norm_statistics",
  "early_stopping",
  "swa_init",
  "swa_update",
]

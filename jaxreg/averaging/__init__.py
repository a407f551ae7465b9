"""Copies and means of the parameters along training, as pure states: the best copy, means of the iterates.

`<name>_init(params) -> state` and `<name>_update(state, params, ...) -> state`, with options in the update;
`state.params` are the parameters to use. A state is a pytree: it goes through `jit`, `scan`, `vmap` and
checkpoints. Floating leaves are averaged in float32 or wider; other arrays, such as the counters and keys of
`nnx.split(model)[1]`, keep their newest value. These files import JAX, Optax, NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.averaging._early_stopping import EarlyStoppingState, early_stopping_init, early_stopping_update
from jaxreg.averaging._ema import EMAState, ema_decay, ema_init, ema_update
from jaxreg.averaging._swa import batch_norm_statistics, swa_init, swa_update
from jaxreg.averaging._swag import SWAGState, swag_init, swag_sample, swag_update

__all__ = [
  "EMAState",
  "EarlyStoppingState",
  "SWAGState",
  "batch_norm_statistics",
  "early_stopping_init",
  "early_stopping_update",
  "ema_decay",
  "ema_init",
  "ema_update",
  "swa_init",
  "swa_update",
  "swag_init",
  "swag_sample",
  "swag_update",
]

suggest_names(globals())

"""Copies and means of parameters as pure states: the best copy, means of the iterates or of several networks.

A function returns an object of pure functions, as an Optax transform is one::

  average = averaging.ema(decay=0.999)
  state = average.init(params)
  state = average.update(state, params)  # after a step; early stopping also takes the metric
  averaged = average.params(state)

A state is a pytree: it goes through `jit`, `scan`, `vmap` and checkpoints. Floating leaves are averaged in
float32 or wider; other arrays, such as the counters and keys of `nnx.split(model)[1]`, keep their newest
value.
"""

from jaxreg.averaging._early_stopping import early_stopping
from jaxreg.averaging._ema import ema
from jaxreg.averaging._power_ema import power_ema
from jaxreg.averaging._soup import soup
from jaxreg.averaging._swa import batch_norm_statistics, swa
from jaxreg.averaging._swag import swag

__all__ = [
  "batch_norm_statistics",
  "early_stopping",
  "ema",
  "power_ema",
  "soup",
  "swa",
  "swag",
]

"""Copies and means of the parameters along training, as pure states: the best copy, means of the iterates.

`<name>_init(params) -> state` and `<name>_update(state, params, ...) -> state`, with options in the update;
`state.params` are the parameters to use. A state is a pytree: it goes through `jit`, `scan`, `vmap` and
checkpoints. Floating leaves are averaged in float32 or wider; other arrays, such as the counters and keys of
`nnx.split(model)[1]`, keep their newest value.
"""

from jaxreg._names import suggest_names
from jaxreg.averaging._early_stopping import early_stopping_init as early_stopping_init
from jaxreg.averaging._early_stopping import early_stopping_update as early_stopping_update
from jaxreg.averaging._ema import ema_decay as ema_decay
from jaxreg.averaging._ema import ema_init as ema_init
from jaxreg.averaging._ema import ema_update as ema_update
from jaxreg.averaging._swa import batch_norm_statistics as batch_norm_statistics
from jaxreg.averaging._swa import swa_init as swa_init
from jaxreg.averaging._swa import swa_update as swa_update
from jaxreg.averaging._swag import swag_init as swag_init
from jaxreg.averaging._swag import swag_sample as swag_sample
from jaxreg.averaging._swag import swag_update as swag_update

suggest_names(globals())

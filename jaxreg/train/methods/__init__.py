"""The methods that `method.name` can name, one file for each kind: head, loss, prediction rule and row.

`METHODS` has all rows. A new method is a loss in `jaxreg.losses`, a row here, a config and a test.
"""

from jaxreg.train.methods import (
  autoencoder,
  dropmax,
  group_softmax,
  margins,
  multitask,
  numbers,
  softmax,
  yes_or_no,
)
from jaxreg.train.methods.method import Method

METHODS: dict[str, Method] = {
  **softmax.METHODS,
  **yes_or_no.METHODS,
  **numbers.METHODS,
  **margins.METHODS,
  **group_softmax.METHODS,
  **autoencoder.METHODS,
  **multitask.METHODS,
  **dropmax.METHODS,
}

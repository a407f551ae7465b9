"""A backbone and a head."""

from typing import Any

from flax import linen as nn

from jaxreg.typing import Array


class Classifier(nn.Module):
  """`head(backbone(x))`: images or vectors to the arguments of a loss.

  Attributes:
    backbone: `(x, *, train) -> features`.
    head: `features -> outputs`, a dict whose names are the arguments of the method's loss.
  """

  backbone: nn.Module
  head: nn.Module

  def __call__(self, x: Array, *, train: bool) -> dict[str, Any]:
    return self.head(self.backbone(x, train=train))

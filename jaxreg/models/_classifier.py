"""A classifier: a backbone and a head."""

from typing import Any

from flax import linen as nn

from jaxreg.typing import Array


class Classifier(nn.Module):
  """Computes `head(backbone(x))`: maps images or vectors to the arguments of a loss.

  Attributes:
    backbone: `(x, *, train) -> features`.
    head: `features -> outputs`, a dict with the arguments of the method's loss, by name.
  """

  backbone: nn.Module
  head: nn.Module

  def __call__(self, x: Array, *, train: bool) -> dict[str, Any]:
    return self.head(self.backbone(x, train=train))

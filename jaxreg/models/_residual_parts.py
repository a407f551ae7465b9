"""Parts of residual networks: a learned scale of each channel, and convolutions with standardised kernels."""

from typing import Any

from flax import linen as nn

from jaxreg import reparam
from jaxreg.typing import Array


class LayerScale(nn.Module):
  """Multiplies each channel by a parameter that starts small: `h + LayerScale()(branch(h))`.

  Attributes:
    initial: the value at the start; a deep network begins as nearly its shortcuts alone.

  References:
    Touvron et al., `Going deeper with Image Transformers`, 2021, section 2.
  """

  initial: float = 1e-4

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale = self.param("scale", nn.initializers.constant(self.initial), x.shape[-1:])
    return x * scale.reshape(*[1] * (x.ndim - 1), -1)


class StandardizedConv(nn.Conv):
  """`nn.Conv` with the kernel `reparam.weight_standardization` of its parameter `kernel`.

  References:
    Qiao et al., `Micro-Batch Training with Batch-Channel Normalization and Weight Standardization`, 2019.
  """

  def param(self, name: str, *args: Any, **kwargs: Any) -> Any:
    value = super().param(name, *args, **kwargs)
    return reparam.weight_standardization(value) if name == "kernel" else value

"""Remarks on inputs that a network learns badly from, because of their scale."""

import numpy as np

from jaxreg.train.data.dataset import Dataset, is_tokens, six_digits
from jaxreg.train.data.images import Images

LARGEST, SMALLEST = 10.0, 0.1  # of the root mean squares of features that need no remark
PIXELS = 32  # columns of whole numbers in 0 to 255, from which they count as pixels


def remark(
  data: Dataset,
  *,
  scale: str = "its Dataset the scale",
  standardize: str = "its Dataset the mean and the std",
) -> str:
  """One line on the scale of the training inputs, or "".

  Args:
    data: the data set.
    scale, standardize: the names of what divides the inputs, and of what standardises the features.
  """
  inputs = data.train.inputs
  if data.scale != 1 or data.mean or isinstance(inputs, Images) or is_tokens(inputs.dtype):
    return ""
  top = float(inputs.max())
  if top > 1 and _are_pixels(inputs):
    divisor = 255 if top > 100 else round(top)
    return f"the inputs are pixels up to {top:g}, and nothing divides them; give {scale}={divisor}"
  if inputs.ndim != 2 or inputs.dtype == np.uint8:
    return ""
  sizes = np.sqrt(np.square(inputs, dtype=np.float64).mean(0))
  if SMALLEST <= sizes.max() <= LARGEST:
    return ""
  return (
    f"the features are not standardised, their root mean squares are {sizes.min():.2g} to {sizes.max():.2g}; "
    f"give {standardize}"
  )


def moments(inputs: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """The mean and the standard deviation of each feature, the last axis; 1 for a constant one."""
  flat = inputs.reshape(-1, inputs.shape[-1]).astype(np.float64)
  std = flat.std(0)
  return six_digits(flat.mean(0)), six_digits(np.where(std > 0, std, 1.0))


def _are_pixels(inputs: np.ndarray) -> bool:
  """Whether the inputs are bytes, or look like pixels: of images, or whole numbers in many columns."""
  if inputs.dtype == np.uint8:
    return True
  if inputs.min() < 0 or inputs.max() > 255:
    return False
  return inputs.ndim > 2 or (inputs.shape[1] >= PIXELS and bool((inputs == np.round(inputs)).all()))

"""Parameters of PyTorch's ResNets in our layout."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.typing import ArrayLike

# torchvision's names, and ours as `{module}/{leaf}`. In a block of three convolutions the shortcut's is the
# fourth, and in a block of two the third.
_MODULES = {
  r"conv1": "backbone/Conv_0",
  r"bn1": "backbone/BatchNorm_0",
  r"layer(\d+)\.(\d+)\.conv(\d+)": "backbone/stage{0}_block{1}/Conv_{2}",
  r"layer(\d+)\.(\d+)\.bn(\d+)": "backbone/stage{0}_block{1}/BatchNorm_{2}",
  r"layer(\d+)\.(\d+)\.downsample\.0": "backbone/stage{0}_block{1}/Conv_{shortcut}",
  r"layer(\d+)\.(\d+)\.downsample\.1": "backbone/stage{0}_block{1}/BatchNorm_{shortcut}",
  r"fc": "head/classifier",
}
_LEAVES = {
  ("BatchNorm", "weight"): ("params", "scale"),
  ("BatchNorm", "bias"): ("params", "bias"),
  ("BatchNorm", "running_mean"): ("batch_stats", "mean"),
  ("BatchNorm", "running_var"): ("batch_stats", "var"),
  ("Conv", "weight"): ("params", "kernel"),
  ("classifier", "weight"): ("params", "kernel"),
  ("classifier", "bias"): ("params", "bias"),
}
_COUNTED_FROM_ZERO = (1,)  # groups of a name that count blocks; layers and convolutions count from one


def resnet_from_torch(tensors: Mapping[str, ArrayLike]) -> dict[str, Any]:
  """Converts PyTorch's variables for `Classifier(ResNet(depth, stem="imagenet"), SoftmaxHead(classes))`.

  Takes torchvision's layout of ResNet-18 to -152, which timm's `resnet18` to `resnet152` share: kernels
  `[out, in, height, width]` become `[height, width, in, out]`, and BatchNorm's statistics `batch_stats`.

  Args:
    tensors: a `state_dict()` as NumPy arrays, or `safetensors.numpy.load_file(file)`. Without `fc`, there is
      no head.

  Returns:
    `{"params": ..., "batch_stats": ...}`, each with `backbone`, on the host, in the data types given.

  Raises:
    ValueError: for a name that torchvision's ResNets do not have.

  Example:
    >>> fc = {"fc.weight": np.ones((10, 512)), "fc.bias": np.zeros(10)}
    >>> resnet_from_torch(fc)["params"]["head"]["classifier"]["kernel"].shape
    (512, 10)

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, table 1.
  """
  variables: dict[str, Any] = {"params": {}, "batch_stats": {}}
  shortcut = 3 if any(name.endswith(".conv3.weight") for name in tensors) else 2
  for name, x in tensors.items():
    module, _, leaf = name.rpartition(".")
    if leaf == "num_batches_tracked":  # BatchNorm's mean has a fixed momentum
      continue
    path = _path(module, shortcut)
    kind = path.rpartition("/")[2].partition("_")[0]
    if (kind, leaf) not in _LEAVES:
      raise ValueError(f"tensors must be named as torchvision's ResNets name them, got {name!r}")
    collection, ours = _LEAVES[kind, leaf]
    part = variables[collection]
    for each in path.split("/"):
      part = part.setdefault(each, {})
    x = np.asarray(x)
    part[ours] = np.moveaxis(x, (0, 1), (-1, -2)) if ours == "kernel" and x.ndim > 1 else x
  return variables


def _path(module: str, shortcut: int) -> str:
  """Returns our name of a module; empty if there is none."""
  for pattern, path in _MODULES.items():
    if match := re.fullmatch(pattern, module):
      numbers = (int(n) - (i not in _COUNTED_FROM_ZERO) for i, n in enumerate(match.groups()))
      return path.format(*numbers, shortcut=shortcut)
  return ""

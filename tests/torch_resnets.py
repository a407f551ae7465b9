"""Parameters in the layout of torchvision's ResNets, without PyTorch."""

import numpy as np

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def shapes(depth, width, classes, colours=3):
  """The names and shapes of torchvision's ResNet, from its architecture."""
  found, expansion, channels = {}, 4 if depth >= 50 else 1, width

  def layer(conv, norm, out, into, size):
    found[f"{conv}.weight"] = (out, into, size, size)
    found[f"{norm}.num_batches_tracked"] = ()
    for leaf in ("weight", "bias", "running_mean", "running_var"):
      found[f"{norm}.{leaf}"] = (out,)

  layer("conv1", "bn1", width, colours, 7)
  for stage, number in enumerate(BLOCKS[depth]):
    inner = width * 2**stage
    for index in range(number):
      name = f"layer{stage + 1}.{index}"
      outs, sizes = ((inner, inner, 4 * inner), (1, 3, 1)) if expansion == 4 else ((inner, inner), (3, 3))
      for i, (out, into, size) in enumerate(zip(outs, (channels, *outs), sizes), 1):
        layer(f"{name}.conv{i}", f"{name}.bn{i}", out, into, size)
      if index == 0 and (stage or expansion == 4):
        layer(f"{name}.downsample.0", f"{name}.downsample.1", expansion * inner, channels, 1)
      channels = expansion * inner
  return found | {"fc.weight": (classes, channels), "fc.bias": (classes,)}


def random_tensors(wanted, seed=0):
  """Kernels that keep the scale of their inputs, and statistics of BatchNorm away from 0 and 1."""
  rng, tensors = np.random.default_rng(seed), {}
  for name, shape in wanted.items():
    if name.endswith("num_batches_tracked"):
      tensors[name] = np.array(100)
    elif len(shape) > 1:
      tensors[name] = rng.normal(0, np.sqrt(1 / np.prod(shape[1:])), shape).astype(np.float32)
    else:
      low, high = (0.5, 1.5) if name.endswith(("running_var", "weight")) else (-0.5, 0.5)
      tensors[name] = rng.uniform(low, high, shape).astype(np.float32)
  return tensors

"""The network of `_flatness_problem.make_convolutions` in PyTorch, for two peers."""

import torch
from torch.nn import functional


class Network(torch.nn.Module):
  """The network of `_flatness_problem.make_convolutions`, in PyTorch's order of axes."""

  def __init__(self, arrays):
    super().__init__()
    kernel = lambda name: torch.nn.Parameter(torch.from_numpy(arrays[name].transpose(3, 2, 0, 1).copy()))
    self.stem, self.first, self.second = map(kernel, ("stem", "first", "second"))
    self.last = torch.nn.Parameter(torch.from_numpy(arrays["last"]))

  def forward(self, x):
    convolve = lambda x, kernel: functional.conv2d(x, kernel, padding=1)
    x = functional.relu(convolve(x, self.stem))
    x = functional.relu(x + convolve(functional.relu(convolve(x, self.first) - 0.1), self.second))
    return x.mean(dim=(2, 3)) @ self.last


def load(arrays):
  """Images and labels, with channels last in memory."""
  images = torch.from_numpy(arrays["inputs"].transpose(0, 3, 1, 2).copy())
  return images.contiguous(memory_format=torch.channels_last), torch.from_numpy(arrays["labels"]).long()

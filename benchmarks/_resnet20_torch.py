"""akamaster's ResNet-20 for CIFAR-10 in PyTorch, with the names of its state dict."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
  """Two 3x3 convolutions with BatchNorm; the shortcut pads channels with zeros."""

  def __init__(self, inputs, width):
    super().__init__()
    self.stride, self.pad = 1 + (inputs != width), (width - inputs) // 2
    self.conv1, self.bn1 = convolution(inputs, width, self.stride), nn.BatchNorm2d(width)
    self.conv2, self.bn2 = convolution(width, width, 1), nn.BatchNorm2d(width)

  def forward(self, x):
    y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
    shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
    return functional.relu(y + shortcut)


class ResNet20(nn.Module):
  def __init__(self):
    super().__init__()
    self.conv1, self.bn1 = convolution(3, 16, 1), nn.BatchNorm2d(16)
    self.layer1, self.layer2, self.layer3 = (
      nn.Sequential(Block(inputs, width), Block(width, width), Block(width, width))
      for inputs, width in ((16, 16), (16, 32), (32, 64))
    )
    self.linear = nn.Linear(64, 10)

  def forward(self, x):
    x = functional.relu(self.bn1(self.conv1(x)))
    return self.linear(self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3)))


def convolution(inputs, width, stride):
  return nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)


def load(arrays):
  """Returns the network of a state dict, and images and labels with channels last in memory."""
  model = ResNet20()
  names = {name for name in model.state_dict() if "num_batches" not in name}
  model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in names}, strict=False)
  images = torch.from_numpy(arrays["inputs"].transpose(0, 3, 1, 2).copy())
  images = images.contiguous(memory_format=torch.channels_last)
  return model.to(memory_format=torch.channels_last), images, torch.from_numpy(arrays["labels"]).long()

"""The PyTorch side of the benchmark of training steps, a process of its own that does what lines ask for.

A line is `{"task": network, "options": {"number": steps}}`, the answer `{"seconds": s, "notes": {}}`. A step
is what the trainer's is: a batch of bytes from memory, scaled, for ResNet-20 and the ViT cropped and flipped
image by image; SGD with momentum; loss and accuracy read. Images are channels-last. With `--compile MODE` the
network is compiled. The task `NETWORK, forward` is the prediction of a batch that is there,
`NETWORK, products` the matrix products and convolutions alone, with their gradients.
"""

import argparse
import json
import os
import sys
import tempfile

import torch
from _clock import now
from _products import layers
from torch import nn
from torch.nn import functional as F

EXAMPLES = 1024


class Block(nn.Module):
  """Two convolutions and a shortcut without parameters."""

  def __init__(self, inputs, width, stride):
    super().__init__()
    self.first = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
    self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
    self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
    self.stride, self.more = stride, width - inputs

  def forward(self, x):
    y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
    x = x[:, :, :: self.stride, :: self.stride]
    return F.relu(y + F.pad(x, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)))


def resnet20():
  layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
  for inputs, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
    layers += [Block(inputs, width, stride), Block(width, width, 1), Block(width, width, 1)]
  return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp():
  hidden = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
  return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(1024, 10))


def lenet():
  convolutions = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU()]
  hidden = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU()]
  return nn.Sequential(*convolutions, *hidden, nn.Linear(500, 10))


class Attention(nn.Module):
  """Attention and an MLP, each a branch after a LayerNorm."""

  def __init__(self, width, heads, hidden):
    super().__init__()
    self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
    self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU("tanh"), nn.Linear(hidden, width))
    self.heads = heads

  def forward(self, x):
    batch, tokens, width = x.shape
    split = self.joint(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(*split).transpose(1, 2).reshape(batch, tokens, width)
    x = x + self.out(y)
    return x + self.mlp(self.norms[1](x))


class ViT(nn.Module):
  def __init__(self, width=128, depth=6, heads=4, hidden=256, patch=4, tokens=64):
    super().__init__()
    self.patches = nn.Conv2d(3, width, patch, patch)
    self.register_buffer("positions", torch.randn(tokens, width))  # fixed, as sines and cosines are
    self.blocks = nn.Sequential(*(Attention(width, heads, hidden) for _ in range(depth)))
    self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

  def forward(self, x):
    x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
    return self.head(self.norm(self.blocks(x)).mean(1))


def augmented(x):
  """Zero padding by 4, a crop of the old size and a flip, drawn for each image."""
  rows, side = torch.arange(len(x))[:, None, None], torch.arange(x.shape[-1])
  top, left = torch.randint(0, 9, (2, len(x), 1))
  down, across = (top + side)[:, :, None], (left + side)[:, None, :]
  x = F.pad(x, (4, 4, 4, 4))[rows, :, down, across].permute(0, 3, 1, 2)
  return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)


class Side:
  """A network with its optimizer and its images in memory."""

  def __init__(self, mode, make, image, batch_size, augment):
    self.model = make().to(memory_format=torch.channels_last)
    if mode:
      self.model = torch.compile(self.model, mode=mode)
    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
    self.images = torch.randint(0, 256, (EXAMPLES, *image), dtype=torch.uint8)
    self.labels = torch.randint(0, 10, (EXAMPLES,))
    self.batch_size, self.augment = batch_size, augment

  def step(self):
    chosen = torch.randint(0, EXAMPLES, (self.batch_size,))
    x, labels = self.images[chosen].float() / 255, self.labels[chosen]
    x = (augmented(x) if self.augment else x).contiguous(memory_format=torch.channels_last)
    self.optimizer.zero_grad()
    logits = self.model(x)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    self.optimizer.step()
    return loss.item(), (logits.argmax(1) == labels).float().mean().item()


class Forward(Side):
  """The network's prediction of one batch."""

  def __init__(self, *arguments):
    super().__init__(*arguments)
    self.model.eval()
    x = self.images[: self.batch_size].float() / 255
    self.x = x.contiguous(memory_format=torch.channels_last)

  def step(self):
    with torch.inference_mode():
      self.model(self.x).log_softmax(1)


class Products:
  """The matrix products and convolutions of a network with their gradients."""

  def __init__(self, network):
    self.layers = []
    for layer in layers(network):
      left, right = torch.randn(layer.left), torch.randn(layer.right)
      if not layer.equation:  # an image is read as NCHW, a kernel as OIHW, both with channels last
        left = left.permute(0, 3, 1, 2)
        right = right.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
      wanted = [right.requires_grad_()] if layer.first else [left.requires_grad_(), right.requires_grad_()]
      out = torch.randn_like(self.product(layer, left, right))
      self.layers.append((layer, left, right, wanted, out))

  @staticmethod
  def product(layer, left, right):
    if layer.equation:
      return torch.einsum(layer.equation, left, right)
    return F.conv2d(left, right, stride=layer.stride, padding=layer.padding)

  def step(self):
    for layer, left, right, wanted, out in self.layers:
      torch.autograd.grad(self.product(layer, left, right), wanted, out)


SIDES = {
  "MLP": (mlp, (1, 28, 28), 128, False),
  "LeNet": (lenet, (1, 28, 28), 50, False),
  "ResNet-20": (resnet20, (3, 32, 32), 128, True),
  "ViT": (ViT, (3, 32, 32), 128, True),
}


def make(task, mode):
  network, _, part = task.partition(", ")
  if part == "products":
    return Products(network)
  return (Forward if part else Side)(mode, *SIDES[network])


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--compile", metavar="MODE")
  mode, sides = parser.parse_args().compile, {}
  cache = tempfile.TemporaryDirectory()  # an empty one, so that the first call compiles
  os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
  for line in sys.stdin:
    task = json.loads(line)
    start = now()
    if task["task"] not in sides:
      sides[task["task"]] = make(task["task"], mode)
    for _ in range(task["options"]["number"]):
      sides[task["task"]].step()
    print(json.dumps({"seconds": now() - start, "notes": {}}), flush=True)


if __name__ == "__main__":
  main()

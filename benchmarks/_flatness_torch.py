"""The PyTorch side of the benchmark of flatness, a process of its own that does what lines on stdin ask for.

    python _flatness_torch.py problem.npz

A line is `{"task": name, "options": {...}, "save": path}`, the answer `{"seconds": s, "notes": {...}}`. Tasks
that time only a part of their rows, samples or directions scale that part up; the caller marks them. All take
`problem`: what counts is the `layer` between the hidden ones, the `whole` network, a kernel of
`convolutions.npz` beside the other file, or the parameters of `resnet20.npz`, `resnet20` all and
`resnet20_kernels` those of its convolutions and its head; and `double`, for float64.
"""

import ctypes
import json
import sys
from functools import cache
from pathlib import Path

import _flatness_libraries as libraries
import numpy as np
import torch
from _clock import now
from _convolutions_torch import Network, load
from _resnet20_torch import load as load_resnet20

KEEP = 0.8
NUMBERS = {"layer": (1,), "whole": (0, 1, 2)}  # of the layers that count


class Problem:
  """A model, its data, and the parameters that ask for gradients: the others are constant."""

  def __init__(self, model, inputs, labels, subset):
    self.model, self.inputs, self.labels, self.subset = (
      model.requires_grad_(False).eval(),
      inputs,
      labels,
      subset,
    )
    for parameter in subset:
      parameter.requires_grad_(True)
    self.criterion = torch.nn.CrossEntropyLoss()
    self.batches = [(inputs, labels)]
    self.operators = {}
    self.sizes = [p.numel() for p in subset]
    self.size = sum(self.sizes)
    # Where the entries of the other side's vectors are in ours.
    self.order = join(self.reordered(self.split(torch.arange(self.size))))

  def loss(self):
    return self.criterion(self.model(self.inputs), self.labels)

  def split(self, vector):
    return [part.reshape(p.shape) for part, p in zip(vector.split(self.sizes), self.subset, strict=True)]

  def theirs(self, vector):
    """A vector in the other side's order, in ours."""
    return torch.zeros_like(vector).index_copy(0, self.order, vector)

  def unit(self, index):
    return torch.zeros(self.size, dtype=self.subset[0].dtype).index_fill(0, torch.tensor(index), 1.0)


class Dense(Problem):
  """The network of dense layers, of which those of these numbers ask for gradients."""

  def __init__(self, arrays, numbers, dtype):
    self.layers = [torch.nn.Linear(*arrays[f"Dense_{i}/kernel"].shape) for i in range(3)]
    array = lambda name: torch.from_numpy(arrays[name].T.copy()).to(dtype)
    for i, layer in enumerate(self.layers):
      layer.weight.data, layer.bias.data = array(f"Dense_{i}/kernel"), array(f"Dense_{i}/bias")
    first, second, third = self.layers
    relu, dropout = torch.nn.ReLU(), torch.nn.Dropout(1 - KEEP)
    model = torch.nn.Sequential(first, relu, second, relu, dropout, third)
    inputs, labels = torch.from_numpy(arrays["inputs"]).to(dtype), torch.from_numpy(arrays["labels"]).long()
    super().__init__(model, inputs, labels, [p for i in numbers for p in self.layers[i].parameters()])

  def reordered(self, parts):
    """Weights `[out, in]` and biases as biases and kernels `[in, out]`."""
    for weight, bias in zip(parts[::2], parts[1::2], strict=True):
      yield from (bias, weight.T)


class Convolutional(Problem):
  """The residual network, of which one kernel asks for gradients."""

  def __init__(self, arrays, dtype):
    model, (images, labels) = Network(arrays).to(dtype), load(arrays)
    super().__init__(model, images.to(dtype), labels, [model.first])

  def reordered(self, parts):
    """Kernels `[out, in, height, width]` as `[height, width, in, out]`."""
    return [part.permute(2, 3, 1, 0) for part in parts]


class Public(Problem):
  """A public ResNet-20, a few images at a time; `order` comes with its file."""

  def __init__(self, arrays, which, dtype):
    model, images, labels = load_resnet20(arrays)
    model, images = model.to(dtype), images.to(dtype)
    parameters = dict(model.named_parameters())
    super().__init__(model, images, labels, [parameters[name] for name in arrays[f"{which}_names"]])
    at_once = int(arrays["at_once"])
    self.batches = list(zip(images.split(at_once), labels.split(at_once), strict=True))
    self.order = torch.from_numpy(arrays[f"{which}_order"])

  def reordered(self, parts):
    return parts


@cache
def problem_of(name="layer", double=False):
  path, dtype = Path(sys.argv[1]), torch.float64 if double else torch.float32
  if name == "convolutions":
    return Convolutional(np.load(path.with_name("convolutions.npz")), dtype)
  if name.startswith("resnet20"):
    return Public(np.load(path.with_name("resnet20.npz")), name, dtype)
  return Dense(np.load(path), NUMBERS[name], dtype)


def join(parts):
  return torch.cat([part.reshape(-1) for part in parts])


def scaled(begun, done, whole):
  return (now() - begun) * whole / done


def hessian_curvlinops(problem, rows):
  began = now()
  operator = libraries.hessian(problem)
  once = now() - began
  columns = torch.stack([problem.unit(int(i)) for i in problem.order[:rows]], dim=1)
  began = now()
  found = operator @ columns
  return once + scaled(began, rows, problem.size), {}, found.detach().T[:, problem.order]


def hessian_functional(problem, examples):
  """`torch.func.hessian` on the first chunk of examples; the rows are of that chunk's loss."""
  fixed = {name: p.detach() for name, p in problem.model.named_parameters()}
  inputs, labels = problem.inputs[:examples], problem.labels[:examples]

  def loss(vector):
    weight, bias = problem.split(vector)
    parameters = {**fixed, "2.weight": weight, "2.bias": bias}
    outputs = torch.func.functional_call(problem.model, parameters, (inputs,))
    return problem.criterion(outputs, labels)

  began = now()
  found = torch.func.hessian(loss)(join(problem.subset).detach())
  seconds = scaled(began, examples, len(problem.inputs))
  return seconds, {}, found[problem.order[:8]][:, problem.order]


def hessian_reference(problem, rows, examples):
  """The first rows, of the first examples, by two backward passes."""
  loss = problem.criterion(problem.model(problem.inputs[:examples]), problem.labels[:examples])
  gradient = join(torch.autograd.grad(loss, problem.subset, create_graph=True))
  found = [
    join(torch.autograd.grad(gradient[i], problem.subset, retain_graph=True)) for i in problem.order[:rows]
  ]
  return 0.0, {}, torch.stack(found)[:, problem.order]


def gradients(problem, samples, drawn):
  """The paper's loop: gradients under dropout, and their covariance."""
  problem.model.train()
  began = now()
  rows = [join(torch.autograd.grad(problem.loss(), problem.subset)) for _ in range(drawn)]
  seconds = scaled(began, drawn, samples)
  problem.model.eval()
  found = torch.stack(rows).repeat(-(-samples // drawn), 1)[:samples]
  began = now()
  centred = found - found.mean(dim=0)
  covariance = centred.T @ centred / samples
  return seconds + now() - began, {}, covariance


def intervals(problem, directions, number, rtol):
  """Bracketing from a small step, then bisection, the whole network at every evaluation."""
  directions = torch.from_numpy(np.load(directions))
  start = [p.detach().clone() for p in problem.subset]

  @torch.inference_mode()
  def loss(direction, t):
    for parameter, at, step in zip(problem.subset, start, direction, strict=True):
      parameter.data = at + t * step
    return problem.loss().item()

  def line(direction):
    parts = problem.split(problem.theirs(direction))
    return lambda t: loss(parts, t)

  try:
    return search(line, directions, number, rtol)
  finally:
    for parameter, at in zip(problem.subset, start, strict=True):
      parameter.data = at


def search(line, directions, number, rtol, first=0.01, growth=1.5, cap=1e6):
  """Seconds for `number` directions, from as many as there are; widths and evaluations of each."""
  evaluations = 0
  began = now()
  target, widths = None, []
  for direction in directions:
    profile = line(direction)
    target = target or 2 * profile(0.0)
    width = 0.0
    for sign in (-1, 1):
      low, high = 0.0, first
      evaluations += 1
      while profile(sign * high) < target and high < cap:
        low, high = high, high * growth
        evaluations += 1
      if high >= cap:
        width = float("inf")
        continue
      while high - low > rtol * high:
        middle = (low + high) / 2
        evaluations += 1
        if profile(sign * middle) < target:
          low = middle
        else:
          high = middle
      width += (low + high) / 2
    widths.append(width)
  seconds = (now() - began) * number / len(directions)
  return seconds, {"evaluations": evaluations / len(directions)}, torch.tensor(widths)


def trim(problem):
  """Gives free memory back, before the peak of another task is measured."""
  problem.operators.clear()
  ctypes.CDLL(None).malloc_trim(0)
  return 0.0, {}, torch.zeros(0)


TASKS = {
  "trim": trim,
  "hessian_curvlinops": hessian_curvlinops,
  "hessian_functional": hessian_functional,
  "hessian_reference": hessian_reference,
  "gradients": gradients,
  "intervals": intervals,
  "product": libraries.product,
  "kfac": libraries.kfac,
  "trace": libraries.trace,
  "eigenpairs": libraries.eigenpairs,
  "density": libraries.density,
}


def main() -> None:
  # What the libraries print must not get among the answers.
  answers, sys.stdout = sys.stdout, sys.stderr
  for line in sys.stdin:
    request = json.loads(line)
    options = request["options"]
    problem = problem_of(options.pop("problem", "layer"), options.pop("double", False))
    seconds, notes, found = TASKS[request["task"]](problem, **options)
    if request["save"]:
      np.save(request["save"], found.detach().numpy())
    print(json.dumps({"seconds": seconds, "notes": notes}), file=answers, flush=True)


if __name__ == "__main__":
  main()

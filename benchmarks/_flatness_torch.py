"""The PyTorch side of the benchmark of flatness, a process of its own that does what lines on stdin ask for.

    python _flatness_torch.py problem.npz

A line is `{"task": name, "options": {...}, "save": path}`, the answer `{"seconds": s, "notes": {...}}`. Tasks
that time only a part of their rows, samples or directions scale that part up; the caller marks them.
"""

import json
import sys

import _flatness_torch_dense as structured
import curvlinops
import numpy as np
import pyhessian
import torch
from _clock import now
from pyhessian.utils import hessian_vector_product
from scipy.sparse.linalg import eigsh

KEEP = 0.8


class Problem:
  """The network as PyTorch has it; only the layer between the hidden ones asks for gradients."""

  def __init__(self, path):
    arrays = np.load(path)
    self.inputs = torch.from_numpy(arrays["inputs"])
    self.labels = torch.from_numpy(arrays["labels"]).long()
    layers = [torch.nn.Linear(*arrays[f"Dense_{i}/kernel"].shape) for i in range(3)]
    for i, layer in enumerate(layers):
      layer.weight.data = torch.from_numpy(arrays[f"Dense_{i}/kernel"].T.copy())
      layer.bias.data = torch.from_numpy(arrays[f"Dense_{i}/bias"])
    first, second, third = layers
    relu, dropout = torch.nn.ReLU(), torch.nn.Dropout(1 - KEEP)
    self.model = torch.nn.Sequential(first, relu, second, relu, dropout, third)
    self.model.requires_grad_(False)
    second.requires_grad_(True)
    self.subset = [second.weight, second.bias]
    self.layers = layers
    self.size = sum(p.numel() for p in self.subset)
    self.criterion = torch.nn.CrossEntropyLoss()
    # Where in this order, weight [out, in] and bias, the entries of the other side's are, bias and kernel
    # [in, out].
    units, inputs = second.weight.shape
    weight = torch.arange(units * inputs).reshape(units, inputs)
    self.order = torch.cat([units * inputs + torch.arange(units), weight.T.reshape(-1)])

  def loss(self):
    return self.criterion(self.model(self.inputs), self.labels)

  def split(self, vector):
    weight, _ = self.subset
    return [vector[: weight.numel()].reshape(weight.shape), vector[weight.numel() :]]

  def theirs(self, vector):
    """A vector in the other side's order, in ours."""
    return torch.zeros_like(vector).index_copy(0, self.order, vector)

  def unit(self, index):
    return torch.zeros(self.size, dtype=self.subset[0].dtype).index_fill(0, torch.tensor(index), 1.0)


def join(parts):
  return torch.cat([part.reshape(-1) for part in parts])


def scaled(begun, done, whole):
  return (now() - begun) * whole / done


def hessian_pyhessian(problem, rows):
  began = now()
  operator = pyhessian.hessian(problem.model, problem.criterion, (problem.inputs, problem.labels), cuda=False)
  once = now() - began
  began = now()
  found = [join(product(operator, problem.unit(int(problem.order[i])), problem)) for i in range(rows)]
  seconds = once + scaled(began, rows, problem.size)
  return seconds, {}, torch.stack(found)[:, problem.order]


def product(operator, vector, problem):
  return hessian_vector_product(operator.gradsH, operator.params, problem.split(vector))


def hessian_curvlinops(problem, rows):
  problem.model.eval()
  began = now()
  operator = linear_operator(problem)
  once = now() - began
  columns = torch.stack([problem.unit(int(i)) for i in problem.order[:rows]], dim=1)
  began = now()
  found = operator @ columns
  return once + scaled(began, rows, problem.size), {}, found.detach().T[:, problem.order]


def linear_operator(problem):
  return curvlinops.HessianLinearOperator(
    problem.model,
    problem.criterion,
    problem.subset,
    [(problem.inputs, problem.labels)],
    check_deterministic=False,
  )


def hessian_functional(problem, examples):
  """`torch.func.hessian` on the first chunk of examples; the rows are of that chunk's loss."""
  problem.model.eval()
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
  """The first rows in float64, of the first examples, by two backward passes."""
  model = torch.nn.Sequential(*problem.model).double().eval()
  try:
    loss = problem.criterion(model(problem.inputs[:examples].double()), problem.labels[:examples])
    gradient = join(torch.autograd.grad(loss, problem.subset, create_graph=True))
    found = [
      join(torch.autograd.grad(gradient[i], problem.subset, retain_graph=True)) for i in problem.order[:rows]
    ]
  finally:
    model.float()
  return 0.0, {}, torch.stack(found)[:, problem.order]


def gradients(problem, samples, drawn):
  """The paper's loop: gradients under dropout, and their covariance."""
  problem.model.train()
  began = now()
  rows = [join(torch.autograd.grad(problem.loss(), problem.subset)) for _ in range(drawn)]
  seconds = scaled(began, drawn, samples)
  found = torch.stack(rows).repeat(-(-samples // drawn), 1)[:samples]
  began = now()
  centred = found - found.mean(dim=0)
  covariance = centred.T @ centred / samples
  return seconds + now() - began, {}, covariance


def alignment(problem, samples, drawn):
  """One point of figure 4: gradients, a product with the Hessian for each, and the trace of the Hessian."""
  seconds, _, _ = gradients(problem, samples, drawn)
  vectors = torch.randn(drawn, problem.size)
  began = now()
  operator = pyhessian.hessian(problem.model, problem.criterion, (problem.inputs, problem.labels), cuda=False)
  operator.trace()
  once = now() - began
  began = now()
  for vector in vectors:
    torch.dot(join(product(operator, vector, problem)), vector)
  return seconds + once + scaled(began, drawn, samples), {}, None


def eigenvalues_pyhessian(problem, num):
  began = now()
  operator = pyhessian.hessian(problem.model, problem.criterion, (problem.inputs, problem.labels), cuda=False)
  values, _ = operator.eigenvalues(top_n=num)
  return now() - began, {}, torch.tensor(values)


def eigenvalues_curvlinops(problem, num):
  problem.model.eval()
  began = now()
  values, _ = eigsh(linear_operator(problem).to_scipy(), k=num, which="LA", tol=1e-4)
  return now() - began, {}, torch.from_numpy(values[::-1].copy())


def intervals(problem, directions, number, rtol):
  """Bracketing from a small step, then bisection, the whole network at every evaluation."""
  problem.model.eval()
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
    return structured.search(line, directions, number, rtol)
  finally:
    for parameter, at in zip(problem.subset, start, strict=True):
      parameter.data = at


def decompositions(problem, samples):
  """What is left of figures 2 and 3: principal components of samples, a Hessian's eigenpairs, projections."""
  generator = torch.Generator().manual_seed(0)
  found = torch.randn(samples, problem.size, generator=generator)
  matrix = structured.hessian(problem, chunk=1000)[2]
  began = now()
  centred = found - found.mean(dim=0)
  structured.eigenpairs(centred.T @ centred / samples)
  _, vectors = structured.eigenpairs(matrix)
  (centred @ vectors).square().mean(dim=0)
  return now() - began, {}, None


TASKS = {
  "hessian_pyhessian": hessian_pyhessian,
  "hessian_curvlinops": hessian_curvlinops,
  "hessian_functional": hessian_functional,
  "hessian_reference": hessian_reference,
  "hessian_structured": structured.hessian,
  "gradients": gradients,
  "covariance_structured": structured.covariance,
  "alignment": alignment,
  "alignment_structured": structured.alignment,
  "eigenvalues_pyhessian": eigenvalues_pyhessian,
  "eigenvalues_curvlinops": eigenvalues_curvlinops,
  "intervals": intervals,
  "intervals_structured": structured.intervals,
  "decompositions": decompositions,
  "decompositions_structured": structured.decompositions,
}


def main() -> None:
  problem = Problem(sys.argv[1])
  # What the libraries print must not get among the answers.
  answers, sys.stdout = sys.stdout, sys.stderr
  for line in sys.stdin:
    request = json.loads(line)
    seconds, notes, found = TASKS[request["task"]](problem, **request["options"])
    if request["save"]:
      np.save(request["save"], found.detach().numpy())
    print(json.dumps({"seconds": seconds, "notes": notes}), file=answers, flush=True)


if __name__ == "__main__":
  main()

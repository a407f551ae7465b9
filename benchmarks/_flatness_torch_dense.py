"""jaxreg's algorithms for a dense layer, written in PyTorch: what of the gain is the algorithm's."""

import numpy as np
import torch
from _clock import now


@torch.inference_mode()
def layer(problem):
  """Outputs and inputs of the layer between the hidden ones."""
  first, second, _ = problem.layers
  hidden = torch.relu(first(problem.inputs))
  return second(hidden), hidden


@torch.inference_mode()
def blocks(problem, of_chunk, chunk):
  """The packed sum over examples of Kronecker products, a matrix product a chunk."""
  z, hidden = layer(problem)
  units, inputs = z.shape[1], hidden.shape[1] + 1
  outer, inner = torch.triu_indices(units, units), torch.triu_indices(inputs, inputs)
  total = torch.zeros(outer.shape[1], inner.shape[1])
  for part in range(0, len(z), chunk):
    cut = slice(part, part + chunk)
    ones = torch.ones(len(z[cut]), 1)
    h = torch.cat([ones, hidden[cut]], dim=1)
    left = of_chunk(z[cut], problem.labels[cut])[:, outer[0], outer[1]]
    total.addmm_(left.T, h[:, inner[0]] * h[:, inner[1]])
  return total


def curvature(problem):
  third = problem.layers[2]

  def of_chunk(z, labels):
    probabilities = torch.softmax(third(torch.relu(z)), dim=1)
    # [n, classes, units]: the classes' rows of the last layer, where the units are alive.
    rows = third.weight[None] * (z > 0)[:, None, :]
    mean = torch.einsum("nc,ncu->nu", probabilities, rows)
    weighted = torch.sqrt(probabilities)[:, :, None] * (rows - mean[:, None])
    return weighted.transpose(1, 2) @ weighted

  return of_chunk


def noise(problem, masks, keep=0.8):
  third = problem.layers[2]

  def of_chunk(z, labels):
    hidden = torch.relu(z)
    kept = (torch.rand(masks, *z.shape) < keep) / keep
    difference = torch.softmax(third(hidden[None] * kept), dim=2)
    difference -= torch.nn.functional.one_hot(labels, difference.shape[2])[None]
    drawn = (difference @ third.weight) * kept * (z > 0)[None]
    drawn -= drawn.mean(dim=0)
    drawn = drawn.transpose(0, 1)
    return drawn.transpose(1, 2) @ drawn / (masks - 1)

  return of_chunk


def unpacked(packed, units, inputs):
  """The matrix over bias and kernel `[inputs, units]`, as the other side orders them."""
  outer, inner = index(units), index(inputs)
  grid = packed[outer.reshape(-1)][:, inner.reshape(-1)].reshape(units, units, inputs, inputs)
  return grid.permute(2, 0, 3, 1).reshape(units * inputs, units * inputs)


def index(size):
  rows, columns = torch.triu_indices(size, size)
  found = torch.zeros(size, size, dtype=torch.long)
  found[rows, columns] = found[columns, rows] = torch.arange(len(rows))
  return found


def matrix(problem, packed):
  units, inputs = problem.layers[1].weight.shape
  return unpacked(packed, units, inputs + 1)


def hessian(problem, chunk):
  began = now()
  found = matrix(problem, blocks(problem, curvature(problem), chunk) / len(problem.inputs))
  return now() - began, {}, found


def covariance(problem, masks, chunk):
  began = now()
  found = matrix(problem, blocks(problem, noise(problem, masks), chunk) / len(problem.inputs) ** 2)
  return now() - began, {}, found


def alignment(problem, masks, chunk):
  """Both traces from the packed triangles alone."""
  began = now()
  size = len(problem.inputs)
  h = blocks(problem, curvature(problem), chunk) / size
  s = blocks(problem, noise(problem, masks), chunk) / size**2
  units, inputs = problem.layers[1].weight.shape
  left, right = diagonal(units), diagonal(inputs + 1)
  # What is off the diagonal stands in the matrix twice.
  weights = (2 - left.float())[:, None] * (2 - right.float())
  trace = lambda packed: packed[left][:, right].sum()
  found = torch.stack([(weights * h * s).sum(), trace(h) * trace(s) / (units * (inputs + 1))])
  return now() - began, {}, found


def diagonal(size):
  rows, columns = torch.triu_indices(size, size)
  return rows == columns


def intervals(problem, directions, number, rtol):
  """The layer's outputs are linear in the distance."""
  directions = torch.from_numpy(np.load(directions))
  z, hidden = layer(problem)
  units, third = z.shape[1], problem.layers[2]

  def line(direction):
    speed = hidden @ direction[units:].reshape(-1, units) + direction[:units]
    return lambda t: loss(z + t * speed)

  @torch.inference_mode()
  def loss(z):
    return problem.criterion(third(torch.relu(z)), problem.labels).item()

  return search(line, directions, number, rtol)


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


def decompositions(problem, masks, chunk):
  """What is left of figures 2 and 3 once both matrices are made."""
  h = hessian(problem, chunk)[2]
  s = covariance(problem, masks, chunk)[2]
  began = now()
  eigenpairs(s)
  _, vectors = eigenpairs(h)
  ((s @ vectors) * vectors).sum(dim=0)
  return now() - began, {}, None


def eigenpairs(matrix):
  # In float32 it fails on matrices of low rank, and is no faster.
  values, vectors = torch.linalg.eigh(matrix.double())
  return values.float(), vectors.float()

"""PyHessian's side of `pyhessian_readme.py`; it answers lines as `_flatness_torch.py` does.

python _pyhessian_peer.py problem.npz
"""

import json
import sys

import numpy as np
import pyhessian
import torch
from _clock import now
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


def eig(matrix, eigenvectors):
  """What `torch.eig` gave for a symmetric matrix."""
  del eigenvectors
  values, vectors = torch.linalg.eigh(matrix)
  return torch.stack([values, torch.zeros_like(values)], dim=1), vectors


def density(hessian, probes=2):
  values, weights = hessian.density(n_v=probes)
  return np.stack([np.ravel(values), np.ravel(weights) / probes])


TASKS = {
  "top_1": lambda hessian: hessian.eigenvalues()[0],
  "top_5": lambda hessian: hessian.eigenvalues(top_n=5)[0],
  "trace": lambda hessian: np.mean(hessian.trace()),
  "density": density,
}


def main() -> None:
  arrays = np.load(sys.argv[1])
  torch.eig = eig
  model, criterion = Network(arrays), torch.nn.CrossEntropyLoss()
  images = torch.from_numpy(arrays["inputs"].transpose(0, 3, 1, 2).copy()).contiguous(
    memory_format=torch.channels_last
  )
  labels = torch.from_numpy(arrays["labels"]).long()
  answers, sys.stdout = sys.stdout, sys.stderr
  for line in sys.stdin:
    request = json.loads(line)
    model.zero_grad()
    began = now()
    found = TASKS[request["task"]](pyhessian.hessian(model, criterion, (images, labels), cuda=False))
    seconds = now() - began
    np.save(request["save"], np.asarray(found, np.float64))
    print(json.dumps({"seconds": seconds, "notes": {}}), file=answers, flush=True)


if __name__ == "__main__":
  main()

"""PyHessian's side of `pyhessian_readme.py`; it answers lines as `_flatness_torch.py` does.

python _pyhessian_peer.py problem.npz
"""

import json
import sys

import numpy as np
import pyhessian
import torch
from _clock import now
from _convolutions_torch import Network, load


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
  batch = load(arrays)
  answers, sys.stdout = sys.stdout, sys.stderr
  for line in sys.stdin:
    request = json.loads(line)
    model.zero_grad()
    began = now()
    found = TASKS[request["task"]](pyhessian.hessian(model, criterion, batch, cuda=False))
    seconds = now() - began
    np.save(request["save"], np.asarray(found, np.float64))
    print(json.dumps({"seconds": seconds, "notes": {}}), file=answers, flush=True)


if __name__ == "__main__":
  main()

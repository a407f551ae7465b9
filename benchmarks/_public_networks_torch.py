"""The largest eigenvalues of a public network's Hessian by curvlinops, in float64.

    PYTHON benchmarks/_public_networks_torch.py FOLDER NAME DATA.npz NUMBER

PYTHON has PyTorch and curvlinops. FOLDER has the state dict NAME.npz and `nets.py`, which computes its
logits. DATA.npz has `inputs` `[n, height, width, channels]` from 0 to 1 and `labels`. The script prints
NUMBER eigenvalues.
"""

import json
import sys
from pathlib import Path

import curvlinops
import numpy as np
import torch
from scipy.sparse.linalg import eigsh


class Net(torch.nn.Module):
  """The function of `nets.py` with the state dict's parameters."""

  def __init__(self, forward, name, tensors):
    super().__init__()
    self.run, self.name, self.names = forward, name, list(tensors)
    for key, x in tensors.items():
      if "running_" in key:
        self.register_buffer(key.replace(".", "/"), x.double())
      else:
        self.register_parameter(key.replace(".", "/"), torch.nn.Parameter(x.double()))

  def forward(self, x):
    return self.run(self.name, {key: getattr(self, key.replace(".", "/")) for key in self.names}, x)


def main() -> None:
  folder, name, data, number = sys.argv[1:]
  sys.path.insert(0, folder)
  import nets

  model = Net(nets.forward, name, nets.load(Path(folder) / f"{name}.npz")).eval()
  with np.load(data) as arrays:
    x = torch.from_numpy(arrays["inputs"]).permute(0, 3, 1, 2).double()
    batch = x, torch.from_numpy(arrays["labels"]).long()
  params = list(model.parameters())
  criterion = torch.nn.CrossEntropyLoss()
  hessian = curvlinops.HessianLinearOperator(model, criterion, params, [batch], check_deterministic=False)
  values = eigsh(hessian.to_scipy(), k=int(number), which="LA", tol=1e-6, return_eigenvectors=False)
  print(json.dumps(sorted(map(float, values), reverse=True)))


if __name__ == "__main__":
  main()

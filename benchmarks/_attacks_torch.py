"""The errors of a public network under the attacks of foolbox and torchattacks.

    PYTHON benchmarks/_attacks_torch.py FOLDER NAME DATA.npz

PYTHON has PyTorch, foolbox and torchattacks. FOLDER has the state dict NAME.npz and `nets.py`, which computes
its logits. DATA.npz has `inputs` `[n, height, width, channels]` from 0 to 1, `labels`, and the options
`radii`, `steps` and `queries`. The script prints which answers are wrong, by attack and radius.
"""

import json
import sys
from pathlib import Path

import foolbox
import numpy as np
import torch
import torchattacks


class Net(torch.nn.Module):
  """The function of `nets.py`, which standardizes its inputs."""

  def __init__(self, forward, name, tensors):
    super().__init__()
    self.run, self.name, self.tensors = forward, name, tensors
    self.anything = torch.nn.Parameter(torch.zeros(1))  # torchattacks asks for the device of a parameter

  def forward(self, x):
    return self.run(self.name, self.tensors, x)


def main() -> None:
  folder, name, data = sys.argv[1:]
  sys.path.insert(0, folder)
  import nets

  model = Net(nets.forward, name, nets.load(Path(folder) / f"{name}.npz")).eval()
  with np.load(data) as arrays:
    x = torch.from_numpy(arrays["inputs"]).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(arrays["labels"]).long()
    radii, steps, queries = arrays["radii"].tolist(), int(arrays["steps"]), int(arrays["queries"])
  torch.manual_seed(0)
  answers = {}
  for radius in radii:
    ball = {"norm": "Linf", "eps": radius}
    attacks = {
      "APGD": torchattacks.APGD(model, **ball, steps=steps),
      "APGDT": torchattacks.APGDT(model, **ball, steps=steps),
      "Square": torchattacks.Square(model, **ball, n_queries=queries),
    }
    moved = {attack: run(x, labels) for attack, run in attacks.items()}
    pgd = foolbox.attacks.LinfPGD(rel_stepsize=2.5 / steps, steps=steps)
    moved["PGD"] = pgd(foolbox.PyTorchModel(model, bounds=(0, 1)), x, labels, epsilons=radius)[1]
    for attack, points in moved.items():
      assert (points - x).abs().max() <= radius * (1 + 1e-5)
      with torch.no_grad():
        answers[f"{attack} {radius:g}"] = (model(points).argmax(dim=1) != labels).tolist()
  print(json.dumps(answers))


if __name__ == "__main__":
  main()

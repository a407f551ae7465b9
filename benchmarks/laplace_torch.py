"""What laplace-torch computes for a small MLP: the fixture of `tests/ensembles/test_laplace.py`.

PYTHON benchmarks/laplace_torch.py > tests/ensembles/laplace_torch.json

PYTHON has laplace-torch 0.3, in an environment of its own. In float64; its Kronecker factors keep weights and
biases apart, so the network has no biases.
"""

import json
import sys

import laplace
import torch

N, PRECISION, NOISE = 24, 0.5, 0.3


def main() -> None:
  torch.manual_seed(0)
  torch.set_default_dtype(torch.float64)
  model = torch.nn.Sequential(
    torch.nn.Linear(3, 5, bias=False), torch.nn.Tanh(), torch.nn.Linear(5, 4, bias=False)
  )
  x, new, labels = torch.randn(N, 3), torch.randn(6, 3), torch.randint(4, (N,))
  found = {
    "kernels": [layer.weight.T.tolist() for layer in (model[0], model[2])],
    "inputs": x.tolist(),
    "new": new.tolist(),
    "labels": labels.tolist(),
    "precision": PRECISION,
    "noise_variance": NOISE,
    "cases": [],
  }
  targets = torch.nn.functional.one_hot(labels, 4).to(x.dtype)
  for likelihood, y in (("classification", labels), ("regression", targets)):
    for structure in ("full", "kron", "diag"):
      data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=N)
      noise = {"sigma_noise": NOISE**0.5} if likelihood == "regression" else {}
      fitted = laplace.Laplace(
        model,
        likelihood,
        subset_of_weights="all",
        hessian_structure=structure,
        prior_precision=PRECISION,
        backend=laplace.curvature.CurvlinopsGGN,
        **noise,
      )
      fitted.fit(data)
      mean, covariance = fitted._glm_predictive_distribution(new)
      evidence = fitted.log_marginal_likelihood() - fitted.log_likelihood
      found["cases"].append(
        {
          "likelihood": likelihood,
          "structure": structure,
          "outputs": mean.tolist(),
          "covariance": covariance.tolist(),
          "evidence": evidence.item(),
        }
      )
  json.dump(found, sys.stdout)


if __name__ == "__main__":
  main()

"""The contract's cases of `jaxreg.reparam`."""

import numpy as np
from contract import Case, Input

KERNEL = Input("real", "BFK")


def _lengths(v):
  return np.sqrt((v.reshape(-1, v.shape[-1]) ** 2).sum(0))


def _standardized(a):
  flat = a.v.reshape(-1, a.v.shape[-1])
  return (a.v - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)


def _weight_norm(a):
  norm = _lengths(a.v)
  return a.v * np.divide(a.g, norm, out=np.zeros_like(norm), where=norm > 0)


def _unit(x):
  norm = np.sqrt((x**2).sum())
  return x / norm if norm > 0 else x


def _spectral_norm(a):
  matrix = a.kernel.reshape(-1, a.kernel.shape[-1])
  left, right = _unit(matrix[:, np.abs(matrix).max(axis=0).argmax()]), a.u
  for _ in range(2):
    left = _unit(matrix @ right) if (matrix @ right).any() else left
    right = _unit(matrix.T @ left) if (matrix.T @ left).any() else right
  sigma = left @ matrix @ right
  return (a.kernel / sigma if sigma > 0 else a.kernel), right


CASES = (
  Case("reparam.weight_standardization", {"v": KERNEL}, _standardized, output="same", atol=1e-4),
  Case("reparam.weight_norm", {"v": KERNEL, "g": Input("real", "K")}, _weight_norm, output="same", atol=1e-4),
  Case("reparam.weight_norm_init", {"v": KERNEL}, lambda a: _lengths(a.v), output="same"),
  Case(
    "reparam.spectral_norm",
    # Not the zero vector, from which power iteration does not start.
    {"kernel": KERNEL, "u": Input("positive", "K")},
    _spectral_norm,
    {"num_steps": 2},
    output="same",
    gradient=False,  # none goes through the singular vectors
    atol=1e-4,
  ),
)

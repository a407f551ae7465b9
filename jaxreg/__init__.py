"""jaxreg: regularization for JAX, as pure functions with explicit keys.

Subpackages load on first use, so `import jaxreg` costs nothing beyond what is used:

- `losses`: `([key,] logits, labels, *, ...) -> [batch]`
- `noise`: `(key, x, *, rate) -> x`
- `penalties`: `(params, *, mask, ...) -> scalar`, and on activations `-> [batch]`
- `constraints`: proximal steps, projections onto norms per unit, dual multipliers
- `optim`: Optax transforms: exact adaptive methods, trust regions, p-norms, metrics, Path-SGD
- `averaging`: early stopping with the best copy, stochastic weight averaging
- `ensembles`: means of predictions, dropout's masks, Monte Carlo prediction, bagging
- `augment`: `(key, batch, *, ...) -> batch`
- `adversarial`: `(key, loss_fn, x, *, ...) -> x`
- `calibration`: NLL, Brier score and ECE as sums that merge by addition; temperature
- `sparse`: sparse codes of a dictionary
- `symmetry`: permuted and rescaled units, changes of coordinates, checks of invariance
- `flatness`: loss profiles, curvature, noise covariances, of any model
- `reparam`: weights as functions of what is trained: weight and spectral normalisation
- `theory`: closed forms and exact enumerations, for analysis and as oracles
- `paths`: parameters by name, weight-decay masks
- `models`, `train`, `plots`: Linen models, the trainer behind `run.py`, figures (`jaxreg[train]`)
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = [
  "adversarial",
  "augment",
  "averaging",
  "calibration",
  "constraints",
  "ensembles",
  "flatness",
  "losses",
  "models",
  "noise",
  "optim",
  "paths",
  "penalties",
  "plots",
  "reparam",
  "sparse",
  "symmetry",
  "theory",
  "train",
  "typing",
]


def __getattr__(name: str) -> Any:
  if name in __all__:
    return importlib.import_module(f"jaxreg.{name}")
  raise AttributeError(f"module 'jaxreg' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])

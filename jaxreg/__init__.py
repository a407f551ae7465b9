"""jaxreg: regularization for JAX, as pure functions with explicit keys.

Subpackages load on first use, so `import jaxreg` costs nothing beyond what is used:

- `losses`: `([key,] logits, labels, *, ...) -> [batch]`
- `noise`: `(key, x, *, rate) -> x`
- `penalties`: `(params, *, mask, ...) -> scalar`, and on activations `-> [batch]`
- `constraints`: `(params, [step,] *, ...) -> params`: proximal steps, projections onto norms per unit; dual
  multipliers
- `optim`: `(learning_rate, *, ...) ->` an Optax transform: exact adaptive methods, trust regions, p-norms,
  metrics, Path-SGD
- `averaging`: early stopping with the best copy, stochastic weight averaging
- `ensembles`: means of predictions, dropout's masks, Monte Carlo prediction, bagging
- `augment`: `(key, batch, *, ...) -> batch`
- `adversarial`: `([key,] loss_fn, x, *, ...) -> x`; `fgsm` has no key, `pgd` and `vat_loss` have
- `calibration`: NLL, Brier score and ECE as sums that merge by addition; temperature
- `sparse`: sparse codes of a dictionary
- `symmetry`: permuted and rescaled units, changes of coordinates, checks of invariance
- `flatness`: loss profiles, curvature, noise covariances, of any model
- `reparam`: weights as functions of what is trained: weight and spectral normalisation
- `theory`: closed forms and exact enumerations, for analysis and as oracles
- `paths`: parameters by name, weight-decay masks
- `models`, `train`, `plots`: Linen models, the trainer behind `run.py`, figures (`jaxreg[train]`)

Conventions:

- Keys are typed, `jax.random.key(0)`. What draws for its result (`losses`, `noise`, `augment`,
  `adversarial`) takes `key` first. Where a key is handed on to a loss or a model, or draws the probes of an
  estimate, it is keyword-only: in `flatness`, `penalties.jacobian_penalty`, `ensembles.mc_predict`. What has
  none draws nothing.
- `losses` and penalties on activations give one value an example, `[batch]`, and the caller takes the mean
  (of `kl_sparsity` one a unit); penalties on parameters are scalars; `calibration` gives sums over examples.
- `losses` take logits. What is called `*_log_probs` gives log-probabilities, which `calibration` and
  `ensembles` take; where probabilities come or go, a name says `probs`.
- A `loss_fn` of parameters is `(params, batch, *, key) -> scalar`, with `key` always given, by its name, and
  None for no noise; the one of `adversarial` is `x -> [batch]`.
- A `batch` is any pytree, which is only handed on to the loss. Where it is looked into (`augment`,
  `adversarial_loss`) it is a mapping with `inputs` and, where they are mixed, `labels`.
- `params` are any pytree; `mask` and `where` choose leaves by the names that `paths` gives them.
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
    try:
      return importlib.import_module(f"jaxreg.{name}")
    except ModuleNotFoundError as error:
      if name not in ("models", "plots", "train") or (error.name or "").startswith("jaxreg"):
        raise
      message = f"jaxreg.{name} needs {error.name}: pip install 'jaxreg[train]'"
      raise ModuleNotFoundError(message, name=error.name, path=error.path) from error
  raise AttributeError(f"module 'jaxreg' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
  return [*__all__, "__version__"]

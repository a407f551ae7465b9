"""jaxreg: regularization for JAX, as pure functions with explicit keys.

Subpackages load on first use, so `import jaxreg` costs nothing for unused ones:

- `losses`: `([key,] logits, labels, *, ...) -> [batch]`
- `noise`: `(key, x, *, rate) -> x`
- `penalties`: `(params, *, mask, ...) -> scalar`, and on activations `-> [batch]`
- `constraints`: `(params, [step,] *, ...) -> params`: proximal steps, projections onto norms per unit; dual
  multipliers
- `optim`: `([inner,] [learning_rate,] *, ...) ->` an Optax transform: exact adaptive methods, trust regions,
  p-norms, metrics, Path-SGD; around an `inner` one kinds of weight decay and sharpness-aware minimisation
- `averaging`: early stopping with the best copy, means of iterates (EMA, SWA, SWAG), soups
- `ensembles`: means of predictions, their uncertainty, Monte Carlo prediction, Laplace
- `augment`: `(key, batch, *, ...) -> batch`
- `adversarial`: `(key, loss_of_inputs, x, *, ...) -> x`; `attack` also takes labels
- `objective`: `compose(loss_fn, terms) -> loss_fn`: your loss with all of the above, and what each term adds
- `calibration`: NLL, Brier score and ECE as sums that merge by addition; temperature, conformal sets,
  detectors of out-of-distribution examples
- `conformance`: checks of anybody's loss, `python -m jaxreg.conformance MODULE:NAME`
- `symmetry`: permuted and rescaled units, which keep a network's function
- `flatness`: loss profiles, curvature and noise covariances of any model
- `reparam`: weights as functions of trained parameters: weight and spectral normalisation
- `paths`: parameters by name, weight-decay masks
- `reports`: calibration, robustness, uncertainty and curvature of one model on a page; `jaxreg.report`
- `models`, `train`, `plots`: Linen models, the trainer behind `run.py`, figures; these three and `reports`
  need `jaxreg[train]`, all other subpackages only JAX, Optax and NumPy

Conventions:

- Random functions take one typed key, `jax.random.key(0)`; functions without a key are deterministic. If the
  result itself is random (`losses`, `noise`, `augment`, `adversarial`), `key` comes first. A key for a loss
  or a model, or for the probes of an estimate, is keyword-only: in `flatness`, `penalties.jacobian_penalty`,
  `ensembles.mc_predict`.
- `losses` and penalties on activations return one value per example, `[batch]` (`kl_sparsity` one per unit),
  and the caller takes the mean. Penalties on parameters are scalars. `calibration` returns sums over
  examples.
- `losses` take logits. Functions called `*_log_probs` return log-probabilities, which `calibration` and
  `ensembles` take. Where probabilities are an argument or a result, a name contains `probs`.
- A `loss_fn` of parameters is `(params, batch, *, key) -> scalar`. `key` is always passed, by name; None
  means no noise. The attacks of `adversarial` take `loss_of_inputs`, `x -> [batch]`.
- A `batch` is any pytree, which is only passed to the loss. Functions that read it (`augment`,
  `adversarial_loss`) need a mapping with `inputs` and, for mixing, `labels`.
- `params` are any pytree; `mask` says which leaves, as `paths` explains: globs, a tree or a function.
- An error names the argument, what was given and what is allowed. TypeError: an array that is not floating,
  labels that are not integers, a key that is missing or not typed, a function with other arguments.
  ValueError: shapes that do not fit, an option out of range, an unknown name, a mask that selects nothing.
  Values are checked where they are known, outside of `jit`. `Raises` in a docstring has the other errors.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
  "adversarial",
  "augment",
  "averaging",
  "calibration",
  "conformance",
  "constraints",
  "ensembles",
  "flatness",
  "losses",
  "models",
  "noise",
  "objective",
  "optim",
  "paths",
  "penalties",
  "plots",
  "reparam",
  "reports",
  "symmetry",
  "train",
  "typing",
]


if TYPE_CHECKING:
  from jaxreg.reports import report as report


def __getattr__(name: str) -> Any:
  if name == "report":
    return __getattr__("reports").report
  if name in __all__:
    try:
      return importlib.import_module(f"jaxreg.{name}")
    except ModuleNotFoundError as error:
      if name not in ("models", "plots", "reports", "train") or (error.name or "").startswith("jaxreg"):
        raise
      from jaxreg._extras import needs

      raise needs(f"jaxreg.{name}", error) from error
  raise AttributeError(f"module 'jaxreg' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
  return [*__all__, "__version__", "report"]

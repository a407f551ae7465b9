"""The contract's cases of the operators and projections of `jaxreg.constraints`."""

import numpy as np
from contract import Case, Input

PARAMS = {"params": {"kernel": Input("real", "BK"), "bias": Input("real", "K")}}
STEP = {"step": 0.5, "weight": 3.0, "mask": "*"}  # a threshold of 1.5


def _norms(w):
  return np.sqrt((w**2).sum(tuple(range(w.ndim - 1)), keepdims=True))


def _of(function):
  """An oracle of the kernel alone: the bias is not selected."""
  return lambda a: {"kernel": function(a.params["kernel"]), "bias": a.params["bias"]}


def _of_all(function):
  return lambda a: {name: function(w) for name, w in a.params.items()}


def soft(w, threshold):
  return np.sign(w) * np.maximum(np.abs(w) - threshold, 0)


def _group(w):
  # A bias is one group.
  axes = tuple(range(max(w.ndim - 1, 1)))
  norms = np.sqrt((w**2).sum(axes, keepdims=True))
  size = np.prod([w.shape[axis] for axis in axes])
  return w * np.maximum(1 - 1.5 * np.sqrt(size) / np.maximum(norms, 1e-300), 0)


def _min_max(w):
  norms = _norms(w)
  target = 0.25 * norms.clip(3, 6) + 0.75 * norms
  return w * target / np.where(norms > 0, norms, 1)


CASES = tuple(
  Case(f"constraints.{name}", inputs, oracle, options, output="same")
  for name, inputs, oracle, options in (
    ("soft_threshold", {"x": Input("real", "BK")}, lambda a: soft(a.x, 1.5), {"threshold": 1.5}),
    ("prox_l1", PARAMS, _of_all(lambda w: soft(w, 1.5)), STEP),
    ("prox_elastic_net", PARAMS, _of_all(lambda w: soft(w, 0.375) / 2.125), {**STEP, "ratio": 0.25}),
    ("prox_group_lasso", PARAMS, _of_all(_group), STEP),
    ("prox_l0", PARAMS, _of_all(lambda w: np.where(w**2 > 3, w, 0)), STEP),
    ("prox_non_negative", PARAMS, _of_all(lambda w: np.maximum(w, 0)), {"mask": "*"}),
    ("max_norm", PARAMS, _of(lambda w: w / np.maximum(1, _norms(w) / 4)), {"limit": 4.0}),
    ("unit_norm", PARAMS, _of(lambda w: w / np.where(_norms(w) > 0, _norms(w), 1)), {}),
    ("min_max_norm", PARAMS, _of(_min_max), {"low": 3.0, "high": 6.0, "rate": 0.25}),
  )
)

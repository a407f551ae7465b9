"""The contract's cases of `jaxreg.penalties` whose arguments are arrays."""

import math

import jax.numpy as jnp
import numpy as np
from contract import Case, Input

# "B" so that vmap has an axis to map; of two axes it makes a kernel of three, flattened to [fan_in, units].
PARAMS = {"params": {"kernel": Input("real", "BK"), "bias": Input("real", "K")}}
HIDDEN = {"activations": Input("real", "BK")}


def _matrix(a):
  return a.params["kernel"].reshape(-1, a.params["kernel"].shape[-1])


def _per_example(x):
  return x.reshape(x.shape[0], -1)


def _hoyer(a):
  square = (_matrix(a) ** 2).sum()
  return np.abs(_matrix(a)).sum() ** 2 / square if square else np.float64(0)


def _orthogonality(a):
  w = _matrix(a) if _matrix(a).shape[0] >= _matrix(a).shape[1] else _matrix(a).T
  return ((w.T @ w - np.eye(w.shape[1])) ** 2).sum()


def _tying(a):
  return ((a.params["a"]["kernel"] - a.params["b"]["kernel"]) ** 2).sum()


def _rows(a):
  return a.activations.reshape(-1, a.activations.shape[-1])


def _covariance(a):
  covariance = np.cov(_rows(a).T)
  return (covariance**2).sum(0) - np.diag(covariance) ** 2


def _kl(a):
  eps = np.finfo(a.dtype).eps
  mean = a.activations.reshape(-1, a.activations.shape[-1]).mean(0).clip(eps, 1 - eps)
  return 0.1 * np.log(0.1 / mean) + 0.9 * np.log(0.9 / (1 - mean))


def _mlp(params, x):
  """`[batch, ...] -> [batch, 2]`."""
  return jnp.sin(x.reshape(x.shape[0], -1)[:, :2] * (0.1 * params["scale"]))


def _mlp_jacobian(a):
  x = _per_example(a.x)[:, :2]
  return (np.cos(0.1 * x * a.params["scale"]) * 0.1 * a.params["scale"]) ** 2


KERNEL = {"kernel": Input("real", "BK")}
SLOPES = {"params": {"scale": Input("real", "")}, "x": Input("real", "BK")}
LEARNING = {"kernel": Input("real", "BK"), "rate_logit": Input("real", ""), "log_alpha": Input("real", "B")}


def _learned_dropout(a):
  kernel, logit = a.params["a"]["kernel"], a.params["a"]["rate_logit"]
  p, q = 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(logit))
  entropy = sum(-x * np.log(x) if x > 0 else 0.0 for x in (p, q))
  concrete = 0.5 * 4 * (kernel**2).sum() / q - kernel.shape[-2] * entropy
  log_alpha = np.concatenate([np.ravel(a.params[name]["log_alpha"]) for name in "ab"])
  gate = 1 / (1 + np.exp(1.87320 + 1.48695 * log_alpha))
  return concrete + (0.63576 * gate + 0.5 * np.logaddexp(0, -log_alpha)).sum()


CASES = (
  Case("penalties.l2", PARAMS, lambda a: 0.5 * (_matrix(a) ** 2).sum()),
  Case("penalties.l1", PARAMS, lambda a: np.abs(_matrix(a)).sum()),
  Case(
    "penalties.elastic_net",
    PARAMS,
    lambda a: 0.25 * np.abs(_matrix(a)).sum() + 0.375 * (_matrix(a) ** 2).sum(),
    {"ratio": 0.25},
  ),
  Case(
    "penalties.group_lasso",
    PARAMS,
    lambda a: math.sqrt(_matrix(a).shape[0]) * np.linalg.norm(_matrix(a), axis=0).sum(),
  ),
  Case("penalties.hoyer", PARAMS, _hoyer),
  Case("penalties.orthogonality", PARAMS, _orthogonality),
  Case("penalties.tying", {"params": {"a": KERNEL, "b": KERNEL}}, _tying, {"pairs": [("a", "b")]}),
  Case(
    "penalties.l2_sp",
    {"params": KERNEL, "reference": {**KERNEL, "head": KERNEL}},
    lambda a: 0.5 * ((a.params["kernel"] - a.reference["kernel"]) ** 2).sum(),
  ),
  Case(
    "penalties.l2_sp",
    {"params": KERNEL, "reference": KERNEL, "fisher": {"kernel": Input("positive", "BK")}},
    lambda a: 0.5 * (a.fisher["kernel"] * (a.params["kernel"] - a.reference["kernel"]) ** 2).sum(),
    label="fisher",
    atol=1e-3,
  ),
  Case(
    "penalties.lora_l2",
    {"params": {"lora_a": Input("real", "BFK"), "lora_b": Input("real", "BKF")}},
    lambda a: 0.5 * ((a.params["lora_a"] @ a.params["lora_b"]) ** 2).sum(),
    atol=1e-1,  # the squares of products of up to 900, summed, in float32
  ),
  Case(
    "penalties.learned_dropout",
    {"params": {"a": LEARNING, "b": {"log_alpha": Input("real", "B")}}},
    _learned_dropout,
    {"length_scale": 2.0},
  ),
  Case("penalties.l1_activity", HIDDEN, lambda a: np.abs(_per_example(a.activations)).sum(-1)),
  Case("penalties.kl_sparsity", {"activations": Input("unit", "BK")}, _kl, {"target": 0.1}),
  Case(
    "penalties.activity_variance",
    HIDDEN,
    lambda a: np.maximum(0, 1 - np.sqrt(_rows(a).var(0, ddof=1) + 1e-2)),
    {"eps": 1e-2},
    atol=1e-4,
  ),
  Case("penalties.activity_covariance", HIDDEN, _covariance, atol=1e-1),
  Case(
    "penalties.gradient_penalty",
    SLOPES,
    lambda a: _mlp_jacobian(a)[:, 0],
    {"apply_fn": lambda params, x: _mlp(params, x)[:, 0]},
    atol=1e-3,  # the square of a slope of 3, at a phase of 90 that float32 rounds to 4e-6
  ),
  Case(
    "penalties.jacobian_penalty", SLOPES, lambda a: _mlp_jacobian(a).sum(-1), {"apply_fn": _mlp}, atol=1e-3
  ),
)

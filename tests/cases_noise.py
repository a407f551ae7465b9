"""The contract's cases of `jaxreg.noise`, besides those of dropout."""

import functools

import jax
import numpy as np
import oracles
from contract import KEY, SCORES, Case, Input

IMAGES, SEQUENCES, KERNEL = Input("real", "BFFK"), Input("real", "BFK"), Input("real", "FK")
NOISY, NOISY_IMAGES, NOISY_SEQUENCES = ({"key": KEY, "x": x} for x in (SCORES, IMAGES, SEQUENCES))
TOKENS = {"key": KEY, "x": Input("real", "BFK", checked=False)}  # of any dtype
BRANCHES = {"key": KEY, "x1": SCORES, "x2": SCORES}
SCALAR = Input("real", "", checked=False)
PARAMS = {"kernel": Input("real", "FK", checked=False), "bias": Input("real", "K", checked=False)}
NOISY_PARAMS = {"key": KEY, "params": PARAMS}
STACKED = {"kernel": Input("real", "BFK", checked=False), "bias": Input("real", "BK", checked=False)}
SATURATION = -1.7580993408473766


def _embedding(a):
  noise = oracles.f64(jax.random.uniform(a.key, a.x.shape, a.dtype, -1, 1))
  return a.x + 0.5 / np.sqrt(a.x.shape[-1] * a.x.shape[-2]) * noise


def _normal(a, shape):
  return oracles.f64(jax.random.normal(a.key, shape, a.dtype))


def _kept(key, shape, keep=0.75):
  return oracles.f64(jax.random.bernoulli(key, np.float32(keep), shape))


def _dropconnect(a):
  masks = _kept(a.key, (*a.x.shape[:-1], *a.kernel.shape))
  return np.einsum("...f,...fu->...u", a.x, masks * a.kernel) / 0.75 + a.bias


def _of_kernel(a, function):
  """Keys go to the leaves in flattening order: bias, kernel."""
  key = jax.random.split(a.key, 2)[1]
  return {"kernel": function(key, a.params["kernel"]), "bias": a.params["bias"]}


def _weight_noise(a, scale):
  noise = lambda key, w: w + scale(w) * 0.3 * oracles.f64(jax.random.normal(key, w.shape, a.dtype))
  return _of_kernel(a, noise)


def _spatial(a):
  return _kept(a.key, (*a.x.shape[:-3], 1, 1, a.x.shape[-1])) * a.x / 0.75


def _one_number(a):
  return _kept(a.key, (a.x.shape[0], *[1] * (a.x.ndim - 1))) * a.x / 0.75


def _recurrent(a):
  return _kept(a.key, (*a.x.shape[:-2], 1, a.x.shape[-1])) * a.x / 0.75


def _alpha(a):
  keep, mask = 0.75, _kept(a.key, a.x.shape)
  scale = (keep + SATURATION**2 * keep * (1 - keep)) ** -0.5
  return scale * (mask * a.x + (1 - mask) * SATURATION) - scale * (1 - keep) * SATURATION


def blocks(key, shape, rate, size):
  """Kept where all of the blocks that reach a position are absent."""
  *leading, height, width, channels = shape
  absent = np.float32((1 - rate) ** (1 / (size[0] * size[1])))
  drawn = (*leading, height + size[0] - 1, width + size[1] - 1, channels)
  seeds = np.asarray(jax.random.bernoulli(key, absent, drawn))
  kept = np.ones(shape, bool)
  for i, j in np.ndindex(size):
    kept &= seeds[..., i : i + height, j : j + width, :]
  return kept


def _concrete(a, temperature=0.5):
  noise = oracles.f64(jax.random.logistic(a.key, a.x.shape, a.dtype))
  kept = oracles.sigmoid(-(a.rate_logit + noise) / temperature)
  return a.x * kept / oracles.sigmoid(-a.rate_logit)


def _concrete_kl(a, length_scale=0.5):
  keep = oracles.sigmoid(-a.rate_logit)
  weights = a.kernel / keep
  entropy = oracles.bernoulli_entropy(a.rate_logit)
  return length_scale**2 * keep / 2 * (weights**2).sum() - a.kernel.shape[-2] * entropy


def _variational(a):
  return a.x * (1 + np.exp(np.minimum(a.log_alpha, 8.0)) ** 0.5 * _normal(a, a.x.shape))


def _variational_kl(a):
  alpha = np.exp(a.log_alpha)
  sigmoid = oracles.sigmoid(1.87320 + 1.48695 * a.log_alpha)
  return -(0.63576 * sigmoid - 0.5 * np.log(1 + 1 / alpha) - 0.63576)


def _uniform(a, key, low=0.0):
  x = a.x1 if hasattr(a, "x1") else a.x
  return oracles.f64(jax.random.uniform(key, (x.shape[0], *[1] * (x.ndim - 1)), a.dtype, low))


def _shake_shake(a):
  alpha = _uniform(a, jax.random.split(a.key)[0])
  return alpha * a.x1 + (1 - alpha) * a.x2


def _shake_drop(a):
  keys = jax.random.split(a.key, 3)
  kept = _kept(keys[0], (a.x.shape[0], *[1] * (a.x.ndim - 1)))
  return (kept + (1 - kept) * _uniform(a, keys[1], -1.0)) * a.x


def _tokens(a, num_kept=2, num_prefix=1):
  noise = np.asarray(jax.random.uniform(a.key, (*a.x.shape[:-2], a.x.shape[-2] - num_prefix)))
  rows = []
  for row, order in zip(
    a.x.reshape(-1, *a.x.shape[-2:]), noise.reshape(-1, noise.shape[-1]).argsort(-1), strict=True
  ):
    rows.append(row[[*range(num_prefix), *sorted(num_prefix + order[:num_kept])]])
  return np.reshape(rows, (*a.x.shape[:-2], num_prefix + num_kept, a.x.shape[-1]))


same = functools.partial(Case, output="same")
masked = functools.partial(same, options={"rate": 0.25}, mask=True)

CASES = (
  same("noise.embedding_noise", NOISY_SEQUENCES, _embedding, {"alpha": 0.5}),
  same("noise.gaussian_noise", NOISY, lambda a: a.x + 0.3 * _normal(a, a.x.shape), {"std": 0.3}),
  Case(
    "noise.gaussian_noise",
    NOISY,
    lambda a: a.x * (1 + 0.3 * _normal(a, a.x.shape)),
    {"std": 0.3, "kind": "multiplicative"},
    label="multiplicative",
    output="same",
    atol=1e-4,  # where the factor is nearly 0
  ),
  same(
    "noise.gaussian_dropout",
    NOISY,
    lambda a: a.x * (1 + (0.25 / 0.75) ** 0.5 * _normal(a, a.x.shape)),
    {"rate": 0.25},
    atol=1e-4,
  ),
  Case(
    "noise.dropconnect",
    {"key": KEY, "x": SCORES, "kernel": Input("real", "KF"), "bias": Input("real", "F")},
    _dropconnect,
    {"rate": 0.25},
    output="same",
    without_key=lambda a: a.x @ a.kernel + a.bias,
    atol=1e-3,  # products of up to 900, summed, in float32
  ),
  masked(
    "noise.dropconnect_params",
    NOISY_PARAMS,
    lambda a: _of_kernel(a, lambda key, w: _kept(key, w.shape) * w / 0.75),
  ),
  masked("noise.spatial_dropout", NOISY_IMAGES, _spatial),
  masked("noise.stochastic_depth", NOISY_SEQUENCES, _one_number),
  masked("noise.recurrent_dropout", NOISY_SEQUENCES, _recurrent),
  same("noise.alpha_dropout", NOISY, _alpha, {"rate": 0.25}),
  *(
    same(
      "noise.drop_block",
      NOISY_IMAGES,
      lambda a, size=size: blocks(a.key, a.x.shape, 0.25, size) * a.x / 0.75,
      {"rate": 0.25, "block_size": size},
      label=f"{size[0]}x{size[1]}",
      mask=True,
    )
    for size in ((2, 2), (3, 1))
  ),
  Case(
    "noise.concrete_dropout",
    {"key": KEY, "x": SCORES, "rate_logit": SCALAR},
    _concrete,
    {"temperature": 0.5},
    output="same",
    atol=1e-3,  # the exponent of up to 90 is rounded to 8e-6
  ),
  Case(
    "noise.concrete_dropout_kl",
    {"kernel": SEQUENCES, "rate_logit": SCALAR},
    _concrete_kl,
    {"length_scale": 0.5},
    atol=1e-4,
  ),
  Case(
    "noise.variational_dropout",
    {"key": KEY, "x": SCORES, "log_alpha": Input("real", "K")},
    _variational,
    output="same",
    atol=1e-3,  # factors of up to 200
  ),
  Case("noise.variational_dropout_kl", {"log_alpha": SCORES}, _variational_kl),
  same("noise.shake_shake", BRANCHES, _shake_shake, gradient=False, without_key=lambda a: (a.x1 + a.x2) / 2),
  same(
    "noise.shake_shake",
    BRANCHES,
    _shake_shake,
    {"backward": "keep"},
    label="keep",
    without_key=lambda a: (a.x1 + a.x2) / 2,
  ),
  same("noise.shake_drop", NOISY, _shake_drop, {"rate": 0.25}, gradient=False),
  same("noise.token_dropout", TOKENS, _tokens, {"num_kept": 2, "num_prefix": 1}, mask=True),
  same("noise.weight_noise", NOISY_PARAMS, lambda a: _weight_noise(a, lambda w: 1.0), {"std": 0.3}),
  same(
    "noise.weight_noise",
    NOISY_PARAMS,
    lambda a: _weight_noise(a, lambda w: w),
    {"std": 0.3, "kind": "multiplicative"},
    label="multiplicative",
    atol=1e-4,
  ),
  Case(
    "noise.weight_noise",
    NOISY_PARAMS,
    lambda a: _weight_noise(a, lambda w: (w**2).mean() ** 0.5),
    {"std": 0.3, "relative": True},
    label="relative",
    output="same",
    gradient=False,  # none goes through the root mean square
    atol=1e-4,
  ),
  same(
    "noise.scale_weights",
    {"params": STACKED},
    lambda a: {"kernel": 0.75 * a.params["kernel"], "bias": a.params["bias"]},
    {"rate": 0.25, "mask": {"kernel": True, "bias": False}},
  ),
)

"""The section on the flatness of the loss around the parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import t

from jaxreg import flatness
from jaxreg.flatness._common import widened
from jaxreg.plots._reliability import QUANTILE
from jaxreg.reports._model import Model, Options, Section, Unavailable
from jaxreg.reports._numbers import Number, around
from jaxreg.typing import Array, Batch, Key, LossFn, Params

AT_ONCE = 250  # examples of a loss or a product at once
RHO, ADAPTIVE_RHO = 0.05, 0.5
ALPHAS = np.linspace(-1, 1, 21)
PAIRS, STEPS = 3, 32
LEAST = 800  # predictions of an example: a hundred products and three directions
PART = 0.2  # of the budget


def flat(model: Model, options: Options) -> Section:
  """How fast the loss rises around the parameters: profile, sharpness, eigenvalues, trace and density."""
  if model.loss_fn is None or model.params is None:
    raise Unavailable("needs params, and loss_fn or a predict_fn of parameters")
  if model.train is None:
    model.traced()
  batch = dict(model.train or {"inputs": model.inputs, "labels": model.shown.labels})
  size = len(jax.tree.leaves(batch)[0])
  number = model.affordable(LEAST, PART, options, most=size)
  spare = 60 * options.minutes * PART / (LEAST * number * max(model.seconds, 1e-9))
  more = int(np.clip(spare, 1, 4))
  directions, probes = 1 + 2 * more, 2 * more
  rows = np.random.default_rng(model.seed).permutation(size)[:number]
  batch = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[rows]), batch)
  params, loss_fn = widened(model.params), flatness.chunked(model.loss_fn, AT_ONCE)
  keys = jax.random.split(jax.random.fold_in(model.key, 300), 3 + directions)
  curvature = flatness.Curvature(model.loss_fn, params, batch, chunk_size=AT_ONCE)
  pairs = curvature.top_eigenpairs(key=keys[0], num_pairs=PAIRS)
  trace = curvature.trace(key=keys[1], num_samples=4 * probes)
  density = curvature.density(key=keys[2], num_samples=probes, num_steps=min(STEPS, curvature.like.size))
  profile = np.stack(
    [
      flatness.loss_profile(
        loss_fn, params, flatness.filter_normalized_direction(key, params), jnp.asarray(ALPHAS), batch
      )
      for key in keys[3:]
    ]
  )
  rises = (profile[:, 0] + profile[:, -1]) / 2 - profile[:, len(ALPHAS) // 2]
  half = t.ppf(0.975, directions - 1) * rises.std(ddof=1) / np.sqrt(directions)
  sharpness = flatness.sam_sharpness(loss_fn, params, batch, rho=RHO)
  adaptive = adaptive_sharpness(loss_fn, params, batch, rho=ADAPTIVE_RHO)
  found = {
    "loss": Number("loss", float(loss_fn(params, batch, key=None))),
    "rise": around("rise of the profile at ±1", rises.mean(), half),
    "sam": Number(f"SAM's sharpness, rho {RHO}", float(sharpness)),
    "adaptive": Number(f"adaptive sharpness, rho {ADAPTIVE_RHO}", float(adaptive)),
    "trace": around("trace of the Hessian", trace.mean, QUANTILE * float(trace.standard_error)),
  }
  for place, (value, residual) in enumerate(zip(pairs.values, pairs.residuals, strict=True), 1):
    # Some eigenvalue lies within the residual of a Ritz value.
    found[f"eigenvalue/{place}"] = around(f"eigenvalue {place} of the Hessian", value, residual)
  arrays = {"alphas": ALPHAS, "profile": profile}
  arrays |= {name: np.asarray(value) for name, value in density._asdict().items()}
  sentence = (
    "The loss along random directions as long as each layer, its rise after a step up the gradient, and the "
    "spectrum of the Hessian. Other scales of the layers change all but the profile and the adaptive "
    "sharpness, so compare like networks only. An interval is the residual of an eigenvalue, else it is of "
    "random probes or directions."
  )
  cost = f"{probes * (4 + STEPS)} products and more, {directions} directions, on {number} examples"
  function = "flatness.loss_profile, sam_sharpness, Curvature"
  return Section(found, arrays, sentence, cost, function)


def adaptive_sharpness(loss_fn: LossFn, params: Params, batch: Batch, *, rho: float) -> Array:
  """SAM's sharpness in relative changes of the parameters: the step of adaptive SAM, free of their scales."""

  def relative(changes: Params, batch: Batch, *, key: Key | None) -> Any:
    return loss_fn(jax.tree.map(lambda w, u: w * (1 + u), params, changes), batch, key=key)

  as_loss: Any = relative
  return flatness.sam_sharpness(as_loss, jax.tree.map(jnp.zeros_like, params), batch, rho=rho)

"""The section on the flatness of the loss around the parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import flatness
from jaxreg._intervals import interval
from jaxreg._leaves import wide
from jaxreg.reports._model import Model, Section, Unavailable
from jaxreg.reports._numbers import Number, around
from jaxreg.typing import Array, Batch, Key, LossFn, Params

AT_ONCE = 250  # examples of a loss or a product at once
RHO, ADAPTIVE_RHO = 0.05, 0.5
ALPHAS = np.linspace(-1, 1, 21)
PAIRS, STEPS = 3, 32
LEAST = 800  # predictions of an example: a hundred products and three directions
PART = 0.2  # of the budget


def flat(model: Model) -> Section:
  """Measures how fast the loss rises around the parameters: profile, sharpness, spectrum and trace."""
  if model.loss_fn is None or model.params is None:
    raise Unavailable("needs params, and loss_fn or a predict_fn of parameters")
  if model.train is None:
    model.traced()
  batch = dict(model.train or {"inputs": model.inputs, "labels": model.shown.labels})
  size = len(jax.tree.leaves(batch)[0])
  number = model.affordable(LEAST, PART, most=size)
  spare = 60 * model.minutes * PART / (LEAST * number * max(model.seconds, 1e-9))
  more = int(np.clip(spare, 1, 2))
  directions, probes = 1 + 2 * more, 2 * more
  parts = -(-number // AT_ONCE)
  at_once = number // parts  # all of one size, which compiles once
  rows = np.random.default_rng(model.seed).permutation(size)[: parts * at_once]
  batch = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[rows]), batch)
  params, loss_fn = jax.tree.map(wide, model.params), flatness.chunked(model.loss_fn, at_once)
  keys = jax.random.split(jax.random.fold_in(model.key, 300), 3 + directions)
  curvature = flatness.Curvature(model.loss_fn, params, batch, chunk_size=at_once)
  pairs = curvature.top_eigenpairs(key=keys[0], num_pairs=PAIRS)
  density = curvature.density(key=keys[2], num_samples=probes, num_steps=min(STEPS, curvature.like.size))
  alphas = jnp.asarray(ALPHAS)
  # Not under `jit`, which would compile the draw of each parameter; equal shapes share their program here.
  drawn = [flatness.filter_normalized_direction(key, params) for key in keys[3:]]
  profile = np.stack([flatness.loss_profile(loss_fn, params, each, alphas, batch) for each in drawn])
  middle = profile[:, len(ALPHAS) // 2]
  rises = (profile[:, 0] + profile[:, -1]) / 2 - middle
  sharpness, adaptive = sharpnesses(loss_fn, params, batch)
  numbers = {
    "loss": Number("loss", float(middle[0])),
    "rise": around("rise of the profile at ±1", *interval(rises)),
    "sam": Number(f"SAM's sharpness, rho {RHO}", float(sharpness)),
    "adaptive": Number(f"adaptive sharpness, rho {ADAPTIVE_RHO}", float(adaptive)),
    "trace": trace_of(curvature, pairs.vectors, keys[1], 4 * probes),
  }
  for place, (value, residual) in enumerate(zip(pairs.values, pairs.residuals, strict=True), 1):
    # Some eigenvalue lies within the residual of a Ritz value.
    numbers[f"eigenvalue/{place}"] = around(f"eigenvalue {place} of the Hessian", value, residual)
  arrays = {"alphas": ALPHAS, "profile": profile}
  arrays |= {name: np.asarray(value) for name, value in density._asdict().items()}
  sentence = (
    "The loss along random directions as long as each layer, its rise after a step up the gradient, and the "
    "spectrum of the Hessian. Other scales of the layers change all but the profile and the adaptive "
    "sharpness, so compare like networks only. An interval is the residual of an eigenvalue, else it is of "
    "random probes or directions."
  )
  cost = f"{probes * (4 + STEPS)} products and more, {directions} directions, on {len(rows)} examples"
  function = "flatness.loss_profile, sam_sharpness, Curvature"
  return Section(numbers, arrays, sentence, cost, function)


def trace_of(curvature: flatness.Curvature, vectors: Any, key: Key, num_samples: int) -> Number:
  """Estimates the trace as the part of the leading eigenvectors `[num, size]`, and of orthogonal probes.

  A probe's part in a leading eigenvector is squared: without these parts, the samples are nearly normal, as
  the interval needs.
  """
  basis, _ = jnp.linalg.qr(vectors.T)
  leading = sum(float(vector @ curvature(vector)) for vector in basis.T)
  samples = []
  for each in jax.random.split(key, num_samples):
    probe = jax.random.rademacher(each, curvature.like.shape, curvature.like.dtype)
    probe -= basis @ (basis.T @ probe)
    samples.append(float(probe @ curvature(probe)))
  mean, half = interval(samples)
  return around("trace of the Hessian", leading + mean, half)


def sharpnesses(loss_fn: LossFn, params: Params, batch: Batch) -> list[Array]:
  """Computes the sharpness of SAM and of adaptive SAM, which does not depend on the parameters' scales."""

  def stretched(point: Params, batch: Batch, *, key: Key | None) -> Any:
    return loss_fn(jax.tree.map(lambda change, at, scale: at + scale * change, *point), batch, key=key)

  # One program serves both measures, because the scales are an argument that is never moved.
  as_loss: Any = stretched
  zeros, ones = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.ones_like, params)
  chosen = tuple(jax.tree.map(lambda _, chosen=chosen: chosen, params) for chosen in (True, False, False))
  return [
    flatness.sam_sharpness(as_loss, (zeros, params, scales), batch, rho=rho, mask=chosen)
    for scales, rho in ((ones, RHO), (params, ADAPTIVE_RHO))
  ]

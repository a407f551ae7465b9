"""The analyses of `job = flatness`: from a subject to arrays, which are saved as they are computed."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import flatness
from jaxreg.flatness._noise import pooled
from jaxreg.train import keys
from jaxreg.train.jobs.flatness.array_cache import Arrays, Kept
from jaxreg.train.jobs.flatness.subject import Subject
from jaxreg.typing import Key

BLOCK = 250  # samples, or directions in a dense layer, between two saves
FEW = 10  # the same for directions in a whole network, each of which takes some twenty passes over the data
RISES = (0.5, 1.0)  # distances at which the rise of a profile is reported
MASKS = 32  # draws for each example, for a covariance without the bias of few samples


def profile(
  subject: Subject, kept: Kept, *, directions: int, points: int, reach: float, granularity: str
) -> Arrays:
  """The loss along random directions, the same for every subject: `losses` `[directions, points]`."""
  alphas = jnp.linspace(-reach, reach, points)

  def along(first: int, number: int) -> dict[str, Any]:
    losses = []
    for index in range(first, first + number):
      key = keys.direction(index)
      direction = flatness.filter_normalized_direction(key, subject.params, granularity=granularity)  # type: ignore[arg-type]
      losses.append(flatness.loss_profile(subject.loss_fn, subject.params, direction, alphas, subject.batch))
    return {"losses": np.stack(losses)}

  found = kept.blocks("profile", directions, along, size=1)
  return {"alphas": np.asarray(alphas), **found}


def rises(profile: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The rise of the loss at each distance, as a mean of both sides: `[directions]`."""
  alphas, losses = profile["alphas"], profile["losses"]
  at = lambda alpha: losses[:, np.abs(alphas - alpha).argmin()]
  # A reach of 1 in float32 may fall short of 1 by a rounding error.
  reached = [distance for distance in RISES if distance <= alphas.max() * (1 + 1e-6)]
  return {f"{distance:g}": (at(distance) + at(-distance)) / 2 - at(0.0) for distance in reached}


def factor_name(factor: float) -> str:
  """The factor with all its digits, so that two nearly equal factors have two names."""
  return str(factor).removesuffix(".0")


def gradient_samples(subject: Subject, kept: Kept, key: Key, num: int) -> np.ndarray:
  """Gradients under noise at the subject's parameters, or the noise of their parts: `num` rows or more."""
  if subject.parts > 1:
    # The mean of the draws of a part counts as one of them.
    draws = -(-num // subject.parts) + 1
    of_parts = lambda first, number: {"samples": subject.part_gradients(jax.random.clone(key), first, number)}
    drawn = kept.blocks("part-gradients", draws, of_parts, size=4)["samples"]
    return np.asarray(pooled(jnp.asarray(drawn)))
  block = lambda first, number: {"samples": subject.gradients(jax.random.clone(key), first, number)}
  return kept.blocks("gradients", num, block, size=BLOCK)["samples"]


def isotropic_samples(like: np.ndarray, seed: int) -> np.ndarray:
  """As many samples of isotropic noise, with the same total variance: a control unrelated to the loss."""
  scale = np.sqrt(like.var(axis=0).mean())
  return (scale * np.random.default_rng(seed).normal(size=like.shape)).astype(like.dtype)


def variance_flatness(
  subject: Subject,
  kept: Kept,
  samples: Mapping[str, np.ndarray],
  *,
  factors: Sequence[float],
  directions: int,
) -> dict[str, Arrays]:
  """Variances and interval flatness along the principal components of the samples, by kind of samples.

  Each kind has the `variances` `[k]` along its `k` components, and the fields of `IntervalFlatness` along
  them for each of the factors, `[factors, k]`. If there are more components than `directions`, `directions`
  evenly spaced ones are measured; 0 for all.
  """
  found = {}
  size = FEW if subject.layer is None else BLOCK
  for kind, each in samples.items():
    parts = _principal(each)
    rank = int(parts.rank)
    chosen = np.arange(rank)
    if directions and rank > directions:
      chosen = np.unique(np.linspace(0, rank - 1, directions).round().astype(int))
    rows = np.asarray(parts.directions)[chosen]
    by_factor = []
    for factor in factors:

      def block(first: int, number: int, rows: np.ndarray = rows, factor: float = factor) -> dict[str, Any]:
        directions = jnp.asarray(rows[first : first + number], jnp.float32)
        return subject.intervals(directions, factor)._asdict()

      by_factor.append(kept.blocks(f"{kind}-{factor_name(factor)}", len(rows), block, size=size))
    stacked = {name: np.stack([each[name] for each in by_factor]) for name in by_factor[0]}
    found[kind] = {"variances": np.asarray(parts.variances)[chosen], **stacked}
  return found


def _principal(samples: np.ndarray) -> flatness.PrincipalComponents:
  """Principal components in float64: float32 has no digits left for the noise beside a trajectory's drift."""
  with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
    return jax.device_get(flatness.principal_components(jnp.asarray(samples, jnp.float64)))


def spectra(subject: Subject, kept: Kept, key: Key, samples: np.ndarray) -> dict[str, np.ndarray]:
  """Spectra of the covariance: from all samples, from a third of them, and without the bias of samples."""
  few = samples[: max(2, len(samples) // 3)]
  found = {f"{len(each)} gradients": np.asarray(_principal(each).variances) for each in (few, samples)}
  if subject.parts > 1 or subject.coupled:
    return found
  exact = kept.arrays(
    "covariance",
    lambda: {"values": jnp.linalg.eigvalsh(subject.covariance(jax.random.clone(key), MASKS))[::-1]},
  )
  return {**found, "drawn for each example": exact["values"]}


def projected_variance(
  subject: Subject, kept: Kept, key: Key, samples: Mapping[str, np.ndarray], *, eigenpairs: int
) -> dict[str, Any]:
  """The Hessian's eigenvalues, `values`, with `residuals`, and the samples' variances along its eigenvectors.

  The variances are by kind of samples. With `eigenpairs` 0, the dense Hessian gives all eigenpairs.
  `by` says how they were computed: `lanczos`, or a way of `Subject.hessian_by`.
  """

  def decompose() -> dict[str, Any]:
    if eigenpairs == 0:
      values, vectors = np.linalg.eigh(np.asarray(subject.hessian(), np.float64))
      pairs = {"values": values[::-1], "vectors": vectors.T[::-1], "residuals": np.zeros_like(values)}
      return pairs | {"by": subject.hessian_by}
    found = subject.curvature.top_eigenpairs(key=key, num_pairs=eigenpairs)
    pairs = {"values": found.values, "vectors": found.vectors, "residuals": found.residuals}
    return pairs | {"by": "lanczos"}

  pairs = kept.arrays(f"eigenpairs-{eigenpairs}", decompose)
  vectors = pairs.pop("vectors").astype(np.float64)
  by = str(pairs.pop("by", "unknown"))  # an older version did not save it
  # In float64, like the principal components.
  with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
    variances = {
      kind: np.asarray(flatness.projected_variance(each.astype(np.float64), vectors))
      for kind, each in samples.items()
    }
  return {**pairs, "by": by, "variances": variances}

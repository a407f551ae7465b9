"""The analyses of `job = flatness`: from a network to arrays for the figures, and a summary in numbers."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import flatness
from jaxreg.flatness._covariance import PrincipalComponents
from jaxreg.flatness._eigen import SpectralDensity
from jaxreg.flatness._layers import Layerwise, layers_of, of_layer
from jaxreg.flatness._noise import pooled
from jaxreg.flatness._power_law import BrokenPowerLaw, PowerLaw
from jaxreg.flatness._trace import Estimate, signs
from jaxreg.train import keys
from jaxreg.train.jobs.flatness.array_cache import ArrayCache, Arrays
from jaxreg.train.jobs.flatness.network_at_point import NetworkAtPoint
from jaxreg.train.sealed_tables import Table
from jaxreg.typing import Key, PyTree

BLOCK = 250  # samples, or directions in a dense layer, between two saves
FEW = 10  # the same for directions in a whole network, each of which takes some twenty passes over the data
RISES = (0.5, 1.0)  # distances at which the rise of a profile is reported
MASKS = 32  # draws for each example, for a covariance without the bias of few samples
MIN_LINEARITY = 0.01  # if the p-value of a straight line is smaller, two lines that meet are fitted instead

Samples = Mapping[str, np.ndarray]  # by their kind: gradients, the trajectory, the isotropic control
Fit = PowerLaw | BrokenPowerLaw


def profile(
  network: NetworkAtPoint, cache: ArrayCache, *, directions: int, points: int, reach: float, granularity: str
) -> Arrays:
  """The loss along random directions, the same for every network: `losses` `[directions, points]`."""
  alphas = jnp.linspace(-reach, reach, points)

  def along(first: int, number: int) -> Table:
    losses = []
    for index in range(first, first + number):
      key = keys.direction(index)
      direction = flatness.filter_normalized_direction(key, network.params, granularity=granularity)  # type: ignore[arg-type]
      losses.append(flatness.loss_profile(network.loss_fn, network.params, direction, alphas, network.batch))
    return {"losses": np.stack(losses)}

  return {"alphas": np.asarray(alphas), **cache.blocks("profile", directions, along, size=1)}


def rises(profile: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The rise of the loss at each distance, as a mean of both sides: `[directions]`."""
  alphas, losses = profile["alphas"], profile["losses"]
  at = lambda alpha: losses[:, np.abs(alphas - alpha).argmin()]
  # A reach of 1 in float32 may fall short of 1 by a rounding error.
  reached = [distance for distance in RISES if distance <= alphas.max() * (1 + 1e-6)]
  return {f"{distance:g}": (at(distance) + at(-distance)) / 2 - at(0.0) for distance in reached}


def gradient_samples(network: NetworkAtPoint, cache: ArrayCache, key: Key, num: int) -> np.ndarray:
  """Gradients under noise at the network's parameters, or the noise of their parts: `num` rows or more."""
  if network.parts > 1:
    # The mean of the draws of a part counts as one of them.
    draws = -(-num // network.parts) + 1
    of_parts = lambda first, number: {"samples": network.part_gradients(jax.random.clone(key), first, number)}
    drawn = cache.blocks("part-gradients", draws, of_parts, size=4)["samples"]
    return np.asarray(pooled(jnp.asarray(drawn)))
  block = lambda first, number: {"samples": network.gradients(jax.random.clone(key), first, number)}
  return cache.blocks("gradients", num, block, size=BLOCK)["samples"]


def isotropic_samples(like: np.ndarray, seed: int) -> np.ndarray:
  """As many samples of isotropic noise, with the same total variance: a control unrelated to the loss."""
  scale = np.sqrt(like.var(axis=0).mean())
  return (scale * np.random.default_rng(seed).normal(size=like.shape)).astype(like.dtype)


def variance_flatness(
  network: NetworkAtPoint,
  cache: ArrayCache,
  samples: Samples,
  *,
  factors: Sequence[float],
  directions: int,
  tol: float,
) -> tuple[Table, Table]:
  """Variances and interval flatness along the principal components of the samples, by kind, with fits.

  `found` has for each kind the `variances` `[k]` along its `k` components, the fields of `interval_flatness`
  along them for each of the factors, `[factors, k]`, and the `mask` of the components that are fitted.
  """
  found, fits, summary = {}, {}, {}
  size = FEW if network.layer is None else BLOCK
  for kind, each in samples.items():
    parts = _principal(each)
    rank = int(parts.rank)
    chosen = np.arange(rank)
    if directions and rank > directions:
      chosen = np.unique(np.linspace(0, rank - 1, directions).round().astype(int))
    rows, variances = np.asarray(parts.directions)[chosen], np.asarray(parts.variances)[chosen]
    # Trailing components are mostly rounding error; dead units have zero variance.
    mask = variances > tol * variances[0]
    by_factor, fits[kind] = [], {}
    for factor in factors:

      def block(first: int, number: int, rows: np.ndarray = rows, factor: float = factor) -> Table:
        return network.intervals(jnp.asarray(rows[first : first + number], jnp.float32), factor)._asdict()

      # The factor with all its digits, so that two nearly equal factors have two names.
      name = str(factor).removesuffix(".0")
      by_factor.append(cache.blocks(f"{kind}-{name}", len(rows), block, size=size))
      fits[kind][name] = _fit(by_factor[-1]["width"], variances, mask)
    stacked = {name: np.stack([each[name] for each in by_factor]) for name in by_factor[0]}
    found[kind] = {"variances": variances, "mask": mask, **stacked}
    summary[kind] = {
      "directions": int(mask.sum()),
      "evaluations": float(stacked["evaluations"].mean()),
      "not_crossed": int((~stacked["crossed"]).any(axis=-1).sum()),
      "fits": {name: _numbers(fit) for name, fit in fits[kind].items()},
    }
  return {"found": found, "fits": fits}, summary


def spectra(network: NetworkAtPoint, cache: ArrayCache, key: Key, samples: np.ndarray) -> Arrays:
  """Spectra of the covariance: from all samples, from a third of them, and without the bias of samples."""
  few = samples[: max(2, len(samples) // 3)]
  found = {f"{len(each)} gradients": np.asarray(_principal(each).variances) for each in (few, samples)}
  if network.parts > 1 or network.coupled:
    return found
  covariance = lambda: network.covariance(jax.random.clone(key), MASKS)
  exact = cache.arrays("covariance", lambda: {"values": jnp.linalg.eigvalsh(covariance())[::-1]})
  return {**found, "drawn for each example": exact["values"]}


def layerwise(
  network: NetworkAtPoint, cache: ArrayCache, key: Key, *, num_samples: int, num_steps: int, num_starts: int
) -> tuple[Layerwise, Table]:
  """The result of `flatness.layerwise` without diagonals, and its numbers; each layer is saved when done."""
  curvature = network.curvature
  names, owners, probe_key, layer_keys = layers_of(curvature, key)

  def traces() -> Table:
    owned = jnp.asarray(owners)
    return signs(num_samples, curvature, curvature.like, probe_key, owned, (len(names),))[1]._asdict()

  def layers(first: int, number: int) -> Table:
    numbers = range(first, first + number)
    found = [of_layer(curvature, owners, n, layer_keys[n], num_steps, num_starts) for n in numbers]
    return {name: np.stack([np.asarray(each[name]) for each in found]) for name in found[0]}

  kept: Table = cache.arrays("traces", traces)
  sums = Estimate(**kept)
  each: Table = cache.blocks("layers", len(names), layers, size=1)
  norms = Estimate(each["norm"], each["norm_error"])
  densities = tuple(SpectralDensity(*rows) for rows in each["density"])
  found = Layerwise(names, each["top_eigenvalue"], each["residual"], sums, (), norms, densities)
  columns = {
    "top_eigenvalue": each["top_eigenvalue"],
    "residual": each["residual"],
    "trace": sums.mean,
    "trace_error": sums.standard_error,
    "frobenius_norm": norms.mean,
    "frobenius_norm_error": norms.standard_error,
  }
  return found, {
    name: {column: float(values[number]) for column, values in columns.items()}
    for number, name in enumerate(names)
  }


def projected_variance(
  network: NetworkAtPoint, cache: ArrayCache, key: Key, samples: Samples, *, eigenpairs: int, tol: float
) -> tuple[Table, Table]:
  """The Hessian's eigenvalues, `values`, with `residuals`, and the samples' variances along its eigenvectors.

  The variances and their fits are by kind of samples. With `eigenpairs` 0, the dense Hessian gives all
  eigenpairs. `by` says how they were computed: `lanczos`, or a way of `NetworkAtPoint.hessian_by`.
  """

  def decompose() -> Table:
    if eigenpairs == 0:
      values, vectors = np.linalg.eigh(np.asarray(network.hessian(), np.float64))
      pairs = {"values": values[::-1], "vectors": vectors.T[::-1], "residuals": np.zeros_like(values)}
      return pairs | {"by": network.hessian_by}
    found = network.curvature.top_eigenpairs(key=key, num_pairs=eigenpairs)
    pairs = {"values": found.values, "vectors": found.vectors, "residuals": found.residuals}
    return pairs | {"by": "lanczos"}

  pairs = cache.arrays(f"eigenpairs-{eigenpairs}", decompose)
  vectors, values, by = pairs["vectors"].astype(np.float64), pairs["values"], str(pairs["by"])
  variances = {
    kind: _in_float64(lambda each=each: flatness.projected_variance(each.astype(np.float64), vectors))
    for kind, each in samples.items()
  }
  # Below this tolerance, an eigenvalue of a float32 matrix is rounding error.
  mask = values > tol * values[0]
  fits = {kind: _fit(values, each, mask) for kind, each in variances.items()}
  summary = {
    "eigenvalues": int(mask.sum()),
    "largest": float(values[0]),
    "largest_residual": float(pairs["residuals"].max()),
    "eigenpairs_by": by,
    "fits": {kind: _numbers(fit) for kind, fit in fits.items()},
  }
  return {"values": values, "variances": variances, "mask": mask, "fits": fits}, summary


def _principal(samples: np.ndarray) -> PrincipalComponents:
  return _in_float64(lambda: flatness.principal_components(jnp.asarray(samples, jnp.float64)))


def _in_float64(compute: Callable[[], PyTree]) -> PyTree:
  """The result in float64: in float32 the drift of a trajectory hides the noise around it."""
  with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
    return jax.device_get(compute())


def _fit(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Fit:
  """One power law, or two that meet if the linearity test rejects one."""
  with jax.enable_x64(True):
    x, y = x.astype(np.float64), y.astype(np.float64)
    straight = jax.device_get(flatness.power_law_fit(x, y, where=mask))
    if not straight.linearity < MIN_LINEARITY:
      return straight
    return jax.device_get(flatness.broken_power_law_fit(x, y, where=mask))


def _numbers(fit: Fit) -> Table:
  return {name: np.asarray(value).tolist() for name, value in fit._asdict().items()}

"""The paper's analyses of a trained network: arrays for the figures, and a summary in numbers."""

import functools
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from jaxreg import flatness, losses
from jaxreg._atomic_files import replaced
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data.batches import batch_indices
from jaxreg.train.data.dataset import Split
from jaxreg.train.errors import RunError
from jaxreg.train.finished.load import Predictor
from jaxreg.train.finished.loss import make_loss_fn
from jaxreg.train.run.folder_name import short_hash
from papers.flatness._settings import Fields, Setting

# What reading arrays raises if they are missing or damaged, or if their archive is encrypted.
DAMAGE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
AT_ONCE = 250  # examples of a loss or a product at once
DIRECTIONS = 5  # of a profile
RISES = (0.5, 1.0)  # distances at which the rise of a profile is reported
MASKS = 32  # draws for each example, for a covariance without the bias of few samples
SMALLEST_VARIANCE = 1e-9  # of the largest; trailing components are mostly rounding error
SMALLEST_EIGENVALUE = 1e-6  # of the largest; below it, eigenvalues of a float32 matrix are rounding errors
MIN_LINEARITY = 0.01  # if the p-value of a straight line is smaller, two lines that meet are fitted instead
KEYS = {"gradients": 0, "covariance": 1, "eigenpairs": 2, "alignment": 3}

Arrays = dict[str, Any]
Table = dict[str, Any]


class Network:
  """A trained network, the examples of its loss, and the parameters that are analysed."""

  def __init__(self, run: Predictor, setting: Setting):
    self.run, self.setting, self.mask = run, setting, setting.mask
    self.batch = jax.tree.map(jnp.asarray, run.whole_batch(setting.examples))
    self.loss_fn, self.params = run.loss_fn, run.state.params
    self.size = flatness.subset(self.params, self.mask).flat.size
    options = [setting.mask, setting.examples, setting.parts, run.step]
    self.folder = run.workdir / "flatness" / short_hash(options)

  def loss(self) -> float:
    """Computes the mean loss without noise."""
    with jax.default_matmul_precision("highest"):
      return float(jax.jit(functools.partial(self.loss_fn, key=None))(self.params, self.batch))

  def logits(self, params: Any, batch: Any, *, key: Any = None) -> jax.Array:
    """Computes the logits of the examples, `[examples, classes]`."""
    del key
    inputs = self.run.program.examples(batch).inputs
    outputs, _ = self.run.program.apply_fn(params, self.run.state.model_state, inputs, key=None, train=False)
    return outputs["logits"]

  def hessian(self, params: Any) -> jax.Array:
    """Computes the Hessian from Jacobians: exact within one layer of a piecewise linear network."""
    return flatness.gauss_newton_matrix(self.logits, _mean_loss, params, self.batch, mask=self.mask)

  def kept(self, name: str, compute: Callable[[], Mapping[str, ArrayLike]]) -> Arrays:
    """Reads the arrays of that name from the run's folder, or computes and writes them."""
    file = self.folder / f"{name}.npz"
    try:
      with np.load(file) as arrays:
        return dict(arrays)
    except DAMAGE:
      print(f"flatness: computing {name}", flush=True)
      arrays = {key: np.asarray(value) for key, value in compute().items()}
      with replaced(file) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
      return arrays


def profile(network: Network) -> tuple[Arrays, Table]:
  """Computes the loss along random directions, the same for every network: `[directions, points]`."""
  alphas = jnp.linspace(-1, 1, network.setting.points)
  granularity: Any = network.setting.granularity

  def compute() -> Table:
    rows = []
    for index in tqdm(range(DIRECTIONS), desc="profile", leave=False, disable=None):
      key = jax.random.fold_in(jax.random.key(0), index)
      direction = flatness.filter_normalized_direction(key, network.params, granularity=granularity)
      rows.append(flatness.loss_profile(network.loss_fn, network.params, direction, alphas, network.batch))
    return {"losses": np.stack(rows)}

  name = f"profile-{len(alphas)}-{granularity}"
  return {"alphas": np.asarray(alphas), **network.kept(name, compute)}, {}


def rises(profile: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Computes the rise of the loss at each distance, as a mean of both sides: `[directions]`."""
  alphas, values = profile["alphas"], profile["losses"]

  def at(alpha: float) -> np.ndarray:
    return values[:, np.abs(alphas - alpha).argmin()]

  return {f"{distance:g}": (at(distance) + at(-distance)) / 2 - at(0.0) for distance in RISES}


def draw_samples(network: Network, number: int) -> dict[str, np.ndarray]:
  """Draws samples of the trajectory, of gradients, and of isotropic noise of the gradients' variance."""
  if number < 5 * network.size:
    biased = "their principal components have a bias, see docs/flatness.md"
    print(f"flatness: {number} samples of {network.size} parameters: {biased}")
  # Drawn once, for the analysis that needs the most samples; the other takes the first of them.
  most = max(network.setting.samples, network.setting.curvature_samples)
  gradients = network.kept(f"gradients-{most}", lambda: {"samples": _gradients(network, most)})["samples"]
  positions = network.kept(f"trajectory-{most}", lambda: {"samples": _trajectory(network, most)})["samples"]
  gradients, positions = gradients[:number], positions[:number]
  _check_vary("gradients", gradients)
  _check_vary("parameters along the trajectory", positions)
  return {"trajectory": positions, "gradients": gradients, "isotropic control": isotropic_like(gradients)}


def _gradients(network: Network, number: int) -> jax.Array:
  """Draws gradients under noise, or the noise of the mean gradient of the setting's parts."""
  options: Any = {"key": jax.random.key(KEYS["gradients"]), "mask": network.mask}
  parts = network.setting.parts
  if parts == 1:
    return flatness.sample_gradients(
      network.loss_fn, network.params, network.batch, num_samples=number, **options
    )
  batches = [jax.tree.map(lambda x, j=j: x[j::parts], network.batch) for j in range(parts)]
  options["num_samples"] = -(-number // parts) + 1  # the mean of a part's draws replaces one of them
  return flatness.sample_noise_by_parts(network.loss_fn, network.params, batches, **options)


def _trajectory(network: Network, number: int) -> np.ndarray:
  """Continues the training; returns the selected parameters after each of its steps."""
  run, split, state = network.run, network.run.stored_dataset.train, network.run.state
  size, seed = run.config.batch_size, run.config.seed
  batch = _stored(split) if size == len(split) else None

  @jax.jit
  def step(state: Any, batch: Any) -> Any:
    state, _ = run.program.train_step(state, batch)
    return state, flatness.subset(state.params, network.mask).flat

  rows = []
  start = int(state.step)
  for place in tqdm(range(start, start + number), desc="trajectory", leave=False, disable=None):
    chosen = batch
    if chosen is None:
      chosen = _stored(split.take(batch_indices(seed, place, num_examples=len(split), batch_size=size)))
    state, flat = step(state, chosen)
    rows.append(np.asarray(flat))
  return np.stack(rows)


def _stored(split: Split) -> dict[str, jax.Array]:
  return {"inputs": jnp.asarray(split.inputs), "labels": jnp.asarray(split.labels, jnp.int32)}


def _check_vary(what: str, samples: np.ndarray) -> None:
  """Checks that samples differ: equal ones have no directions."""
  if not np.ptp(samples, axis=0).any():
    same = f"the {what} are the same in all {len(samples)} samples"
    raise RunError(f"{same}; the analysis needs a training with dropout and a learning rate above 0")


def isotropic_like(samples: np.ndarray) -> np.ndarray:
  """Draws isotropic noise with the total variance of the samples: a control unrelated to the loss."""
  scale = np.sqrt(samples.var(axis=0).mean())
  return (scale * np.random.default_rng(0).normal(size=samples.shape)).astype(samples.dtype)


def variance_flatness(network: Network) -> tuple[Table, Table]:
  """Measures variances and interval flatness along the principal components of the samples, with fits.

  The arrays have, for each kind of samples, the `variances` `[k]`, the fields of `interval_flatness`, `[k]`,
  and the `mask` of the components that are fitted.
  """
  setting = network.setting
  samples = draw_samples(network, setting.samples)
  measured, fits, summary = {}, {}, {}
  for kind, each in samples.items():
    rows, variances = _components(each, setting.directions)
    mask = variances > SMALLEST_VARIANCE * variances[0]  # dead units have zero variance
    file = f"{kind.replace(' ', '_')}-{len(each)}-{len(rows)}-{setting.factor:g}"
    intervals = network.kept(file, functools.partial(_intervals, network, rows))
    fits[kind] = fitted(intervals["width"], variances, mask)
    measured[kind] = {"variances": variances, "mask": mask, **intervals}
    summary[kind] = {
      "directions": int(mask.sum()),
      "evaluations": float(intervals["evaluations"].mean()),
      "not_crossed": int((~intervals["crossed"]).any(axis=-1).sum()),
      "fit": _numbers(fits[kind]),
    }
  return {"measured": measured, "fits": fits, "spectra": _spectra(network, samples["gradients"])}, summary


def _components(samples: np.ndarray, number: int | None) -> tuple[np.ndarray, np.ndarray]:
  """Returns principal components, `[k, size]`, and their variances; with `number`, evenly spaced ones."""
  parts = _principal(samples)
  chosen = np.arange(int(parts.rank))
  if number and len(chosen) > number:
    chosen = np.unique(np.linspace(0, len(chosen) - 1, number).round().astype(int))
  return np.asarray(parts.directions)[chosen], np.asarray(parts.variances)[chosen]


def _intervals(network: Network, rows: np.ndarray) -> Table:
  loss_fn = flatness.chunked(network.loss_fn, AT_ONCE)  # on a CPU also faster than all examples at once
  directions = jnp.asarray(rows, jnp.float32)
  options: Any = {"mask": network.mask, "factor": network.setting.factor}
  return flatness.interval_flatness(loss_fn, network.params, directions, network.batch, **options)._asdict()


def _spectra(network: Network, samples: np.ndarray) -> Arrays:
  """Returns spectra of the gradient's covariance: from samples, from a third of them, and without bias."""
  few = samples[: max(2, len(samples) // 3)]
  spectra = {f"{len(each)} gradients": np.asarray(_principal(each).variances) for each in (few, samples)}
  if network.setting.parts > 1 or network.run.state.model_state:  # no example has noise of its own
    return spectra

  def compute() -> Table:
    matrix = _covariance(network, network.loss_fn, network.params, jax.random.key(KEYS["covariance"]), MASKS)
    return {"values": jnp.linalg.eigvalsh(matrix)[::-1]}

  return {**spectra, "drawn for each example": network.kept("covariance", compute)["values"]}


def _covariance(network: Network, loss_fn: Any, params: Any, key: jax.Array, draws: int) -> jax.Array:
  return flatness.per_example_noise_covariance(
    loss_fn, params, network.batch, key=key, num_samples=draws, mask=network.mask
  )


def projected_variance(network: Network) -> tuple[Table, Table]:
  """Measures the samples' variances along the Hessian's eigenvectors, with fits over its eigenvalues."""
  setting = network.setting
  samples = draw_samples(network, setting.curvature_samples)
  pairs = network.kept(f"eigenpairs-{setting.eigenpairs or 'all'}", functools.partial(_eigenpairs, network))
  vectors, values = pairs["vectors"].astype(np.float64), pairs["values"]
  variances = {
    kind: _in_float64(functools.partial(flatness.projected_variance, each.astype(np.float64), vectors))
    for kind, each in samples.items()
  }
  mask = values > SMALLEST_EIGENVALUE * values[0]
  fits = {kind: fitted(values, each, mask) for kind, each in variances.items()}
  summary = {
    "eigenvalues": int(mask.sum()),
    "largest": float(values[0]),
    "largest_residual": float(pairs["residuals"].max()),
    "fits": {kind: _numbers(fit) for kind, fit in fits.items()},
  }
  return {"values": values, "variances": variances, "mask": mask, "fits": fits}, summary


def _eigenpairs(network: Network) -> Table:
  """Computes the Hessian's eigenpairs: the largest by Lanczos, or all from its matrix."""
  if number := network.setting.eigenpairs:
    curvature = flatness.Curvature(
      network.loss_fn, network.params, network.batch, mask=network.mask, chunk_size=AT_ONCE
    )
    return curvature.top_eigenpairs(key=jax.random.key(KEYS["eigenpairs"]), num_pairs=number)._asdict()
  values, vectors = np.linalg.eigh(np.asarray(network.hessian(network.params), np.float64))
  return {"values": values[::-1], "vectors": vectors.T[::-1], "residuals": np.zeros_like(values)}


def alignment(network: Network) -> tuple[Table, Table]:
  """Measures the alignment at all checkpoints, with added noise that the training did not have."""
  run, setting = network.run, network.setting
  noisy = {label: noisy_loss_fn(run, fields) for label, fields in setting.noises.items()}
  points: dict[str, list[Arrays]] = {label: [] for label in noisy}
  for step in tqdm(run.checkpoints, desc="alignment", leave=False, disable=None):

    def compute(step: int = step) -> Table:
      params = run.at(step).state.params
      hessian, rows = network.hessian(params), {}
      for label, loss_fn in noisy.items():
        key = jax.random.fold_in(jax.random.key(KEYS["alignment"]), step)
        covariance = _covariance(network, loss_fn, params, key, setting.draws)
        rows[label] = flatness.hessian_variance_alignment(hessian, covariance)
      names = ("trace", "isotropic", "ratio")
      return {name: np.array([float(getattr(row, name)) for row in rows.values()]) for name in names}

    name = f"alignment-{short_hash([dict(setting.noises), setting.draws])}-{step}"
    arrays = network.kept(name, compute)
    for number, label in enumerate(noisy):
      points[label].append({name: values[number] for name, values in arrays.items()})
  series, summary = {}, {}
  for label, rows in points.items():
    arrays = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    series[label] = {"steps": run.checkpoints, **arrays}
    least, last = float(arrays["ratio"].min()), float(arrays["ratio"][-1])
    summary[label] = {"points": len(rows), "least_ratio": least, "last_ratio": last}
  return series, summary


def noisy_loss_fn(run: Predictor, fields: Fields) -> Any:
  """Builds the loss of a run's network with other fields, such as a dropout rate."""
  config = run.config.copy_and_resolve_references()
  with config.unlocked():  # type: ignore[attr-defined]
    config.update_from_flattened_dict(dict(fields))  # type: ignore[attr-defined]
  return make_loss_fn(build(config, run.dataset.describe()), run.state.model_state)


ANALYSES: dict[str, Callable[[Network], tuple[Table, Table]]] = {
  "profile": profile,
  "variance_flatness": variance_flatness,
  "projected_variance": projected_variance,
  "alignment": alignment,
}


def _mean_loss(logits: jax.Array, batch: Any) -> jax.Array:
  """Computes the cross-entropy of logits, weighted as in `whole_batch`."""
  return (losses.softmax_cross_entropy(logits, batch["labels"]) * batch["weights"]).mean()


def _principal(samples: np.ndarray) -> Any:
  return _in_float64(lambda: flatness.principal_components(jnp.asarray(samples, jnp.float64)))


def _in_float64(compute: Callable[[], Any]) -> Any:
  """Computes in float64: in float32 the drift of a trajectory hides the noise around it."""
  with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
    return jax.device_get(compute())


def fitted(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Any:
  """Fits one power law, or two that meet if the linearity test rejects one."""
  with jax.enable_x64(True):
    x, y = x.astype(np.float64), y.astype(np.float64)
    straight = jax.device_get(flatness.power_law_fit(x, y, where=mask))
    if not straight.linearity < MIN_LINEARITY:
      return straight
    return jax.device_get(flatness.broken_power_law_fit(x, y, where=mask))


def _numbers(fit: Any) -> Table:
  return {name: np.asarray(value).tolist() for name, value in fit._asdict().items()}

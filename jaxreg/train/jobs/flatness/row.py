"""One run of `job = flatness`: restores its program, state and data, and runs the analyses."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

from jaxreg import flatness
from jaxreg.train import keys
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.assemble.saved import places, restore_config, restore_run
from jaxreg.train.config.choices import Config, base_config, flatten
from jaxreg.train.data.batches import batch_indices
from jaxreg.train.data.placement import gather, place
from jaxreg.train.devices.mesh import make_mesh
from jaxreg.train.jobs.flatness import analyses
from jaxreg.train.jobs.flatness.array_cache import Kept
from jaxreg.train.jobs.flatness.checks import (
  check_parts,
  check_plain,
  check_samples,
  check_vary,
  host_batch,
  most_samples,
  noisy_programs,
)
from jaxreg.train.jobs.flatness.network_at_point import make_subjects, with_weights
from jaxreg.train.jobs.flatness.subject import Subject
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.log import progress
from jaxreg.train.run.manifest import good_steps, pick_step, seal
from jaxreg.train.run.restore import restore_state
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState

# If the p-value of a straight line is smaller, two lines that meet are fitted instead.
MIN_LINEARITY = 0.01


class AnalysedRun:
  """One run: its restored program, state and data, and a method for each analysis."""

  def __init__(self, config: Config, folder: Path, kept_in: Path):
    self.config, self.folder = config, folder
    self.options = options = config.flatness
    self.run = restore_config(base_config(), folder, places(config))
    self.dataset = load_data(self.run)
    workdirs.check_same(folder, flatten(self.run), self.dataset.describe(), workdirs.EVALUATES)
    check_plain(self.run, options, self.dataset)
    self.step = pick_step(folder, options.checkpoint, self.run.checkpoint.best)
    self.program, self.state, _ = restore_run(folder, self.step, options.replica)
    check_samples(self.program, options, self.dataset, self.step)
    check_parts(self.program, options, self.dataset)
    aligned = "alignment" in options.analyses
    self.noisy = noisy_programs(config, self.run, self.program, self.dataset) if aligned else {}
    self.mesh = make_mesh()
    self.split = self.dataset.train.take(slice(options.examples or None))
    self.mask = tuple(options.mask)
    # Saved arrays belong to these parameters, examples and draws.
    saved = [str(folder.resolve()), self.step, seal(folder, self.step), options.replica]
    identity = [*saved, len(self.split), self.mask, options.seed]
    if options.parts > 1:
      identity.append(options.parts)
    self.kept = kept_in / f"{folder.name}-{_name(identity)}"

  def analyse(self) -> dict[str, Any]:
    """The arrays for the figures, and a summary in numbers."""
    subject = self.subject(self.program, self.state)
    results = workdirs.read(self.folder, "results.json") if (self.folder / "results.json").is_file() else {}
    summary: dict[str, Any] = {
      "step": self.step,
      "examples": len(self.split),
      "parameters": subject.size,
      "train/loss": subject.loss(),
      **{name: value for name, value in results.items() if name in ("test/error", "test/nll")},
    }
    arrays: dict[str, Any] = {}
    for name in self.options.analyses:
      progress(f"flatness: {name}")
      arrays[name], summary[name] = getattr(self, name)(subject)
    return {"arrays": arrays, "summary": summary}

  def subject(self, program: Program, state: TrainState) -> Subject:
    parts = self.options.parts
    return make_subjects(program, state.params, self.batch(), self.mask, parts)(self.placed(state))

  def batch(self) -> dict[str, Any]:
    """The examples: a slice on each device if they divide evenly, else a copy."""
    spec = P("data") if len(self.split) % self.mesh.size == 0 else P()
    return place(self.mesh, with_weights(host_batch(self.split)), spec)

  def placed(self, state: TrainState) -> TrainState:
    return jax.device_put(state, NamedSharding(self.mesh, P()))

  def profile(self, subject: Subject) -> tuple[Any, Any]:
    options = self.options.profile
    kept = Kept(self.kept / _name(options))
    found = analyses.profile(
      subject,
      kept,
      directions=options.directions,
      points=options.points,
      reach=options.reach,
      granularity=options.granularity,
    )
    return found, {}  # the summary of the rises needs all rows

  def samples(self, subject: Subject, num: int) -> dict[str, np.ndarray]:
    """Samples of the trajectory, of gradients, and of isotropic noise with the gradients' total variance."""
    if num < 5 * subject.size:
      print(
        f"flatness: {num} samples of {subject.size} parameters: their principal components have a bias, "
        "see docs/flatness.md",
        file=sys.stderr,
      )
    # Drawn once, for the analysis that needs the most samples; others take the first of them.
    most = most_samples(self.options)
    kept = Kept(self.kept / f"samples-{most}")
    key = keys.flatness(self.options.seed, "gradients")
    gradients = analyses.gradient_samples(subject, kept, key, most)[:num]
    check_vary("gradients", gradients)
    trajectory = kept.arrays("trajectory", lambda: {"samples": self.trajectory(most)})["samples"][:num]
    check_vary("parameters along the trajectory", trajectory)
    control = analyses.isotropic_samples(gradients, self.options.seed)
    return {"trajectory": trajectory, "gradients": gradients, "isotropic control": control}

  def trajectory(self, num: int) -> np.ndarray:
    """The selected parameters after each of `num` more steps of the training."""
    state, split = self.state, self.dataset.train
    size = self.run.batch_size
    full = size == len(split)
    sizes = {"num_examples": len(split), "batch_size": size}
    batch = place(self.mesh, host_batch(split), P()) if full else None

    @jax.jit
    def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
      state, _ = self.program.train_step(state, gather({}, batch))
      return state, flatness.subset(state.params, self.mask).flat

    samples = []
    start = int(state.step)
    for number in tqdm(range(num), desc="trajectory", leave=False, disable=None):
      if not full:
        batch = host_batch(
          split.take(batch_indices(self.run.seed + self.options.replica, start + number, **sizes))
        )
      state, flat = step(state, batch)
      samples.append(np.asarray(flat))
    return np.stack(samples)

  def variance_flatness(self, subject: Subject) -> tuple[Any, Any]:
    options = self.options.variance_flatness
    samples = self.samples(subject, options.samples)
    kept = Kept(self.kept / f"flatness-{options.samples}-{options.directions}")
    found = analyses.variance_flatness(
      subject, kept, samples, factors=options.factors, directions=options.directions
    )
    key = keys.flatness(self.options.seed, "covariance")
    spectra = analyses.spectra(subject, kept, key, samples["gradients"])
    fits, summary = {}, {}
    for kind, each in found.items():
      # Trailing components are mostly rounding error; dead units have zero variance.
      each["mask"] = each["variances"] > options.tol * each["variances"][0]
      fits[kind] = {
        analyses.factor_name(factor): _fit(widths, each["variances"], each["mask"])
        for factor, widths in zip(options.factors, each["width"], strict=True)
      }
      summary[kind] = {
        "directions": int(each["mask"].sum()),
        "evaluations": float(each["evaluations"].mean()),
        "not_crossed": int((~each["crossed"]).any(axis=-1).sum()),
        "fits": {factor: _numbers(fit) for factor, fit in fits[kind].items()},
      }
    return {"found": found, "fits": fits, "spectra": spectra}, summary

  def projected_variance(self, subject: Subject) -> tuple[Any, Any]:
    options = self.options.projected_variance
    samples = self.samples(subject, options.samples)
    kept = Kept(self.kept / "hessian")
    key = keys.flatness(self.options.seed, "eigenpairs")
    found = analyses.projected_variance(subject, kept, key, samples, eigenpairs=options.eigenpairs)
    values = found["values"]
    # Below this tolerance, an eigenvalue of a float32 matrix is rounding error.
    mask = values > options.tol * values[0]
    fits = {kind: _fit(values, variances, mask) for kind, variances in found["variances"].items()}
    summary = {
      "eigenvalues": int(mask.sum()),
      "largest": float(values[0]),
      "largest_residual": float(found["residuals"].max()),
      "eigenpairs_by": found["by"],
      "fits": {kind: _numbers(fit) for kind, fit in fits.items()},
    }
    return {**found, "mask": mask, "fits": fits}, summary

  def alignment(self, subject: Subject) -> tuple[Any, Any]:
    """The alignment at all checkpoints of the run, with added noise that the training did not have."""
    options = self.options.alignment
    steps = sorted(good_steps(self.folder))
    series, summary = {}, {}
    for label, (fields, program) in self.noisy.items():
      subjects = make_subjects(program, subject.params, self.batch(), self.mask, subject.parts)
      kept = Kept(self.kept / f"alignment-{_name(options)}")

      def at(step: int, subjects: Any = subjects) -> dict[str, Any]:
        key = keys.step(keys.flatness(self.options.seed, "alignment"), step)
        state = restore_state(self.program, self.folder, step, self.options.replica, self.run.replicas)
        return subjects(self.placed(state)).alignment(key, options.num_samples)._asdict()

      found = [
        kept.arrays(f"{_name(fields)}-{step}", lambda step=step: at(step))
        for step in tqdm(steps, desc=f"alignment, {label}", leave=False, disable=None)
      ]
      series[label] = {"steps": steps} | {
        name: np.array([float(each[name]) for each in found]) for name in found[0]
      }
      ratio = series[label]["ratio"]
      summary[label] = {
        "points": len(steps),
        "least_ratio": float(ratio.min()),
        "last_ratio": float(ratio[-1]),
      }
    return series, summary


def _fit(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> flatness.PowerLaw | flatness.BrokenPowerLaw:
  """One power law, or two that meet if the linearity test rejects one."""
  with jax.enable_x64(True):
    x, y = x.astype(np.float64), y.astype(np.float64)
    straight = jax.device_get(flatness.power_law_fit(x, y, where=mask))
    if not straight.linearity < MIN_LINEARITY:
      return straight
    return jax.device_get(flatness.broken_power_law_fit(x, y, where=mask))


def _numbers(fit: flatness.PowerLaw | flatness.BrokenPowerLaw) -> dict[str, Any]:
  return {name: np.asarray(value).tolist() for name, value in fit._asdict().items()}


def _name(options: Any) -> str:
  """A hash of the options that a result depends on, as a short name."""
  return hashlib.sha256(json.dumps(options, sort_keys=True, default=dict).encode()).hexdigest()[:8]

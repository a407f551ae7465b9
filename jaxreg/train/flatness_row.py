"""One run of `job = flatness`: what is restored of it, and the analyses it is asked for."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

from jaxreg import flatness
from jaxreg.train import analyses
from jaxreg.train import workdir as workdirs
from jaxreg.train.config import Config, base_config
from jaxreg.train.data import Dataset, Split
from jaxreg.train.errors import RunError
from jaxreg.train.kept import Kept
from jaxreg.train.load import pick_step, restore_run, restore_state
from jaxreg.train.manifest import good_steps, seal
from jaxreg.train.order import batch_indices
from jaxreg.train.placement import gather, place
from jaxreg.train.program import Program
from jaxreg.train.rows import make_cell, parse_fields
from jaxreg.train.setup import build, load_data, make_mesh
from jaxreg.train.state import TrainState
from jaxreg.train.subject import Subject, draws_noise, make_subjects, with_weights

SAMPLED = ("variance_flatness", "projected_variance")
RISES = (0.5, 1.0)  # distances at which the rise of the profile is reported


class Row:
  """One run: what is restored of it, and the analyses it is asked for."""

  def __init__(self, config: Config, folder: Path, kept_in: Path):
    self.config, self.folder = config, folder
    self.options = options = config.flatness
    self.run = workdirs.restore_config(base_config(), folder, workdirs.places(config))
    self.dataset = load_data(self.run)
    workdirs.check_same(folder, self.run, self.dataset.describe(), workdirs.FREE_TO_EVALUATE)
    check_plain(self.run, options, self.dataset)
    self.step = pick_step(folder, options.checkpoint, self.run.checkpoint.best)
    self.program, self.state, _ = restore_run(folder, self.step, options.replica)
    check_samples(self.program, options, self.dataset, self.step)
    self.mesh = make_mesh()
    self.split = self.dataset.train.take(slice(options.examples or None))
    self.where = tuple(options.where)
    # What is kept belongs to these parameters, examples and draws.
    saved = [str(folder.resolve()), self.step, seal(folder, self.step), options.replica]
    identity = [*saved, len(self.split), self.where, options.seed]
    self.kept = kept_in / f"{folder.name}-{_name(identity)}"

  def analyse(self) -> dict[str, Any]:
    """Arrays for the figures and a summary in numbers."""
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
      print(f"flatness: {name}", file=sys.stderr, flush=True)
      arrays[name], summary[name] = getattr(self, name)(subject)
    return {"arrays": arrays, "summary": summary}

  def subject(self, program: Program, state: TrainState) -> Subject:
    return make_subjects(program, state.params, self.batch(), self.where)(self.placed(state))

  def batch(self) -> dict[str, Any]:
    """The examples, a slice on each device where they can be shared out."""
    spec = P("data") if len(self.split) % self.mesh.size == 0 else P()
    return place(self.mesh, with_weights(_arrays(self.split)), spec)

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
    return found, {}  # the rises need all rows

  def samples(self, subject: Subject, num: int) -> dict[str, np.ndarray]:
    """Trajectory, gradients, and isotropic noise of the gradients' size."""
    if num < 5 * subject.size:
      print(
        f"flatness: {num} samples of {subject.size} parameters: their principal components have a bias, "
        "see docs/flatness.md",
        file=sys.stderr,
      )
    # Drawn once, for the analysis that wants most: fewer are the first of them.
    most = _most_samples(self.options)
    kept = Kept(self.kept / f"samples-{most}")
    key = jax.random.key(self.options.seed)
    gradients = analyses.gradient_samples(subject, kept, key, most)[:num]
    _check_vary("gradients", gradients)
    trajectory = kept.arrays("trajectory", lambda: {"samples": self.trajectory(most)})["samples"][:num]
    _check_vary("parameters along the trajectory", trajectory)
    control = analyses.isotropic_samples(gradients, self.options.seed)
    return {"trajectory": trajectory, "gradients": gradients, "isotropic control": control}

  def trajectory(self, num: int) -> np.ndarray:
    """The selected parameters after each of `num` more steps of the training."""
    state, split = self.state, self.dataset.train
    size = self.run.batch_size
    full = size == len(split)
    sizes = {"num_examples": len(split), "batch_size": size}
    batch = place(self.mesh, _arrays(split), P()) if full else None

    @jax.jit
    def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
      state, _ = self.program.train_step(state, gather({}, batch))
      return state, flatness.subset(state.params, self.where).flat

    samples = []
    start = int(state.step)
    for number in tqdm(range(num), desc="trajectory", leave=False, disable=None):
      if not full:
        batch = _arrays(
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
    key = jax.random.key(self.options.seed + 1)
    spectra = analyses.spectra(subject, kept, key, samples["gradients"])
    fits, summary = {}, {}
    for kind, each in found.items():
      # Of what is left to the last components, most is rounding, and dead units have none.
      each["mask"] = each["variances"] > options.tolerance * each["variances"][0]
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
    key = jax.random.key(self.options.seed + 2)
    found = analyses.projected_variance(subject, kept, key, samples, eigenpairs=options.eigenpairs)
    values = found["values"]
    # Below that an eigenvalue of a float32 matrix is rounding.
    mask = values > options.tolerance * values[0]
    fits = {kind: _fit(values, variances, mask) for kind, variances in found["variances"].items()}
    summary = {
      "eigenvalues": int(mask.sum()),
      "largest": float(values[0]),
      "largest_residual": float(found["residuals"].max()),
      "fits": {kind: _numbers(fit) for kind, fit in fits.items()},
    }
    return {**found, "mask": mask, "fits": fits}, summary

  def alignment(self, subject: Subject) -> tuple[Any, Any]:
    """Over all checkpoints of the run, with noise added that the training had not."""
    options = self.options.alignment
    steps = sorted(good_steps(self.folder))
    series, summary = {}, {}
    for label, fields in parse_fields(self.config, options.noises, "flatness.alignment.noises").items():
      noisy = make_cell(self.run, label, fields, seeds=1)
      program = build(noisy, self.dataset.describe())
      subjects = make_subjects(program, subject.params, self.batch(), self.where)
      kept = Kept(self.kept / f"alignment-{_name(options)}")

      def at(step: int, subjects: Any = subjects) -> dict[str, Any]:
        key = jax.random.fold_in(jax.random.key(self.options.seed + 3), step)
        state = restore_state(self.program, self.folder, step, self.options.replica, self.run.replicas)
        return subjects(self.placed(state)).alignment(key, options.num_masks)._asdict()

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


def check_plain(run: Config, options: Any, dataset: Dataset) -> None:
  """The trajectory of a training is followed from its last parameters, batch by batch of its examples.

  Raises:
    RunError: for a run of which that, or what `flatness.replica` asks for, cannot be.
  """
  if not options.replica < run.replicas:
    raise RunError(f"flatness.replica: must be below {run.replicas}, got {options.replica}")
  plain = run.average.name == "none" and not run.data.bootstrap and not run.data.unlabelled.batch_size
  only_profiles = set(options.analyses) == {"profile"}
  if run.ensemble > 1 or (not plain and not only_profiles):
    raise RunError(
      "flatness: looks at single networks and, but for profiles, at runs with average.name=none, "
      "data.bootstrap=False and no unlabelled examples; give another run"
    )
  # Its crops are drawn anew at every step.
  sampled = [name for name in SAMPLED if name in options.analyses]
  if dataset.streams() and sampled:
    raise RunError(
      f"flatness.analyses: images that are decoded batch by batch, as by data.{run.data.name}, have no "
      f"trajectory, which {', '.join(sampled)} follows; leave it out"
    )


def check_samples(program: Program, options: Any, dataset: Dataset, step: int) -> None:
  """Where samples are asked for, the gradients must vary, and so must the parameters after `step`.

  Raises:
    RunError: for a run without noise, or one that comes to a stand.
  """
  sampled = ", ".join(name for name in SAMPLED if name in options.analyses)
  if not sampled:
    return
  if not draws_noise(program, _arrays(dataset.train.take(slice(2)))):
    raise RunError(
      f"flatness.analyses: the run draws no noise, and {sampled} looks at its variance; give a run with "
      "dropout or other noise, or other analyses"
    )
  most = _most_samples(options)
  # A schedule that has come to 0 stays there.
  if program.schedule(step + most - 1) == 0:
    raise RunError(
      f"flatness.analyses: {sampled} follows the training for {most} steps more, from step {step} on, where "
      "its learning rate comes to 0; give a run with another optimizer.schedule, or other analyses"
    )


def _check_vary(what: str, samples: np.ndarray) -> None:
  if not np.ptp(samples, axis=0).any():
    raise RunError(
      f"flatness.where: the {what} are the same in all {len(samples)} samples; give another where or run"
    )


def _most_samples(options: Any) -> int:
  return max(options[name].samples for name in SAMPLED if name in options.analyses)


def rises(profile: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """By distance, how much the loss rises there, mean of both sides: `[directions]`."""
  alphas, losses = profile["alphas"], profile["losses"]
  at = lambda alpha: losses[:, np.abs(alphas - alpha).argmin()]
  # A reach of 1 in float32 may fall short of it by a rounding.
  reached = [distance for distance in RISES if distance <= alphas.max() * (1 + 1e-6)]
  return {f"{distance:g}": (at(distance) + at(-distance)) / 2 - at(0.0) for distance in reached}


def _fit(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> flatness.PowerLaw:
  with jax.enable_x64(True):
    return jax.device_get(flatness.power_law_fit(x.astype(np.float64), y.astype(np.float64), mask=mask))


def _numbers(fit: flatness.PowerLaw) -> dict[str, Any]:
  return {name: np.asarray(value).tolist() for name, value in fit._asdict().items()}


def _arrays(split: Split) -> dict[str, np.ndarray]:
  return {"inputs": np.asarray(split.inputs), "labels": split.labels.astype(np.int32)}


def _name(options: Any) -> str:
  """A short name for what a result depends on."""
  return hashlib.sha256(json.dumps(options, sort_keys=True, default=dict).encode()).hexdigest()[:8]

"""One run of `job = flatness`: its program, state and data are checked, restored and analysed."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

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
from jaxreg.train.data.batches import batch_indices, gather, place
from jaxreg.train.devices.sharding import make_mesh
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.flatness import analyses
from jaxreg.train.jobs.flatness.array_cache import ArrayCache
from jaxreg.train.jobs.flatness.network_at_point import NetworkAtPoint, make_networks, with_weights
from jaxreg.train.jobs.flatness.requirements import (
  check_parts,
  check_plain,
  check_samples,
  host_batch,
  most_samples,
  noisy_programs,
)
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import restore_state
from jaxreg.train.run.folder_name import EVALUATES, short_hash
from jaxreg.train.run.log import progress
from jaxreg.train.run.manifest import good_steps, pick_step, seal
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Batch, Key, Params

SHOWN = ("test/error", "test/nll", "test/rmse", "test/mae")  # of the results of the run
Found = tuple[object, Table]  # the arrays of an analysis for the figures, and its summary in numbers


class AnalysedRun:
  """One run: its restored program, state and data, and a method for each analysis."""

  def __init__(self, config: Config, folder: Path, cache: Path):
    """Restores the run in `folder`; arrays that take long to compute are kept in a folder below `cache`."""
    self.config, self.folder = config, folder
    self.options = options = config.flatness
    self.run = restore_config(base_config(), folder, places(config))
    self.dataset = load_data(self.run)
    workdirs.check_same(folder, flatten(self.run), self.dataset.describe(), EVALUATES)
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
    identity = [*saved, len(self.split), self.mask, options.seed, options.parts]
    self.cache = cache / f"{folder.name}-{short_hash(identity)}"

  def analyse(self) -> Table:
    """The arrays for the figures, and a summary in numbers."""
    network = self.networks(self.program, self.state.params)(self.state)
    finished = (self.folder / "results.json").is_file()
    results = workdirs.read(self.folder, "results.json") if finished else {}
    summary: Table = {"step": self.step, "examples": len(self.split), "parameters": network.size}
    summary |= {"train/loss": network.loss()} | {name: results[name] for name in SHOWN if name in results}
    arrays: Table = {}
    for name in self.options.analyses:
      progress(f"flatness: {name}")
      arrays[name], summary[name] = getattr(self, name)(network)
    return {"arrays": arrays, "summary": summary}

  def networks(self, program: Program, params: Params) -> Callable[[TrainState], NetworkAtPoint]:
    """Builds `state -> NetworkAtPoint` on the examples, which are split over the devices if they divide."""
    spec = P("data") if len(self.split) % self.mesh.size == 0 else P()
    batch = place(self.mesh, with_weights(host_batch(self.split)), spec)
    at = make_networks(program, params, batch, self.mask, self.options.parts)
    return lambda state: at(jax.device_put(state, NamedSharding(self.mesh, P())))

  def samples(self, network: NetworkAtPoint, num: int) -> dict[str, np.ndarray]:
    """Samples of the trajectory, of gradients, and of isotropic noise with the gradients' total variance."""
    if num < 5 * network.size:
      biased = "their principal components have a bias, see docs/flatness.md"
      print(f"flatness: {num} samples of {network.size} parameters: {biased}", file=sys.stderr)
    # Drawn once, for the analysis that needs the most samples; others take the first of them.
    most = most_samples(self.options)
    cache = ArrayCache(self.cache / f"samples-{most}")
    gradients = analyses.gradient_samples(network, cache, self.key("gradients"), most)[:num]
    _check_vary("gradients", gradients)
    trajectory = cache.arrays("trajectory", lambda: {"samples": self.trajectory(most)})["samples"][:num]
    _check_vary("parameters along the trajectory", trajectory)
    control = analyses.isotropic_samples(gradients, self.options.seed)
    return {"trajectory": trajectory, "gradients": gradients, "isotropic control": control}

  def key(self, name: str) -> Key:
    return keys.flatness(self.options.seed, name)

  def trajectory(self, num: int) -> np.ndarray:
    """The selected parameters after each of `num` more steps of the training."""
    state, split = self.state, self.dataset.train
    full = self.run.batch_size == len(split)
    batch = place(self.mesh, host_batch(split), P()) if full else None

    @jax.jit
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Array]:
      state, _ = self.program.train_step(state, gather({}, batch))
      return state, flatness.subset(state.params, self.mask).flat

    samples = []
    start, seed = int(state.step), self.run.seed + self.options.replica
    for number in tqdm(range(start, start + num), desc="trajectory", leave=False, disable=None):
      if not full:
        indices = batch_indices(seed, number, num_examples=len(split), batch_size=self.run.batch_size)
        batch = host_batch(split.take(indices))
      state, flat = step(state, batch)
      samples.append(np.asarray(flat))
    return np.stack(samples)

  def profile(self, network: NetworkAtPoint) -> Found:
    options = self.options.profile
    cache = ArrayCache(self.cache / short_hash(options.to_dict()))
    return analyses.profile(network, cache, **options), {}  # the summary of the rises needs all rows

  def variance_flatness(self, network: NetworkAtPoint) -> Found:
    options = self.options.variance_flatness.to_dict()
    number = options.pop("samples")
    samples = self.samples(network, number)
    cache = ArrayCache(self.cache / f"flatness-{number}-{options['directions']}")
    found, summary = analyses.variance_flatness(network, cache, samples, **options)
    spectra = analyses.spectra(network, cache, self.key("covariance"), samples["gradients"])
    return {**found, "spectra": spectra}, summary

  def projected_variance(self, network: NetworkAtPoint) -> Found:
    options, cache = self.options.projected_variance.to_dict(), ArrayCache(self.cache / "hessian")
    samples = self.samples(network, options.pop("samples"))
    return analyses.projected_variance(network, cache, self.key("eigenpairs"), samples, **options)

  def layerwise(self, network: NetworkAtPoint) -> Found:
    options = self.options.layerwise
    cache = ArrayCache(self.cache / f"layerwise-{short_hash(options.to_dict())}")
    return analyses.layerwise(network, cache, self.key("layerwise"), **options)

  def alignment(self, network: NetworkAtPoint) -> Found:
    """The alignment at all checkpoints of the run, with added noise that the training did not have."""
    options = self.options.alignment
    steps = sorted(good_steps(self.folder))
    cache = ArrayCache(self.cache / f"alignment-{short_hash(flatten(options))}")
    series, summary = {}, {}
    for label, (fields, program) in self.noisy.items():
      networks = self.networks(program, network.params)

      def at(step: int, networks: Callable[[TrainState], NetworkAtPoint] = networks) -> Table:
        state = restore_state(self.program, self.folder, step, self.options.replica, self.run.replicas)
        key = keys.step(self.key("alignment"), step)
        return networks(state).alignment(key, options.num_samples)._asdict()

      found = [
        cache.arrays(f"{short_hash(fields)}-{step}", functools.partial(at, step))
        for step in tqdm(steps, desc=f"alignment, {label}", leave=False, disable=None)
      ]
      arrays = {name: np.array([float(each[name]) for each in found]) for name in found[0]}
      series[label] = {"steps": steps, **arrays}
      least, last = float(arrays["ratio"].min()), float(arrays["ratio"][-1])
      summary[label] = {"points": len(steps), "least_ratio": least, "last_ratio": last}
    return series, summary


def _check_vary(what: str, samples: np.ndarray) -> None:
  """Equal samples have no directions."""
  if not np.ptp(samples, axis=0).any():
    same = f"the {what} are the same in all {len(samples)} samples"
    raise RunError(f"flatness.mask: {same}; give another mask or run")

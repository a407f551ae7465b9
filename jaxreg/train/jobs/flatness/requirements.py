"""What `job = flatness` requires of a run, checked before anything is trained or sampled."""

import numpy as np

from jaxreg.flatness._subset import selected
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.checks import check
from jaxreg.train.config.fields import Config, Flatness
from jaxreg.train.config.rows import Fields, checked_rows
from jaxreg.train.data.batches import Source
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.flatness.network_at_point import draws_noise
from jaxreg.train.jobs.row_config import row_config
from jaxreg.train.step.program import Program

SAMPLED = ("variance_flatness", "projected_variance")


def check_row(row: Config) -> None:
  """Makes the checks of a trained row that are possible before training."""
  check_analyses(row)
  options, dataset = row.flatness, load_data(row)
  check_plain(row, options, dataset)
  program = build(row, dataset.describe())
  selected(program.abstract.params, tuple(options.mask))
  if "alignment" in options.analyses:
    noisy_programs(row, row, program, dataset)
  check_parts(program, options, dataset)
  # The best checkpoint may be any checkpoint, so its step is taken as 0.
  check_samples(program, options, dataset, program.num_steps if options.checkpoint == "latest" else 0)


def check_analyses(config: Config) -> None:
  """Checks the fields alone."""
  check(config)
  if "alignment" in config.flatness.analyses and not config.flatness.alignment.noises:
    raise RunError("flatness.alignment.noises: give at least one, 'label: field=value ...', for the analysis")


def check_plain(run: Config, options: Flatness, dataset: Dataset) -> None:
  """Checks that the training can be continued from its last parameters, batch by batch of its examples."""
  if not options.replica < run.replicas:
    raise RunError(f"flatness.replica: must be below {run.replicas}, got {options.replica}")
  data = run.data
  plain = run.average.name == run.method.class_weights == "none" and not (
    data.bootstrap or data.balanced or data.unlabelled.batch_size
  )
  at_point = set(options.analyses) <= {"profile", "layerwise"}
  if run.ensemble > 1 or not (plain or at_point):
    raise RunError(
      "flatness: looks at single networks and, but for profiles and layers, at runs with average.name=none, "
      "method.class_weights=none, data.bootstrap=False, data.balanced=False and no unlabelled examples; give "
      "another run"
    )
  # A streamed data set draws new crops at every step.
  sampled = [name for name in SAMPLED if name in options.analyses]
  if dataset.streams() and sampled:
    raise RunError(
      f"flatness.analyses: images that are decoded batch by batch, as by data.{run.data.name}, have no "
      f"trajectory, which {', '.join(sampled)} follows; leave it out"
    )


def check_samples(program: Program, options: Flatness, dataset: Dataset, step: int) -> None:
  """Checks, for analyses of samples, that the gradients vary, and the parameters after `step`."""
  sampled = ", ".join(name for name in SAMPLED if name in options.analyses)
  if not sampled:
    return
  if not draws_noise(program, host_batch(dataset.train.take(slice(2)))):
    raise RunError(
      f"flatness.analyses: neither the run's network nor its method's loss draws noise, and {sampled} looks "
      "at its variance; give a run with dropout or other noise there, or other analyses"
    )
  most = most_samples(options)
  # A schedule that has reached 0 stays at 0.
  if program.schedule(step + most - 1) == 0:
    raise RunError(
      f"flatness.analyses: {sampled} follows the training for {most} steps more, from step {step} on, where "
      "its learning rate comes to 0; give a run with another optimizer.schedule, or other analyses"
    )


def check_parts(program: Program, options: Flatness, dataset: Dataset) -> None:
  """Checks that the examples divide into `flatness.parts`, and that BatchNorm couples none of them."""
  examples = len(dataset.train.take(slice(options.examples or None)))
  if examples % options.parts:
    raise RunError(f"flatness.parts: must divide the {examples} examples, got {options.parts}")
  if program.abstract.model_state and options.parts == 1 and "alignment" in options.analyses:
    raise RunError(
      "flatness.parts: must be above 1, got 1: alignment draws the noise of each part, and BatchNorm couples "
      "the examples; give the number of examples over the batch size"
    )


def noisy_programs(
  config: Config, run: Config, program: Program, dataset: Dataset
) -> dict[str, tuple[Fields, Program]]:
  """The fields that each row of `flatness.alignment.noises` sets, and the program with them, by label."""
  where, made = "flatness.alignment.noises", {}
  state = lambda program: (program.abstract.params, program.abstract.model_state)
  for label, fields in checked_rows(config, where).items():
    changed = row_config(run, label, fields, seeds=1)
    check(changed)
    noisy = build(changed, dataset.describe())
    if state(noisy) != state(program):
      raise RunError(f"{where}: {label!r} changes the network; give fields of noise alone")
    if not draws_noise(noisy, host_batch(dataset.train.take(slice(2)))):
      raise RunError(f"{where}: with {label!r} neither the network nor the method's loss draws noise")
    made[label] = (fields, noisy)
  return made


def most_samples(options: Flatness) -> int:
  """The largest number of samples that an analysis asks for."""
  return max(options[name].samples for name in SAMPLED if name in options.analyses)


def host_batch(split: Split) -> dict[str, np.ndarray]:
  """All examples of a split as one batch, on the host."""
  return {"inputs": np.asarray(split.inputs), "labels": Source(split, {}).targets()["labels"]}

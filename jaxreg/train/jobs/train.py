"""`job = train`: claims a work directory, restores or begins the run, trains it and evaluates it."""

import contextlib
import functools
import os

import jax
from etils.epath import Path

from jaxreg.train.assemble.compatibility import check_devices
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.assemble.run_parts import make_run, replicas_of
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config, flatten
from jaxreg.train.config.fields import row_of
from jaxreg.train.data.batches import make_feed
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.devices import processes
from jaxreg.train.errors import RunError, shortened
from jaxreg.train.finished.reuse import load_pretrained, make_teacher
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import Checkpoints
from jaxreg.train.run.folder_name import TRAINS
from jaxreg.train.run.goodput import Times
from jaxreg.train.run.health import Watchdog, check_finite
from jaxreg.train.run.initial_state import initial_states, restored_states
from jaxreg.train.run.interrupt import Interrupted
from jaxreg.train.run.lock import check_shared, check_there
from jaxreg.train.run.log import open_log, say
from jaxreg.train.run.loop import Run, train_steps
from jaxreg.train.run.manifest import good_steps, saved_sums
from jaxreg.train.run.profile import Profile
from jaxreg.train.run.trackers import Place, Trackers, find_trackers
from jaxreg.train.sealed_tables import Table, digest
from jaxreg.train.step.program import Program
from jaxreg.train.user_modules import short
from jaxreg.train.user_paths import user_path
from jaxreg.typing import Params


def train(config: Config, workdir: str | os.PathLike[str], *, part: str = "") -> Table:
  """Trains, or continues to train, and evaluates; returns the results.

  `results.json` has them too, and the run's `goodput`, whose times differ between equal runs.

  If there are several replicas, the results are means each with a `..._ci95`, and `replicas` holds the
  single values. With several processes, each calls this with the same arguments, and with a work directory
  that all of them see.

  `part` is the name of the run in a longer job, whose terminal then shows only a bar of this name.

  Raises:
    RunError: for a mistake in the configuration, data or work directory, or a loss that is not finite.
    Interrupted: on SIGTERM or Ctrl-C, after saving.
  """
  with Times() as times:
    return _claim_and_train(config, user_path(workdir, "--workdir"), part, times)


def _claim_and_train(config: Config, workdir: Path, part: str, times: Times) -> Table:
  # Everything is loaded, checked and traced before the work directory is touched.
  check(config)
  fields = flatten(config)
  processes.same("config", fields)
  dataset = processes.everywhere(lambda: load_data(config))
  data = dataset.describe()
  processes.same("data", data.table())
  check_devices(config)
  trackers = find_trackers(config.log.trackers)
  teacher = pretrained = None
  if config.teacher.workdir:
    teacher = processes.everywhere(lambda: make_teacher(data, config.teacher.workdir))
  program = build(config, data, teacher=teacher)
  replicas = replicas_of(config, program)
  start = config.pretrained.workdir or config.pretrained.file
  if start and not processes.first(lambda: bool(good_steps(workdir))):
    pretrained = processes.everywhere(lambda: load_pretrained(program, **config.pretrained.to_dict()))
  with contextlib.ExitStack() as held:
    claimed = processes.first(
      lambda: workdirs.claim_and_lock(workdir, fields, data, program.num_steps, held, part=part)
    )
    if "results" in claimed:
      return claimed["results"]
    processes.everywhere(lambda: check_shared(workdir, claimed["lock"]))
    run = make_run(config, dataset, program, replicas)
    place = Place(workdir, fields, claimed["start"], say)
    track = held.enter_context(Trackers(trackers, place, lambda: run.interrupt.received is not None))
    if processes.is_first():
      there = functools.partial(check_there, workdir, claimed["lock"])
      same = digest({name: value for name, value in fields.items() if row_of(name).scope not in TRAINS})
      held.enter_context(times.kept(workdir, claimed["run"], same, place.start, there))
    results = _train(run, config, workdir, dataset, pretrained, claimed, part, track, times)
    track(results["step"], {}, {file.stem: file for file in sorted((workdir / "figures").glob("*.png"))})
    return results


def _train(
  run: Run,
  config: Config,
  workdir: Path,
  dataset: Dataset,
  pretrained: Params | None,
  claimed: Table,
  part: str,
  track: Trackers,
  times: Times,
) -> Table:
  program, there = run.program, functools.partial(check_there, workdir, claimed["lock"])
  keeps = {"keep": config.checkpoint.keep, "best": config.checkpoint.best, "run": claimed["run"]}
  with (
    run.interrupt,
    Checkpoints(workdir, **keeps, check_there=there) as saved,
    Watchdog(workdir / f"stacks-{jax.process_index()}.txt") as watchdog,
  ):
    step = saved.latest or 0
    with times.phase("restore") if step else contextlib.nullcontext():
      states = restored_states(run, workdir, step) if step else initial_states(run, pretrained)
      sums = processes.first(lambda: saved_sums(workdir, step)) if step else None
    shown = {"every": run.every.log, "eval_every": run.every.evaluate, "part": part}
    shown |= {"run": claimed["run"], "check_there": there, "track": track}
    with (
      make_feed(run.replicas.mesh, run.data["train"], run.order, start=step, stop=program.num_steps) as feed,
      open_log(workdir, start=step, program=program, **shown) as log,
      Profile(run.profile, workdir, times, log.say) as profile,
    ):
      if claimed["remark"]:
        log.say(claimed["remark"])
      beginning = f"resuming at step {step} of" if step else "training"
      log.say(f"{beginning} {program.num_steps} steps, in {workdir}; the first one compiles", routine=True)
      log.say(_parts(config, dataset, program), routine=True)
      if "neg_entropy" in program.terms:
        log.say("loss: it can be below 0, since it has the masks' entropy with a minus", routine=True)
      if dataset.class_names:
        what = "classes" if dataset.num_classes else "targets"
        log.say(f"{what}: {shortened(', '.join(dataset.class_names), 300)}", routine=True)
      if pretrained and config.pretrained.file and "head" not in pretrained["params"]:
        log.say(f"pretrained.file: {config.pretrained.file} has no head that fits these classes; it is new")
      with times.phase("steps"):
        step, states, val = train_steps(run, step, states, sums, feed, saved, log, watchdog, times, profile)
      from jaxreg.train.run.results import final_metrics, write_results  # matplotlib takes a second

      with times.phase("evaluate"):
        evaluated = final_metrics(run, states, val)
      if evaluated is None:
        saved.wait()
        raise Interrupted(run.interrupt.received, step)
      values, bins = evaluated
      check_finite(step, values)
      log.write(step, {name: value for name, value in values.items() if "test/" in name})
  there()
  # Without these files, nothing can read the checkpoints.
  describe = functools.partial(
    workdirs.describe, workdir, flatten(config), dataset.describe(), claimed["run"]
  )
  try:
    gone = processes.first(lambda: describe(missing_only=True))
  except OSError as error:
    raise RunError(f"{workdir}: cannot be written ({error}); the same command tries again") from error
  if gone:
    log.say(f"warning: {', '.join(gone)} had been removed under this run, and is written again")
  title = figure_title(config)
  labels = dataset.test.labels
  return write_results(run, workdir, step, states, labels, values, bins, title, claimed["run"], times)


def _parts(config: Config, dataset: Dataset, program: Program) -> str:
  """Says in one line what is trained, on what, and where."""
  sizes = ", ".join(f"{len(split)} {name}" for name, split in dataset.splits().items())
  number = sum(leaf.size for leaf in jax.tree.leaves(program.abstract.params))
  devices = jax.devices()
  where = f"{len(devices)} x {devices[0].device_kind}"
  network = f"{short(config.model.name)} of {number:,} parameters"
  return f"{network}; {_optimizer(config)}; {sizes} examples; on {where}"


def _optimizer(config: Config) -> str:
  """Names the optimizer, what it wraps, and the learning rate: a wrapper's default may have another scale."""
  name = short(config.optimizer.name)
  inner = config.optimizer[name].get("inner") if name in config.optimizer else None
  around = f" around {short(inner)}" if inner else ""
  return f"{name}{around}, learning rate {config.optimizer.learning_rate:g}"


def figure_title(config: Config) -> str:
  """Names the data and the network, such as `mnist, 100 of each class, background, LeNet`."""
  source = config.data.name
  options = config.data[short(source)].to_dict()
  words = [Path(options["path"]).name if options.get("path") else str(options.get("dataset", source))]
  if number := config.data.subset.per_class:
    words.append(f"{number} of each class")
  elif number := config.data.subset.num_train:
    words.append(f"{number} for training")
  words += [name for name, value in options.items() if value is True]
  return ", ".join([*words, short(config.model.name)])

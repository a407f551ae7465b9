"""`job = train`: claims a work directory, restores or begins the run, trains it and evaluates it."""

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxreg.train.assemble.compatibility import check_devices
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.assemble.run_parts import make_run, replicas_of
from jaxreg.train.assemble.saved import make_teacher, of_section, restore_run
from jaxreg.train.config.choices import Config, flatten
from jaxreg.train.data.batches import make_feed
from jaxreg.train.data.dataset import Dataset, DataSpec
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.errors import RunError, printable, shortened
from jaxreg.train.files import local_path
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import Checkpoints, abstract, restore
from jaxreg.train.run.finite import check_finite
from jaxreg.train.run.interrupt import Interrupted
from jaxreg.train.run.lock import check_shared, check_there, locked
from jaxreg.train.run.log import open_log, progress
from jaxreg.train.run.loop import Run, train_steps
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.run.pretrained import backbone_of, with_backbone
from jaxreg.train.run.results import write_results
from jaxreg.train.run.watchdog import Watchdog
from jaxreg.train.step.metrics import averaged
from jaxreg.train.step.program import Program


def train(config: Config, workdir: Path, *, part: str = "") -> dict[str, Any]:
  """Trains, or continues to train, and evaluates; returns the results, which are also in `results.json`.

  If there are several replicas, the results are means with a `..._ci95` beside each, and `replicas` holds the
  single values. With several processes, each calls this with the same arguments, and with a work directory
  that all of them see.

  Args:
    config: what to train, on which data.
    workdir: the folder of the run.
    part: the name of the run in a longer job, whose terminal then shows only a bar of this name.

  Raises:
    RunError: for a mistake in the configuration, the data or the work directory, and for a loss that is
      not finite.
    Interrupted: on SIGTERM or Ctrl-C, after saving.
  """
  # Everything is loaded, checked and traced before the work directory is touched.
  processes.same("config", flatten(config))
  dataset = processes.everywhere(lambda: load_data(config))
  description = dataset.describe()
  processes.same("data", description.table())
  check_devices(config)
  teacher = None
  if config.teacher.workdir:
    teacher = processes.everywhere(lambda: make_teacher(description, **config.teacher.to_dict()))
  program = build(config, description, teacher=teacher)
  replicas = replicas_of(config, program)
  backbone = None
  if config.pretrained.workdir and not processes.first(lambda: bool(good_steps(workdir))):
    backbone = processes.everywhere(lambda: _pretrained(program, **config.pretrained.to_dict()))
  with contextlib.ExitStack() as held:

    def claim() -> dict[str, Any]:
      remark = workdirs.claim(workdir, flatten(config), description, program.num_steps)
      if (workdir / "results.json").is_file():
        results = workdirs.read(workdir, "results.json")
        again = "to start over, remove it or give another --workdir"
        say = progress if part else functools.partial(print, file=sys.stderr)
        say(f"nothing left to do: {printable(str(workdir))} has its results; {again}")
        return {"results": results}
      token = held.enter_context(locked(workdir))
      if workdirs.check_same(
        workdir, flatten(config), description
      ):  # another run claimed it before it was locked
        raise RunError(f"--workdir: another run has begun in {workdir}; give another")
      return {"remark": remark, "token": token}

    claimed = processes.first(claim)
    if "results" in claimed:
      return claimed["results"]
    processes.everywhere(lambda: check_shared(workdir, claimed["token"]))
    run = make_run(config, dataset, program, replicas)
    there = functools.partial(check_there, workdir, claimed["token"])
    described = (flatten(config), description)
    return _train(run, config, workdir, dataset, backbone, claimed["remark"], there, part, described)


def _pretrained(program: Program, workdir: str, *, checkpoint: str, replica: int) -> dict[str, Any]:
  """The backbone of the run that `config.pretrained` names."""
  try:
    _, state, _ = restore_run(local_path(workdir, "workdir"), checkpoint, replica)
  except RunError as error:
    raise of_section("pretrained", error) from error
  return backbone_of(state, program, workdir)


def _train(
  run: Run,
  config: Config,
  workdir: Path,
  dataset: Dataset,
  backbone: dict[str, Any] | None,
  remark: str | None,
  check_there: Callable[[], None],
  part: str,
  described: tuple[dict[str, Any], DataSpec],
) -> dict[str, Any]:
  program = run.program
  with (
    run.interrupt,
    Checkpoints(
      workdir, keep=config.checkpoint.keep, best=config.checkpoint.best, check_there=check_there
    ) as saved,
    Watchdog(workdir / f"stacks-{jax.process_index()}.txt", minutes=config.stacks_after) as watchdog,
  ):
    step = saved.latest or 0
    states = _restored(run, workdir, step) if step else _initial(run, backbone)
    with (
      make_feed(run.replicas.mesh, run.data["train"], run.order, start=step, stop=program.num_steps) as feed,
      open_log(
        workdir,
        start=step,
        program=program,
        eval_every=run.every.evaluate,
        part=part,
        check_there=check_there,
      ) as log,
    ):
      if remark:
        log.say(remark)
      beginning = f"resuming at step {step} of" if step else "training"
      log.say(f"{beginning} {program.num_steps} steps, in {workdir}", routine=True)
      if dataset.class_names:
        log.say(f"classes: {shortened(', '.join(dataset.class_names), 300)}", routine=True)
      step, states, val = train_steps(run, step, states, feed, saved, log, watchdog)
      values = _measure(run, states, val)
      if values is None:
        saved.wait()
        raise Interrupted(run.interrupt.received, step)
      check_finite(step, values)
      log.write(step, {name: value for name, value in averaged(values).items() if "test/" in name})
  check_there()
  # Without these files, nothing can read the checkpoints.
  if gone := processes.first(lambda: workdirs.describe(workdir, *described, missing_only=True)):
    log.say(f"warning: {', '.join(gone)} had been removed under this run, and is written again")
  return write_results(run, workdir, step, states, dataset.test.labels, values)


def _restored(run: Run, workdir: Path, step: int) -> Any:
  layout = run.replicas.stacked_layout
  like = abstract(stacked(run.program.abstract, len(run.seeds)), layout)
  return run.replicas.unpack(restore(workdir, step, like))


def compile_init(program: Program, replicas: Vmap | Loop) -> Callable[[Any], Any]:
  """Compiles `init(seeds) -> states`, stacked.

  The seeds are initialised one after another, because a batch of LAPACK calls, as for orthogonal kernels, can
  hang: jaxlib spreads the batch over the CPU's threads and waits in one of them. If every thread waits so, as
  with two simulated devices on two cores, no thread is left for the work, and no signal is handled.
  """
  return jax.jit(lambda seeds: jax.lax.map(program.init, seeds), out_shardings=replicas.stacked_layout)


def _initial(run: Run, backbone: dict[str, Any] | None) -> Any:
  state = compile_init(run.program, run.replicas)(np.array(run.seeds, np.uint32))
  if backbone is not None:
    state = with_backbone(run.program, state, backbone, run.replicas.mesh)
  return run.replicas.unpack(state)


def _measure(run: Run, states: Any, val: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
  """The final metrics on the val and test splits, each `[replicas]`; None once a signal has come."""
  # The last evaluation may have used the live parameters; a run killed after its last step has none.
  if val is None or run.program.extras.evaluated:
    val = run.evaluate(states, run.data["val"], "val")
  if val is None:
    return None
  test = run.evaluate(states, run.data["test"], "test")
  return None if test is None else val | test

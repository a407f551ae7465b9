"""A run in its work directory: claimed, restored, trained, measured."""

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxreg.train.build.program import Program
from jaxreg.train.build.setup import (
  build,
  check_devices,
  is_resident,
  load_data,
  make_mesh,
  make_order,
  replicas_of,
)
from jaxreg.train.config.fields import Config, flatten
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.placement import make_source
from jaxreg.train.data.stream import make_feed
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.errors import RunError, printable
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import Checkpoints, abstract, restore
from jaxreg.train.run.evaluation import make_evaluate
from jaxreg.train.run.interrupt import Interrupt
from jaxreg.train.run.lock import check_shared, check_there, locked
from jaxreg.train.run.log import open_log
from jaxreg.train.run.loop import Interrupted, Run, train_steps
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.run.pretrained import load_backbone, with_backbone
from jaxreg.train.run.recorder import check_finite
from jaxreg.train.run.results import write_results
from jaxreg.train.run.watchdog import Watchdog
from jaxreg.train.step.metrics import averaged


def train(config: Config, workdir: Path) -> dict[str, Any]:
  """Trains, or continues to train, and evaluates; returns the results, which are also in `results.json`.

  Means over the replicas, if there are several, with a `..._ci95` beside each and the single values under
  `replicas`. Of several processes each calls this with the same arguments, and a work directory that all see.

  Raises:
    RunError: for a mistake in the configuration, the data or the work directory, and for a loss that is
      not finite.
    Interrupted: on SIGTERM or Ctrl-C, after saving.
  """
  # Everything is loaded, checked and traced before the work directory is touched.
  processes.same("config", flatten(config))
  dataset = processes.everywhere(lambda: load_data(config))
  description = dataset.describe()
  processes.same("data", description)
  check_devices(config)
  program = build(config, description)
  replicas = replicas_of(config, make_mesh(config.mesh.model), program)
  backbone = None
  if config.pretrained.workdir and not processes.first(lambda: bool(good_steps(workdir))):
    pretrained = config.pretrained.to_dict()
    backbone = processes.everywhere(lambda: load_backbone(program, **pretrained))
  with contextlib.ExitStack() as held:

    def claim() -> dict[str, Any]:
      remark = workdirs.claim(workdir, config, description, program.num_steps)
      if (workdir / "results.json").is_file():
        results = workdirs.read(workdir, "results.json")
        again = "to start over, remove it or give another --workdir"
        print(f"nothing left to do: {printable(str(workdir))} has its results; {again}", file=sys.stderr)
        return {"results": results}
      token = held.enter_context(locked(workdir))
      if workdirs.check_same(workdir, config, description):  # claimed by another before it was locked
        raise RunError(f"--workdir: another run has begun in {workdir}; give another")
      return {"remark": remark, "token": token}

    claimed = processes.first(claim)
    if "results" in claimed:
      return claimed["results"]
    processes.everywhere(lambda: check_shared(workdir, claimed["token"]))
    run = _prepare(config, dataset, program, replicas)
    there = functools.partial(check_there, workdir, claimed["token"])
    return _train(run, workdir, dataset, backbone, claimed["remark"], there)


def _prepare(config: Config, dataset: Dataset, program: Program, replicas: Vmap | Loop) -> Run:
  # Placement: a copy of the data on each device if they fit, a slice of each batch; the state as
  # `mesh.shard` says, by default a copy too.
  resident = is_resident(config, dataset)
  splits = dataset.splits() | {"train": dataset.training()}
  data = {name: make_source(replicas.mesh, split, resident=resident) for name, split in splits.items()}
  interrupt = Interrupt()
  evaluate = make_evaluate(program, replicas, config.eval_batch_size, told=interrupt.told)
  return Run(config, program, replicas, data, make_order(config, dataset), interrupt, evaluate)


def _train(
  run: Run,
  workdir: Path,
  dataset: Dataset,
  backbone: dict[str, Any] | None,
  remark: str | None,
  check_there: Callable[[], None],
) -> dict[str, Any]:
  config, program = run.config, run.program
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
      open_log(workdir, start=step, program=program) as log,
    ):
      if remark:
        log.say(remark)
      beginning = f"resuming at step {step} of" if step else "training"
      log.say(f"{beginning} {program.num_steps} steps, in {workdir}")
      step, states, val = train_steps(run, step, states, feed, saved, log, watchdog)
      runs = _measure(run, states, val)
      if runs is None:
        saved.wait()
        raise Interrupted(run.interrupt.received, step)
      check_finite(step, runs)
      log.write(step, {name: value for name, value in averaged(runs).items() if "test/" in name})
  check_there()
  labels = dataset.test.labels
  return write_results(config, workdir, program, run.replicas, step, states, run.data["test"], labels, runs)


def _restored(run: Run, workdir: Path, step: int) -> Any:
  layout = run.replicas.stacked_layout
  like = abstract(stacked(run.program.abstract, len(run.seeds)), layout)
  return run.replicas.unpack(restore(workdir, step, like))


def make_init(program: Program, replicas: Vmap | Loop) -> Callable[[Any], Any]:
  """Compiles `init(seeds) -> states`, stacked.

  The seeds take turns, because a batch of LAPACK calls, as for orthogonal kernels, can hang: jaxlib spreads
  it over the CPU's threads and waits in one of them. Where every thread waits so, as with two simulated
  devices on two cores, none is left for the work, and no signal is heard.
  """
  return jax.jit(lambda seeds: jax.lax.map(program.init, seeds), out_shardings=replicas.stacked_layout)


def _initial(run: Run, backbone: dict[str, Any] | None) -> Any:
  state = make_init(run.program, run.replicas)(np.array(run.seeds, np.uint32))
  if backbone is not None:
    state = with_backbone(run.program, state, backbone, run.replicas.mesh)
  return run.replicas.unpack(state)


def _measure(run: Run, states: Any, val: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
  """The metrics of what is predicted with in the end, each `[replicas]`; None once a signal has come."""
  # Those of the last evaluation may be of what the training goes on from; and a run that was killed after its
  # last step has none.
  if val is None or run.program.extras.evaluated:
    val = run.evaluate(states, run.data["val"], "val")
  if val is None:
    return None
  test = run.evaluate(states, run.data["test"], "test")
  return None if test is None else val | test

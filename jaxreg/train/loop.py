"""The training loop: restore, step, evaluate, save, until the end or a signal."""

import contextlib
import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxreg import calibration
from jaxreg.train import processes
from jaxreg.train import workdir as workdirs
from jaxreg.train.checkpoint import Checkpoints, abstract, good_steps, restore, write_json
from jaxreg.train.config import Config, flatten
from jaxreg.train.data import Dataset
from jaxreg.train.errors import RunError
from jaxreg.train.evaluate import bins_over, make_evaluate, make_sums, outputs_over
from jaxreg.train.figures import save_figures
from jaxreg.train.interrupt import Interrupt
from jaxreg.train.log import open_log
from jaxreg.train.metrics import averaged
from jaxreg.train.placement import make_source
from jaxreg.train.pretrained import load_backbone, with_backbone
from jaxreg.train.program import Program
from jaxreg.train.recorder import Recorder, check_finite, largest_parts
from jaxreg.train.replicas import Loop, Vmap, stacked
from jaxreg.train.setup import (
  build,
  check_devices,
  is_resident,
  load_data,
  make_mesh,
  make_order,
  replicas_of,
  steps_per_dispatch,
)
from jaxreg.train.stream import make_feed


class Interrupted(Exception):
  """The run was told to stop, and saved; `status` is what the shell expects of a program so stopped."""

  def __init__(self, signal_number: int | None, step: int):
    super().__init__(f"stopped at step {step} and saved; the same command continues from there")
    self.status = 128 + (signal_number or signal.SIGTERM)


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
  if config.pretrained.workdir and not good_steps(workdir):
    pretrained = config.pretrained.to_dict()
    backbone = processes.everywhere(lambda: load_backbone(program, **pretrained))
  with contextlib.ExitStack() as held:

    def claim() -> dict[str, Any]:
      remark = workdirs.claim(workdir, config, description, program.num_steps)
      if (workdir / "results.json").is_file():
        results = workdirs.read(workdir, "results.json")
        print(f"nothing left to do: {workdir} has its results", file=sys.stderr)
        return {"results": results}
      held.enter_context(workdirs.locked(workdir))
      if workdirs.check_same(workdir, config, description):  # claimed by another before it was locked
        raise RunError(f"--workdir: another run has begun in {workdir}; give another")
      return {"remark": remark}

    claimed = processes.first(claim)
    if "results" in claimed:
      return claimed["results"]
    return _run(config, workdir, dataset, program, replicas, backbone, claimed["remark"])


def dispatches(start: int, total: int, size: int, marks: tuple[int, ...]) -> Iterator[range]:
  """The steps of each dispatch: `size` of them, or one where a multiple of a mark, or the end, lies between.

  A function of the step alone, so that a run that is resumed makes the same ones.
  """
  step = start
  while step < total:
    end = step + size
    whole = step % size == 0 and end <= total and all(step // mark == (end - 1) // mark for mark in marks)
    steps = range(step + 1, (end if whole else step + 1) + 1)
    yield steps
    step = steps[-1]


def _run(
  config: Config,
  workdir: Path,
  dataset: Dataset,
  program: Program,
  replicas: Vmap | Loop,
  backbone: dict[str, Any] | None,
  remark: str | None,
) -> dict[str, Any]:
  # Placement: a copy of the data on each device if they fit, a slice of each batch; the state as
  # `mesh.shard` says, by default a copy too.
  mesh = replicas.mesh
  resident = is_resident(config, dataset)
  splits = dataset.splits() | {"train": dataset.training()}
  data = {name: make_source(mesh, split, resident=resident) for name, split in splits.items()}
  seeds = range(config.seed, config.seed + config.replicas)
  per_dispatch = steps_per_dispatch(config)
  step_fn, place_one = replicas.make_step(program.train_step)
  scan_fn, place_several = replicas.make_step(program.train_step, scan=True)
  interrupt = Interrupt()
  evaluate = make_evaluate(program, replicas, config.eval_batch_size, told=interrupt.told)
  init = jax.jit(jax.vmap(program.init), out_shardings=replicas.stacked_layout)
  eval_steps = config.eval_every * program.steps_per_epoch
  save_steps = config.checkpoint.every * program.steps_per_epoch

  observe = program.extras.evaluated and replicas.make_update(program.extras.evaluated)
  order = make_order(config, dataset)

  with (
    interrupt,
    Checkpoints(workdir, keep=config.checkpoint.keep, best=config.checkpoint.best) as saved,
  ):
    step = saved.latest or 0
    if step:
      like = abstract(stacked(program.abstract, len(seeds)), replicas.stacked_layout)
      state = restore(workdir, step, like)
    else:
      state = init(np.array(seeds, np.uint32))
      if backbone is not None:
        state = with_backbone(program, state, backbone, mesh)
    state = replicas.unpack(state)
    with (
      make_feed(mesh, data["train"], order, start=step, stop=program.num_steps) as feed,
      open_log(workdir, start=step, program=program) as log,
    ):
      if remark:
        log.say(remark)
      beginning = f"resuming at step {step} of" if step else "training"
      log.say(f"{beginning} {program.num_steps} steps, in {workdir}")
      recorder = Recorder(log, every=config.log_every, examples=config.batch_size * len(seeds))
      val = None
      over = observe is not None and _all_stopped(state)
      ahead = dispatches(step, program.num_steps, per_dispatch, (eval_steps, save_steps))
      if step and not saved.measured and (step % eval_steps == 0 or step == program.num_steps):
        ahead = itertools.chain([range(0)], ahead)  # stopped in an evaluation, it begins with that one
      for steps in ahead:
        if over:
          break
        if steps:
          run, place_batch = (step_fn, place_one) if len(steps) == 1 else (scan_fn, place_several)
          batch = place_batch(feed(steps))
          with jax.transfer_guard("disallow"):
            state, metrics = run(state, data["train"].arrays, batch)
          recorder.add(steps, metrics)
          step = steps[-1]

        last = step == program.num_steps
        stop = interrupt.stops(steps)
        values = None  # none were measured at this step
        evaluates = step % eval_steps == 0 or last
        saves = step % save_steps == 0 or last or not steps
        if evaluates or saves or stop:
          recorder.flush()
          check_finite(step, largest_parts(state))
        if last:
          recorder.write(step)
        if evaluates:
          val = None if stop else evaluate(state, data["val"], "val", final=False)
          stop = val is None
        if evaluates and val is not None:
          check_finite(step, val)
          values = averaged(val)
          log.write(step, values)
          if observe is not None:
            state = observe(state, val[config.checkpoint.best].astype(np.float32))
            over = _all_stopped(state)
        if saves or over or stop:
          saved.save(step, replicas.pack(state), values)
          if stop or config.checkpoint.wait:
            saved.wait()
        if stop:
          raise Interrupted(interrupt.received, step)
        if steps and (evaluates or saves):
          recorder.restart()
      if over and step < program.num_steps:
        log.say(f"stopped early at step {step}: {config.checkpoint.best} has not improved")

      # Of what is predicted with in the end; and of a run that was killed after its last step.
      if val is None or observe is not None:
        val = evaluate(state, data["val"], "val")
      test = val and evaluate(state, data["test"], "test")
      if test is None:
        saved.wait()
        raise Interrupted(interrupt.received, step)
      runs = val | test
      check_finite(step, runs)
      results = averaged(runs)
      log.write(step, {name: value for name, value in results.items() if "test/" in name})

  shown = (program, mesh, replicas.pick(state, 0), data["test"], config.eval_batch_size)
  if program.ensemble > 1:  # what its members predict alone is not what it predicts
    sums = make_sums(program, replicas, config.eval_batch_size)(state, data["test"])
    outputs, bins = {}, jax.tree.map(lambda x: x[0], sums["ece"])
  elif dataset.test.labels.ndim == 1:
    outputs = outputs_over(*shown)
    bins = calibration.ece_bins(outputs["log_probs"], dataset.test.labels)
  else:  # of every token of every sequence, the outputs are too many to keep
    outputs, bins = {}, bins_over(*shown)
  results = {"step": step, **results}
  if len(seeds) > program.ensemble:
    firsts = list(seeds)[:: program.ensemble]
    results["replicas"] = {"seed": firsts, **{name: values.tolist() for name, values in runs.items()}}

  def finish() -> None:
    terms = (*program.method.terms, *config.regularizers.names)
    save_figures(workdir, config.method.name, seeds, terms, bins, outputs, dataset.test.labels)
    write_json(workdir / "reliability.json", {name: np.asarray(sums).tolist() for name, sums in bins.items()})
    # Last: a run with results is done.
    write_json(workdir / "results.json", results)

  try:
    processes.first(finish)
  except OSError as error:
    raise RunError(
      f"{workdir}: the results cannot be written ({error}); the same command tries again"
    ) from error
  return results


def _all_stopped(states: Any) -> bool:
  """Whether early stopping has come to an end in every replica."""
  each = states if isinstance(states, tuple) else (states,)
  return all(bool(np.all(jax.device_get(state.extras["average"].should_stop))) for state in each)

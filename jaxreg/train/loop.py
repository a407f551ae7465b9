"""The training loop: restore, step, evaluate, save, until the end or a signal."""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train import workdir as workdirs
from jaxreg.train.checkpoint import Checkpoints, abstract, restore, write_json
from jaxreg.train.config import Config
from jaxreg.train.data import Dataset, batch_indices, resident
from jaxreg.train.errors import RunError
from jaxreg.train.evaluate import make_evaluate, outputs_over
from jaxreg.train.figures import save_figures
from jaxreg.train.interrupt import Interrupt
from jaxreg.train.log import Log
from jaxreg.train.parallel import make_step
from jaxreg.train.recorder import Recorder, check_finite, largest
from jaxreg.train.setup import Program, build, load_data, make_mesh


class Interrupted(Exception):
  """The run was told to stop, and saved; `status` is what the shell expects of a program so stopped."""

  def __init__(self, signal_number: int, step: int):
    super().__init__(f"stopped at step {step} and saved; the same command continues from there")
    self.status = 128 + signal_number


def train(config: Config, workdir: Path) -> dict[str, float]:
  """Trains, or continues to train, and evaluates; returns the results, which are also in `results.json`.

  Raises:
    RunError: for a mistake in the configuration, the data or the work directory, and for a loss that is
      not finite.
    Interrupted: on SIGTERM or Ctrl-C, after saving.
  """
  # Everything is loaded, checked and traced before the work directory is touched.
  dataset = load_data(config)
  if config.batch_size % jax.device_count():
    raise RunError(
      f"batch_size: must be divisible by the number of devices, {jax.device_count()}, got {config.batch_size}"
    )
  program = build(config, dataset.describe())
  remark = workdirs.claim(workdir, config, dataset.describe(), program.num_steps)
  if (workdir / "results.json").is_file():
    print(f"nothing left to do: {workdir} has its results", file=sys.stderr)
    return workdirs.read(workdir, "results.json")
  with workdirs.locked(workdir):
    return _run(config, workdir, dataset, program, remark)


def _run(
  config: Config, workdir: Path, dataset: Dataset, program: Program, remark: str | None
) -> dict[str, float]:
  # Placement: one copy of the state and the data on each device, a slice of each batch.
  mesh = make_mesh()
  replicated = NamedSharding(mesh, P())
  data = {name: resident(mesh, split) for name, split in dataset.splits().items()}
  step_fn, place_batch = make_step(program.train_step, mesh, config.parallel)
  ones = place_batch(np.ones(config.batch_size, np.float32))
  evaluate = make_evaluate(program, mesh, config.eval_batch_size)
  init = jax.jit(program.init, out_shardings=replicated)
  eval_steps = config.eval_every * program.steps_per_epoch
  save_steps = config.checkpoint.every * program.steps_per_epoch

  with (
    Interrupt() as interrupt,
    Checkpoints(workdir, keep=config.checkpoint.keep, best=config.checkpoint.best) as saved,
  ):
    start = saved.latest or 0
    state = restore(workdir, start, abstract(jax.eval_shape(init), replicated)) if start else init()
    with Log(workdir, start=start, total=program.num_steps, steps_per_epoch=program.steps_per_epoch) as log:
      if remark:
        log.say(remark)
      beginning = f"resuming at step {start} of" if start else "training"
      log.say(f"{beginning} {program.num_steps} steps, in {workdir}")
      recorder = Recorder(log, every=config.log_every, batch_size=config.batch_size)
      for step in range(start + 1, program.num_steps + 1):
        indices = batch_indices(
          config.seed, step - 1, num_examples=len(dataset.train), batch_size=config.batch_size
        )
        indices = place_batch(indices)
        with jax.transfer_guard("disallow"):
          state, metrics = step_fn(state, data["train"], indices, ones)
        recorder.add(step, metrics)

        last = step == program.num_steps
        stop = interrupt.received is not None and not last
        values = None
        evaluates = step % eval_steps == 0 or last
        saves = step % save_steps == 0 or last or stop
        if evaluates or saves:
          recorder.flush()
          parts = {"params": state.params, "model_state": state.model_state, "opt_state": state.opt_state}
          check_finite(step, {name: largest(part) for name, part in parts.items()})
        if last:
          recorder.write(step)
        if evaluates:
          values = evaluate(state, data["val"], "val")
          check_finite(step, values)
          log.write(step, values)
        if saves:
          saved.save(step, state, values)
        if stop and interrupt.received is not None:
          saved.wait()
          raise Interrupted(interrupt.received, step)

      results = evaluate(state, data["val"], "val") | evaluate(state, data["test"], "test")
      check_finite(program.num_steps, results)
      log.write(program.num_steps, {name: value for name, value in results.items() if "test/" in name})

  outputs = outputs_over(program, mesh, state, data["test"], config.eval_batch_size)
  save_figures(
    workdir, f"{config.method.name}, seed {config.seed}", program.method.terms, outputs, dataset.test.labels
  )
  # Last: a run with results is done.
  results = {"step": program.num_steps, **results}
  write_json(workdir / "results.json", results)
  return results

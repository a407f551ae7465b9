"""Restores states from checkpoints, even while a run trains in the same work directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from jaxreg.train.devices.replicas import stacked
from jaxreg.train.errors import RunError
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState

TRIES = 5  # in case a training run deletes each checkpoint while it is read


def pick_and_restore(
  workdir: Path,
  pick: Callable[[], int],
  restored: Callable[[int], Any],
  *,
  agree: Callable[[Callable[[], Any]], Any] = lambda call: call(),
) -> tuple[int, Any]:
  """The step that `pick` returns, and the result of `restored` for this step.

  A training run in the same folder may delete the checkpoint that was just picked; then another is picked.
  `agree` calls a function whose result all processes must share.
  """
  for _ in range(TRIES - 1):
    step = agree(pick)
    try:
      return step, restored(step)
    except RunError:
      if agree(lambda step=step: step in good_steps(workdir)):
        raise
  step = agree(pick)
  return step, restored(step)


def restore_state(program: Program, workdir: Path, step: int, replica: int, replicas: int) -> TrainState:
  """The state of `replica`, one of `replicas`, at a good step, with the parameters for predictions."""
  here = SingleDeviceSharding(jax.local_devices()[0])
  states = restore(workdir, step, abstract(stacked(program.abstract, replicas), here))
  return program.predicting(jax.tree.map(lambda x: x[replica], states))

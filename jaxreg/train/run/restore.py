"""States of a checkpoint, also beside a run that is training."""

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

TRIES = 5  # of a training run that deletes each checkpoint as it is read


def pick_and_restore(
  workdir: Path,
  pick: Callable[[], int],
  restored: Callable[[int], Any],
  *,
  agree: Callable[[Callable[[], Any]], Any] = lambda call: call(),
) -> tuple[int, Any]:
  """The step that `pick` gives, and what `restored` makes of it.

  A training run beside deletes old checkpoints, perhaps one that was just picked: then the next is.
  `agree` calls what all processes have to be of one mind about.

  Raises:
    RunError: if there is none, or one that is whole does not fit.
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
  """The state of one of so many replicas at a good step, with the parameters to predict with."""
  here = SingleDeviceSharding(jax.local_devices()[0])
  states = restore(workdir, step, abstract(stacked(program.abstract, replicas), here))
  return program.predicting(jax.tree.map(lambda x: x[replica], states))

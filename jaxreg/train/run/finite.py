"""Checks that the losses and the states of a run are finite."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg.train.errors import NothingToSave
from jaxreg.typing import Array


def largest_parts(states: Any) -> dict[str, np.ndarray]:
  """The largest absolute value in each part of the state, for each replica."""
  parts = ("params", "model_state", "opt_state")
  if isinstance(states, tuple):
    return {name: np.stack([_largest(getattr(state, name)) for state in states]) for name in parts}
  return {name: np.asarray(_largest(getattr(states, name))) for name in parts}


@jax.jit
def _largest(tree: Any) -> Array:
  """The largest absolute value in a tree; NaN or infinite if the tree holds such a value."""
  leaves = [jnp.abs(x).max().astype(jnp.float32) for x in jax.tree.leaves(tree) if jnp.size(x)]
  return jnp.max(jnp.stack(leaves)) if leaves else jnp.float32(0)


def check_finite(step: int, values: Mapping[str, Any]) -> None:
  """Stops the run if a value of any replica is NaN or infinite; the last checkpoint stays as it is."""
  shown = []
  for name, runs in values.items():
    runs = np.atleast_1d(runs)
    for replica in np.flatnonzero(~np.isfinite(runs))[:1]:
      where = f" in replica {replica}" if len(runs) > 1 else ""
      shown.append(f"{name} = {runs[replica]:g}{where}")
  if shown:
    raise NothingToSave(
      f"step {step}: {', '.join(shown)}; stopped, the last good checkpoint is kept: "
      "a lower optimizer.learning_rate or optimizer.clip_norm may help"
    )

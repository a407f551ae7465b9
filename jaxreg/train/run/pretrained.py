"""Fine-tuning: the backbone of another run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg.paths import leaf_names
from jaxreg.train.data.placement import place
from jaxreg.train.errors import RunError
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState


def backbone_of(state: TrainState, program: Program, workdir: str) -> dict[str, Any]:
  """The backbone of a trained state, on the host: its `params`, and its part of the `model_state`.

  Args:
    state: the state that was trained in `workdir`.
    program: the program of the run that starts from this backbone.
    workdir: the name of the work directory for the error message.
  """
  found, wanted = _backbone(state), _backbone(program.abstract)
  theirs, ours = (
    {name: x.shape for name, x in zip(leaf_names(t), jax.tree.leaves(t))} for t in (found, wanted)
  )
  for name in sorted({*theirs, *ours}):
    if theirs.get(name) != ours.get(name):
      raise RunError(
        f"pretrained.workdir: the backbone of {workdir} is different: its {name} is "
        f"{theirs.get(name, 'missing')}, here {ours.get(name, 'missing')}; give the same model and inputs"
      )
  return jax.tree.map(np.asarray, found)


def with_backbone(
  program: Program, state: TrainState, backbone: dict[str, Any], mesh: jax.sharding.Mesh
) -> TrainState:
  """The stacked state of all replicas, where each replica has a copy of `backbone`."""
  copies = lambda new, old: np.broadcast_to(new, old.shape)
  placed = place(mesh, jax.tree.map(copies, backbone, _backbone(state)), PartitionSpec())
  params = {**state.params, **placed["params"]}
  model_state = {
    name: {**old, **placed["model_state"].get(name, {})} for name, old in state.model_state.items()
  }
  init = jax.jit(jax.vmap(program.extras.init), out_shardings=NamedSharding(mesh, PartitionSpec()))
  extras = init({"params": params, "model_state": model_state})
  if "reference" in extras:
    # Only the backbone has a reference; the penalty pulls new parameters toward zero.
    extras["reference"] = {
      name: part if name == "backbone" else jax.tree.map(jnp.zeros_like, part)
      for name, part in extras["reference"].items()
    }
  return state.replace(params=params, model_state=model_state, extras=extras)


def _backbone(state: TrainState) -> dict[str, Any]:
  of = lambda tree: {name: part for name, part in tree.items() if name == "backbone"}
  return {
    "params": of(state.params),
    "model_state": {name: of(collection) for name, collection in state.model_state.items()},
  }

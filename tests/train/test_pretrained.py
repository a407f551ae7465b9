"""Fine-tuning: the backbone of another run, a new head, a schedule of its own."""

import functools

import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.assemble.saved import restore_run
from jaxreg.train.devices.mesh import make_mesh
from jaxreg.train.jobs import initial_state
from jaxreg.train.jobs import train as training

pytestmark = pytest.mark.thorough

FIELDS = {"method.name": "group_softmax", "epochs": 1}


def backbones(state):
  return jax.device_get(state["params"]["backbone"])


@pytest.mark.parametrize(
  ("checkpoint", "replicas"), [("best", 1), pytest.param("latest", 2, marks=pytest.mark.slow)]
)
def test_it_starts_from_the_backbone_and_a_new_head(finished_run, tmp_path, checkpoint, replicas, light_runs):
  # At a learning rate next to 0, what was started from is what is saved.
  fields = {
    **FIELDS,
    "pretrained.workdir": str(finished_run),
    "pretrained.checkpoint": checkpoint,
    "optimizer.learning_rate": 1e-30,
    "replicas": replicas,
    "seed": 5,
  }
  workdir = tmp_path / "run"
  train.train(runs.make_config(fields), workdir)
  _, source, _ = restore_run(finished_run, checkpoint, 0)
  after = runs.final_state(workdir)
  for ours, theirs in zip(
    jax.tree.leaves(backbones(after)), jax.tree.leaves(source.params["backbone"]), strict=True
  ):
    assert ours.shape == (replicas, *theirs.shape)
    for replica in ours:
      np.testing.assert_allclose(replica, theirs, rtol=1e-6, atol=1e-20)
  fresh = tmp_path / "fresh"
  train.train(runs.make_config({**fields, "pretrained.workdir": ""}), fresh)
  random = runs.final_state(fresh)
  same = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-20)
  jax.tree.map(same, after["params"]["head"], random["params"]["head"])
  leaves = zip(jax.tree.leaves(backbones(after)), jax.tree.leaves(backbones(random)))
  assert any((ours != theirs).any() for ours, theirs in leaves)


@pytest.mark.slow
def test_resuming_does_not_start_from_it_again(finished_run, tmp_path, light_runs):
  """The other run may even be gone by then."""
  fields = {**FIELDS, "epochs": 2, "pretrained.workdir": str(finished_run)}
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  train.train(runs.make_config(fields), whole)
  train.train(runs.make_config({**fields, "epochs": 1}), parts)
  missing = pytest.MonkeyPatch()
  with missing.context() as patched:
    patched.setattr(training, "load_backbone", lambda *_, **__: pytest.fail("it was loaded again"))
    train.train(runs.make_config(fields), parts)
  for ours, theirs in zip(
    *(jax.tree.leaves(runs.final_state(w)["params"]) for w in (whole, parts)), strict=True
  ):
    np.testing.assert_array_equal(ours, theirs)


def test_averages_of_batch_norm_come_too():
  """The part of the model's state that is the backbone's; the head's, if it has one, stays new."""
  fields = {"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "data.limit": 32}
  config = runs.make_config(fields)
  program = build(config, load_data(config).describe())
  zeros = lambda tree: jax.tree.map(lambda x: np.zeros((1, *x.shape), x.dtype), tree)
  ones = lambda tree: jax.tree.map(lambda x: np.ones(x.shape, x.dtype), tree)
  state = program.abstract
  backbone = initial_state._backbone(state)
  assert jax.tree.leaves(backbone["model_state"])
  started = initial_state.with_backbone(
    program,
    state.replace(params=zeros(state.params), model_state=zeros(state.model_state)),
    ones(backbone),
    make_mesh(),
  )
  assert all((x == 1).all() for x in jax.tree.leaves(started.params["backbone"]))
  assert all((x == 0).all() for x in jax.tree.leaves(started.params["head"]))
  assert all((x == 1).all() for x in jax.tree.leaves(started.model_state))


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"model.MLP.widths": (9,)},
      r"pretrained.workdir: the backbone of .* is different: its params/backbone",
    ),
    ({"pretrained.workdir": "nowhere"}, r"^pretrained\.workdir: nowhere has no config\.json"),
    (
      {"pretrained.replica": 1},
      r"^pretrained\.replica: must be an integer of at least 0 and below 1, got 1$",
    ),
  ],
)
def test_mistakes_are_told_before_the_work_directory_is_touched(finished_run, tmp_path, fields, message):
  config = runs.make_config({**FIELDS, "pretrained.workdir": str(finished_run), **fields})
  with pytest.raises(train.RunError, match=message):
    train.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()

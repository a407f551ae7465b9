"""How far a user's own loss lies below the training step: a fault in it shows few frames of ours."""

import sys
import traceback
from pathlib import Path
from types import ModuleType

import jax
import pytest
import runs

import jaxreg
from jaxreg import losses, train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources

PACKAGE = Path(jaxreg.__file__).parent


def loss(logits, labels):
  assert not loss.broken, "this loss is broken"
  return losses.focal(logits, labels)


def own_frames(error):
  """The functions of this package in a traceback, from `train_step` to the fault."""
  frames = [
    frame for frame in traceback.extract_tb(error.__traceback__) if PACKAGE in Path(frame.filename).parents
  ]
  names = [frame.name for frame in frames]
  return names[names.index("train_step") :]


@pytest.mark.parametrize(
  "fields",
  [{}, {"regularizers.names": ("l2", "r_drop"), "augment.names": ("flip",), "average.name": "ema"}],
  ids=["plain", "regularized"],
)
def test_a_fault_in_a_loss_shows_at_most_six_frames_of_ours(fields, monkeypatch):
  module = ModuleType("broken_loss")
  module.loss = loss
  monkeypatch.setitem(sys.modules, "broken_loss", module)
  monkeypatch.setattr(loss, "broken", False, raising=False)
  config = train.base_config()
  config.method.name = "broken_loss:loss"
  train.add_options(config)
  config.update_from_flattened_dict({**runs.TINY, **fields})
  program = build(config, sources.digits().describe())
  monkeypatch.setattr(loss, "broken", True)
  with pytest.raises(AssertionError, match="this loss is broken") as raised:
    jax.eval_shape(program.train_step, program.abstract, runs.digits_batch(32))
  frames = own_frames(raised.value)
  assert len(frames) <= 6, frames
  assert frames[0] == "train_step"

"""Rows that differ only in strengths and seeds train in one program, to what they reach apart."""

import fnmatch

import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build, sweep
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.fields import row_of
from jaxreg.train.jobs import together
from jaxreg.train.registry import FIELDS as CHOICES
from jaxreg.train.registry import REGISTRY
from jaxreg.train.run import manifest

FIELDS = {
  "job": "compare",
  "epochs": 2,
  "optimizer.name": "sgd",  # with Adam, rounding alone can turn the sign of a first update
  "optimizer.learning_rate": 0.1,
  "method.name": "softmax",
  "compare.rows": (
    "plain:",
    "decay: optimizer.weight_decay.rate=0.1",
    "rate: optimizer.learning_rate=0.05 seed=7",
    "small: model.MLP.widths=(4,)",
  ),
  "compare.seeds": 2,
}
# Numbers that decide what a step computes, and why.
FIXED = {
  "augment.rotate.fill": "the value of empty pixels is part of the compiled operation",
  "augment.scale.fill": "as for rotate",
  "augment.augmix.fill": "as for rotate",
  "augment.*_augment.fill": "as for rotate",
  "augment.random_erasing.max_aspect": "bounds the shape of the erased area",
  "method.bi_tempered.loss.t2": "the normaliser is a custom derivative for one t2",
  "optimizer.reparameterize.scale": "the map and its inverse are compared on numbers",
  "regularizers.*.limit": "0 is a penalty of fixed weight, and other limits have a multiplier",
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory, light_module):
  workdir = tmp_path_factory.mktemp("apart") / "run"
  train.compare(runs.make_config(FIELDS), workdir)
  return workdir


def auto(**fields):
  return runs.make_config({**FIELDS, "compare.together": "auto", **fields})


@pytest.mark.thorough
def test_runs_together_are_the_runs_apart(apart, tmp_path, light_runs, capsys):
  workdir = tmp_path / "run"
  table = train.compare(auto(), workdir)["rows"]
  said = capsys.readouterr().err
  assert "compare: 3 runs in one program: plain, 2 seeds; decay, 2 seeds; rate, 2 seeds\n" in said
  assert "compare: trained apart: small, 2 seeds (other fields than strengths)\n" in said
  reference = runs.table(apart / "compare.json")["rows"]
  for label, row in reference.items():
    for name, values in row["runs"].items():
      np.testing.assert_allclose(table[label]["runs"][name], values, atol=1e-4)
  assert np.ptp([row["runs"]["test/nll"][0] for row in reference.values()]) > 1e-2
  for folder in sorted((apart / "rows").iterdir()):
    mine = workdir / "rows" / folder.name
    for one, other in zip(runs.records(mine), runs.records(folder), strict=True):
      assert one.keys() == other.keys()
      for name, value in other.items():
        assert one[name] == pytest.approx(value, abs=5e-4, rel=1e-3), name
    states = runs.final_state(mine), runs.final_state(folder)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
      np.testing.assert_allclose(one, other, atol=1e-4)
    assert manifest.good_steps(mine).keys() == manifest.good_steps(folder).keys()
  loaded = train.load(sorted((workdir / "rows").glob("decay-*"))[0], replica=1)
  assert loaded(load_data(auto()).test.inputs[:3]).shape == (3, 10)


@pytest.mark.thorough
def test_an_interruption_saves_every_run_and_the_same_command_continues(tmp_path, light_runs, monkeypatch):
  undo = runs.interrupt_at(monkeypatch, 6)
  rows = {"compare.rows": FIELDS["compare.rows"][:3]}
  with pytest.raises(train.Interrupted):
    train.compare(auto(**rows), tmp_path / "stopped")
  undo()
  folders = sorted((tmp_path / "stopped" / "rows").iterdir())
  assert [max(manifest.good_steps(folder)) for folder in folders] == [6] * 3
  stopped = train.compare(auto(**rows), tmp_path / "stopped")
  whole = train.compare(auto(**rows), tmp_path / "whole")
  assert stopped == whole
  for folder in folders:
    other = tmp_path / "whole" / "rows" / folder.name
    runs.assert_bitwise(runs.final_state(folder), runs.final_state(other))
    validated = [[r for r in runs.records(each) if "val/nll" in r] for each in (folder, other)]
    assert validated[0] == validated[1]


@pytest.mark.thorough
def test_runs_at_different_steps_go_on_apart(tmp_path, light_runs, capsys, monkeypatch):
  config = auto(**{"compare.rows": FIELDS["compare.rows"][:2], "compare.seeds": 1})
  undo = runs.interrupt_at(monkeypatch, 6)
  with pytest.raises(train.Interrupted):
    train.compare(auto(**{"compare.rows": FIELDS["compare.rows"][:1], "compare.seeds": 1}), tmp_path / "run")
  undo()
  train.compare(config, tmp_path / "run")
  assert (
    "trained apart: plain, 1 seeds; decay, 1 seeds (stopped at different steps)" in capsys.readouterr().err
  )


@pytest.mark.slow
@pytest.mark.parametrize("group", [group for group in REGISTRY if f"{group}.".startswith(together.SECTIONS)])
def test_numbers_of_the_trainer_are_traced_or_fixed_for_a_reason(group):
  """One program serves all values of an option, unless it is among `FIXED`: a walk over the registry."""
  base, walked = train.flatten(train.base_config()), 0
  for name in REGISTRY[group]:
    fields = [
      field
      for field, value in base.items()
      if field.startswith(f"{group}.{name}.")
      and isinstance(value, float)
      and together.is_strength(field, value)
    ]
    free = [field for field in fields if not any(fnmatch.fnmatch(field, glob) for glob in FIXED)]
    by = CHOICES[group]
    try:
      config = runs.make_config({by: (name,) if row_of(by).kind == tuple[str, ...] else name})
      data = load_data(config).describe()
      program = build(config, data)
    except train.RunError:  # other data, or an option without a default
      continue
    if free:
      sweep(program, config, data, free)
      walked += 1
    for field in set(fields) - set(free):
      with pytest.raises(train.RunError, match="cannot be traced"):
        sweep(program, config, data, [field])
  assert walked

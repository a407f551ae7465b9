"""Rows that differ only in strengths and seeds train in one program, to what they reach apart."""

import dataclasses
import fnmatch
import itertools

import chex
import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build, sweep
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.fields import row_of
from jaxreg.train.jobs import together
from jaxreg.train.registry import CHOOSERS as CHOICES
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
  "method.class_weights_limit": "weights are made once, from known counts",
  "optimizer.schedule.warmup_epochs": "decides a number of steps, of which Optax makes the schedule",
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


MLP = {"model.MLP.dropout_rate": 0.0}
RNN = {"model.name": "RNN"}
RESNET = {"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "model.CifarResNet.width": 2}
BRANCH = {
  "model.CifarResNet.branch_noise": "shake_drop",
  "model.CifarResNet.branch_schedule": "linear_from_zero",
}
LIMIT = {"regularizers.names": ("l2",), "regularizers.l2.limit": 1.0}
# Two values of a strength, and the fields that make a run read it.
TRACED = {
  "average.early_stopping.min_delta": ((0.0, 0.9), {"average.name": "early_stopping", **MLP}),
  "average.ema.decay": ((0.5, 0.9), {"average.name": "ema", **MLP}),
  "average.swa.start": ((0.0, 0.7), {"average.name": "swa", "average.swa.every": 1, **MLP}),
  "average.swag.scale": (
    (0.0, 2.0),
    {"average.name": "swag", "average.swag.every": 1, "average.swag.start": 0.0, **MLP},
  ),
  "model.CifarResNet.branch_rate": ((0.2, 0.5), {**RESNET, **BRANCH}),
  "model.CifarResNet.layer_scale": ((0.1, 0.5), RESNET),
  "model.MLP.dropout_rate": ((0.3, 0.6), {}),
  "model.MLP.hidden_noise_std": ((0.1, 0.5), {}),
  "model.MLP.input_dropout_rate": ((0.3, 0.6), {}),
  "model.RNN.dropout_rate": ((0.3, 0.6), RNN),
  "model.RNN.weight_noise_std": ((0.1, 0.3), RNN),
  "model.unbalance": ((0.1, 1.0), MLP),
  "optimizer.clip_norm": ((0.0, 0.1), MLP),
  "optimizer.schedule.cosine.final": ((0.0, 0.5), {"optimizer.schedule.name": "cosine", **MLP}),
  "optimizer.weight_decay.rate": ((0.0, 0.1), MLP),
  "regularizers.dual_learning_rate": ((0.01, 0.1), {**LIMIT, **MLP}),
  "regularizers.l2.limit": ((1.0, 30.0), {**LIMIT, **MLP}),
}
QUICK = ("average.ema.decay", "model.MLP.dropout_rate", "optimizer.clip_norm")


def run_of(program, state):
  """What a run of four steps, with an evaluation after each, comes to; and its losses."""
  batch = runs.digits_batch(32)

  def step(state, _):
    state, metrics = program.train_step(state, batch)
    loss = metrics["loss"][0] / metrics["loss"][1]
    return state if program.evaluated is None else program.evaluated(state, loss), loss

  state, losses = jax.lax.scan(step, state, length=4)
  return state.variables, state.extras, losses, program.predict_step(state, batch, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "field", [pytest.param(field, marks=() if field in QUICK else pytest.mark.thorough) for field in TRACED]
)
def test_a_traced_strength_is_the_number(field):
  """One program of both values gives what a program of each value gives."""
  values, fields = TRACED[field]
  given = {"method.name": "softmax", "optimizer.name": "sgd", "optimizer.learning_rate": 0.1, "steps": 4}
  configs = [runs.make_config({**given, **fields, field: value}) for value in values]
  data = load_data(configs[0]).describe()
  programs = [build(config, data) for config in configs]
  both = sweep(programs[0], configs[0], data, [field])
  start = lambda value: run_of(both, both.init((3, {field: value})))
  got = jax.jit(jax.vmap(start))(np.float32(values))
  for number, program in enumerate(programs):
    want = jax.jit(lambda seed, program=program: run_of(program, program.init(seed)))(3)
    alone = jax.tree.map(lambda x, number=number: x[number], got)
    chex.assert_trees_all_close(alone, want, rtol=1e-4, atol=1e-5)
  assert max(np.ptp(np.float64(x), axis=0).max() for x in jax.tree.leaves(got)) > 1e-3


def compiled_steps(folder, strengths):
  """How many training steps are made for XLA, to be compiled or found in its cache, for runs side by side."""
  planned, names = [], []
  for number, values in enumerate(strengths):
    config = runs.make_config({"method.name": "softmax", "steps": 3, "log.trackers": (), **values})
    planned.append(together.Planned(f"run {number}", config, folder / str(number)))

  def listen(event, _, fun_name="", **__):
    if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
      names.append(fun_name)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    together.train_together(planned)
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  assert all(manifest.good_steps(run.folder).keys() == {3} for run in planned)
  return names.count("jit(one)")  # of `devices.compile.make_step`


@pytest.mark.thorough
def test_rows_of_other_strengths_compile_nothing(tmp_path):
  """All rows are one program; dropout 0, without draws, is another."""
  fields = ("optimizer.learning_rate", "optimizer.clip_norm", "model.MLP.dropout_rate")
  rows = [dict(zip(fields, values)) for values in itertools.product((0.1, 0.2), (0.0, 1.0), (0.3, 0.5))]
  assert compiled_steps(tmp_path / "rows", rows) == 1
  off = [{**row, "model.MLP.dropout_rate": 0.0} for row in rows[::2]]
  assert compiled_steps(tmp_path / "off", [*rows[:2], *off]) == 2


@pytest.mark.thorough
def test_pretrained_parts_and_teachers_are_those_of_runs_apart(finished_run, tmp_path, light_runs, capsys):
  fields = {
    **{f"{part}.workdir": str(finished_run) for part in ("pretrained", "teacher")},
    "regularizers.names": ("l2_sp", "distillation"),
    "compare.rows": (
      "plain:",
      "near: regularizers.l2_sp.weight=0.5",
      "taught: regularizers.distillation.weight=9.0 regularizers.distillation.temperature=1.0",
    ),
    "compare.seeds": 1,
  }
  tables = []
  for form in ("never", "auto"):
    config = runs.make_config({**FIELDS, **fields, "compare.together": form})
    tables.append(train.compare(config, tmp_path / form)["rows"])
  assert "3 runs in one program" in capsys.readouterr().err
  values = [
    [table[label]["runs"]["test/nll"][0] for label in ("plain", "near", "taught")] for table in tables
  ]
  np.testing.assert_allclose(*values, atol=1e-4)
  assert len(set(np.round(values[0], 3))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("group", [group for group in REGISTRY if f"{group}.".startswith(together.SECTIONS)])
def test_numbers_of_the_trainer_are_traced_or_fixed_for_a_reason(group):
  """One program serves all values of an option, unless it is among `FIXED`: a walk over the registry."""
  base, walked = flatten(train.base_config()), 0
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
    on = {field: 0.5 for field in free if together.SWITCHES.fullmatch(field)}
    try:
      config = runs.make_config({**on, by: (name,) if row_of(by).kind == tuple[str, ...] else name})
      data = load_data(config).describe()
      if group == "model":  # images that every network for images takes
        data = dataclasses.replace(data, input_shape=(32, 32, 3))
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

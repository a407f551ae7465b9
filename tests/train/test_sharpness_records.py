"""The sharpness along the steps of a run: the numbers of NumPy, and a run that keeps its bits."""

import chex
import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.run.dispatch import dispatches
from jaxreg.train.run.metrics_file import read_records

pytestmark = pytest.mark.usefixtures("no_figures")

FIELDS = {
  "method.name": "softmax",
  "model.MLP.dropout_rate": 0.3,
  "optimizer.name": "sgd",
  "optimizer.learning_rate": 0.1,
  "optimizer.schedule.name": "constant",
}


def test_a_measured_step_is_alone_and_no_other_dispatch_changes():
  assert [len(steps) for steps in dispatches(0, 16, 4, (), 6)] == [4, *[1] * 8, 4]
  assert [*dispatches(0, 16, 4, (8,), 0)] == [*dispatches(0, 16, 4, (8,))]
  for start in range(16):
    measured = [steps for steps in dispatches(start, 16, 4, (), 3) if steps[-1] % 3 == 0]
    assert all(len(steps) == 1 for steps in measured)


@pytest.mark.thorough
def test_the_metrics_are_those_of_the_step():
  """The loss is lower after the step iff the critical sharpness is below 2; the state stays as it was."""
  built = build(runs.make_config(FIELDS), sources.digits().describe())
  state, batch = jax.jit(built.init)(0), runs.digits_batch(32)
  same, metrics = jax.jit(built.sharpness_step)(state, batch)
  chex.assert_trees_all_equal(same.params, state.params)
  values = {name: float(total / count) for name, (total, count) in metrics.items()}
  assert {*values} == {
    *("critical_sharpness", "directional_sharpness", "normalized_sharpness"),
    *("noise_trace", "squared_gradient"),
  }
  # For SGD the update is -0.1 times the gradient: directional = 0.1 u'Hu / u'u.
  assert values["directional_sharpness"] == pytest.approx(0.1 * values["normalized_sharpness"], rel=1e-3)
  # The gradients of the halves, by weights, in NumPy.
  gradients = []
  for half in (0, 1):
    weights = np.float32(np.arange(32) % 2 == half)
    after, _ = jax.jit(built.train_step)(state, {**batch, "weights": weights})
    gradients.append(
      np.concatenate(
        [
          np.ravel((a - b) / -0.1)
          for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True)
        ]
      ).astype(np.float64)
    )
  small, big = np.mean([g @ g for g in gradients]), np.square(np.mean(gradients, axis=0)).sum()
  trace = (small - big) / (1 / 16 - 1 / 32)
  assert values["noise_trace"] == pytest.approx(trace, rel=1e-3)
  assert values["squared_gradient"] == pytest.approx((32 * big - 16 * small) / 16, rel=1e-2, abs=1e-3)
  # Half of the batch without an example that counts says nothing about the noise.
  even = {**batch, "weights": np.float32(np.arange(32) % 2 == 0)}
  _, metrics = jax.jit(built.sharpness_step)(state, even)
  assert tuple(map(float, metrics["noise_trace"])) == (0, 0)


@pytest.mark.thorough
def test_measuring_changes_no_bit_of_a_run(tmp_path):
  fields = {**FIELDS, "steps": 12, "replicas": 2, "log_every": 4}
  plain = train.train(runs.make_config(fields), str(tmp_path / "plain"))
  measured = train.train(runs.make_config({**fields, "log.sharpness_every": 5}), str(tmp_path / "measured"))
  assert {name: x for name, x in plain.items() if "test/" in name} == {
    name: x for name, x in measured.items() if "test/" in name
  }
  records = read_records(tmp_path / "measured")
  assert [record["step"] for record in records if "update/critical_sharpness" in record] == [5, 10]
  assert [record["step"] for record in records if "train/loss" in record] == [4, 8, 12]


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [{"parallel": "pmap"}, {"accumulate": 4}, {"mesh.shard": ("fsdp",)}])
def test_other_ways_to_run_a_step(tmp_path, fields):
  config = runs.make_config({**FIELDS, "model.MLP.dropout_rate": 0.0, "steps": 2, **fields})
  config.log.sharpness_every = 1
  train.train(config, str(tmp_path / "other"))
  plain = runs.make_config({**FIELDS, "model.MLP.dropout_rate": 0.0, "steps": 2})
  plain.log.sharpness_every = 1
  train.train(plain, str(tmp_path / "plain"))
  for one, other in zip(*(read_records(tmp_path / name) for name in ("plain", "other")), strict=True):
    for name in one:
      if name.startswith("update/"):
        assert other[name] == pytest.approx(one[name], rel=0.1 if "critical" in name else 1e-2), name

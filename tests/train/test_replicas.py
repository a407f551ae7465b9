"""Replicas are the single runs of their seeds, however they are trained; their means are what is reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from scipy import stats

from jaxreg import models, train
from jaxreg.train.data import sources
from jaxreg.train.devices.replicas import Loop, Vmap, make_replicas
from jaxreg.train.devices.sharding import make_mesh
from jaxreg.train.run import manifest
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.step.metrics import averaged
from jaxreg.train.summary import summary

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("light_module")]

SEEDS = (3, 4, 5)
# Plain SGD: with Adam, rounding alone can turn the sign of a first update.
FIELDS = {"epochs": 3, "optimizer.name": "sgd", "optimizer.learning_rate": 0.1}


@pytest.fixture(scope="module")
def single(tmp_path_factory, light_module):
  """The work directories of the runs that the seeds give alone."""
  folder = tmp_path_factory.mktemp("single")
  for seed in SEEDS:
    train.train(runs.make_config({**FIELDS, "seed": seed}), folder / str(seed))
  return folder


def replicated(**fields):
  return runs.make_config({**FIELDS, "seed": SEEDS[0], "replicas": len(SEEDS), **fields})


@pytest.mark.parametrize("form", ["vmap", "loop"])
def test_a_replica_is_the_run_of_its_seed(single, tmp_path, form, monkeypatch):
  runs.in_form(monkeypatch, form)
  workdir = tmp_path / "run"
  results = train.train(replicated(), workdir)
  assert runs.table(workdir / "results.json") == results
  assert results["replicas"]["seed"] == list(SEEDS)
  state = runs.final_state(workdir)
  images = sources.digits().test.inputs[:16]
  for r, seed in enumerate(SEEDS):
    alone = runs.final_state(single / str(seed))
    np.testing.assert_array_equal(state["key"][r], alone["key"][0])
    for one, other in zip(jax.tree.leaves(state["params"]), jax.tree.leaves(alone["params"]), strict=True):
      np.testing.assert_allclose(one[r], other[0], atol=1e-4)
    expected = runs.table(single / str(seed) / "results.json")
    for name, values in results["replicas"].items():
      if name != "seed":
        assert abs(values[r] - expected[name]) < 1e-4, name
    np.testing.assert_allclose(
      train.load(workdir, replica=r)(images), train.load(single / str(seed))(images), atol=1e-3
    )
  # They are three runs and not one.
  kernels = state["params"]["head"]["classifier"]["kernel"]
  assert np.abs(kernels[0] - kernels[1]).max() > 0.1
  for wrong in (3, -1):
    with pytest.raises(
      train.RunError, match=rf"^replica: must be an integer of at least 0 and below 3, got {wrong}$"
    ):
      train.load(workdir, replica=wrong)


def test_means_and_intervals(single, tmp_path):
  results = train.train(replicated(), tmp_path / "run")
  names = [name for name in results["replicas"] if name != "seed"]
  assert {"val/error", "test/error", "test/nll", "test/ece"} <= set(names)
  for name in names:
    values = [runs.table(single / str(seed) / "results.json")[name] for seed in SEEDS]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose(results[name], np.mean(values), atol=1e-4)
    np.testing.assert_allclose(results[f"{name}_ci95"], (high - low) / 2, atol=5e-4)
    # Of its own replicas' values they are the mean and interval exactly.
    values = results["replicas"][name]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose([results[name], results[f"{name}_ci95"]], [np.mean(values), (high - low) / 2])
  assert results["test/error_ci95"] > 0.005
  # The records are means over the replicas, too.
  ours = [r for r in read_records(tmp_path / "run") if "train/loss" in r]
  alone = [[r for r in read_records(single / str(seed)) if "train/loss" in r] for seed in SEEDS]
  assert len(ours) == 12
  for record, *others in zip(ours, *alone, strict=True):
    losses = [other["train/loss"] for other in others]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(losses), scale=stats.sem(losses))
    np.testing.assert_allclose(record["train/loss"], np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(record["train/loss_ci95"], (high - low) / 2, atol=5e-4 * np.mean(losses))
  config = replicated(job="evaluate")
  evaluated = train.evaluate(config, tmp_path / "run")
  assert evaluated == {"step": 12} | {k: v for k, v in results.items() if k.startswith("test/")}
  report = summary(evaluated, config, tmp_path / "run")
  error, half = 100 * results["test/error"], 100 * results["test/error_ci95"]
  assert f"error {error:.2f} ± {half:.2f}%" in report


def test_averaged():
  assert averaged({"a": np.array([2.0])}) == {"a": 2.0}
  values = averaged({"a": np.array([1.0, 3.0])})
  assert values["a"] == 2
  # Student's t with one degree of freedom: 12.7062 times the standard error, which is 1.
  np.testing.assert_allclose(values["a_ci95"], 12.706204736)


@pytest.mark.parametrize("form", ["vmap", "loop"])
def test_what_is_saved_does_not_tell_the_form(form, monkeypatch):
  runs.in_form(monkeypatch, form)
  tree = {"key": jax.random.split(jax.random.key(0), 2), "x": jnp.arange(6.0).reshape(2, 3)}
  replicas = make_replicas(make_mesh(), number=2, params={}, parallel="jit")
  packed = replicas.pack(replicas.unpack(jax.tree.map(jnp.copy, tree)))
  np.testing.assert_array_equal(packed["x"], tree["x"])
  np.testing.assert_array_equal(*(jax.random.key_data(each["key"]) for each in (packed, tree)))
  assert float(replicas.pick(replicas.unpack(tree), 1)["x"][0]) == 3


@pytest.mark.parametrize("form", [pytest.param("vmap", marks=pytest.mark.slow), "loop"])
def test_resuming_is_bitwise(tmp_path, capsys, form, monkeypatch):
  runs.in_form(monkeypatch, form)
  workdir = tmp_path / "run"
  config = replicated()
  whole = train.train(config, tmp_path / "whole")
  assert train.train(config, workdir) == whole
  # As a kill after the second epoch leaves it.
  (workdir / "results.json").unlink()
  for step in manifest.good_steps(workdir):
    if step > 8:
      (workdir / "manifests" / f"{step}.json").unlink()
  capsys.readouterr()
  assert train.train(config, workdir) == whole
  assert "resuming at step 8 of 12" in capsys.readouterr().err
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(tmp_path / "whole"))


def test_one_program_where_that_pays():
  mesh = make_mesh()
  dense = {"Dense_0": {"kernel": np.zeros((3, 4)), "bias": np.zeros(4)}}
  convolution = {"Conv_0": {"kernel": np.zeros((3, 3, 1, 4))}}
  kind = lambda params, **options: type(
    make_replicas(mesh, **{"number": 3, "parallel": "jit", "params": params, **options})
  )
  assert jax.default_backend() == "cpu"
  assert kind(dense) is Vmap
  assert kind(convolution) is Loop
  assert kind(dense, number=1) is Loop
  assert kind(dense, parallel="pmap") is Loop
  backbones = (
    (models.MLP(widths=(8,)), Vmap),
    (models.LeNet(), Loop),
    (models.TutorialCNN(), Loop),
    (models.CifarResNet(depth=8, width=4), Loop),
  )
  images = jax.ShapeDtypeStruct((1, 28, 28, 1), jnp.float32)
  for backbone, form in backbones:
    params = jax.eval_shape(lambda x, b=backbone: b.init(jax.random.key(0), x, train=False), images)["params"]
    assert kind(params) is form, backbone


@pytest.mark.slow
def test_pmap_takes_replicas_one_by_one(tmp_path):
  fields = {"parallel": "pmap", "replicas": 2, "epochs": 1}
  both = train.train(runs.make_config(fields), tmp_path / "both")
  alone = train.train(runs.make_config({**fields, "replicas": 1, "seed": 1}), tmp_path / "alone")
  assert abs(both["replicas"]["test/nll"][1] - alone["test/nll"]) < 1e-4


def test_a_replica_that_diverges_is_named(tmp_path, monkeypatch):
  from jaxreg.train.run import recorder

  original = recorder.to_host

  def spoil(metrics):
    metrics = original(metrics)
    total, count = metrics["loss"]
    return {**metrics, "loss": (np.where(np.arange(len(total)) == 1, np.nan, total), count)}

  monkeypatch.setattr(recorder, "to_host", spoil)
  with pytest.raises(train.RunError, match=r"^step 1: loss = nan in replica 1; stopped") as told:
    train.train(replicated(), tmp_path / "run")
  assert "\n" not in str(told.value)


def test_the_last_seeds():
  runs.make_config({"seed": 2**32 - 3, "replicas": 3})


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"seed": 2**32 - 2, "replicas": 3}, r"^seed: .* below 2\*\*32 for every replica, got 4294967294$"),
    ({"parallel": "pmap", "steps_per_dispatch": 2}, r"^steps_per_dispatch: must be 0 or 1"),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(train.RunError, match=message):
    runs.make_config(fields)

"""What is predicted with: averages against NumPy, the best copy against the records, and what is saved."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import runs
import scipy

from jaxreg import train
from jaxreg.averaging import swag as make_swag
from jaxreg.objective import example_term
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.registry import REGISTRY
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.step import averages, terms
from jaxreg.train.step.forward import make_forward
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.step import make_objective
from jaxreg.train.step.targets import CLASSES

SMALL = {"method.name": "softmax", "model.MLP.dropout_rate": 0.0}


def iterates(number):
  rng = np.random.default_rng(0)
  return [{"w": rng.normal(size=3), "b": rng.normal(size=())} for _ in range(number)]


def followed(average, params):
  """The parameters to predict with after each of the iterates."""
  state = average.init(jax.tree.map(jnp.zeros_like, params[0]))
  shown = []
  for step, leaf in enumerate(params, 1):
    state = average.step(state, leaf, jnp.int32(step))
    shown.append(jax.device_get(average.params(state, leaf)))
  return shown


@pytest.mark.thorough
def test_swa_is_the_mean_of_the_last_iterates():
  with jax.enable_x64(True):
    params = iterates(12)
    shown = followed(averages.swa(start=0.5, every=2, num_steps=12, steps_per_epoch=4), params)
  # After 6, every second: 8, 10, 12.
  for last, count in ((7, 0), (8, 1), (9, 1), (11, 2), (12, 3)):
    taken = [8, 10, 12][:count] or [last]
    for name in ("w", "b"):
      wanted = np.mean([params[step - 1][name] for step in taken], axis=0)
      np.testing.assert_allclose(shown[last - 1][name], wanted, rtol=1e-12)


@pytest.mark.thorough
def test_swa_of_a_run_made_longer_begins_again():
  params = jax.tree.map(np.float32, iterates(12))
  # The second begins its average at the same step, and takes others.
  for length, every, own in ((12, 1, (11, 12)), (11, 2, (11,))):
    shorter, longer = (
      averages.swa(start=0.75, every=every, num_steps=number, steps_per_epoch=4) for number in (10, length)
    )
    state = shorter.init(params[0])
    for step, leaf in enumerate(params[:length], 1):
      state = (shorter if step <= 10 else longer).step(state, leaf, jnp.int32(step))
    for name, found in longer.params(state, params[-1]).items():
      np.testing.assert_allclose(found, np.mean([params[step - 1][name] for step in own], axis=0), rtol=1e-6)


@pytest.mark.parametrize(
  ("decay", "factor"), [("cosine", lambda t: (1 + np.cos(np.pi * t)) / 2), ("sqrt", lambda t: 1 - t**0.5)]
)
def test_swa_imitates_a_decay_of_the_learning_rate(decay, factor):
  """The mean is the first iterate and the steps from there, each times the factor of the decay."""
  with jax.enable_x64(True):
    params = iterates(12)
    average = averages.swa(start=0.5, every=2, decay=decay, num_steps=12, steps_per_epoch=4)
    shown = followed(average, params)[-1]
  taken = [params[number - 1] for number in (8, 10, 12)]
  for name in ("w", "b"):
    steps = [
      (new[name] - old[name]) * factor(n / 3) for n, (old, new) in enumerate(itertools.pairwise(taken), 1)
    ]
    np.testing.assert_allclose(shown[name], taken[0][name] + sum(steps), rtol=1e-12)


@pytest.mark.thorough
def test_power_ema_predicts_by_the_length_that_is_asked_for():
  """At the end, against the average itself; before, the average of length 0.05."""
  number = 40
  weights = lambda gamma, t: np.diff(np.arange(t + 1.0) ** (gamma + 1)) / t ** (gamma + 1)
  values = np.random.default_rng(1).normal(size=(number, 3)).cumsum(0)
  params = [{"w": row} for row in values]
  for length, gamma, tol in ((0.05, 16.9722, 1e-4), (0.1, 6.9372, 1e-4), (0.07, 11.2449, 2e-2)):
    with jax.enable_x64(True):
      average = averages.power_ema(length=length, snapshots=8, num_steps=number)
      shown = followed(average, params)
    assert np.sqrt(gamma + 1) / (gamma + 2) / np.sqrt(gamma + 3) == pytest.approx(length, rel=1e-3)
    np.testing.assert_allclose(shown[-1]["w"], weights(gamma, number) @ values, atol=tol * values.std() * 10)
    np.testing.assert_allclose(shown[29]["w"], weights(16.9722, 30) @ values[:30], rtol=1e-3, atol=1e-3)


@pytest.mark.thorough
def test_an_evaluation_chooses_the_length_of_power_ema(tmp_path, light_runs):
  """The run of the longer average has the same checkpoints, and so predicts the same with that length."""
  fields = {**SMALL, "model.MLP.widths": (), "epochs": 4, "average.name": "power_ema"}
  for name, length in {"short": 0.05, "long": 0.2}.items():
    train.train(runs.make_config({**fields, "average.power_ema.length": length}), tmp_path / name)
  want = train.evaluate(
    runs.make_config({**fields, "job": "evaluate", "average.power_ema.length": 0.2}), tmp_path / "long"
  )
  other = {**fields, "job": "evaluate", "average.power_ema.length": 0.2}
  got = train.evaluate(runs.make_config(other), tmp_path / "short")
  assert got == want
  assert got != train.evaluate(
    runs.make_config({**other, "average.power_ema.length": 0.05}), tmp_path / "short"
  )


@pytest.mark.thorough
def test_swag_has_the_iterates_of_swa_and_draws_around_their_mean():
  """Before the first iterate, a draw is the parameters themselves."""
  params = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
  average = averages.swag(rank=2, samples=3, start=0.5, every=2, num_steps=12, steps_per_epoch=4)

  def run(start, params):
    state = average.init(start)
    step = lambda state, new: (average.step(state, new[0], new[1]), None)
    after, _ = jax.lax.scan(step, state, (params, jnp.arange(1, 13)))
    draw = jax.vmap(lambda key: average.draw(key, after, start))
    first = average.draw(jax.random.key(0), state, start)
    return first, average.params(after, start), draw(jax.random.split(jax.random.key(1), 4000))

  first, mean, draws = jax.jit(run)(jnp.full(3, 9.0), params)
  np.testing.assert_array_equal(first, 9)
  taken = params[[7, 9, 11]].astype(np.float64)  # after step 6, every second
  np.testing.assert_allclose(mean, taken.mean(0), rtol=1e-6)
  # Half of the variance from the diagonal, half from the last two deviations to the mean of their time.
  means = np.cumsum(taken, 0) / np.arange(1, 4)[:, None]
  spread = np.sqrt(taken.var(0) / 2 + ((taken - means)[1:] ** 2).sum(0) / 2)
  np.testing.assert_allclose(np.asarray(draws).std(0), spread, rtol=4 / np.sqrt(2 * 4000))
  assert (abs(np.asarray(draws).mean(0) - taken.mean(0)) < 4 * spread / np.sqrt(4000)).all()


@pytest.mark.thorough
def test_a_run_with_swag_predicts_the_mean_over_its_draws(tmp_path, light_runs):
  """Of softmax regression, whose oracle is NumPy; along the training, the live parameters are evaluated."""
  fields = {**SMALL, "model.MLP.widths": (), "epochs": 4, "average.swag.every": 1, "average.swag.start": 0.4}
  swag = {"average.name": "swag", "average.swag.samples": 5, "average.swag.scale": 3.0}
  train.train(runs.make_config(fields), tmp_path / "plain")
  train.train(runs.make_config({**fields, **swag}), tmp_path / "run")
  recorded = [
    [r["val/nll"] for r in read_records(tmp_path / name) if "val/nll" in r] for name in ("plain", "run")
  ]
  assert recorded[0][:3] == recorded[1][:3]

  data, key = load_data(runs.make_config(fields)), jax.random.key(9)
  x = data.test.inputs.reshape(len(data.test.inputs), -1) / data.scale
  extras = jax.tree.map(lambda leaf: leaf[0], runs.final_state(tmp_path / "run")["extras"])
  state = extras["average"][0]
  assert state.count == 10  # of 16 steps, those after the first 6
  p = []
  for one in jax.random.split(key, 5):
    w = make_swag(scale=3.0).sample(jax.random.split(one)[0], state)["params"]["head"]["classifier"]
    logits = x @ np.asarray(w["kernel"], np.float64) + np.asarray(w["bias"], np.float64)
    p.append(oracles.softmax(logits))
  assert np.std(p, axis=0).max() > 0.01
  got = train.load(tmp_path / "run")(data.test.inputs, key=jax.random.clone(key))
  np.testing.assert_allclose(np.exp(got), np.mean(p, axis=0), atol=2e-6)


@pytest.mark.parametrize(("warmup", "power"), [(1.0, 1.0), (2.0, 0.5)])
def test_ema_begins_with_the_plain_mean_and_then_forgets(warmup, power):
  with jax.enable_x64(True):
    params = iterates(6)
    shown = followed(averages.ema(decay=0.7, warmup=warmup, power=power), params)
  mean = {"w": np.zeros(3), "b": 0.0}
  for step, (new, found) in enumerate(zip(params, shown, strict=True), 1):
    keep = min(0.7, 1 - (1 + (step - 1) / warmup) ** -power)
    mean = {name: keep * mean[name] + (1 - keep) * new[name] for name in mean}
    for name, wanted in mean.items():
      np.testing.assert_allclose(found[name], wanted, rtol=1e-6)
  if warmup == 1:
    np.testing.assert_allclose(shown[2]["w"], np.mean([p["w"] for p in params[:3]], axis=0), rtol=1e-6)


def test_before_the_first_iterate_an_average_is_the_parameters_themselves():
  params = {"w": jnp.array([1.0, 2.0])}
  for average in (averages.swa(num_steps=8, steps_per_epoch=4), averages.ema(), averages.Averaging()):
    np.testing.assert_array_equal(average.params(average.init(params), params)["w"], params["w"])


STOPPING = {
  **SMALL,
  "average.name": "early_stopping",
  "average.early_stopping.patience": 2,
  "optimizer.learning_rate": 0.1,
  "epochs": 30,
  "replicas": 2,
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, light_module):
  """A run of two replicas that stops early: its folder and results."""
  folder = tmp_path_factory.mktemp("stopped") / "run"
  return folder, train.train(runs.make_config(STOPPING), folder)


@pytest.mark.thorough
def test_early_stopping_ends_the_run_when_patience_runs_out(stopped):
  _, results = stopped
  assert results["step"] < 30 * runs.STEPS_PER_EPOCH
  assert results["step"] % runs.STEPS_PER_EPOCH == 0


@pytest.mark.thorough
def test_the_results_are_those_of_the_best_copy(stopped):
  """Of each replica, what `load` predicts has the validation error of the results: the least on record."""
  folder, results = stopped
  data = load_data(runs.make_config(STOPPING))
  for replica, error in enumerate(results["replicas"]["val/error"]):
    predict = train.load(folder, replica=replica)
    found = (np.asarray(predict(data.val.inputs)).argmax(-1) != data.val.labels).mean()
    assert found == pytest.approx(error)
  recorded = [record["val/error"] for record in read_records(folder) if "val/error" in record]
  assert results["val/error"] <= min(recorded) + 1e-9
  assert results["val/error"] < recorded[-1]


@pytest.mark.thorough
def test_early_stopping_by_the_refined_nll_keeps_another_copy(tmp_path, light_runs):
  """The least NLL after a temperature, by SciPy from what `load` predicts; the plain is least elsewhere."""
  refined = {"checkpoint.best": "val/nll_refined", "average.early_stopping.patience": 5}
  config = runs.make_config({**STOPPING, **refined, "replicas": 1, "optimizer.learning_rate": 0.02})
  results = train.train(config, tmp_path / "run")
  data = load_data(config)
  log_probs = np.asarray(train.load(tmp_path / "run")(data.val.inputs), np.float64)

  def nll(temperature):
    scaled = log_probs / temperature
    return (scipy.special.logsumexp(scaled, axis=-1) - scaled[np.arange(len(scaled)), data.val.labels]).mean()

  found = scipy.optimize.minimize_scalar(nll, bounds=(0.01, 100), method="bounded").fun
  records = [record for record in read_records(tmp_path / "run") if "val/error" in record]
  assert min(record["val/nll_refined"] for record in records) == pytest.approx(found, rel=1e-4)
  assert results["val/nll"] > min(record["val/nll"] for record in records) * 1.01


@pytest.mark.thorough
@pytest.mark.parametrize("form", [pytest.param("vmap", marks=pytest.mark.slow), "loop"])
def test_an_ensemble_predicts_the_mean_of_its_members(tmp_path, light_runs, form, monkeypatch):
  """Two of two, each member resampled for itself; oracle: the members loaded one by one."""
  runs.in_form(monkeypatch, form)
  config = runs.make_config({**SMALL, "replicas": 4, "ensemble": 2, "data.bootstrap": True, "epochs": 3})
  results = train.train(config, tmp_path / "run")
  data = load_data(config)
  members = [
    np.exp(np.asarray(train.load(tmp_path / "run", replica=number)(data.test.inputs), np.float64))
    for number in range(4)
  ]
  assert np.abs(members[0] - members[1]).max() > 0.01
  assert results["replicas"]["seed"] == [0, 2]
  for ensemble in (0, 1):
    mean = (members[2 * ensemble] + members[2 * ensemble + 1]) / 2
    nll = -np.log(mean[np.arange(len(mean)), data.test.labels]).mean()
    assert results["replicas"]["test/nll"][ensemble] == pytest.approx(nll, rel=1e-5)
    error = (mean.argmax(1) != data.test.labels).mean()
    assert results["replicas"]["test/error"][ensemble] == pytest.approx(error)


@pytest.mark.thorough
def test_the_averaged_teacher_has_the_averaged_statistics():
  """A network whose logits are `x (w + s)`, with a parameter `w` and a statistic `s`."""

  def apply_fn(params, model_state, x, *, key, train):
    return {"logits": x @ (params["w"] + model_state["s"])}, model_state

  rng = np.random.default_rng(0)
  x, old, new = rng.normal(size=(5, 4)), rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3))
  x = x.astype(np.float32)  # the dtype of examples
  average = averages.ema(decay=1.0)
  variables = lambda pair: {"params": {"w": pair[0]}, "model_state": {"s": pair[1]}}
  with jax.enable_x64(True):
    kept = average.init(variables(old))
    for number, pair in enumerate((old, new), 1):
      kept = average.step(kept, variables(pair), number)
    state = TrainState(2, None, {"w": new[0]}, {"s": new[1]}, (), {"average": kept})
    softmax = REGISTRY["method"]["softmax"].function
    batch = {"inputs": jnp.asarray(x), "labels": jnp.zeros(5, int), "weights": jnp.ones(5)}
    seen = []

    def term(key, view):
      averaged = view.batch["averaged"]
      batch = {**view.batch, "model_state": averaged["model_state"]}
      seen.append(view.again(params=averaged["params"], batch=batch, key=None).aux.predictions)
      return terms.mean_teacher(key, view)

    forward = make_forward(runs.network_of(apply_fn), softmax, CLASSES)
    objective = make_objective(
      forward, {"mean_teacher": example_term(term, weight=1.0)}, extras=Extras(average=average)
    )
    objective(state.params, state, batch, jax.random.key(0))
    (got,) = seen
  np.testing.assert_allclose(np.exp(got), oracles.softmax(x @ (old + new).sum(0) / 2), rtol=1e-12)


@pytest.mark.thorough
def test_ema_averages_the_statistics_of_batch_norm_too(tmp_path):
  """One batch an epoch; the decay of 1 makes it the plain mean of the saved iterates."""
  fields = {"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "model.CifarResNet.width": 2}
  fields |= {
    "average.name": "ema",
    "average.ema.decay": 1.0,
    "data.subset.limit": 64,
    "epochs": 3,
    "batch_size": 64,
  }
  train.train(runs.make_config({**SMALL, **fields, "checkpoint.keep": 5}), tmp_path / "run")
  saved = [runs.final_state(tmp_path / "run", step) for step in (1, 2, 3)]
  kept = saved[-1]["extras"]["average"]
  for part in ("params", "model_state"):
    each = [jax.tree.leaves(state[part]) for state in saved]
    for found, *leaves in zip(jax.tree.leaves(kept.params[part]), *each, strict=True):
      np.testing.assert_allclose(found, np.mean(np.float64(leaves), axis=0), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
  "fields",
  [
    {"average.name": "ema", "regularizers.names": ("l2", "l2_sp"), "regularizers.l2.limit": 1.0},
    {"average.name": "swa", "average.swa.start": 0.2, "average.swa.every": 3},
    {"average.name": "swag", "average.swag.start": 0.2, "average.swag.every": 3, "average.swag.rank": 3},
  ],
  ids=["ema, a multiplier and a reference", "swa", "swag"],
)
def test_what_is_kept_beside_the_parameters_resumes_bitwise(tmp_path, monkeypatch, fields):
  config = runs.make_config({**SMALL, **fields})
  whole = train.train(config, tmp_path / "whole")
  undo = runs.interrupt_at(monkeypatch, 10)
  with pytest.raises(train.Interrupted):
    train.train(config, tmp_path / "run")
  undo()
  assert train.train(config, tmp_path / "run") == whole
  kept = runs.final_state(tmp_path / "run")
  assert len(jax.tree.leaves(kept["extras"])) > 4
  runs.assert_bitwise(kept, runs.final_state(tmp_path / "whole"))

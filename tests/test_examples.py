"""The scripts of `examples/` run and do what they show."""

import importlib.util
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
OWN_TESTS = ("batch_norm", "image_lists", "search_optuna", "step_profile", "translate")
SCRIPTS = sorted(script.stem for script in FOLDER.glob("*.py") if script.stem not in OWN_TESTS)
GUESS = np.log(10)  # the loss of a uniform prediction of ten classes


def load(name):
  spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
  assert spec
  assert spec.loader
  module = importlib.util.module_from_spec(spec)
  with jax.numpy_rank_promotion("allow"):  # as a reader runs them
    spec.loader.exec_module(module)
  return module


def log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def is_a_distribution(log_probs):
  np.testing.assert_allclose(np.exp(np.asarray(log_probs, np.float64)).sum(-1), 1, rtol=1e-5)


def any_model(it):
  assert it.loss.shape == (8,)
  is_a_distribution(it.log_probs)


def own_table(it):
  assert it.results["test/error"] < 0.1
  assert it.predict.input_names[-2:] == ("shelf=bottom", "shelf=top")
  assert (it.predicted == it.wine.target_names[it.wine.target]).mean() > 0.9


def sklearn_search(it):
  assert it.search.best_params_ == {"estimator__optimizer.learning_rate": 0.01}
  assert it.accuracy == (it.search.predict(it.x_test) == it.y_test).mean() > 0.8


def convolution(it):
  """Each pixel of Linen's layer is the sum over the padded window."""
  padded = np.pad(np.asarray(it.x, np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
  window = padded[:, 3:6, 7:10]
  expected = np.einsum("nijc,ijco->no", window, np.asarray(it.kernel, np.float64)) + np.asarray(it.bias)
  for y in (it.of_linen, it.of_nnx, it.of_equinox):
    np.testing.assert_allclose(y[:, 3, 7], expected, rtol=1e-4, atol=1e-5)


def lasso(it):
  assert it.objective(it.accelerated.params) <= it.objective(it.weights) + 1e-6
  assert (it.accelerated.params == 0).sum() >= 5


def linen_step(it):
  is_a_distribution(it.log_probs)
  assert 0 < it.nll < GUESS


def nnx_step(it):
  assert 0 < it.loss < GUESS


equinox_step = nnx_step


def pyhessian_readme(it):
  """The larger eigenvalue is at least the mean of the trace; the layers' are not above it."""
  assert it.top.converged.all()
  assert float(it.top.values[0]) > float(it.top.values[1]) > 0
  assert (it.layers.top_eigenvalues <= it.top.values[0] * 1.001).all()
  assert (it.folder / "density.png").stat().st_size > 5000
  assert it.profile.shape == (21,)


def objective(it):
  """Every form learns, a split batch has the gradient of the whole one, and a larger weight shrinks more."""
  assert it.HISTORY.keys() >= {"plain", "linen", "flax_nnx", "equinox"}
  assert all(history[-1] < history[0] - 0.2 for history in it.HISTORY.values())
  chex.assert_trees_all_close(it.split, it.whole, rtol=1e-4, atol=1e-6)
  assert {line.split()[0] for line in str(it.report).splitlines()} == {"term", "data", *it.TERMS, "loss"}
  assert (np.diff(it.norms) < 0).all()


def nnx_cnn(it):
  """It generalises, and every term is told."""
  assert it.error < 0.1
  assert it.report.value.keys() == {"data", "mixup", "l2", "loss"}


def equinox_dropmax(it):
  assert it.error < 0.15
  assert it.report.value.keys() >= {"nll", "kl", "neg_entropy", "auxiliary", "l2"}


def vat_regression(it):
  assert it.r2 > 0.3
  assert it.report.value.keys() == {"data", "vat", "l1", "loss"}


def group_softmax(it):
  """All classes are alike, so each of the four groups guesses, and so does the whole."""
  np.testing.assert_allclose(it.loss, 4 * GUESS, rtol=1e-5)
  np.testing.assert_allclose(it.log_probs, np.full((8, 10), -GUESS), rtol=1e-5)


def noise_penalties_constraints(it):
  assert np.linalg.norm(np.asarray(it.params["kernel"], np.float64), axis=0).max() < 1 + 1e-6


def calibration(it):
  log_probs = np.asarray(it.log_probs, np.float64)
  np.testing.assert_allclose(it.total, -log_probs[range(8), np.asarray(it.labels)].sum(), rtol=1e-5)
  assert it.count == 8
  assert 0 <= it.error <= 1
  np.testing.assert_allclose(it.calibrated, log_softmax(log_probs / float(it.temperature)), rtol=1e-4)


def dense_outputs(it):
  """Of the pixels with a label; 66 % are background."""
  labelled = np.asarray(it.test["masks"]) >= 0
  guessed = np.asarray(it.log_probs).argmax(-1) == np.asarray(it.test["masks"])
  np.testing.assert_allclose(it.right, guessed[labelled].mean(), rtol=1e-5)
  assert it.right > 0.85
  assert 0 < it.ece < 0.2


def many_classes(it):
  """The loss of all logits at the end; a mean of positive eigenvalues is not above the largest."""
  assert it.memory["losses.linear"] < it.memory["all logits"] / 2
  assert it.values[-1] < it.values[0] / 2
  batch = it.sample(jax.random.key(7))
  np.testing.assert_allclose(it.loss_fn(it.params, batch), it.plain_loss_fn(it.params, batch), rtol=1e-5)
  assert it.top > 0


def augmentation(it):
  np.testing.assert_array_equal(it.shifted["labels"], it.batch["labels"])
  np.testing.assert_allclose(it.mixed["labels"].sum(-1), 1, rtol=1e-6)
  np.testing.assert_allclose(it.loss, 0.9**2 * GUESS, rtol=1e-5)  # of a guess, whatever the label


def sharpness_and_attacks(it):
  is_a_distribution(it.log_probs)
  assert 0 < it.loss < GUESS


def ensemble(it):
  assert it.logits.shape == (5, 8, 10)
  mean = np.logaddexp.reduce(log_softmax(it.logits), axis=0) - np.log(5)
  np.testing.assert_allclose(it.log_probs, mean, rtol=1e-4)


def swag(it):
  is_a_distribution(it.mean)
  assert it.spread.max() > 0.01


def training_step(it):
  assert it.accuracy > 0.7
  assert it.metrics.keys() >= {"nll", "kl", "neg_entropy", "auxiliary", "l2"}


@pytest.mark.thorough
@pytest.mark.parametrize(
  "name",
  # Two are quick.
  [
    pytest.param(name, marks=() if name in ("any_model", "linen_step") else pytest.mark.thorough)
    for name in SCRIPTS
  ],
)
def test_an_example_does_what_it_shows(name, capsys):
  check = globals()[name]
  check(load(name))
  assert capsys.readouterr().out.strip()


@pytest.mark.thorough
@pytest.mark.parametrize("library", ["linen", "flax_nnx", "equinox"])
@jax.numpy_rank_promotion("allow")
def test_batch_norm_keeps_the_statistics_of_clean_inputs(library, monkeypatch):
  """The first layer's input is the data: after n steps its mean is `1 - 0.9^n` times that of the data."""
  example = load("batch_norm")
  train = example.train
  monkeypatch.setattr(example, "train", lambda *args: train(*args, num_steps=2))
  first, _ = getattr(example, library)()
  monkeypatch.setattr(example, "train", lambda *args: train(*args, num_steps=10))
  loss, stats = getattr(example, library)()
  assert loss < first
  mean = np.asarray(example.INPUTS, np.float64).mean(0)
  found = [leaf for leaf in jax.tree.leaves(stats) if leaf.shape == mean.shape]
  errors = [np.abs(leaf - (1 - 0.9**10) * mean).max() for leaf in found]
  assert min(errors) < 1e-4


@pytest.mark.thorough
def test_a_search_prunes_bad_trials_and_goes_on_after_a_kill(tmp_path, monkeypatch):
  """With errors as a function of the fields instead of training."""
  optuna = pytest.importorskip("optuna")
  calls, kill = [], [True]

  def errors(config, workdir):
    calls.append((workdir.name, config.epochs))
    if len(calls) == 20 and kill.pop():
      raise KeyboardInterrupt
    return {"val/error": abs(np.log10(config.optimizer.learning_rate) + 2) / 4 + 1 / config.epochs}

  monkeypatch.setattr("jaxreg.train.train", errors)
  monkeypatch.setattr("sys.argv", ["search_optuna.py", "12", str(tmp_path / "search")])
  with pytest.raises(KeyboardInterrupt):
    load("search_optuna")
  (killed,) = (
    t
    for t in optuna.load_study(study_name="digits", storage=f"sqlite:///{tmp_path}/search/study.db").trials
    if not t.state.is_finished() or t.state.name == "FAIL"
  )
  study = load("search_optuna").study
  trials = study.trials
  assert [t.params for t in trials].count(killed.params) == 2
  states = [t.state.name for t in trials if t.params != killed.params or t.number != killed.number]
  assert len(states) == 12
  assert set(states) == {"COMPLETE", "PRUNED"}
  assert all(len(t.intermediate_values) < 3 for t in trials if t.state.name == "PRUNED")
  assert [epochs for name, epochs in calls if name == "trial_0"] == [4, 8, 16]
  assert 10**-2.6 < study.best_params["learning_rate"] < 10**-1.4

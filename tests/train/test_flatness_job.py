"""The job flatness: what it finds against JAX's own derivatives, and that nothing is computed twice."""

import functools
import json
import shutil
import signal
import time
from types import SimpleNamespace

import image_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from jaxreg import flatness, train
from jaxreg.flatness._sharpness import IntervalFlatness
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.finished.restore import restore_run
from jaxreg.train.jobs.flatness import analyses
from jaxreg.train.jobs.flatness.array_cache import ArrayCache
from jaxreg.train.jobs.flatness.network_at_point import NetworkAtPoint, make_networks, with_weights
from jaxreg.train.jobs.summary import summary
from jaxreg.train.step.batch import make_examples

EXAMPLES = functools.partial(make_examples, scale=1.0)

FIELDS = {
  "job": "flatness",
  "method.name": "softmax",
  "model.MLP.widths": (8, 6),
  "model.MLP.dropout_rate": 0.0,
  "epochs": 2,
  "checkpoint.keep": 2,
  "flatness.mask": ("backbone/Dense_1/*",),
  "flatness.rows": (
    "dropout: model.MLP.dropout_rates=(0.0,0.2)",
    "plain: flatness.analyses=('profile','alignment')",
  ),
  "flatness.analyses": ("profile", "variance_flatness", "projected_variance"),
  "flatness.profile.directions": 2,
  "flatness.profile.points": 5,
  "flatness.variance_flatness.samples": 30,
  "flatness.variance_flatness.factors": (2.0, 2.001),
  "flatness.variance_flatness.directions": 6,
  "flatness.projected_variance.samples": 20,
  "flatness.alignment.noises": ("keep 0.8: model.MLP.dropout_rates=(0.0,0.2)",),
}


@pytest.fixture(scope="module")
def analysed(tmp_path_factory, light_module):
  workdir = tmp_path_factory.mktemp("analysed") / "run"
  results = train.flatness(runs.make_config(FIELDS), workdir)
  return workdir, results["rows"]


def _subject(workdir, row, where):
  """As the job makes it, on one device, without and with the shortcut for a dense layer."""
  folder = next((workdir / "rows").glob(f"{row}-*"))
  program, state, _ = restore_run(folder, "latest", 0)
  data = load_data(runs.make_config(FIELDS)).train
  batch = with_weights({"inputs": jnp.asarray(data.inputs), "labels": jnp.asarray(data.labels, jnp.int32)})
  return make_networks(program, state.params, batch, where)(state), data, folder


@pytest.mark.thorough
def test_what_is_written(analysed):
  workdir, rows = analysed
  assert json.loads((workdir / "flatness.json").read_text()) == rows
  assert {path.name for path in (workdir / "figures").iterdir()} == {
    *(
      f"{name}.png" for name in ("profile", "variance_flatness", "spectra", "projected_variance", "alignment")
    ),
    *(f"{name}.md" for name in ("variance_flatness", "projected_variance")),
  }
  assert rows["dropout"]["parameters"] == 8 * 6 + 6
  assert rows["dropout"]["examples"] == 128
  assert set(rows["dropout"]["variance_flatness"]) == {"trajectory", "gradients", "isotropic control"}
  fits = rows["dropout"]["variance_flatness"]["gradients"]["fits"]
  assert list(fits) == ["2", "2.001"]
  assert fits["2"]["slope"] != fits["2.001"]["slope"]
  assert rows["plain"]["profile"]["0.5"]["flatter_than"]["of"] == 2
  assert rows["plain"]["alignment"]["keep 0.8"]["points"] == 2
  assert "rise at ±0.5" in summary({"rows": rows}, runs.make_config(FIELDS), workdir)


@pytest.mark.thorough
def test_the_loss_is_that_of_the_predictions(analysed):
  workdir, rows = analysed
  _, data, folder = _subject(workdir, "dropout", ("*",))
  log_probs = np.asarray(train.load(folder)(data.inputs))
  expected = -log_probs[np.arange(len(data)), data.labels].mean()
  assert rows["dropout"]["train/loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_dense_layer_is_found_and_agrees_with_the_generic_way(analysed):
  workdir, _ = analysed
  subject, _, _ = _subject(workdir, "dropout", ("backbone/Dense_1/*",))
  assert subject.layer is not None
  assert subject.layer.inputs.shape == (128, 8)
  generic = NetworkAtPoint(subject.loss_fn, subject.params, subject.batch, subject.mask, None)
  part = flatness.subset(subject.params, subject.mask)
  expected = jax.hessian(lambda flat: subject.loss_fn(part.merge(flat), subject.batch, key=None))(part.flat)
  scale = float(np.abs(expected).max())
  np.testing.assert_allclose(subject.hessian(), expected, atol=1e-5 * scale)
  np.testing.assert_allclose(generic.hessian(), expected, atol=1e-5 * scale)
  directions = jnp.eye(subject.size)[:3]
  np.testing.assert_allclose(
    subject.intervals(directions, 2.0).width, generic.intervals(directions, 2.0).width, rtol=3e-3
  )
  few, many = (s.covariance(jax.random.key(0), 200) for s in (subject, generic))
  np.testing.assert_allclose(np.trace(few), np.trace(many), rtol=0.1)


@pytest.mark.thorough
def test_the_layers_are_the_blocks_of_the_hessian_and_are_kept(tmp_path, no_figures, monkeypatch):
  """Of a network whose first layer is left out; a second job, as after an interruption, computes nothing."""
  fields = {
    "flatness.mask": ("backbone/Dense_1/*", "head/*"),
    "flatness.analyses": ("layerwise",),
    "flatness.rows": (),
    "epochs": 1,
    "flatness.layerwise.num_samples": 8,
  }
  config = runs.make_config({**FIELDS, **fields})
  found = train.flatness(config, tmp_path)["rows"]["run"]
  subject, _, _ = _subject(tmp_path, "run", ("backbone/Dense_1/*", "head/*"))
  assert list(found["layerwise"]) == ["backbone/Dense_1", "head/classifier"]
  for name, layer in found["layerwise"].items():
    part = flatness.subset(subject.params, f"{name}/*")
    loss = lambda flat, part=part: subject.loss_fn(part.merge(flat), subject.batch, key=None)
    block = np.asarray(jax.hessian(loss)(part.flat), np.float64)
    assert layer["top_eigenvalue"] == pytest.approx(np.linalg.eigvalsh(block)[-1], rel=1e-2)
    for quantity, exact in (("trace", np.trace(block)), ("frobenius_norm", np.linalg.norm(block))):
      assert abs(layer[quantity] - exact) <= 5 * layer[f"{quantity}_error"]
  assert "Frobenius norm" in summary({"rows": {"run": found}}, config, tmp_path)
  for name in ("of_layer", "signs"):
    monkeypatch.setattr(analyses, name, None)
  assert train.flatness(config, tmp_path)["rows"]["run"] == found


@pytest.mark.slow
def test_a_job_killed_between_two_layers_goes_on_with_the_next(tmp_path):
  """A mark in what was saved before the kill is in the results: that layer was not computed again."""
  fields = {**runs.TINY, "job": "flatness", "method.name": "softmax", "epochs": 1}
  fields |= {"flatness.analyses": ("layerwise",), "model.MLP.widths": (9, 8, 7, 6, 5)}
  arguments = [f"--config.{field}={value}" for field, value in fields.items()]
  killed, whole = tmp_path / "killed", tmp_path / "whole"
  process = runs.start([*arguments, "--workdir", killed], tmp_path, optimised=False)
  saved = lambda: sorted(killed.glob("kept/**/layers-*.npz"))
  while process.poll() is None and not saved():
    time.sleep(0.005)
  process.kill()
  process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert 1 <= len(saved()) < 6
  assert not (killed / "flatness.json").exists()
  first = saved()[0]
  with np.load(first) as found:
    np.savez(first, **{**found, "top_eigenvalue": np.float32([12345])})
  for folder in (killed, whole):
    status, _, error = runs.run([*arguments, "--workdir", folder], tmp_path, optimised=False)
    assert status == 0, error
  one, two = (json.loads((at / "flatness.json").read_text())["run"]["layerwise"] for at in (killed, whole))
  marked = next(iter(one))
  assert one[marked].pop("top_eigenvalue") == 12345
  assert two[marked].pop("top_eigenvalue") != 12345
  assert one == two


@pytest.mark.thorough
def test_tokens_count_alike_in_whatever_part():
  """Chunks and per-example gradients take means over parts, which must make the mean over tokens."""
  rng = np.random.default_rng(0)
  kernel, inputs = rng.normal(size=(5, 3)), rng.normal(size=(4, 6, 5))
  labels = np.where(np.arange(6) < np.array([1, 6, 3, 2])[:, None], 1, -1).astype(np.int32)
  apply_fn = lambda params, state, inputs, *, key, train: (
    {"logits": inputs @ params["Dense_0"]["kernel"]},
    {},
  )
  program = SimpleNamespace(
    apply_fn=apply_fn,
    values_fn=runs.values_of(apply_fn),
    method=SimpleNamespace(loss=lambda key, *, labels, logits: {"loss": cross_entropy(logits, labels)}),
    examples=EXAMPLES,
  )
  params, batch = (
    {"Dense_0": {"kernel": jnp.asarray(kernel)}},
    with_weights({"inputs": inputs, "labels": labels}),
  )
  subject = make_networks(program, params, batch, ("*",))(SimpleNamespace(params=params, model_state={}))
  logits = inputs @ kernel
  expected = (np.log(np.exp(logits).sum(-1)) - logits[..., 1])[labels >= 0].mean()
  parts = [jax.tree.map(lambda x, part=part: x[part], batch) for part in (slice(0, 1), slice(1, 4))]
  first, rest = (float(subject.loss_fn(params, part, key=None)) for part in parts)
  assert subject.loss() == pytest.approx(expected, rel=1e-5)
  assert (first + 3 * rest) / 4 == pytest.approx(expected, rel=1e-5)


@pytest.mark.thorough
def test_the_layer_and_the_loss_are_made_in_full_precision():
  """Of what the network gives by an accelerator's default, the analyses would have three digits."""
  seen = []

  def apply_fn(params, state, inputs, *, key, train):
    seen.append(jax.config.jax_default_matmul_precision)
    return {"logits": inputs @ params["Dense_0"]["kernel"]}, {}

  loss = lambda key, *, labels, logits: {"loss": cross_entropy(logits, labels)}
  program = SimpleNamespace(
    apply_fn=apply_fn,
    values_fn=runs.values_of(apply_fn),
    method=SimpleNamespace(loss=loss),
    examples=EXAMPLES,
  )
  params = {"Dense_0": {"kernel": jnp.ones((5, 3))}}
  batch = with_weights({"inputs": np.ones((4, 5), np.float32), "labels": np.zeros(4, np.int32)})
  state = SimpleNamespace(params=params, model_state={})
  subject = make_networks(program, params, batch, ("Dense_0/*",))(state)
  assert seen == ["highest"]  # recording the layer's inputs and outputs
  subject.loss()
  assert seen == 2 * ["highest"]


@pytest.mark.thorough
def test_noise_before_the_layer_is_drawn_the_generic_way_and_so_is_another_subset(analysed):
  """What the shortcut takes for fixed, the layer's inputs, must be."""
  workdir, _ = analysed
  for where in (("backbone/*",), ("backbone/Dense_1/bias",)):
    assert _subject(workdir, "dropout", where)[0].layer is None
  folder = next((workdir / "rows").glob("plain-*"))
  _, state, _ = restore_run(folder, "latest", 0)
  data = load_data(runs.make_config(FIELDS))
  noisy = build(runs.make_config({**FIELDS, "model.MLP.dropout_rates": (0.5, 0.0)}), data.describe())
  batch = with_weights({"inputs": data.train.inputs, "labels": data.train.labels.astype(np.int32)})
  before = make_networks(noisy, state.params, batch, ("backbone/Dense_1/*",))(state)
  assert not before.all_noise
  assert make_networks(noisy, state.params, batch, ("backbone/Dense_0/*",))(state).all_noise
  hessian, covariance = before.hessian(), before.covariance(jax.random.key(0), 8)
  expected = flatness.hessian(before.loss_fn, before.params, before.batch, mask=before.mask)
  np.testing.assert_allclose(hessian, expected, atol=1e-5 * float(np.abs(expected).max()))
  expected = flatness.per_example_noise_covariance(
    before.loss_fn, before.params, before.batch, key=jax.random.key(0), num_samples=8, mask=before.mask
  )
  np.testing.assert_array_equal(covariance, expected)
  aligned = before.alignment(jax.random.key(0), 8)
  assert float(aligned.trace) == pytest.approx(np.trace(hessian @ covariance), rel=1e-4)


@pytest.mark.thorough
def test_the_noise_of_parts_is_that_of_their_examples(analysed, tmp_path):
  """Without layers that couple examples, parts are an estimate of the same covariance."""
  workdir, _ = analysed
  whole, _, folder = _subject(workdir, "dropout", ("backbone/Dense_1/*",))
  program, state, _ = restore_run(folder, "latest", 0)
  subject = make_networks(program, state.params, whole.batch, whole.mask, 8)(state)
  samples = analyses.gradient_samples(subject, ArrayCache(tmp_path), jax.random.key(0), 1000)
  assert samples.shape == (8 * 126, subject.size)
  expected = np.asarray(whole.covariance(jax.random.key(1), 200))
  for found in (samples.T @ samples / len(samples), subject.covariance(jax.random.key(2), 126)):
    assert np.trace(found) == pytest.approx(np.trace(expected), rel=0.1)
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected)
  spectra = analyses.spectra(subject, ArrayCache(tmp_path), jax.random.key(3), samples)
  assert list(spectra) == ["336 gradients", "1008 gradients"]


@pytest.mark.thorough
def test_the_trajectory_goes_on_as_the_training_would(analysed, tmp_path):
  """Its samples are the parameters of a longer run of the same thing."""
  workdir, _ = analysed
  longer = runs.make_config(
    {**FIELDS, "job": "train", "model.MLP.dropout_rates": (0.0, 0.2), "epochs": 3, "checkpoint.every": 1}
  )
  train.train(longer, tmp_path / "run")
  params = runs.final_state(tmp_path / "run")["params"]
  with np.load(next((workdir / "kept").glob("dropout-*/samples-30/trajectory.npz"))) as saved:
    sample = saved["samples"][runs.STEPS_PER_EPOCH - 1]
  expected = flatness.subset(jax.tree.map(lambda x: x[0], params), "backbone/Dense_1/*").flat
  np.testing.assert_allclose(sample, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_what_is_kept_is_not_computed_again(analysed, monkeypatch, capsys):
  workdir, rows = analysed
  for name in ("gradients", "intervals", "hessian", "covariance", "alignment"):
    monkeypatch.delattr(NetworkAtPoint, name)
  assert train.flatness(runs.make_config(FIELDS), workdir)["rows"] == rows
  # Said of every analysis of too few samples: 30 and 20 of 54 parameters.
  warned = capsys.readouterr().err
  for number in (30, 20):
    assert f"{number} samples of 54 parameters: their principal components have a bias" in warned


@pytest.mark.thorough
def test_a_run_of_one_s_own(analysed, tmp_path):
  workdir, rows = analysed
  folder = next((workdir / "rows").glob("plain-*"))
  before = runs.snapshot(folder)
  fields = {**FIELDS, "flatness.rows": (), "flatness.workdir": str(folder), "flatness.analyses": ("profile",)}
  found = train.flatness(runs.make_config(fields), tmp_path / "own")["rows"][folder.name]
  np.testing.assert_allclose(
    found["profile"]["1"]["rises"], rows["plain"]["profile"]["1"]["rises"], rtol=1e-5
  )
  assert runs.snapshot(folder) == before


def noises(entry):
  return {"flatness.alignment.noises": (entry,)}


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"flatness.variance_flatness.factors": (2.0, 2)}, r"variance_flatness\.factors: must be different ones"),
    ({"flatness.analyses": ("profle",)}, r"flatness\.analyses: got 'profle'.*did you mean 'profile'"),
    ({"flatness.mask": ("Conv_0/*",)}, r"mask: 'Conv_0/\*' selects no parameter; there are backbone"),
    ({"flatness.alignment.noises": ()}, r"flatness\.alignment\.noises: give at least one"),
    (noises("x: model.MLP.widths=(9,4)"), r"noises: 'x' changes the network"),
    (noises("x: method.name=dropmax"), r"noises: 'x' changes the network"),
    (noises("x: model.MLP.dropout_rates=(0.0,2.0)"), "dropout_rates: must be at least 0 and at most 1"),
    (noises("x: noise.names=('weight_nois',)"), r"noise\.names: got 'weight_nois'"),
    (noises("x: model.MLP.dropout_rates=(0.0,0.0)"), r"with 'x' neither the network nor the method's loss"),
    ({"flatness.workdir": "somewhere"}, r"flatness\.rows, flatness\.workdir: give either"),
    ({"flatness.rows": ("a: model.MLP.widths=(8,)",)}, "selects no parameter"),
    ({"flatness.mask": (1,)}, r"flatness\.mask: must be a tuple of texts, got \(1,\)"),
    ({"flatness.rows": ("a:",)}, "row 'a': .*loss draws noise, and variance_flatness, projected_"),
    ({"optimizer.schedule.name": "cosine"}, "for 30 steps more, from step 8 on, .* rate comes to 0"),
    ({"optimizer.schedule.name": "cosine", "flatness.checkpoint": "best"}, "from step 0 on, .* comes to 0"),
    ({"flatness.parts": 3}, r"flatness\.parts: must divide the 128 examples, got 3"),
    ({"flatness.replica": 1}, r"flatness\.replica: must be below 1, got 1"),
    ({"average.name": "ema"}, r"at runs with average\.name=none"),
    ({"data.bootstrap": True}, r"data\.bootstrap=False"),
    ({"flatness.workdir": "nowhere", "flatness.rows": ()}, "nowhere"),
  ],
)
def test_a_mistake_is_told_before_anything_is_trained(tmp_path, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.flatness(runs.make_config({**FIELDS, **fields}), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_of_streamed_images_there_is_no_trajectory(tmp_path):
  """Their crops are drawn anew at every step, which a trajectory would have to draw, too."""
  images = image_files.make_folder(tmp_path / "images", splits={"train": 40, "val": 6})
  streamed = {
    **{"data.name": "image_folder", "data.image_folder.path": str(images)},
    **{"data.stream.size": 8, "data.stream.resize": 8},
  }
  with pytest.raises(train.RunError, match=r"no trajectory, which variance_flatness"):
    train.flatness(runs.make_config({**FIELDS, **streamed}), tmp_path / "run")
  assert not (tmp_path / "run").exists()


@pytest.fixture
def on_a_file(tmp_path, light_module):
  """A run on vectors of a file, at a rate at which no float32 changes, and `analyse(**more)` of it."""
  generator = np.random.default_rng(0)
  x, y = generator.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
  arrays: dict[str, np.ndarray] = {}
  for number, part in enumerate(("train", "val", "test")):
    arrays |= {f"x_{part}": x + number, f"y_{part}": y}
  np.savez(tmp_path / "old.npz", **arrays)
  fields = {"job": "train", "method.name": "softmax", "epochs": 1, "data.limit": 0, "data.name": "npz"}
  fields |= {"data.npz.path": str(tmp_path / "old.npz"), "optimizer.learning_rate": 1e-30}
  asked = {"job": "flatness", "flatness.workdir": str(tmp_path / "run"), "flatness.profile.directions": 1}

  def analyse(workdir="found", **more):
    config = runs.make_config({**asked, **more})
    return train.flatness(config, tmp_path / workdir)["rows"]["run"]

  train.train(runs.make_config(fields), tmp_path / "run")
  return fields, arrays, analyse


@pytest.mark.thorough
def test_the_data_of_a_run_may_move_but_not_change(on_a_file, tmp_path):
  _, arrays, analyse = on_a_file
  before = analyse()
  (tmp_path / "old.npz").rename(tmp_path / "new.npz")
  with pytest.raises(train.RunError, match=r"data\.npz\.path: got '.*old\.npz', which is not a file"):
    analyse()
  assert analyse(**{"data.npz.path": str(tmp_path / "new.npz")}) == before
  np.savez(tmp_path / "old.npz", **{**arrays, "x_train": -arrays["x_train"]})
  with pytest.raises(train.RunError, match="was made with other data: crc32"):
    analyse()


@pytest.mark.thorough
def test_what_is_kept_is_not_that_of_a_run_trained_again(on_a_file, tmp_path):
  fields, _, analyse = on_a_file
  before = analyse()
  shutil.rmtree(tmp_path / "run")
  train.train(runs.make_config({**fields, "seed": 1}), tmp_path / "run")
  after = analyse()
  assert after["step"] == before["step"]
  assert after == analyse("anew") != before


@pytest.mark.thorough
def test_where_nothing_varies_is_told_before_the_analyses(on_a_file):
  _, _, analyse = on_a_file
  sampled = {"flatness.analyses": ("projected_variance",), "flatness.mask": ("*kernel",)}
  sampled["flatness.projected_variance.samples"] = 5
  with pytest.raises(train.RunError, match="parameters along the trajectory are the same in all 5 samples"):
    analyse(**sampled)


@pytest.mark.thorough
def test_each_direction_is_measured_once_and_saved_soon(tmp_path):
  """A direction of a whole network may take a minute, so a block has few."""
  blocks = []

  def intervals(directions, factor):
    blocks.append(len(directions))
    one = jnp.ones(len(directions))
    return IntervalFlatness(one, one, one, jnp.ones((len(directions), 2), bool), one, one)

  samples = {"gradients": np.random.default_rng(0).normal(size=(40, 30))}
  subject = SimpleNamespace(layer=None, intervals=intervals)
  options = {"factors": (2.0,), "directions": 25, "tol": 1e-9}
  found, _ = analyses.variance_flatness(subject, ArrayCache(tmp_path), samples, **options)
  found = found["found"]["gradients"]
  assert blocks == [10, 10, 5]
  assert found["width"].shape == (1, 25)


def test_blocks_go_on_where_they_were(tmp_path):
  calls = []

  def compute(first, number):
    calls.append(first)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return {"x": np.arange(first, first + number)}

  store = ArrayCache(tmp_path)
  with pytest.raises(KeyboardInterrupt):
    store.blocks("numbers", 7, compute, size=2)
  other = store.blocks("numbers", 7, lambda first, number: {"x": np.arange(first, first + number)}, size=3)
  np.testing.assert_array_equal(other["x"], np.arange(7))  # blocks of two sizes do not mix
  (tmp_path / "numbers.npz").unlink()
  np.testing.assert_array_equal(store.blocks("numbers", 7, compute, size=2)["x"], np.arange(7))
  assert calls == [0, 2, 4, 4, 6]
  assert [path.name for path in tmp_path.iterdir()] == ["numbers.npz"]


@pytest.mark.parametrize(
  "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"PK" * 9]
)
def test_what_is_damaged_is_made_again(tmp_path, capsys, damage):
  store = ArrayCache(tmp_path)
  store.arrays("numbers", lambda: {"x": np.arange(3)})
  file = tmp_path / "numbers.npz"
  file.write_bytes(damage(file.read_bytes()))
  np.testing.assert_array_equal(store.arrays("numbers", lambda: {"x": np.arange(4)})["x"], np.arange(4))
  assert "numbers.npz is damaged" in capsys.readouterr().err
  np.testing.assert_array_equal(store.arrays("numbers", dict)["x"], np.arange(4))

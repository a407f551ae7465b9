"""A checkpoint that is not what was saved is not used, whatever happened to it."""

import concurrent.futures
import json
import os
import shutil
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from jax.sharding import SingleDeviceSharding

from jaxreg import _atomic_files, train
from jaxreg._atomic_files import write_json
from jaxreg.train.run import checkpoint
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import Checkpoints
from jaxreg.train.run.manifest import good_steps, pick_step
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.step.state import TrainState

STEPS = 6 * runs.STEPS_PER_EPOCH
METRICS = {"val/error": 0.25, "val/nll": 0.5}


def make_state(step):
  params = {"Dense_0": {"kernel": jnp.full((3, 2), float(step)), "bias": jnp.arange(2.0)}}
  return TrainState(
    jnp.int32(step), jax.random.key(7), params, {}, {"trace": jax.tree.map(jnp.ones_like, params)}
  )


def open_checkpoints(workdir, keep=2):
  return Checkpoints(workdir, keep=keep, best="val/error")


def abstract(state):
  return checkpoint.abstract(state, SingleDeviceSharding(jax.devices()[0]))


def checkpoint_warnings(caught):
  return [str(w.message) for w in caught if "checkpoint" in str(w.message)]


@pytest.fixture(scope="module")
def saved_pair(tmp_path_factory):
  """Two checkpoints, of steps 10 and 20, the later one the best: not to be changed."""
  workdir = tmp_path_factory.mktemp("checkpoints") / "run"
  with open_checkpoints(workdir) as saved:
    saved.save(10, make_state(10), METRICS)
    saved.save(20, make_state(20), {**METRICS, "val/error": 0.125})
  assert set(good_steps(workdir)) == {10, 20}
  before = runs.snapshot(workdir)
  yield workdir
  assert runs.snapshot(workdir) == before


@pytest.fixture
def pair(saved_pair, tmp_path):
  return shutil.copytree(saved_pair, tmp_path / "run")


def files_of(workdir, step):
  folder = workdir / "checkpoints" / str(step)
  return sorted(str(file.relative_to(workdir)) for file in folder.rglob("*") if file.is_file())


# A missing file is what a deletion that was cut off leaves behind: nothing is said of it.
DAMAGES = {
  "flipped": runs.flip,
  "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
  "deleted": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_file_is_noticed_and_the_one_before_is_used(saved_pair, tmp_path, damage):
  names = files_of(saved_pair, 20)
  assert len(names) >= 8
  assert any("ocdbt" in name for name in names)
  for number, name in enumerate(names):
    if damage == "deleted" or (saved_pair / name).stat().st_size:
      workdir = shutil.copytree(saved_pair, tmp_path / str(number))
      DAMAGES[damage](workdir / name)
      before = runs.snapshot(workdir)
      assert list(good_steps(workdir)) == [10], name
      assert runs.snapshot(workdir) == before, name
  with warnings.catch_warnings(record=True, action="always") as caught, open_checkpoints(workdir) as saved:
    assert saved.latest == 10
  assert int(checkpoint.restore(workdir, 10, abstract(make_state(10))).step) == 10
  if damage != "deleted":
    assert "checkpoint 20 is damaged" in checkpoint_warnings(caught)[0]
    assert (workdir / "damaged_checkpoints" / "20").is_dir()


def step_folder(folder, name="20"):
  return folder / "checkpoints" / name


LOST = {
  "its manifest": lambda folder: (folder / "manifests" / "20.json").unlink(),
  "a file": lambda folder: (step_folder(folder) / "_CHECKPOINT_METADATA").unlink(),
  "the checkpoint": lambda folder: shutil.rmtree(step_folder(folder)),
  "a bit": lambda folder: runs.flip(step_folder(folder) / "_CHECKPOINT_METADATA"),
  "its name": lambda folder: step_folder(folder).rename(step_folder(folder, "20.old")),
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("which", ["latest", "best"])
def test_an_older_checkpoint_is_not_picked_without_a_word(pair, lost, which):
  with warnings.catch_warnings(action="error"):
    assert pick_step(pair, which, "val/error") == 20
  LOST[lost](pair)
  with pytest.warns(UserWarning, match=r"the checkpoint of step 20 cannot be used \(.*\); step 10 is used$"):
    assert pick_step(pair, which, "val/error") == 10


def test_nothing_is_said_of_a_lost_checkpoint_that_would_not_be_picked(pair):
  with open_checkpoints(pair, keep=3) as saved:
    saved.save(30, make_state(30), {**METRICS, "val/error": 0.0625})
  for step in ("10", "20"):
    runs.flip(step_folder(pair, step) / "_CHECKPOINT_METADATA")
  with warnings.catch_warnings(action="error"):
    assert [pick_step(pair, which, "val/error") for which in ("best", "latest", 30)] == [30, 30, 30]


@pytest.mark.thorough
def test_a_swapped_checkpoint_or_table_of_another_seed_is_not_taken(finished_run, finished_copy, tmp_path):
  """Each file alone, and the checkpoint with its manifest; a run's own files are taken in another place."""
  train.train(runs.make_config({"seed": 1}), tmp_path / "other")
  evaluation = runs.make_config({"job": "evaluate"})
  assert train.evaluate(evaluation, finished_copy)["step"] == STEPS
  for name in ("results.json", "reliability.json", "data.json", "environment.json"):
    workdir = shutil.copytree(finished_run, tmp_path / name)
    shutil.copy(tmp_path / "other" / name, workdir)
    with pytest.raises(
      train.RunError, match=f"{name} is damaged .*, or it and config.json belong to two runs"
    ):
      workdirs.read(workdir, name)
  shutil.copy(tmp_path / "other" / "metrics.jsonl", finished_copy)
  assert read_records(finished_copy) == []
  for name in (f"checkpoints/{STEPS}", f"manifests/{STEPS}.json"):
    there, source = finished_copy / name, tmp_path / "other" / name
    shutil.rmtree(there) if there.is_dir() else there.unlink()
    shutil.copytree(source, there) if source.is_dir() else shutil.copy(source, there)
  with pytest.warns(
    UserWarning, match=f"step {STEPS} cannot be used .*or it and config.json belong to two runs"
  ):
    assert train.evaluate(evaluation, finished_copy)["step"] == 20


def add(where):
  return lambda folder: (folder / "checkpoints" / "20" / where / "added").write_text("")


def overwrite(content):
  return lambda folder: (folder / "manifests" / "20.json").write_bytes(content)


@pytest.mark.parametrize(
  "change",
  [
    *map(add, ("", "state", "metrics")),
    *map(overwrite, (b"", b"{", b"[]", b"\xff\xfe", b'{"files": 3, "metrics": null}')),
  ],
)
def test_an_added_file_or_an_unreadable_manifest_is_noticed(pair, change):
  change(pair)
  assert list(good_steps(pair)) == [10]
  with pytest.warns(UserWarning, match="checkpoint 20 is damaged"), open_checkpoints(pair) as saved:
    assert saved.latest == 10


def test_a_flipped_bit_of_the_manifest_never_goes_unnoticed(pair):
  """At each third byte: either the checkpoint is not used, or what the manifest says is unchanged."""
  shutil.rmtree(pair / "checkpoints" / "10")
  manifest = pair / "manifests" / "20.json"
  original, good = manifest.read_bytes(), good_steps(pair)
  assert good == {20: {**METRICS, "val/error": 0.125}}
  lines = original.decode().splitlines()
  random = np.random.default_rng(0)
  wrong, noticed = [], 0
  for position in range(0, len(original), 3):
    runs.flip(manifest, position, bit=int(random.integers(8)))
    try:
      found = good_steps(pair)
    except Exception as error:
      found = repr(error)
    if found == {}:
      noticed += 1
    elif found != good:
      wrong.append((position, lines[original[:position].count(b"\n")].strip(), found))
    manifest.write_bytes(original)
  assert noticed > 170
  assert wrong == []


def test_a_save_cut_off_before_its_manifest_is_removed_silently(pair):
  (pair / "manifests" / "20.json").unlink()
  assert list(good_steps(pair)) == [10]
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with open_checkpoints(pair) as saved:
      assert saved.latest == 10
  assert checkpoint_warnings(caught) == []
  assert not (pair / "checkpoints" / "20").exists()


def test_with_all_damaged_there_is_none(pair):
  for step in (10, 20):
    runs.flip(pair / files_of(pair, step)[-1])
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with open_checkpoints(pair) as saved:
      assert saved.latest is None
  assert len(checkpoint_warnings(caught)) == 2
  assert {"checkpoint 10", "checkpoint 20"} == {m[:13] for m in checkpoint_warnings(caught)}
  assert good_steps(pair) == {}


def test_a_checkpoint_damaged_twice_is_set_aside_twice(pair):
  for _ in range(2):
    runs.flip(pair / files_of(pair, 20)[0])
    with pytest.warns(UserWarning, match="checkpoint 20 is damaged"):
      saved = open_checkpoints(pair)
    with saved:
      assert saved.latest == 10
      saved.save(20, make_state(20), METRICS)
    assert set(good_steps(pair)) == {10, 20}


def test_good_steps_of_nothing(tmp_path):
  assert good_steps(tmp_path / "missing") == {}
  assert list(tmp_path.iterdir()) == []


def test_what_is_restored_is_what_was_saved(pair):
  state = make_state(20)
  restored = checkpoint.restore(pair, 20, abstract(state))
  on_host = lambda s: jax.device_get([s.step, jax.random.key_data(s.key), s.params, s.opt_state])
  runs.assert_bitwise(on_host(restored), on_host(state))


def test_restoring_into_another_model_is_refused(pair):
  other = make_state(20)
  other = other.replace(params={"Dense_0": {"kernel": jnp.ones((4, 2)), "bias": jnp.ones(2)}})
  with pytest.raises(train.RunError, match=r"20: the checkpoint does not fit this configuration"):
    checkpoint.restore(pair, 20, abstract(other))


@pytest.mark.thorough
def test_the_latest_and_the_best_are_kept(tmp_path):
  errors = {1: 0.5, 2: 0.125, 3: 0.375, 4: 0.25, 5: 0.5, 6: 0.25}
  with open_checkpoints(tmp_path) as saved:
    for step, error in errors.items():
      saved.save(step, make_state(step), {"val/error": error})
  assert good_steps(tmp_path) == {step: {"val/error": errors[step]} for step in (6, 5, 2)}
  # Also after it was opened again, with a checkpoint that has no metrics.
  with open_checkpoints(tmp_path) as saved:
    assert saved.latest == 6
    saved.save(7, make_state(7), None)
    saved.save(8, make_state(8), {"val/error": 0.0625})
    saved.save(9, make_state(9), {"val/error": 0.75})
    saved.save(10, make_state(10), {"val/error": 0.75})
  assert set(good_steps(tmp_path)) == {8, 9, 10}
  assert {file.stem for file in (tmp_path / "manifests").iterdir()} == {"8", "9", "10"}


def test_a_step_is_saved_once(pair):
  before = runs.snapshot(pair / "checkpoints")
  with open_checkpoints(pair) as saved:
    saved.save(20, make_state(99), METRICS)
  assert runs.snapshot(pair / "checkpoints") == before


def test_one_without_metrics_is_replaced_once_they_are_known(tmp_path, monkeypatch):
  """What a run saves that is stopped in an evaluation; while it is replaced, a kill leaves the one before."""
  with open_checkpoints(tmp_path) as saved:
    saved.save(1, make_state(1), METRICS)
    saved.save(2, make_state(2), None)
    assert not saved.measured
  assert good_steps(tmp_path) == {1: METRICS, 2: None}
  with open_checkpoints(tmp_path) as saved:
    assert saved.latest == 2
    assert not saved.measured
    save, there = saved._orbax.save_checkpointables_async, []
    look = lambda *arguments, **options: there.append(good_steps(tmp_path)) or save(*arguments, **options)
    monkeypatch.setattr(saved._orbax, "save_checkpointables_async", look)
    saved.save(2, make_state(2), METRICS)
    assert saved.measured
  assert there == [{1: METRICS}]
  assert good_steps(tmp_path) == {1: METRICS, 2: METRICS}
  assert int(checkpoint.restore(tmp_path, 2, abstract(make_state(2))).step) == 2


def test_a_save_may_be_followed_by_donation(tmp_path):
  state = make_state(1)
  with open_checkpoints(tmp_path) as saved:
    saved.save(1, state, METRICS)
    for leaf in jax.tree.leaves(state):
      leaf.delete()
  assert (
    float(checkpoint.restore(tmp_path, 1, abstract(make_state(1))).params["Dense_0"]["kernel"][0, 0]) == 1
  )


def test_json_is_written_whole_or_not_at_all(tmp_path):
  file = tmp_path / "sub" / "x.json"
  write_json(file, {"a": 1})
  assert json.loads(file.read_text()) == {"a": 1}
  with pytest.raises(TypeError):
    write_json(file, {"b": object()})
  assert json.loads(file.read_text()) == {"a": 1}


def test_a_checkpoint_is_on_the_disk_before_it_is_called_good(tmp_path, monkeypatch):
  """A power cut takes what was not synced, and names in a folder that was not."""
  events, (fsync, replace) = [], (os.fsync, os.replace)

  def recorded_fsync(descriptor):
    events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    fsync(descriptor)

  def recorded_replace(source, target):
    events.append(f"renamed {target}")
    replace(source, target)

  monkeypatch.setattr(os, "fsync", recorded_fsync)
  monkeypatch.setattr(os, "replace", recorded_replace)
  workdir = tmp_path / "runs" / "run"
  with open_checkpoints(workdir) as saved:
    saved.save(1, make_state(1), METRICS)
  root, sealed = workdir / "checkpoints", workdir / "manifests" / "1.json"
  before = events[: events.index(f"renamed {sealed}")]
  files_and_folders = [root, root / "1", *(root / "1").rglob("*"), f"{sealed}.partial"]
  assert len(files_and_folders) > 10
  assert {str(path) for path in files_and_folders} <= {*before}
  assert str(sealed.parent) in events[len(before) :]


def test_a_new_folder_is_on_the_disk(tmp_path, monkeypatch):
  synced = []
  monkeypatch.setattr(_atomic_files, "sync", synced.append)
  _atomic_files.make_folder(tmp_path / "a" / "b")
  assert set(synced) == {tmp_path, tmp_path / "a"}


def damage_latest(workdir):
  runs.flip(
    max((workdir / "checkpoints" / str(STEPS) / "state").rglob("d/*"), key=lambda f: f.stat().st_size)
  )


def damage_all(workdir):
  for step in good_steps(workdir):
    runs.flip(workdir / "checkpoints" / str(step) / "_CHECKPOINT_METADATA")


def cut_off(workdir):
  (workdir / "manifests" / f"{STEPS}.json").unlink()


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("damage", "start", "warned"),
  [
    (damage_latest, 20, ["24"]),
    (cut_off, 20, []),
    pytest.param(damage_all, 0, None, marks=pytest.mark.thorough),
  ],
  ids=["the latest damaged", "a save cut off", "all damaged"],
)
def test_a_run_goes_on_from_what_is_whole_and_ends_bitwise_equal(
  finished_run, finished_copy, light_runs, capsys, damage, start, warned
):
  (finished_copy / "results.json").unlink()
  there = sorted((str(step) for step in good_steps(finished_copy)), key=int)
  assert there[-2:] == ["20", "24"]
  damage(finished_copy)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = train.train(runs.make_config(), finished_copy)
  named = sorted((message.split()[1] for message in checkpoint_warnings(caught)), key=int)
  assert named == (there if warned is None else warned)
  said = capsys.readouterr().err
  assert (f"resuming at step {start} of" if start else "training 24 steps") in said
  assert results == runs.table(finished_run / "results.json")
  runs.assert_bitwise(runs.final_state(finished_copy), runs.final_state(finished_run))
  assert runs.records(finished_copy) == runs.records(finished_run)
  assert good_steps(finished_copy) == good_steps(finished_run)


@pytest.mark.thorough
def test_load_and_evaluate_pass_over_a_damaged_checkpoint(finished_run, finished_copy):
  images = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1) % 17
  before = train.load(finished_run)(images)
  damage_latest(finished_copy)
  snapshot = runs.snapshot(finished_copy)
  with pytest.warns(UserWarning, match="step 24 cannot be used .*does not match .*; step 20 is used"):
    predict = train.load(finished_copy)
  assert predict.step == 20
  after = predict(images)
  assert not np.array_equal(before, after)
  config = runs.make_config({"job": "evaluate"})
  with pytest.warns(UserWarning, match="step 24 cannot be used .*does not match .*; step 20 is used"):
    assert train.evaluate(config, finished_copy)["step"] == 20
  assert runs.snapshot(finished_copy) == snapshot


@pytest.mark.thorough
def test_no_good_checkpoint_is_said(finished_copy):
  damage_all(finished_copy)
  fault = r"the checkpoint of step 24, and \d more, cannot be used \(.* does not match its checksum\)"
  with pytest.raises(train.RunError, match=f"has no good checkpoint: {fault}; train again, or give another$"):
    train.load(finished_copy)


def test_ctrl_c_in_the_last_wait_does_not_wait(tmp_path):
  """A second one, while a save is being finished: what is half written has no manifest."""
  told, done = threading.Event(), threading.Event()

  class Saving(concurrent.futures.Future):
    def result(self, timeout=None):
      raise KeyboardInterrupt

  saved = open_checkpoints(tmp_path)
  saved._thread.submit(lambda: (told.wait(60), done.set()))
  saved._saving = Saving()
  with pytest.raises(KeyboardInterrupt):
    saved.__exit__(None, None, None)
  assert not done.is_set()
  told.set()

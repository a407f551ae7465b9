"""Runs in a bucket are the runs of a disk, bit by bit, whatever becomes of the network or of a process."""

import gc
import json
import math
import re
import signal
import sys
import threading
import time
import urllib.parse
from types import SimpleNamespace

import buckets
import children
import numpy as np
import pytest
import runs
from etils import epath
from PIL import Image

from jaxreg import _bucket, train
from jaxreg._atomic_files import files_below, move_folder, remove, write_json
from jaxreg.train.errors import NothingToSave, RunError
from jaxreg.train.run import lock, manifest, metrics_file
from jaxreg.train.run.interrupt import Interrupted
from jaxreg.train.run.trackers import Place, Trackers, find_trackers
from jaxreg.train.sealed_tables import run_token
from jaxreg.train.staged import staged
from jaxreg.train.user_paths import user_path


def assert_same(workdir, other):
  """The results, the records, and the bits of the last checkpoint."""
  workdir, other = epath.Path(workdir), epath.Path(other)
  assert runs.table(workdir / "results.json") == runs.table(other / "results.json")
  assert runs.records(workdir) == runs.records(other)
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(other))


def test_a_run_in_a_bucket_that_is_stopped_is_that_of_a_disk(bucket, finished_run, light_runs, monkeypatch):
  workdir = f"{bucket}/stopped/run"
  again = runs.interrupt_at(monkeypatch, 14)
  with pytest.raises(Interrupted):
    train.train(runs.make_config(), workdir)
  again()
  assert max(manifest.good_steps(epath.Path(workdir))) == 14
  train.train(runs.make_config(), workdir)
  assert_same(workdir, finished_run)
  images = np.zeros((1, 8, 8, 1), np.uint8)
  np.testing.assert_array_equal(train.load(workdir)(images), train.load(finished_run)(images))
  names = {name.split("/")[0] for name in files_below(epath.Path(workdir))}
  files = {path.name for path in finished_run.iterdir() if path.name != "lock"}
  assert names == files  # the lease is given back


@pytest.mark.thorough
def test_a_damaged_checkpoint_in_a_bucket_is_set_aside(bucket, finished_run, light_runs):
  workdir = epath.Path(f"{bucket}/damaged")
  for name, file in files_below(finished_run).items():
    (workdir / name).write_bytes(file.read_bytes())
  (workdir / "results.json").unlink()
  files = files_below(workdir / "checkpoints" / "24")
  runs.flip(files["state/manifest.ocdbt"])
  with pytest.warns(UserWarning, match="checkpoint 24 is damaged .* moved to gs://"):
    train.train(runs.make_config(), workdir)
  assert [*files_below(workdir / "damaged_checkpoints" / "24")] == [*files]
  assert_same(workdir, finished_run)


@pytest.mark.thorough
def test_every_job_works_in_a_bucket(bucket, tmp_path):
  """Results and names of files are those of a disk."""
  softmax = {"epochs": 1, "method.name": "softmax"}
  sections = {"report.sections": ("errors", "calibration"), "report.minutes": 0.1}
  rows = {"compare.rows": ("softmax",), "compare.grid": ("softmax: seed=1,2",), "compare.seeds": 1}
  results, names = [], []
  for root in (tmp_path / "root", epath.Path(f"{bucket}/jobs")):
    given = [train.train(runs.make_config(softmax), root / "run")]
    given.append(train.evaluate(runs.make_config({**softmax, "job": "evaluate"}), root / "run"))
    card = train.report(runs.make_config({**softmax, **sections, "job": "report"}), root / "run")
    given.append({name: card[name] for name in ("step", "sections", "missing")})
    given.append(train.compare(runs.make_config({"epochs": 1, "job": "compare", **rows}), root / "table"))
    taught = {"teacher.workdir": str(root / "run"), "regularizers.names": ("distillation",)}
    given.append(train.train(runs.make_config({**softmax, **taught}), root / "taught"))
    tuned = {**softmax, "pretrained.workdir": str(root / "run")}
    given.append(train.train(runs.make_config(tuned), root / "tuned"))
    results.append(given)
    files = (name for name in files_below(root) if "checkpoints/" not in name)
    names.append({name for name in files if "tfevents" not in name and not name.endswith("/lock")})
  assert results[0] == results[1]
  assert names[0] == names[1]
  assert (epath.Path(f"{bucket}/jobs/run/figures/curves.png")).read_bytes()[1:4] == b"PNG"


def test_records_are_joined_from_several_files(bucket, tmp_path, monkeypatch):
  """Oracle: the records themselves; an append in a bucket would have lost the first ones."""
  monkeypatch.setattr(metrics_file, "PART", 300)
  for workdir in (tmp_path, epath.Path(f"{bucket}/records")):
    written = []
    for start in (0, 8):  # from the start, and again from a checkpoint
      options = {"start": start, "total": 30, "every": 1, "run": "", "check_there": lambda: None}
      file = metrics_file.MetricsFile(workdir, **options)
      written = [record for record in written if record["step"] <= start]
      for step in range(start + 1, 21):
        written.append({"step": step, "epoch": float(step), "train/loss": 1 / step})
        file.write(step, float(step), {"train/loss": 1 / step})
        file.flush()
      assert metrics_file.read_records(workdir) == written
      assert file.damaged == 0
    assert len([*workdir.glob("metrics*.jsonl")]) > 2


def test_folders_of_a_bucket(bucket):
  folder = epath.Path(f"{bucket}/folders/a")
  write_json(folder / "b" / "c.json", 1)
  write_json(folder / "d.json", 2)
  write_json(epath.Path(f"{bucket}/folders/ab.json"), 3)
  assert [*files_below(folder)] == ["b/c.json", "d.json"]
  move_folder(folder, folder.with_name("moved"))
  assert [*files_below(folder.parent)] == ["ab.json", "moved/b/c.json", "moved/d.json"]
  remove(folder.with_name("moved"))
  assert [*files_below(folder.parent)] == ["ab.json"]


def test_a_conditional_write(bucket):
  """One after the other: the server of these tests does not keep writes at the same time apart."""
  file = epath.Path(f"{bucket}/claims/lock")
  first = _bucket.write_if(file, b"first", "0")
  assert first is not None
  assert _bucket.write_if(file, b"second", "0") is None
  assert _bucket.write_if(file, b"first", "0") == first  # as after an answer that was lost
  stored = _bucket.read_stored(file)
  assert (stored.content, stored.generation) == (b"first", first)
  assert -2 <= stored.age <= 2
  assert _bucket.write_if(file, b"renewed", first) not in (None, first)
  assert _bucket.read_stored(file.with_name("other")) is None


@pytest.mark.thorough
def test_a_second_run_is_refused_and_a_crashed_one_loses_its_lease(bucket, monkeypatch):
  monkeypatch.setattr(lock, "LEASE", 3.0)
  monkeypatch.setattr(lock, "RENEWAL", 0.3)
  workdir, lines = epath.Path(f"{bucket}/leased"), []
  with lock.locked(workdir) as token:
    lock.check_there(workdir, token)
    lock.check_shared(workdir, token)
    with pytest.raises(RunError, match=r"^--workdir: another run is at work in gs://"):
      lock.locked(workdir, lines.append).__enter__()
  assert not (workdir / "lock").exists()
  crashed = json.dumps({"token": "x", "host": "there", "process": 7}).encode()
  _bucket.write_if(workdir / "lock", crashed, "0")
  began = time.monotonic()
  with lock.locked(workdir, lines.append) as token:
    assert 1 <= time.monotonic() - began < 10
    lock.check_there(workdir, token)
    write_json(workdir / "config.json", {})
    (workdir / "lock").write_bytes(crashed)
    with pytest.raises(NothingToSave, match="was removed or replaced under this run"):
      lock.check_there(workdir, token)
  with lock.locked(workdir.with_name("copied"), lines.append):
    pass
  (workdir.with_name("copied") / "lock").write_bytes(b"0123456789abcdef")  # that of a run on a disk
  with lock.locked(workdir.with_name("copied"), lines.append):
    pass
  assert len(lines) == 2
  assert lines[1].startswith(f"{workdir} is leased by process 7 on there: waiting for up to ")


def test_a_place_that_cannot_be_used_is_refused_in_one_line(monkeypatch):
  with pytest.raises(RunError, match=r"^--workdir: got 's3://a/b', but Orbax writes checkpoints to gs://"):
    user_path("s3://a/b", "--workdir")
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(
    RunError, match=r"^--workdir: gs://bucket/a: a bucket needs gcsfs: pip install .*\[gcs\]"
  ):
    user_path("gs://bucket/a", "--workdir")


@pytest.fixture
def network(monkeypatch):
  with buckets.network() as proxy:
    for name, value in buckets.settings(proxy.address).items():
      monkeypatch.setenv(name, value)
    _bucket.file_system()
    yield proxy


@pytest.mark.thorough
@pytest.mark.parametrize("answer", [None, 503, 429])
def test_requests_are_tried_again_and_then_given_up(network, monkeypatch, capfd, answer):
  monkeypatch.setattr(_bucket, "WAITED", 1.0)
  monkeypatch.setattr(type(_bucket.file_system()), "said", -math.inf)
  file, end = epath.Path("gs://bucket/a"), time.monotonic() + 1.5
  network.lost, network.answer = lambda request: time.monotonic() < end, answer
  user_path("gs://bucket/a", "--workdir")
  file.write_bytes(b"content")
  assert time.monotonic() > end
  assert file.read_bytes() == b"content"
  [line] = capfd.readouterr().err.splitlines()
  assert re.fullmatch(r"the bucket does not answer \(.+\); trying again for (299|300) s", line)
  network.lost = lambda request: True
  monkeypatch.setattr(_bucket, "PATIENCE", 1.5)
  with pytest.raises(OSError, match=r"^the bucket has not answered for 2 s \("):
    file.read_bytes()


EPOCHS, POINTS = 3, 24
STEPS = EPOCHS * runs.STEPS_PER_EPOCH
NEXT = 2 * runs.STEPS_PER_EPOCH  # the step of the second save, in which the network is lost
LIMIT = 600  # seconds for a run on a machine with much other work


class Runs:
  """Runs of `run.py` in processes of their own, on a bucket behind a network."""

  def __init__(self, network, folder):
    self.network, self.folder, self.count = network, folder, 0
    self.context = children.forkserver(folder / "compiled")

  def start(self, workdir):
    self.count += 1
    arguments = [*runs.FLAGS, f"--config.epochs={EPOCHS}", "--config.checkpoint.keep=9", "--workdir", workdir]
    said = self.folder / f"said{self.count}"
    options = {"environment": buckets.settings(self.network.address), "lease": 2.0}
    return children.Child(self.context, arguments, said, pause=0.0, **options)

  def whole(self):
    """An undisturbed run, and the number of requests from the first to the last of its second save."""
    status, said = self.start("gs://bucket/whole").finish(LIMIT)
    assert status == 0, said
    requests = [urllib.parse.unquote(request) for request in self.network.requests]
    first = next(number for number, request in enumerate(requests) if f"checkpoints/{NEXT}" in request)
    last = next(number for number, request in enumerate(requests) if stores_manifest(request))
    return epath.Path("gs://bucket/whole"), last - first


def stores_manifest(request):
  """Whether a request, unquoted, uploads the content of the second save's manifest."""
  return f"manifests/{NEXT}.json" in request and "upload_id=" in request


def after(point):
  """Whether a request comes after so many from the first of the second save on; None: after its manifest.

  The lease is renewed meanwhile, so that the number of requests in a save differs between runs.
  """
  count = [0]

  def is_after(request):
    request = urllib.parse.unquote(request)
    before = count[0]
    if point is None:
      count[0] += stores_manifest(request)
      return before > 0
    count[0] += bool(before) or f"checkpoints/{NEXT}" in request
    return count[0] > point

  return is_after


@pytest.mark.slow
def test_a_network_that_is_lost_in_a_save_leaves_a_run_that_goes_on(network, tmp_path):
  """At points from the first request of a save to the last one; there the process is killed, too.

  At each point, what is left is held against the undisturbed run; at some, the run goes on to its end.
  """
  at, kept = Runs(network, tmp_path), runs.Kept()
  whole, number = at.whole()
  left = []
  for index, point in enumerate([*np.linspace(1, number - 1, POINTS - 1).astype(int), None]):
    workdir, lost = epath.Path(f"gs://bucket/lost/{point}"), threading.Event()
    is_after = after(point)
    network.lost = lambda request, is_after=is_after, lost=lost: is_after(request) and (lost.set() or True)
    child = at.start(workdir)
    assert lost.wait(LIMIT), child.said.read_text()
    time.sleep(0.2)
    child.signal(signal.SIGKILL)
    child.finish()
    network.lost = lambda request: False
    left.append(max(manifest.clean(workdir, run_token(workdir))))
    folders = {folder.name for folder in (workdir / "checkpoints").iterdir()}
    assert {name for name in folders if name.isdigit()} == {*map(str, manifest.good_steps(workdir))}
    states = [runs.final_state(folder, left[-1], build=kept.build) for folder in (workdir, whole)]
    runs.assert_bitwise(*states)
    before = [record for record in runs.records(whole) if record["step"] <= left[-1]]
    assert [record for record in runs.records(workdir) if record["step"] <= left[-1]] == before
    if index % 8 == 7:
      status, said = at.start(workdir).finish(LIMIT)
      assert status == 0, said
      assert f"resuming at step {left[-1]} of {STEPS}" in said
      assert_same(workdir, whole)
    print(f"point {point} of {number} requests: step {left[-1]} is left", flush=True)
  assert set(left) == {runs.STEPS_PER_EPOCH, NEXT}


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "seconds"), [(None, 10), (503, 10), ("silence", 65)])
def test_a_network_that_comes_back_costs_no_checkpoint(network, tmp_path, answer, seconds):
  """A bucket that closes connections, answers with errors, or stops answering, from a point in a save on."""
  at = Runs(network, tmp_path)
  whole, number = at.whole()
  for point in (number // 10, number // 2, number - 5)[: 1 if answer == "silence" else 3]:
    workdir, end = f"gs://bucket/back/{point}", []
    is_after = after(point)

    def lost(request, is_after=is_after, end=end):
      if not is_after(request):
        return False
      end.append(time.monotonic() + seconds)
      if answer == "silence":
        time.sleep(max(end[0] - time.monotonic(), 0))
      return time.monotonic() < end[0]

    network.answer, network.lost = (None if answer == "silence" else answer), lost
    status, said = at.start(workdir).finish(LIMIT)
    assert status == 0, said
    assert runs.own_lines(said) == []
    assert end
    assert_same(workdir, whole)


def upload(folder, target):
  for name, file in files_below(folder).items():
    (target / name).write_bytes(file.read_bytes())


def test_data_of_a_bucket_are_copied_once_with_their_checksums(bucket, tmp_path, monkeypatch):
  """Oracle: the arrays that were uploaded."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setattr("jaxreg.train.staged.CHUNK", 1000)
  random = np.random.default_rng(0)
  arrays = {f"x_{part}": random.normal(size=(50, 7)).astype(np.float32) for part in ("train", "test")}
  arrays |= {f"y_{part}": np.arange(50) % 2 for part in ("train", "test")}
  (tmp_path / "data" / "inner").mkdir(parents=True)
  np.savez(tmp_path / "data" / "inner" / "a.npz", **arrays)
  (tmp_path / "data" / "text.csv").write_text("x,y\n" + "1.5,0\n2.5,1\n" * 50)
  upload(tmp_path / "data", epath.Path(f"{bucket}/data"))
  path = f"{bucket}/data/inner/a.npz"
  read = _bucket.read_range
  monkeypatch.setattr(_bucket, "read_range", lambda *given: read(*given)[::-1])
  with pytest.raises(RunError, match=r"^data\.npz\.path: gs://.*a\.npz does not have its checksum"):
    runs.read_source("npz", path=path)
  monkeypatch.setattr(_bucket, "read_range", read)
  with monkeypatch.context() as patch:
    patch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(RunError, match=r"^data\.npz\.path: .* and the disk of .* has 0\.00 GB free"):
      runs.read_source("npz", path=path)
  data = runs.read_source("npz", path=path)
  np.testing.assert_array_equal(data.test.inputs, arrays["x_test"])
  monkeypatch.setattr(_bucket, "read_range", None)  # it is here already
  np.testing.assert_array_equal(runs.read_source("npz", path=path).test.inputs, arrays["x_test"])
  monkeypatch.setattr(_bucket, "read_range", read)
  table = runs.read_source("csv", path=f"{bucket}/data/text.csv", labels=("y",))
  assert table.num_classes == 2
  folder = staged(epath.Path(f"{bucket}/data"), "path")
  assert {n: f.read_bytes() for n, f in files_below(folder).items()} == {
    n: f.read_bytes() for n, f in files_below(tmp_path / "data").items()
  }
  with pytest.raises(RunError, match=r"^data\.npz\.path: got .*, where the bucket has nothing$"):
    runs.read_source("npz", path=f"{bucket}/nothing")


def test_events_are_written_once(bucket, monkeypatch):
  ignored = []
  monkeypatch.setattr(sys, "unraisablehook", ignored.append)
  place = Place(epath.Path(f"{bucket}/events"), {}, 0, pytest.fail)
  with Trackers(find_trackers(("tensorboard",)), place) as track:
    track(1, {"train/loss": 2.0})
  (file,) = (place.workdir / "tensorboard").iterdir()
  assert b"train/loss" in file.read_bytes()
  file.unlink()
  del track
  gc.collect()  # tensorboardX's own writer for buckets would upload the file again
  assert not file.exists()
  assert not ignored


def test_what_an_earlier_try_did_is_not_an_error(network):
  """The server did it, and the answer was lost."""
  user_path("gs://bucket/a", "--workdir")
  file, forwarded = epath.Path("gs://bucket/once"), []
  network.late = lambda request: (
    ("upload_id=" in request or "DELETE" in request)
    and not (request.split()[0] in forwarded or forwarded.append(request.split()[0]))
  )
  file.write_bytes(b"content")
  assert file.read_bytes() == b"content"
  file.unlink(missing_ok=True)
  assert not file.exists()
  assert sorted(forwarded) == ["DELETE", "POST"]


@pytest.mark.thorough
def test_a_prepared_set_in_a_bucket_is_that_of_the_disk(bucket, data_dir, tmp_path, monkeypatch):
  """Oracle: the images and labels that were stored, read from the disk."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  upload(data_dir / "tfds" / "mnist", epath.Path(f"{bucket}/tfds/mnist"))
  fields = {"name": "mnist", "train": "train[:1%]", "test": "test[:1%]"}
  roots = str(data_dir / "tfds"), f"{bucket}/tfds"
  local = runs.read_source("tfds", data_dir=roots[0], **fields)
  monkeypatch.setenv("TFDS_DATA_DIR", f"{bucket}/tfds")
  for options in ({}, {"data_dir": f"{bucket}/tfds/"}, {"name": "mnist:3.*.*"}):
    stored = runs.read_source("tfds", **{**fields, **options})
    for name, split in local.splits().items():
      np.testing.assert_array_equal(stored.splits()[name].inputs, split.inputs)
      np.testing.assert_array_equal(stored.splits()[name].labels, split.labels)
  streams = (runs.read_source("tfds", data_dir=root, stream=True, **fields) for root in roots)
  np.testing.assert_array_equal(*(stream.test.inputs[[3, 5]] for stream in streams))
  (epath.Path(bucket) / "damaged/mnist/3.0.1/dataset_info.json").write_text("{")
  for options, problem in (
    ({"name": "cifar10"}, r"data_dir: gs://bucket/tfds/cifar10 holds no prepared cifar10; copy one there$"),
    ({"data_dir": "gs://other/tfds"}, r"data_dir: gs://other/tfds cannot be read \(there is no bucket gs://"),
    ({"data_dir": f"{bucket}/damaged"}, r": gs://bucket/damaged/mnist/3\.0\.1 is damaged or incomplete"),
  ):
    with pytest.raises(RunError, match=rf"^data\.tfds\.?{problem}"):
      runs.read_source("tfds", **{"name": "mnist", **options})


@pytest.mark.thorough
def test_hugging_face_data_in_a_bucket_are_those_of_the_disk(bucket, tmp_path, monkeypatch):
  """Oracle: the rows that were stored, read from the disk: tables in both forms, and images."""
  hub = pytest.importorskip("datasets", reason="needs the extra data")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  rng = np.random.default_rng(0)
  table = {"x": rng.normal(size=40).tolist(), "label": [0, 1] * 20}
  pictures = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(40)]
  features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=["a", "b"])})
  images = hub.Dataset.from_dict({"image": pictures, "label": table["label"]}, features=features)
  rows = hub.Dataset.from_dict(table)
  parts = {"train": rows, "test": rows.select(range(30))}
  hub.DatasetDict(parts).save_to_disk(tmp_path / "data" / "rows")
  (tmp_path / "data" / "parquet").mkdir()
  hub.DatasetDict({"train": images, "test": images.select(range(30))}).save_to_disk(tmp_path / "data/images")
  for part, stored in parts.items():
    stored.to_parquet(tmp_path / "data" / "parquet" / f"{part}-00000.parquet")
  upload(tmp_path / "data", epath.Path(f"{bucket}/hub"))
  for name in ("rows", "parquet", "images"):
    local, stored = (
      runs.read_source("huggingface", path=f"{root}/{name}") for root in (tmp_path / "data", f"{bucket}/hub")
    )
    for one, other in zip(local.splits().values(), stored.splits().values(), strict=True):
      np.testing.assert_array_equal(one.inputs, other.inputs)
      np.testing.assert_array_equal(one.labels, other.labels)
  roots = tmp_path / "data", f"{bucket}/hub"
  streams = (runs.read_source("huggingface", path=f"{root}/images", stream=True) for root in roots)
  np.testing.assert_array_equal(*(stream.test.inputs[[3, 5]] for stream in streams))
  (epath.Path(bucket) / "hub/odd/state.json").write_text("{")
  with pytest.raises(RunError, match=r"^data\.huggingface\.path: 'gs://bucket/hub/odd' cannot be read"):
    runs.read_source("huggingface", path=f"{bucket}/hub/odd")


def test_what_is_missing_in_a_bucket_is_named(bucket):
  for path, said in (
    (f"{bucket}/no/file", "gs://bucket/no/file is not there"),
    ("gs://other/a", "there is no bucket gs://other"),
  ):
    with pytest.raises(FileNotFoundError, match=f"^{said}$"):
      epath.Path(path).read_bytes()
  assert _bucket._not_there("b/other/o") == "there is no bucket gs://other"
  assert _bucket._not_there("http://h/upload/storage/v1/b/other/o?name=a") == "there is no bucket gs://other"

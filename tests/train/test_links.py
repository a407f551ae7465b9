"""No job writes through a link, or waits at a pipe in the place of a file that it writes or reads."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import runs

from jaxreg import train
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import sources
from jaxreg.train.finished import inputs, reuse
from jaxreg.train.jobs.check_data import check_data
from jaxreg.train.jobs.predict import predict
from jaxreg.train.run import workdir as workdirs

SHORT = {"epochs": 1, "method.name": "softmax"}
COMPARE = {"compare.rows": ("softmax",), "compare.grid": ("softmax: seed=1,2",), "compare.seeds": 1}
REPORT = {"report.sections": ("errors", "conformal"), "report.against": ()}
# The job, its fields, and whether it reads a run; a report also reads a second one.
JOBS = {
  "train": (train.train, SHORT, False),
  "evaluate": (train.evaluate, {**SHORT, "job": "evaluate"}, True),
  "compare": (train.compare, {"epochs": 1, "job": "compare", **COMPARE}, False),
  "report": (train.report, {**SHORT, "job": "report", **REPORT}, True),
  "check_data": (check_data, {**SHORT, "job": "check_data"}, True),
}
MARKS = {"compare": "thorough"}
# The endings of files whose names are known before.
FIXED = {".html", ".json", ".jsonl", ".md", ".npz", ".png", ".txt"}


def written(folder):
  """The files whose names are known before a run, without checkpoints."""
  files = {path.relative_to(folder) for path in folder.rglob("*") if path.suffix in FIXED and path.is_file()}
  return {path for path in files if "checkpoints" not in path.parts}


def lay(folder, files, make):
  """Puts something odd in the place of each file that is written first, before it gets its name."""
  laid = [folder / path.with_name(path.name + ".partial") for path in files]
  for place in laid:
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)
  return laid


@pytest.fixture(scope="module")
def run_job(tmp_path_factory, light_module):
  """Runs a job in a work directory, for which it copies what the job needs."""
  top = tmp_path_factory.mktemp("trained")

  def trained(name, **fields):
    if not (top / name).exists():
      train.train(runs.make_config({**SHORT, **fields}), top / name)
    return top / name

  def run(name, workdir, lay=lambda workdir: None):
    job, fields, reads = JOBS[name]
    if reads:
      shutil.copytree(trained("run"), workdir)
    if "report.against" in fields:
      fields = {**fields, "report.against": (str(trained("other", seed=1)),)}
    laid = lay(workdir)
    before = {folder: runs.snapshot(folder) for folder in top.iterdir()}
    results = job(runs.make_config(fields), workdir)
    assert {folder: runs.snapshot(folder) for folder in before} == before
    pages = [str(Path(page).relative_to(workdir)) for page in results.get("pages", ())]
    return {**results, "pages": pages}, laid

  return run


@pytest.mark.thorough
@pytest.mark.parametrize(
  "name",
  [pytest.param(name, marks=getattr(pytest.mark, MARKS[name]) if name in MARKS else ()) for name in JOBS],
)
def test_every_file_of_every_job(name, run_job, tmp_path):
  """A link to nowhere would make a file there; a link to a file is the same to whoever opens it."""
  results, _ = run_job(name, tmp_path / "plain" / "run")
  expected = written(tmp_path / "plain" / "run")
  assert len(expected) > 5
  (tmp_path / "mine").mkdir()
  link = lambda place: place.symlink_to(tmp_path / "mine" / f"{abs(hash(place))}")
  for kind, make in (("links", link), ("pipes", os.mkfifo)):
    workdir = tmp_path / kind / "run"
    again, laid = run_job(name, workdir, lambda workdir, make=make: lay(workdir, expected, make))
    assert again == results
    assert written(workdir) == expected
    assert not [path for path in laid if path.is_symlink() and path.exists()]
  assert not list((tmp_path / "mine").iterdir())


def test_the_work_directory_itself_may_be_a_link(tmp_path):
  (tmp_path / "disk").mkdir()
  (tmp_path / "run").symlink_to(tmp_path / "disk")
  fields = flatten(runs.make_config())
  assert workdirs.claim(tmp_path / "run", fields, sources.digits().describe(), 3) is None
  assert (tmp_path / "disk" / "config.json").is_file()


def longer(workdir):
  train.train(runs.make_config({"epochs": 7}), workdir)


def predicted(name):
  def call(workdir):
    fields = {"predict.file": str(workdir / name), "predict.out": str(workdir / "out.csv"), "job": "predict"}
    predict(runs.make_config(fields), workdir)

  return call


PIPE = "is a pipe or a device, not a file"
WAITS = [
  (train.load, "config.json", PIPE),
  (train.load, "data.json", PIPE),
  (train.load, "manifests/24.json", "the checkpoint of step 24 cannot be used (its manifest cannot be read"),
  (train.load, "checkpoints/24/_CHECKPOINT_METADATA", "the checkpoint of step 24 cannot be used (it cannot"),
  (lambda workdir: train.train(runs.make_config(), workdir), "results.json", f"{PIPE}); remove it"),
  (longer, "data.json", PIPE),
  (longer, "environment.json", "whether the versions are the same is not known"),
  (longer, "lock", PIPE),
  (longer, "manifests/24.json", "checkpoint 24 is damaged (its manifest cannot be read"),
  (longer, "metrics.jsonl", PIPE),
  (longer, "stacks-0.txt", PIPE),
  (longer, "times.json", "resuming at step 24"),
  (predicted("new.npz"), "new.npz", PIPE),
  (predicted("new.png"), "new.png", PIPE),
  (lambda workdir: inputs._as_image(workdir / "new.jpg", 0), "new.jpg", PIPE),
  (lambda workdir: reuse._read_torch(workdir / "new.safetensors"), "new.safetensors", PIPE),
]


@pytest.mark.usefixtures("light_runs")
@pytest.mark.parametrize("name", ["lock", "stacks-0.txt"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_the_place_of_a_file_that_is_written_in_place(name, exists, finished_copy, tmp_path):
  mine = tmp_path / "mine"
  if exists:
    mine.write_text("precious")
  (finished_copy / name).unlink(missing_ok=True)
  (finished_copy / name).symlink_to(mine)
  with pytest.raises((train.RunError, OSError), match=f"{name} is a link, not a file; remove it"):
    longer(finished_copy)
  assert (mine.read_text() if mine.exists() else None) == ("precious" if exists else None)


@pytest.fixture
def no_wait():
  """Fails a test that waits."""
  before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
  signal.alarm(60)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("light_runs", "no_wait")
@pytest.mark.parametrize(("call", "name", "message"), WAITS)
def test_a_pipe_in_the_place_of_a_file_that_is_read(call, name, message, finished_copy, capsys, recwarn):
  (finished_copy / name).unlink(missing_ok=True)
  os.mkfifo(finished_copy / name)
  said = ""
  try:
    call(finished_copy)
  except (train.RunError, ValueError, OSError) as error:
    said = str(error)
  said += "".join(str(warning.message) for warning in recwarn) + capsys.readouterr().err
  assert message in said

"""No job writes through a link, or waits at a pipe in the place of a file that it writes."""

import os
import shutil
from pathlib import Path

import pytest
import runs

from jaxreg import train
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import sources
from jaxreg.train.jobs.check_data import check_data
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

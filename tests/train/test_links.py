"""No job writes through a link or waits at a pipe: people pass work directories on."""

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
from jaxreg.train.run.workdir import FOLDERS

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
  """Puts something odd in the place of each file that is not there, and of the file that is written first."""
  laid = [folder / path for path in files if not (folder / path).exists()]
  for path in laid:
    for place in (path, path.with_name(path.name + ".partial")):
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
  # A file of results that is no file would be those of another program.
  piped = {path for path in expected if path.name != "results.json"}
  for kind, files, make in (("links", expected, link), ("pipes", piped, os.mkfifo)):
    workdir = tmp_path / kind / "run"
    again, laid = run_job(name, workdir, lambda workdir, files=files, make=make: lay(workdir, files, make))
    assert len(laid) >= 2 or name in ("evaluate", "check_data")
    assert again == results
    assert written(workdir) == expected
    assert not [path for path in laid if path.is_symlink() or not path.is_file()]
    assert not list(workdir.rglob("*.partial"))
  assert not list((tmp_path / "mine").iterdir())


@pytest.mark.thorough
def test_a_file_that_a_link_names_is_left_alone(tmp_path, light_runs):
  (tmp_path / "mine").write_text("precious")
  (tmp_path / "run" / "figures").mkdir(parents=True)
  names = ("metrics.jsonl", "environment.json", "reliability.json", "stacks-0.txt")
  for name in names:
    (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
  train.train(runs.make_config(SHORT), tmp_path / "run")
  assert (tmp_path / "mine").read_text() == "precious"
  assert not any((tmp_path / "run" / name).is_symlink() for name in names)


@pytest.mark.parametrize("inner", [*FOLDERS, "checkpoints/2023", "rows/softmax"])
@pytest.mark.parametrize("job", ["train", "compare"])
def test_a_folder_that_is_a_link_is_refused(job, inner, tmp_path, light_runs):
  """Beginning a run removes half-saved checkpoints, which a link would find among the user's folders."""
  (tmp_path / "mine" / "7").mkdir(parents=True)
  before = runs.snapshot(tmp_path / "mine")
  folder = tmp_path / "run" / inner
  folder.parent.mkdir(parents=True)
  folder.symlink_to(tmp_path / "mine")
  run, fields, _ = JOBS[job]
  with pytest.raises(
    train.RunError, match=rf"^--workdir: {folder} is a link, and nothing is written through"
  ):
    run(runs.make_config(fields), tmp_path / "run")
  assert runs.snapshot(tmp_path / "mine") == before


def test_the_work_directory_itself_may_be_a_link(tmp_path):
  (tmp_path / "disk").mkdir()
  (tmp_path / "run").symlink_to(tmp_path / "disk")
  fields = flatten(runs.make_config())
  assert workdirs.claim(tmp_path / "run", fields, sources.digits().describe(), 3) is None
  assert (tmp_path / "disk" / "config.json").is_file()

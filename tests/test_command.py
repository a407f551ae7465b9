"""The command `jaxreg` is `python run.py`, also from the wheel, which carries the program and its configs."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata

import jaxreg
from jaxreg import command
from jaxreg.train import cli
from jaxreg.train.config.fields import JOB_NAMES
from jaxreg.train.errors import RunError

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
SHORT = ("--config.epochs=1", "--config.data.subset.limit=64", "--config.eval_every=1")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.thorough
def test_the_job_is_the_first_word():
  given = cli.parse(["compare", "--config", "compare_dropmax_digits"], CONFIGS)
  plain = cli.parse(["--config", "compare_dropmax_digits"], CONFIGS)
  assert (given.config, given.workdir) == (plain.config, plain.workdir)
  trained = cli.parse(["train", "--config=compare_dropmax_digits"], CONFIGS)
  flag = cli.parse(["--config=compare_dropmax_digits", "--config.job=train"], CONFIGS)
  assert trained.config == flag.config
  assert trained.config.job == "train"
  assert trained.workdir == flag.workdir
  assert cli.parse(["list"], CONFIGS).text == cli.parse(["--list"], CONFIGS).text
  assert cli.parse(["help"], CONFIGS).text == cli.parse(["--help"], CONFIGS).text


def test_a_job_is_given_once_and_spelled_right():
  with pytest.raises(RunError, match=r"--config.job=train: the job is named already, compare"):
    cli.parse(["compare", "--config.job=train"], CONFIGS)
  with pytest.raises(RunError, match="unexpected argument 'compar'; did you mean compare"):
    cli.parse(["compar"], CONFIGS)


def test_every_extra_is_documented():
  _, page = (ROOT / "docs/running.md").read_text().split("| extra |")
  table = re.findall(r"^\| `(\w+)` \|", page.partition("\n\n")[0], re.MULTILINE)
  assert sorted(table) == sorted(EXTRAS)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
  """A folder with the source distribution and with the wheel that is built from it."""
  folder = tmp_path_factory.mktemp("packages")
  build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
  done = subprocess.run(build, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  return folder


@pytest.fixture
def metadata(packages):
  [wheel] = packages.glob("*.whl")
  with zipfile.ZipFile(wheel) as files:
    [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    return Metadata.from_email(files.read(name))  # which refuses what no index would take


@pytest.mark.thorough
def test_the_page_of_the_index_stands_alone(metadata):
  page = metadata.description
  targets = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", page)
  assert [link for link in map("".join, targets) if not link.startswith("https://")] == []
  assert not re.search(r"git clone|pip install -|'\.\[|python run\.py$|<!--", page, re.MULTILINE)
  assert "pip install 'jaxreg[train]'" in page
  given = (metadata.license_expression, metadata.description_content_type, metadata.license_files)
  assert given == ("Apache-2.0", "text/markdown", ["LICENSE"])
  assert metadata.summary
  assert sorted(metadata.provides_extra) == sorted(EXTRAS)


@pytest.mark.thorough
def test_the_source_distribution_is_complete(packages):
  """All tracked files but hidden ones are in it; what is generated is not."""
  [sdist] = packages.glob("*.tar.gz")
  with tarfile.open(sdist) as files:
    names = {name.partition("/")[2] for name in files.getnames()}
  tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
  if not tracked:
    pytest.skip("no git repository")
  assert {name for name in tracked if not name.startswith(".")} - names == set()
  assert not [name for name in names if re.search(r"__pycache__|^runs/|^dist/|\.pyc$", name)]


def empty_environment(tmp_path):
  """Makes an environment with the tests' own packages, but without jaxreg, and an empty folder."""
  venv.create(tmp_path / "venv", symlinks=True)
  [site] = (tmp_path / "venv/lib").glob("python*/site-packages")
  around = [path for path in sys.path if Path(path).name == "site-packages"]
  (site / "around.pth").write_text("".join(f"{path}\n" for path in around))  # not their .pth files
  folder = tmp_path / "empty"
  folder.mkdir()
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

  def call(program, *arguments):
    done = [tmp_path / "venv/bin" / program, *arguments]
    return subprocess.run(done, cwd=folder, env=environment, capture_output=True, text=True)

  return folder, site, call


def pip(tmp_path):
  return [sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "--quiet"]


@pytest.mark.thorough
@pytest.mark.parametrize("address", ["a file beside the notebook", "an address"])
def test_a_notebook_of_the_site_installs_the_wheel_and_runs(packages, tmp_path, address):
  """Runs the first cell, as the site writes it, and the tutorial, without jaxreg and the clone."""
  nbformat = pytest.importorskip("nbformat")
  folder, site, call = empty_environment(tmp_path)
  [wheel] = packages.glob("*.whl")
  cell = runpy.run_path(str(ROOT / "docs/notebooks.py"))["first_cell"](None, jaxreg.__version__)
  assert f'WHEEL = "{wheel.name}"' in cell
  if address == "an address":
    cell = cell.replace(wheel.name, wheel.as_uri())
  else:
    shutil.copy(wheel, folder)
  script = (ROOT / "examples/tutorials/exact_zeros.py").read_text()
  cells = [cell.replace("%pip install", "%pip install --no-deps --no-index"), *script.split("\n# %%")]
  cells += ["import jaxreg; print(jaxreg.__file__)"]
  notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
  nbformat.write(notebook, folder / "it.ipynb")
  run = (
    "import nbclient, nbformat; it = nbformat.read('it.ipynb', 4); nbclient.NotebookClient(it).execute(); "
  )
  done = call("python", "-c", run + "print(it.cells[-1].outputs[0].text)")
  assert done.stdout.split() == [str(site / "jaxreg/__init__.py")], done.stderr


@pytest.mark.thorough
def test_the_wheel_runs_in_an_empty_environment(packages, tmp_path):
  folder, site, call = empty_environment(tmp_path)
  [wheel] = packages.glob("*.whl")
  subprocess.run([*pip(tmp_path), "--no-deps", "--no-index", wheel], check=True)
  where = call("python", "-c", "import jaxreg; print(jaxreg.__file__, jaxreg.__version__)")
  assert where.stdout.split() == [str(site / "jaxreg/__init__.py"), wheel.name.split("-")[1]], where.stderr
  assert call("jaxreg", "list").stdout == cli.parse(["--list"], CONFIGS).text
  trained = call("jaxreg", "train", "--config", "softmax_digits", *SHORT, "--workdir", "run")
  assert (trained.returncode, (folder / "run/results.json").is_file()) == (0, True), trained.stderr
  evaluated = call("jaxreg", "evaluate", "--workdir", "run")
  assert (evaluated.returncode, "test  error" in evaluated.stdout) == (0, True), evaluated.stderr
  wrong = call("jaxreg", "train", "--config", "softmax_digit")
  assert wrong.returncode == 1
  assert wrong.stderr.startswith(
    "jaxreg: error: --config: there is no file 'softmax_digit'; did you mean 'configs/"
  )
  assert {path.name for path in folder.iterdir()} == {"run"}


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["train", "test"])
def test_a_command_of_the_readme_does_all_in_an_empty_environment(extra, tmp_path):
  """In a clone, with what pip finds. All tests are imported, one file of them runs; `.ci/run` runs all."""
  [command] = re.findall(
    rf"^pip install -e '\.\[{extra}\]' &&.*$", (ROOT / "README.md").read_text(), re.MULTILINE
  )
  subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
  venv.create(tmp_path / "venv", symlinks=True, with_pip=True)
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  environment |= {"PATH": f"{tmp_path / 'venv/bin'}:{environment['PATH']}", "PIP_COMPILE": "0"}
  environment |= {"PYTEST_ADDOPTS": "-k test_paths", "VIRTUAL_ENV": str(tmp_path / "venv")}
  call = ["bash", "-euo", "pipefail", "-c", command]
  done = subprocess.run(call, cwd=tmp_path / "clone", env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
  if extra == "train":
    [results] = (tmp_path / "clone/runs").glob("*/results.json")
    assert json.loads(results.read_text())["test/error"] < 0.1
  else:
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-4000:]


def test_every_job_has_a_function():
  assert tuple(command.JOBS) == JOB_NAMES
  for name in JOB_NAMES:
    assert command.find_job(name).__name__ == name


def test_the_recipe_for_conda_has_what_the_project_says():
  recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
  config = tomllib.loads((ROOT / "pyproject.toml").read_text())
  project, spaced = config["project"], lambda needs: {re.sub(r"(?<=\w)>=", " >=", each) for each in needs}
  assert recipe["context"]["version"] == jaxreg.__version__
  assert set(recipe["requirements"]["run"]) == {"python >=3.11", *spaced(project["dependencies"])}
  assert set(recipe["requirements"]["host"]) - {"python 3.11.*", "pip"} == spaced(
    config["build-system"]["requires"]
  )
  assert project["requires-python"] == ">=3.11"
  assert recipe["about"]["summary"] == project["description"]
  assert recipe["about"]["license"] == project["license"]

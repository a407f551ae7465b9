"""The command `jaxreg` is `python run.py`, also from the wheel, which carries the program and its configs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jaxreg.train import cli
from jaxreg.train.errors import RunError

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
SHORT = [
  "--config.epochs=1",
  "--config.data.limit=64",
  "--config.eval_every=1",
]


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
  with pytest.raises(RunError, match=r"--config.job=train: the job is given already, compare"):
    cli.parse(["compare", "--config.job=train"], CONFIGS)
  with pytest.raises(RunError, match="unexpected argument 'compar'; did you mean compare"):
    cli.parse(["compar"], CONFIGS)


@pytest.mark.thorough
def test_the_wheel_has_the_command_and_the_configs(tmp_path):
  """Unpacked in a folder of its own: the jobs' list, one short run, and a mistake in one line."""
  pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT]
  subprocess.run(pip, check=True)
  [wheel] = tmp_path.glob("*.whl")
  zipfile.ZipFile(wheel).extractall(tmp_path / "site")
  [points] = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
  assert "jaxreg = jaxreg.command:main" in points.read_text()
  command = tmp_path / "jaxreg"
  command.write_text("from jaxreg.command import main\nmain()\n")
  environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

  def call(*arguments):
    done = [sys.executable, "-P", command, *arguments]
    return subprocess.run(done, cwd=tmp_path, env=environment, capture_output=True, text=True)

  listed = call("list")
  assert listed.stdout == cli.parse(["--list"], CONFIGS).text
  trained = call("train", "--config", "softmax_digits", *SHORT, "--workdir", "run")
  assert (trained.returncode, (tmp_path / "run" / "results.json").is_file()) == (0, True), trained.stderr
  wrong = call("train", "--config", "softmax_digit")
  assert wrong.returncode == 1
  assert wrong.stderr.startswith("jaxreg: error: --config: got 'softmax_digit', allowed are configs/compare_")

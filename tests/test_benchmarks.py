"""The scripts of `benchmarks/`: what they make of their flags."""

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def test_seeds_are_a_number_or_a_list():
  spec = importlib.util.spec_from_file_location("benchmark_seeds", FOLDER / "seeds.py")
  assert spec
  assert spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  for text, want in (("3", [0, 1, 2]), ("0,2", [0, 2]), ("1,", [1])):
    assert module._seeds(text) == want
  with pytest.raises(SystemExit, match=r"--seeds: give a number of seeds.*got 'two'"):
    module._seeds("two")


def test_the_page_about_speed_shows_what_was_measured(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command = importlib.import_module("benchmarks.__main__")
  page, results = command.PAGE.read_text(), json.loads(command.RESULTS.read_text())
  assert command.render(page, results) == page, "`python -m benchmarks --render` makes it again"
  asked = {name for _, name, _ in command.TABLE.findall(page)}
  made = {table for found in results.values() for table in found["tables"]}
  assert asked <= made
  assert {path.stem for path in FOLDER.glob("[a-z]*.py")} >= set(command.NAMES)


def test_a_measurement_that_does_not_exist_is_one_line(monkeypatch, capsys):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command = importlib.import_module("benchmarks.__main__")
  monkeypatch.setattr("sys.argv", ["benchmarks", "step"])
  with pytest.raises(SystemExit, match="2"):
    command.main()
  assert "there is no measurement step; there are steps, dropmax_overhead" in capsys.readouterr().err

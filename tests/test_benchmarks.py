"""The scripts of `benchmarks/`: what they make of their flags."""

import importlib.util
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

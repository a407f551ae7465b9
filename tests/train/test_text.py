"""Parallel text: lines to tokens and back, what is left out, and every mistake in one line."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
import runs
import toy_text

from jaxreg import train
from jaxreg.train.data import sources, text

BEGIN, END = 1, 2
OPTIONS = {"vocab_size": 60, "source_length": 30, "target_length": 25}


@pytest.fixture
def own_folder(tmp_path):
  return toy_text.write(tmp_path)


def load(folder, **options):
  return sources.parallel_text(path=str(folder), **{**OPTIONS, **options})


def test_examples_are_the_lines_and_come_back_as_them(text_folder):
  data = load(text_folder).checked()
  back = load(text_folder).text
  assert (data.num_classes, data.model) == (60, {"vocab_size": 60, "source_length": 30})
  for split, name in zip(data.splits().values(), toy_text.SIZES, strict=True):
    first, second = toy_text.lines(name)
    assert split.inputs.dtype == split.labels.dtype == np.int32
    assert split.inputs.shape == (len(first), 55)
    assert split.labels.shape == (len(first), 25)
    assert back(split.inputs[:, :30]) == first
    assert back(split.labels) == second
    for inputs, labels in zip(split.inputs, split.labels, strict=True):
      # Source and end, padding; beginning and target, padding; target and end, -1.
      number = (labels >= 0).sum()
      assert (inputs[:30] == END).sum() == 1
      assert (inputs[:30][int((inputs[:30] == END).argmax()) + 1 :] == 0).all()
      np.testing.assert_array_equal(inputs[30 : 30 + number], [BEGIN, *labels[: number - 1]])
      assert (inputs[30 + number :] == 0).all()
      assert (labels[number:] == -1).all()
      assert labels[number - 1] == END


def test_the_languages_can_be_swapped(text_folder):
  data, back = load(text_folder, source="de", target="en"), load(text_folder, source="de", target="en").text
  assert back(data.val.labels) == toy_text.lines("val")[0]
  assert back(data.val.inputs[:, :30]) == toy_text.lines("val")[1]


def test_gzipped_files_are_the_same(text_folder, tmp_path):
  for file in text_folder.iterdir():
    (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
  assert load(tmp_path).describe() == load(text_folder).describe()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_byte_order_mark_is_no_token(text_folder, tmp_path, zipped):
  """At the beginning of a file, and where a file was appended to another one."""
  for file in text_folder.iterdir():
    lines = file.read_bytes().splitlines(keepends=True)
    marked = b"\xef\xbb\xbf".join([b"", *(b"".join(part) for part in (lines[:3], lines[3:]))])
    name = f"{file.name}.gz" if zipped else file.name
    (tmp_path / name).write_bytes(gzip.compress(marked) if zipped else marked)
  assert load(tmp_path).describe() == load(text_folder).describe()
  assert "\ufeff" not in load(tmp_path).tokenizer.get_vocab()


@pytest.mark.thorough
def test_tokens_are_the_same_in_another_process(text_folder):
  code = (
    "from jaxreg.train.data import sources\n"
    f"print(sources.parallel_text(path={str(text_folder)!r}, **{OPTIONS}).describe().crc32)"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.strip() == str(load(text_folder).describe().crc32)


def test_tokens_are_learnt_from_the_training_lines_only(text_folder, tmp_path):
  for file in text_folder.iterdir():
    content = file.read_text()
    (tmp_path / file.name).write_text(content if "train" in file.name else content.replace("a", "q"))
  one, other = load(text_folder), load(tmp_path)
  assert one.tokenizer.to_str() == other.tokenizer.to_str()
  assert text.UNKNOWN in other.val.inputs
  assert text.UNKNOWN not in one.val.inputs


def test_long_pairs_are_left_out_of_training_and_cut_elsewhere(text_folder):
  lengths = {"source_length": 5, "target_length": 6}
  whole, short = load(text_folder), load(text_folder, **lengths)
  ends = lambda labels: (labels == END).any(axis=1)
  fits = ((whole.train.inputs[:, :30] > 0).sum(1) <= 5) & ((whole.train.labels >= 0).sum(1) <= 6)
  assert 0 < fits.sum() < len(whole.train)
  np.testing.assert_array_equal(short.train.labels, whole.train.labels[fits, :6])
  assert ends(short.train.labels).all()
  for name in ("val", "test"):
    np.testing.assert_array_equal(short.splits()[name].labels, whole.splits()[name].labels[:, :6])
    assert not ends(short.splits()[name].labels).all()
  # The first of those that are left, in the order of the file.
  assert [pair[1] for pair in short.pairs["train"]] == [
    line for line, fit in zip(toy_text.lines("train")[1], fits, strict=True) if fit
  ]


def test_lines_are_those_of_the_file_whatever_they_contain(own_folder):
  odd = "a man.\u2028\x0ba  dog .\u00a0"
  for language, line in (("en", odd), ("de", "Mann.")):
    file = own_folder / f"train.{language}"
    file.write_bytes(f"{line}\r\n".encode() + file.read_bytes())
  pairs = load(own_folder, vocab_size=80).pairs["train"]
  assert pairs[0] == (odd, "Mann.")
  assert len(pairs) == toy_text.SIZES["train"] + 1


def unlink(folder):
  (folder / "val.de").unlink()


def shorten(folder):
  file = folder / "test_2016_flickr.en"
  file.write_text("\n".join(file.read_text().splitlines()[:-1]))


def empty(folder):
  (folder / "val.en").write_text("")


def damage(folder):
  file = folder / "train.en"
  content = gzip.compress(file.read_bytes())
  file.unlink()
  (folder / "train.en.gz").write_bytes(content[:-20])


def latin(folder):
  (folder / "train.de").write_bytes("läuft\n".encode("latin-1") * 40)


@pytest.mark.parametrize(
  ("change", "options", "message"),
  [
    (unlink, {}, r"\.path: .* has no val\.de\[\.gz\]; give the folder"),
    (shorten, {}, r"\.path: .* 7 lines of test_2016_flickr\.en but 8 of test_2016_flickr\.de"),
    (empty, {}, r"\.path: .*val\.en is empty"),
    (damage, {}, r"\.path: .*train\.en\.gz is damaged"),
    (latin, {}, r"\.path: .*train\.de is damaged or no text"),
    (None, {"vocab_size": 10}, r"\.vocab_size: must be at least \d+: one per character .* got 10"),
    (None, {"source_length": 1}, r"\.source_length: must be at least 2 and .* got 1"),
    (None, {"target_length": 0}, r"\.target_length: must be at least 2 and .* got 0"),
    (
      None,
      {"source_length": 2, "target_length": 2},
      r"\.source_length: got 2, and target_length 2, but all 40",
    ),
    (None, {"target": "en"}, r"\.target: must be another language"),
    (None, {"source": "fr"}, r"\.path: .* has no train\.fr"),
  ],
)
def test_mistakes_are_told(own_folder, change, options, message):
  if change:
    change(own_folder)
  with pytest.raises(train.RunError, match=message) as refused:
    runs.read_source("parallel_text", path=str(own_folder), **{**OPTIONS, **options})
  assert str(refused.value).startswith("data.parallel_text.")
  assert "\n" not in str(refused.value)


@pytest.mark.thorough
def test_multi30k(data_dir):
  """Its sizes, that no line is lost in tokens, and the first pair."""
  lines = sources.parallel_text(path=str(data_dir / "multi30k"))
  assert {name: len(pairs) for name, pairs in lines.pairs.items()} == {
    "train": len(lines.train),
    "val": 1014,
    "test": 1000,
  }
  assert lines.tokenizer.get_vocab_size() == 4000
  assert lines.pairs["train"][0][0] == "Two young, White males are outside near many bushes."
  split = lines.train
  assert lines.text(split.labels) == [target for _, target in lines.pairs["train"]]
  assert text.UNKNOWN not in split.inputs

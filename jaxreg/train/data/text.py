"""Aligned lines of two languages as tokens: a source `(**options) -> Dataset`, and the text behind it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxreg._extras import install
from jaxreg.train.data.bounded_files import ERRORS, plain_or_gzipped, read_text
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.errors import ArgumentError
from jaxreg.train.user_paths import local_path

if TYPE_CHECKING:
  from tokenizers import Tokenizer

PAD, BEGIN, END, UNKNOWN = range(4)
MARK = "\ufeff"  # the byte-order mark
SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[UNK]")
Pairs = dict[str, list[tuple[str, str]]]
FILES = {"train": "train", "val": "val", "test": "test_2016_flickr"}  # as Multi30k names them


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelText(Dataset):
  """A translation task with its text.

  The `inputs` of a split are `[n, source_length + target_length]`, and its `labels` `[n, target_length]`,
  int32. The inputs are the source and its end, then the beginning and the target. The labels are the target
  and its end, then -1 for padding. Lines that do not fit are cut.
  """

  pairs: Pairs  # `(source, target)` lines by split, in the order of its examples, before a subset is taken
  tokenizer: "Tokenizer"  # one for both languages
  source_length: int  # in tokens
  target_length: int

  def text(self, labels: np.ndarray) -> list[str]:
    """Decodes tokens `[n, length]` to lines, each up to its end."""
    lines = [row[: int((row == END).argmax())] if END in row else row for row in np.asarray(labels)]
    return self.tokenizer.decode_batch([line.tolist() for line in lines])


def parallel_text(
  *,
  path: str = "data/multi30k",
  source: str = "en",
  target: str = "de",
  vocab_size: int = 4000,
  source_length: int = 40,
  target_length: int = 40,
) -> ParallelText:
  """Reads a translation task: aligned lines of two languages, in files as in Multi30k.

  The files are `train`, `val` and `test_2016_flickr`, each with `.<language>` or `.<language>.gz`. Each load
  learns a byte-pair encoding from all training lines of both languages, and from no others. Spaces are part
  of the tokens, so that the text can be restored as it was. A pair that is too long is left out of training.
  In validation and test its lines are cut, so that these splits keep all examples.

  Args:
    path: the folder that holds the files.
    source, target: the languages, as the files name them.
    vocab_size: the number of tokens of both languages together; fewer, if the text has fewer.
    source_length: the length of a source in tokens, with its end.
    target_length: the length of a target in tokens, with its end or its beginning.
  """
  for name, value in (("source_length", source_length), ("target_length", target_length)):
    if value < 2:
      raise ArgumentError(name, f"must be at least 2, a token and the end, got {value}")
  if source == target:
    raise ArgumentError("target", f"must be another language than the source, got {target!r} twice")
  folder = local_path(path, "path")
  pairs = {name: _read_pairs(folder, stem, source, target) for name, stem in FILES.items()}
  tokenizer = _learn(pairs["train"], vocab_size)

  sources, targets = _encode(tokenizer, pairs["train"])
  fitting = [
    pair
    for pair, first, second in zip(pairs["train"], sources, targets, strict=True)
    if len(first) < source_length and len(second) < target_length  # with their ends
  ]
  if not fitting:
    raise ArgumentError(
      "source_length",
      f"got {source_length}, and target_length {target_length}, but all {len(pairs['train'])} training pairs "
      "are longer; give greater lengths",
    )
  pairs["train"] = fitting
  size = tokenizer.get_vocab_size()
  lengths = (source_length, target_length)
  train, val, test = (_split(*_encode(tokenizer, pairs[name]), lengths=lengths) for name in FILES)
  return ParallelText(
    train,
    val,
    test,
    num_classes=size,
    model={"vocab_size": size, "source_length": source_length},
    pairs=pairs,
    tokenizer=tokenizer,
    source_length=source_length,
    target_length=target_length,
  )


def _encode(tokenizer: "Tokenizer", pairs: Sequence[tuple[str, str]]) -> list[list[list[int]]]:
  """Encodes the sources and the targets as tokens."""
  return [[line.ids for line in tokenizer.encode_batch([pair[side] for pair in pairs])] for side in (0, 1)]


def _split(sources: list[list[int]], targets: list[list[int]], lengths: tuple[int, int]) -> Split:
  """Converts the lines' tokens to the examples of `ParallelText`."""
  source = _rows([[*line, END] for line in sources], lengths[0], PAD)
  target = _rows([[BEGIN, *line] for line in targets], lengths[1], PAD)
  labels = _rows([[*line, END] for line in targets], lengths[1], -1)
  return Split(np.concatenate([source, target], axis=1), labels)


def _read_pairs(folder: Path, stem: str, source: str, target: str) -> list[tuple[str, str]]:
  sources, targets = (_read_lines(folder, f"{stem}.{language}") for language in (source, target))
  if len(sources) != len(targets):
    raise ArgumentError(
      "path",
      f"{folder} has {len(sources)} lines of {stem}.{source} but {len(targets)} of {stem}.{target}; they "
      "must belong together line by line",
    )
  return list(zip(sources, targets, strict=True))


def _read_lines(folder: Path, name: str) -> list[str]:
  file = plain_or_gzipped(folder, name)
  if file is None:
    raise ArgumentError(
      "path",
      f"{folder} has no {name}[.gz]; give the folder with {', '.join(FILES.values())} of both languages",
    )
  try:
    text = read_text(file)
  except ERRORS as error:
    raise ArgumentError("path", f"{file} is damaged or no text in UTF-8 ({error}); fetch it again") from error
  # Not `splitlines`, which also splits at characters that a line may contain. A byte-order mark begins a
  # file, or a file that was appended to another one.
  lines = [line.removesuffix("\r").removeprefix(MARK) for line in text.removesuffix("\n").split("\n")]
  if lines == [""]:
    raise ArgumentError("path", f"{file} is empty; fetch it again")
  return lines


def _learn(pairs: Sequence[tuple[str, str]], vocab_size: int) -> "Tokenizer":
  """Learns a byte-pair encoding of both languages; the same text gives the same tokens."""
  try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
  except ImportError as error:
    raise ArgumentError("", f"needs the tokenizers package: {install('text')}") from error
  lines = [pair[side] for side in (0, 1) for pair in pairs]
  smallest = len(SPECIAL) + len(set().union(*map(set, lines)) - {" "}) + 1
  if vocab_size < smallest:
    raise ArgumentError(
      "vocab_size", f"must be at least {smallest}: one per character and {len(SPECIAL)}, got {vocab_size}"
    )
  tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
  # A word begins with the mark of the space before it; punctuation stands alone.
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
  )
  tokenizer.decoder = decoders.Metaspace()
  tokenizer.train_from_iterator(
    lines, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL), show_progress=False)
  )
  return tokenizer


def _rows(lines: Sequence[Sequence[int]], length: int, fill: int) -> np.ndarray:
  """Converts lines to int32 `[n, length]`, each truncated or padded with `fill`."""
  rows = np.full((len(lines), length), fill, np.int32)
  for row, line in zip(rows, lines, strict=True):
    row[: len(line)] = line[:length]
  return rows

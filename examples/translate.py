"""Greedy translations by a finished run of `configs/transformer_multi30k.py`.

Command: python examples/translate.py runs/transformer_multi30k-<hash>
It needs `pip install -e '.[train,text]'`, and the text at the path that the run was trained with.
"""

import sys

import numpy as np

from jaxreg import train
from jaxreg.train.data.text import BEGIN, END, PAD

BATCH_SIZE = 128


def decode(predict, sources, length):
  """Takes the most probable token at each position: `[n, source_length]` to `[n, length]`."""
  targets = np.full((len(sources), length + 1), PAD, np.int32)
  targets[:, 0] = BEGIN
  ended = np.zeros(len(sources), bool)
  for position in range(length):
    log_probs = predict(np.concatenate([sources, targets[:, :-1]], axis=1))
    log_probs = np.array(log_probs[:, position])
    log_probs[:, [PAD, BEGIN]] = -np.inf
    targets[:, position + 1] = np.where(ended, PAD, log_probs.argmax(axis=-1))
    ended |= targets[:, position + 1] == END
  return targets[:, 1:]


def translate(workdir):
  """Returns `(source, reference, translation)` of each line of the test split."""
  predict = train.load(workdir)
  text = predict.dataset
  sources = text.test.inputs[:, : text.source_length]
  starts = range(0, len(sources), BATCH_SIZE)
  tokens = [decode(predict, sources[i : i + BATCH_SIZE], text.target_length) for i in starts]
  lines = text.text(np.concatenate(tokens))
  return [(*pair, line) for pair, line in zip(text.pairs["test"], lines, strict=True)]


if __name__ == "__main__":
  for source, reference, line in translate(sys.argv[1]):
    print(f"source       {source}\nreference    {reference}\ntranslation  {line}\n")

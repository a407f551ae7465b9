"""A small task of two languages, in files as those of Multi30k: each word has one translation."""

import numpy as np
import runs

WORDS = {
  "a": "ein",
  "man": "Mann",
  "dog": "Hund",
  "runs": "läuft",
  "sleeps": "schläft",
  "and": "und",
  "big": "großer",
}
SIZES = {"train": 40, "val": 8, "test_2016_flickr": 8}


def lines(name):
  """`(sources, targets)` of a file."""
  random = np.random.default_rng(list(SIZES).index(name))
  chosen = [random.choice(list(WORDS), size=random.integers(1, 4)) for _ in range(SIZES[name])]
  return (
    [f"{' '.join(words)}." for words in chosen],
    [f"{' '.join(WORDS[word] for word in words)}." for words in chosen],
  )


def write(folder):
  """Writes the six files and returns the folder."""
  for name in SIZES:
    for language, text in zip(("en", "de"), lines(name), strict=True):
      (folder / f"{name}.{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
  return folder


def make_config(folder, fields=None):
  """A run of two steps on the files in a folder."""
  return runs.make_config({"data.parallel_text.path": str(folder), **(fields or {})}, base=TINY)


TINY = {
  # Lengths that all pairs fit into.
  "batch_size": 16,
  "steps": 2,
  "eval_batch_size": 16,
  "log_every": 1,
  "data.name": "parallel_text",
  "data.parallel_text.vocab_size": 60,
  "data.parallel_text.source_length": 13,
  "data.parallel_text.target_length": 13,
  "model.name": "Transformer",
  "model.Transformer.d_model": 8,
  "model.Transformer.d_k": 4,
  "model.Transformer.d_v": 4,
  "model.Transformer.d_ff": 8,
  "model.Transformer.num_heads": 2,
  "model.Transformer.num_layers": 1,
  "model.Transformer.dropout_rate": 0.1,
  "method.name": "label_smoothing",
  "optimizer.learning_rate": 1.0,
  "optimizer.schedule.name": "noam",
  "optimizer.schedule.noam.warmup_steps": 100,
}

"""Decoding against the enumeration of all sequences of a random table of next-token probabilities."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import models

VOCABULARY, LENGTH, BATCH = 5, 4, 6
PAD, BEGIN, END = 0, 1, 2


@functools.cache
def table():
  """Log-probabilities of the token after each prefix, by example: `[batch, 5, 5, 5, 5, 5]`."""
  logits = np.random.default_rng(0).normal(scale=2, size=(BATCH, *[VOCABULARY] * (LENGTH + 1)))
  logits[..., [PAD, BEGIN]] = -np.inf
  return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def row(example, prefix):
  """Of the tokens so far, the rest of the index is padding."""
  return table()[(example, *[*prefix, *[PAD] * (LENGTH - len(prefix))])]


def next_log_probs(tokens, position):
  example = jnp.repeat(jnp.arange(BATCH), len(tokens) // BATCH)
  # The prefix without its beginning; what lies after the position is padding, in a decoder that is right.
  prefix = [tokens[:, i] for i in range(1, LENGTH)]
  rows = jnp.asarray(table(), jnp.float32)[(example, *prefix, jnp.zeros_like(example))]
  assert rows.shape == (len(tokens), VOCABULARY)
  return rows + 0 * position


def sequences():
  """All that end, or have the whole length without an end."""
  words = [t for t in range(VOCABULARY) if t not in (PAD, BEGIN, END)]
  for length in range(LENGTH):
    for body in itertools.product(words, repeat=length):
      yield (*body, END)
  yield from itertools.product(words, repeat=LENGTH)


def log_prob(example, sequence):
  return sum(row(example, sequence[:i])[token] for i, token in enumerate(sequence))


def padded(sequence):
  return [*sequence, *[PAD] * (LENGTH - len(sequence))]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 3.0])
def test_a_beam_that_is_wide_enough_finds_the_best_sequence(length_penalty):
  decode = functools.partial(
    models.beam_decode, next_log_probs, BATCH, length=LENGTH, beam_size=40, length_penalty=length_penalty
  )
  tokens, scores = jax.jit(decode)()
  best_lengths = set()
  for example in range(BATCH):
    rank = lambda s, e=example: log_prob(e, s) / ((5 + len(s)) / 6) ** length_penalty
    best = max(sequences(), key=rank)
    best_lengths.add(len(best))
    np.testing.assert_array_equal(tokens[example], padded(best))
    assert float(scores[example]) == pytest.approx(log_prob(example, best), rel=1e-5)
  assert len(best_lengths) > 1


def greedy(example):
  sequence = []
  while len(sequence) < LENGTH and END not in sequence:
    sequence.append(int(row(example, sequence).argmax()))
  return sequence


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_a_beam_of_one_takes_the_most_probable_token(length_penalty):
  decode = functools.partial(models.beam_decode, next_log_probs, BATCH, length=LENGTH, beam_size=1)
  tokens, scores = jax.jit(functools.partial(decode, length_penalty=length_penalty))()
  assert tokens.dtype == jnp.int32
  for example in range(BATCH):
    np.testing.assert_array_equal(tokens[example], padded(greedy(example)))
    assert float(scores[example]) == pytest.approx(log_prob(example, greedy(example)), rel=1e-5)
  # Otherwise this would test little: some end early, and the best sequence is not always the greedy one.
  assert len({len(greedy(example)) for example in range(BATCH)}) > 1
  best = [max(sequences(), key=functools.partial(log_prob, example)) for example in range(BATCH)]
  assert any(list(best[example]) != greedy(example) for example in range(BATCH))


def test_decoding_stops_once_all_have_ended():
  calls = []

  def count(tokens, position):
    jax.debug.callback(lambda p: calls.append(int(p)), position)
    return jnp.where(jnp.arange(VOCABULARY) == END, 0.0, -1.0)[None] + jnp.zeros((len(tokens), 1))

  tokens, _ = models.beam_decode(count, 2, length=50, beam_size=1)
  jax.effects_barrier()
  assert calls == [0]
  np.testing.assert_array_equal(tokens[:, :2], [[END, PAD]] * 2)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"length": 3, "beam_size": 0}, "beam_size must be at least 1"),
    ({"length": 3, "length_penalty": -1.0}, "length_penalty must be at least 0"),
    ({"length": 3, "length_penalty": float("nan")}, "length_penalty must be at least 0"),
  ],
)
def test_sizes_out_of_range_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    models.beam_decode(next_log_probs, BATCH, **options)


def test_an_empty_batch_or_sequence_is_refused():
  decode = models.beam_decode
  with pytest.raises(ValueError, match="length must be at least 1"):
    decode(next_log_probs, BATCH, length=0)
  with pytest.raises(ValueError, match="batch_size must be at least 1"):
    decode(next_log_probs, 0, length=LENGTH)

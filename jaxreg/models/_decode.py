"""Decoding of sequences from next-token log-probabilities, by a beam."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg._checks import check_count
from jaxreg.typing import Array

NextLogProbs = Callable[[Array, Array], Array]


def beam_decode(
  next_log_probs: NextLogProbs,
  batch_size: int,
  *,
  length: int,
  beam_size: int = 4,
  length_penalty: float = 0.6,
  begin: int = 1,
  end: int = 2,
  pad: int = 0,
) -> tuple[Array, Array]:
  r"""Decodes with the best `beam_size` hypotheses at each position, and returns the best at the end.

  .. math:: \operatorname{score}(y) = \log p(y) \Big/ \Bigl(\frac{5 + |y|}{6}\Bigr)^\alpha

  Ended and open hypotheses compete by the same score, each with its own length. A beam wide enough for all
  prefixes finds the best sequence; a beam of size 1 takes the most probable token at each position.

  Args:
    next_log_probs: maps `(prefixes, position)` to the log-probabilities of the token after
      `prefixes[:, position]`, `[batch * beam_size, vocabulary]`. The prefixes are int32, `[batch * beam_size,
      length]`: `begin`, the decoded tokens, then padding. Those of one sequence are adjacent.
    batch_size: number of sequences.
    length: the largest number of tokens, including the end token.
    beam_size: number of hypotheses.
    length_penalty: `alpha`, at least 0; a larger value favours longer sequences.
    begin, end, pad: tokens.

  Returns:
    The sequences after `begin`, int32 `[batch, length]`, padded after their end, and their log-probabilities
    `[batch]`, not divided by the penalty.

  References:
    Wu et al., `Google's Neural Machine Translation System`, 2016, without its coverage.
    Vaswani et al., `Attention Is All You Need`, 2017, section 6.1: beam 4, alpha 0.6.
  """
  check_count(batch_size, "batch_size")
  check_count(length, "length")
  check_count(beam_size, "beam_size")
  if not length_penalty >= 0:
    raise ValueError(f"length_penalty must be at least 0, got {length_penalty}")

  def step(carry):
    position, tokens, scores, sizes, ended = carry
    log_probs = next_log_probs(tokens[..., :length].reshape(batch_size * beam_size, length), position)
    vocabulary = log_probs.shape[-1]
    log_probs = log_probs.reshape(batch_size, beam_size, vocabulary)
    # An ended hypothesis continues only with padding, at no cost.
    idle = jnp.where(jnp.arange(vocabulary) == pad, 0, -jnp.inf)[None, None, :]
    totals = scores[..., None] + jnp.where(ended[..., None], idle, log_probs)
    sizes += ~ended
    ranks = totals / (((5 + sizes) / 6) ** length_penalty)[..., None]
    _, chosen = jax.lax.top_k(ranks.reshape(batch_size, -1), beam_size)
    parent, token = chosen // vocabulary, (chosen % vocabulary).astype(jnp.int32)
    of_parent = lambda x: jnp.take_along_axis(x, parent, axis=1)
    tokens = jnp.take_along_axis(tokens, parent[..., None], axis=1).at[..., position + 1].set(token)
    scores = jnp.take_along_axis(totals.reshape(batch_size, -1), chosen, axis=1)
    return position + 1, tokens, scores, of_parent(sizes), of_parent(ended) | (token == end)

  tokens = jnp.full((batch_size, beam_size, length + 1), pad, jnp.int32).at[..., 0].set(begin)
  # At first all hypotheses are the same one.
  scores = jnp.zeros((batch_size, beam_size), jnp.float32).at[:, 1:].set(-jnp.inf)
  going = lambda carry: (carry[0] < length) & ~carry[-1].all()
  carry = (jnp.int32(0), tokens, scores, jnp.zeros_like(scores), jnp.zeros(scores.shape, bool))
  _, tokens, scores, _, _ = jax.lax.while_loop(going, step, carry)
  # `top_k` sorts the hypotheses: the first is the best.
  return tokens[:, 0, 1:], scores[:, 0]

"""The transformer against its equations: attention in float64 NumPy, masks, positions, where noise enters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from jaxreg import models, paths
from jaxreg.models._transformer import _Attention, _positional_encoding

SOURCE, TARGET = 5, 4
TINY = {"d_model": 6, "d_k": 3, "d_v": 4, "d_ff": 8, "num_heads": 2, "num_layers": 1}
TOKENS = np.array(
  [[4, 5, 6, 2, 0, 1, 7, 8, 0], [9, 4, 2, 0, 0, 1, 5, 5, 6], [3, 3, 3, 3, 2, 1, 0, 0, 0]], np.int32
)


def tiny(**changes):
  return models.Transformer(vocab_size=11, source_length=SOURCE, **TINY, **changes)


@functools.cache
def tiny_variables():
  variables = jax.jit(functools.partial(tiny().init, train=False))(jax.random.key(0), TOKENS)
  # Biases and scales that are not 0 and 1.
  random = np.random.default_rng(0)
  return jax.tree.map(lambda x: x + 0.1 * random.normal(size=x.shape).astype(np.float32), variables)


def features(tokens):
  return np.asarray(_features(tiny_variables(), tokens))


_features = jax.jit(functools.partial(tiny().apply, train=False))


def changed(row, column, token):
  tokens = TOKENS.copy()
  tokens[row, column] = token
  return tokens


def test_the_publications_sizes():
  model = models.Transformer(vocab_size=4000, source_length=7)
  init = functools.partial(model.init, train=False)
  shapes = jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((2, 12), jnp.int32))["params"]
  names = dict(zip(paths.leaf_names(shapes), jax.tree.leaves(shapes), strict=True))
  assert names["decoder_0/self_attention/query/kernel"].shape == (50, 80)
  assert names["decoder_0/self_attention/query/kernel"].size == 4000
  attention, norm, feed_forward = 4 * 50 * 80, 100, 50 * 256 + 256 + 256 * 50 + 50
  encoder = attention + feed_forward + 2 * norm
  decoder = 2 * attention + feed_forward + 3 * norm
  assert sum(x.size for x in names.values()) == 4000 * 50 + 3 * (encoder + decoder)
  assert {name.split("/")[0] for name in names} == {
    "embedding",
    *(f"{part}_{number}" for part in ("encoder", "decoder") for number in range(3)),
  }


def test_positional_encoding_in_closed_form():
  for length, width in ((7, 50), (3, 5), (1, 1)):
    found = _positional_encoding(length, width)
    assert found.shape == (length, width)
    for p in range(length):
      for k in range(width):
        angle = p / 10000 ** (2 * (k // 2) / width)
        assert found[p, k] == pytest.approx(np.cos(angle) if k % 2 else np.sin(angle), abs=1e-12)


@pytest.mark.thorough
def test_attention_is_its_equation():
  random = np.random.default_rng(1)
  x, memory = random.normal(size=(2, 4, 6)), random.normal(size=(2, 5, 6))
  mask = random.random((2, 4, 5)) < 0.6
  mask[:, :, 0] = True
  widths = {"query": (6, 6), "key": (6, 6), "value": (6, 8), "out": (8, 6)}
  w = {name: random.normal(size=shape) for name, shape in widths.items()}
  expected = np.zeros((2, 4, 6))
  for b in range(2):
    heads = []
    for h in range(2):
      q, k = x[b] @ w["query"][:, 3 * h : 3 * h + 3], memory[b] @ w["key"][:, 3 * h : 3 * h + 3]
      v = memory[b] @ w["value"][:, 4 * h : 4 * h + 4]
      scores = np.where(mask[b], q @ k.T / np.sqrt(3), -np.inf)
      heads.append(softmax(scores, axis=-1) @ v)
    expected[b] = np.concatenate(heads, axis=-1) @ w["out"]
  params = {name: {"kernel": jnp.asarray(value, jnp.float32)} for name, value in w.items()}
  module = _Attention(num_heads=2, d_k=3, d_v=4)
  found = module.apply(
    {"params": params}, x.astype(np.float32), memory.astype(np.float32), jnp.asarray(mask)[:, None]
  )
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.thorough
def test_padding_is_not_seen():
  longer = np.insert(TOKENS, SOURCE, 0, axis=1)
  model = tiny().clone(source_length=SOURCE + 1)
  wide = jax.jit(functools.partial(model.apply, train=False))(tiny_variables(), longer)
  np.testing.assert_allclose(wide, features(TOKENS), rtol=1e-4, atol=1e-5)
  # Padding inside the decoder's inputs, as a wrong caller might leave it, is not seen either.
  gap = changed(1, SOURCE + 1, 0)
  variables = tiny_variables()
  embedding = variables["params"]["embedding"]["embedding"].at[0].add(jnp.arange(6.0))
  moved = {"params": {**variables["params"], "embedding": {"embedding": embedding}}}
  one, other = np.asarray(_features(variables, gap)), np.asarray(_features(moved, gap))
  np.testing.assert_array_equal(one[1, [0, 2, 3]], other[1, [0, 2, 3]])
  assert np.abs(one[1, 1] - other[1, 1]).max() > 1e-3


@pytest.mark.thorough
def test_the_future_is_not_seen_and_all_else_is():
  before = features(TOKENS)
  for position in range(TARGET):
    after = features(changed(1, SOURCE + position, 10))
    np.testing.assert_array_equal(after[1, :position], before[1, :position])
    assert (np.abs(after[1, position:] - before[1, position:]).max(axis=-1) > 1e-4).all()
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
  after = features(changed(0, 1, 10))
  assert (np.abs(after[0] - before[0]).max(axis=-1) > 1e-5).all()
  np.testing.assert_array_equal(after[1:], before[1:])


@pytest.mark.thorough
def test_the_order_of_the_source_matters():
  swapped = TOKENS.copy()
  swapped[0, [0, 1]] = swapped[0, [1, 0]]
  assert np.abs(features(swapped) - features(TOKENS))[0].max() > 1e-4


@pytest.mark.thorough
def test_nothing_but_padding_gives_finite_values_and_gradients():
  def total(variables):
    return (tiny().apply(variables, jnp.zeros((2, SOURCE + TARGET), jnp.int32), train=False) ** 2).sum()

  value, gradient = jax.jit(jax.value_and_grad(total))(tiny_variables())
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def test_decoding_an_encoded_source_is_the_whole():
  @jax.jit
  def parts(variables, source, target):
    apply = functools.partial(tiny().apply, variables, train=False)
    memory = apply(source, method="encode")
    return apply(target, memory, source, method="decode")

  found = parts(tiny_variables(), TOKENS[:, :SOURCE], TOKENS[:, SOURCE:])
  np.testing.assert_allclose(found, features(TOKENS), rtol=1e-5, atol=1e-6)


def recorded_dropout(monkeypatch, model, train=True):
  """The shapes that dropout is applied to, and what comes out."""
  seen = []
  from jaxreg.models import _transformer

  def dropout(key, x, *, rate):
    seen.append((x.shape, rate))
    return x

  monkeypatch.setattr(_transformer.noise, "dropout", dropout)
  rngs = {"dropout": jax.random.key(0)}
  out = jax.eval_shape(lambda v: model.apply(v, TOKENS, train=train, rngs=rngs), tiny_variables())
  assert out.shape == (3, TARGET, 6)
  return seen


def test_dropout_is_on_the_embeddings_and_on_each_sub_layer(monkeypatch):
  seen = recorded_dropout(monkeypatch, tiny(dropout_rate=0.25))
  # Embedding and 2 sub-layers of the source; embedding and 3 of the target.
  assert seen == [((3, SOURCE, 6), 0.25)] * 3 + [((3, TARGET, 6), 0.25)] * 4


def test_without_dropout_there_is_none(monkeypatch):
  assert recorded_dropout(monkeypatch, tiny()) == []
  assert recorded_dropout(monkeypatch, tiny(dropout_rate=0.25), train=False) == []


@pytest.mark.thorough
def test_dropout_is_a_function_of_the_key():
  noisy = jax.jit(
    lambda seed: tiny(dropout_rate=0.1).apply(
      tiny_variables(), TOKENS, train=True, rngs={"dropout": jax.random.key(seed)}
    )
  )
  np.testing.assert_array_equal(noisy(1), noisy(1))
  assert np.abs(noisy(1) - noisy(2)).max() > 1e-2
  with pytest.raises(Exception, match="dropout"):
    tiny(dropout_rate=0.1).apply(tiny_variables(), TOKENS, train=True)


@pytest.mark.thorough
def test_dropout_of_the_embeddings_keeps_their_mean():
  """Within 4.5 sigma over 2000 keys; the layers after them are not linear."""
  model = tiny(dropout_rate=0.3)
  embed = lambda key: model.apply(
    tiny_variables(), jnp.asarray(TOKENS), True, rngs={"dropout": key}, method="_embed"
  )
  quiet = np.asarray(model.apply(tiny_variables(), jnp.asarray(TOKENS), False, method="_embed"))
  draws = np.asarray(jax.jit(jax.vmap(embed))(jax.random.split(jax.random.key(3), 2000)))
  sigma = np.abs(quiet) * np.sqrt(0.3 / 0.7 / 2000)
  assert np.abs(draws.mean(0) - quiet).max() > 0
  assert (np.abs(draws.mean(0) - quiet) <= 4.5 * sigma + 1e-6).all()


@pytest.mark.parametrize(
  ("tokens", "error", "message"),
  [
    (np.zeros((2, 9), np.float32), TypeError, "needs integer tokens, got float32"),
    (np.zeros((2, 5), np.int32), ValueError, r"source_length = 5, got \(2, 5\)"),
    (np.zeros((2, 3, 3), np.int32), ValueError, r"got \(2, 3, 3\)"),
  ],
)
def test_other_inputs_are_refused(tokens, error, message):
  with pytest.raises(error, match=message):
    jax.eval_shape(lambda: tiny().init(jax.random.key(0), tokens, train=False))


@pytest.mark.parametrize("name", [*TINY, "vocab_size"])
def test_sizes_below_1_are_refused(name):
  model = tiny().clone(**{name: 0})
  with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
    jax.eval_shape(lambda: model.init(jax.random.key(0), TOKENS, train=False))


@pytest.mark.thorough
def test_embedding_noise_is_on_every_token_but_padding():
  """With embeddings of 0 the features of a pair of sequences without noise are equal; here they are not."""
  model = tiny(embedding_noise_alpha=5.0)
  run = jax.jit(lambda key, tokens: model.apply(tiny_variables(), tokens, train=True, rngs={"dropout": key}))
  twice = jnp.concatenate([TOKENS[:1], TOKENS[:1]])
  noisy = np.asarray(run(jax.random.key(0), twice))
  assert (noisy[0] != noisy[1]).any()
  padding = jnp.zeros_like(twice)  # nothing to disturb
  np.testing.assert_array_equal(run(jax.random.key(0), padding), run(jax.random.key(1), padding))


@pytest.mark.thorough
def test_embeddings_start_with_the_variance_of_one_over_their_length():
  model = models.Transformer(vocab_size=500, source_length=SOURCE, **{**TINY, "d_model": 40})
  params = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), TOKENS)["params"]
  squares = np.square(np.asarray(params["embedding"]["embedding"], np.float64))
  # The mean of the squares of n normal numbers has the relative deviation sqrt(2 / n).
  assert abs(40 * squares.mean() - 1) < 4 * np.sqrt(2 / squares.size)

"""Mixup and CutMix: pixels and labels mixed in the same shares, and the shares' distribution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import augment


def key(seed=0):
  return jax.random.key(seed)


def marked(number=6, dtype=np.float32, size=4):
  """Images whose only non-zero channel is their own number, and so is their label."""
  x = np.zeros((number, size, size, number))
  x[np.arange(number), ..., np.arange(number)] = 200
  return {"inputs": jnp.asarray(x, dtype), "labels": jnp.arange(number)}


def share(key, number):
  """Beta(1, 1) as documented: one draw of two log-gammas each."""
  gammas = np.exp(np.asarray(jit(lambda key: jax.random.loggamma(key, 1.0, (2, number)))(key), np.float64))
  return gammas[0] / gammas.sum(0)


@pytest.mark.thorough
def test_mixup_mixes_images_and_labels_alike():
  b = marked(dtype=np.uint8)
  out = jit(lambda b: augment.mixup(key(), b, alpha=1.0, num_classes=6))(b)
  assert out["inputs"].dtype == np.uint8
  y = np.asarray(out["labels"], np.float64)
  np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-6)
  want = 200 * np.broadcast_to(y[:, None, None], out["inputs"].shape)
  np.testing.assert_allclose(out["inputs"], want, atol=0.51)  # the nearest integers
  assert ((y > 0).sum(-1) <= 2).all()
  assert (y.diagonal() > 0).all()
  other = np.asarray(jax.random.permutation(jax.random.split(key())[1], 6))
  assert (y[np.arange(6), other] > 0).all()
  assert len(set(y.diagonal())) > 3  # each draws its own share


@pytest.mark.thorough
def test_labels_of_numpy_are_checked_and_the_first_class_is_one():
  b = {"inputs": jnp.zeros((2, 1)), "labels": np.array([0, 2])}
  np.testing.assert_allclose(augment.mixup(key(), b, num_classes=3)["labels"].sum(-1), 1, rtol=1e-6)
  narrow = {**b, "labels": np.array([3, 200], np.uint8)}  # 8 bits would count 3 + 256 as 3
  mixed = np.asarray(augment.mixup(key(), narrow, num_classes=300)["labels"])
  np.testing.assert_allclose(mixed[:, [3, 200]].sum(-1), 1, rtol=1e-6)
  np.testing.assert_allclose(mixed.sum(-1), 1, rtol=1e-6)
  for wrong in ([-1, 0], [0, 3]):
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\)"):
      augment.mixup(key(), {**b, "labels": np.array(wrong)}, num_classes=3)


@pytest.mark.slow
def test_mixup_s_shares_are_beta_of_each_example_or_of_the_batch():
  number = 8000
  b = {"inputs": jnp.zeros((number, 1)), "labels": jax.nn.one_hot(jnp.arange(number) % 2, 2)}
  mix = lambda b, each: augment.mixup(key(3), b, alpha=0.5, per_example=each)["labels"]
  one, each = (np.asarray(y) for y in jit(lambda b: (mix(b, False), mix(b, True)))(b))
  own = np.arange(number) % 2
  other = own[np.asarray(jax.random.permutation(jax.random.split(key(3))[1], number))]
  shares = each[np.arange(number), own][other != own]
  assert abs(shares.mean() - 0.5) < 0.02
  assert abs(shares.var() - 1 / (4 * (2 * 0.5 + 1))) < 0.005
  assert len(np.unique(one)) <= 4  # a share, what is left of it, and 0 and 1 for like with like


@pytest.mark.thorough
def test_mixing_twice_leaves_the_labels_whole():
  """At most four classes an example, of sum 1: what the trainer counts on."""
  b = {"inputs": jnp.zeros((12, 4, 4, 1)), "labels": jnp.arange(12)}
  one, other = jax.random.split(key(2))
  twice = lambda b: augment.cutmix(other, augment.mixup(one, b, alpha=1.0, num_classes=12))
  y = np.asarray(jit(twice)(b)["labels"], np.float64)
  np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-6)
  assert (y > 0).sum(-1).max() == 4


@pytest.mark.thorough
@pytest.mark.parametrize("label", [-1, 6])
@pytest.mark.parametrize("function", [augment.mixup, augment.cutmix])
def test_a_label_out_of_range_does_not_lower_the_sum(function, label):
  b = marked()
  labels = b["labels"].at[2].set(label)
  y = np.asarray(
    jit(lambda b: function(key(), b, alpha=1.0, num_classes=6))({**b, "labels": labels})["labels"]
  )
  assert np.isnan(y[2]).all()
  np.testing.assert_allclose(y[~np.isnan(y).any(-1)].sum(-1), 1, rtol=1e-6)
  for known in (labels, np.asarray(labels)):
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 6\).*cannot be mixed"):
      function(key(), {**b, "labels": known}, num_classes=6)


@pytest.mark.thorough
def test_one_share_of_the_batch_is_the_same_for_all():
  b = marked()
  y = np.asarray(
    jit(lambda b: augment.mixup(key(5), b, alpha=1.0, num_classes=6, per_example=False))(b)["labels"]
  )
  other = np.asarray(jax.random.permutation(jax.random.split(key(5))[1], 6))
  own = y.diagonal()[other != np.arange(6)]
  assert len(own) > 3
  np.testing.assert_allclose(own, own[0], rtol=1e-6)
  assert 0.01 < own[0] < 0.99


@pytest.mark.thorough
def test_cutmix_s_labels_are_the_areas_of_its_boxes():
  """Sides floor(9 sqrt(u)) around the pixel floor(9 v), cut at the edges."""
  number = 24
  b = marked(number=8, dtype=np.uint8, size=9)
  b = {name: jnp.tile(x, (3, *[1] * (x.ndim - 1))) for name, x in b.items()}
  out = jit(lambda b: augment.cutmix(key(1), b, num_classes=8))(b)
  before, x, y = np.array(b["inputs"]), np.asarray(out["inputs"]), np.asarray(out["labels"])
  assert x.dtype == np.uint8
  np.testing.assert_allclose(y, (x == 200).mean((1, 2)), atol=1e-6)
  np.testing.assert_array_equal((x == 200).sum(-1), 1)  # every pixel is of one image
  keys = jax.random.split(key(1), 3)
  side = np.floor(9 * np.sqrt(1 - share(keys[0], number))).astype(int)
  start = np.floor(9 * np.asarray(jax.random.uniform(keys[1], (2, number)))).astype(int) - side // 2
  other = np.asarray(jax.random.permutation(keys[2], number))
  for i in range(number):
    want = before[i].copy()
    at = tuple(slice(max(s, 0), max(s + side[i], 0)) for s in start[:, i])
    want[at] = before[other[i]][at]
    np.testing.assert_array_equal(x[i], want)


@pytest.mark.parametrize("function", [augment.mixup, augment.cutmix])
def test_refusals(function):
  b = marked()
  with pytest.raises(ValueError, match="num_classes must be given"):
    function(key(), b)
  with pytest.raises(ValueError, match="alpha must lie in"):
    function(key(), b, num_classes=6, alpha=0.0)
  with pytest.raises(TypeError, match=r"batch must be a mapping with 'inputs'.*got a tuple"):
    function(key(), (b["inputs"], b["labels"]), num_classes=6)
  with pytest.raises(ValueError, match=r"batch must have 'inputs', got \['labels'\]"):
    function(key(), {"labels": b["labels"]}, num_classes=6)
  with pytest.raises(ValueError, match="batch must have 'labels'"):
    function(key(), {"inputs": b["inputs"]})
  with pytest.raises(ValueError, match=r"labels must be \[batch, \.\.\.\], got a scalar"):
    function(key(), {**b, "labels": jnp.float32(1)})
  with pytest.raises(TypeError, match=r"labels must be integers, or floats.*got bool"):
    function(key(), {**b, "labels": jnp.ones((6, 2), bool)})
  for name, wrong in (("weights", (6, 1)), ("where", (2,)), ("where", ())):
    with pytest.raises(ValueError, match=r"leading axes of the soft labels \(6, 6\), got"):
      function(key(), {**b, name: np.ones(wrong)}, num_classes=6)
  with pytest.raises(ValueError, match=r"where must have shape \(6,\), got \(6, 6\)"):
    function(key(), {**b, "weights": np.ones(6), "where": np.ones((6, 6), bool)}, num_classes=6)
  with pytest.raises(TypeError, match="key must be a typed key"):
    function(0, b, num_classes=6)
  with pytest.raises(TypeError, match="inputs must be uint8 or floating"):
    augment.mixup(key(), {**b, "inputs": jnp.ones((6, 2), int)}, num_classes=6)


@pytest.mark.thorough
def test_manifold_mixup_mixes_one_layer_by_the_shares_of_the_labels():
  b, layers = marked(), ("first", "second")
  seen = set()
  mix = jit(lambda key: augment.manifold_mixup(key, b, layers=layers, num_classes=6))
  for seed in range(6):
    out = mix(key(seed))
    hidden = {name: augment.mix_hidden(b["inputs"], out["mixing"], layer=name) for name in layers}
    moved = [name for name in layers if (hidden[name] != b["inputs"]).any()]
    assert len(moved) == 1
    seen |= set(moved)
    want = 200 * np.broadcast_to(np.asarray(out["labels"])[:, None, None], b["inputs"].shape)
    np.testing.assert_allclose(hidden[moved[0]], want, rtol=1e-5)
  assert seen == set(layers)
  for per_example, number in ((True, 6), (False, 1)):
    one = augment.manifold_mixup(key(1), b, layers=["first"], num_classes=6, per_example=per_example)
    assert len(np.unique(one["mixing"].shares["first"])) == number


@pytest.mark.thorough
def test_manifold_mixup_refuses():
  for layers in ((), ("a", "a")):
    with pytest.raises(ValueError, match="layers must name"):
      augment.manifold_mixup(key(), marked(), layers=layers, num_classes=6)
  with pytest.raises(ValueError, match="alpha must lie in"):
    augment.manifold_mixup(key(), marked(), layers=["a"], num_classes=6, alpha=0.0)
  mixing = augment.manifold_mixup(key(), marked(), layers=["a"], num_classes=6)["mixing"]
  with pytest.raises(ValueError, match="batch axis of the mixing, 6"):
    augment.mix_hidden(jnp.zeros((3, 2)), mixing, layer="a")
  with pytest.raises(ValueError, match="layer must be one of a, got 'b'"):
    augment.mix_hidden(jnp.zeros((6, 2)), mixing, layer="b")


def test_labels_that_are_numbers_mix_as_the_inputs_do():
  numbers = jnp.arange(6.0)
  batch = augment.mixup(key(), {"inputs": numbers[:, None] * 2, "labels": numbers})
  np.testing.assert_allclose(batch["labels"], batch["inputs"][:, 0] / 2, rtol=1e-6)


MIXES = {
  "mixup": augment.mixup,
  "cutmix": augment.cutmix,
  "manifold_mixup": functools.partial(augment.manifold_mixup, layers=("first",)),
}


@pytest.mark.parametrize("entry", ["weights", "where", "labels"])
@pytest.mark.parametrize("name", MIXES)
def test_partners_are_drawn_among_the_examples_that_count(name, entry):
  """Every fourth example is broken; the others are mixed with each other by a permutation, each alike."""
  number, size = 12, 2
  broken = np.arange(number) % 4 == 1
  labels = np.where(broken, -1, np.arange(number)) if entry == "labels" else np.arange(number)
  batch = {"inputs": jnp.where(broken[:, None, None, None], jnp.nan, jnp.ones((number, size, size, 1)))}
  batch |= {"labels": jnp.asarray(labels)}
  batch |= {"weights": jnp.float32(~broken) / 3} if entry == "weights" else {}
  batch |= {"where": jnp.asarray(~broken)} if entry == "where" else {}
  mix = jax.jit(lambda key, batch: MIXES[name](key, batch, alpha=1.0, num_classes=number))
  seen = np.zeros((number, number))
  for seed in range(150):
    out = mix(key(seed), batch)
    inputs, mixed = np.asarray(out["inputs"]), np.asarray(out["labels"])
    if name == "manifold_mixup":
      inputs = np.asarray(augment.mix_hidden(out["inputs"], out["mixing"], layer="first"))
    np.testing.assert_allclose(inputs[~broken], 1, rtol=1e-6)
    assert (mixed[~broken][:, broken] == 0).all()
    shares = mixed[~broken][:, ~broken]
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    seen[np.ix_(~broken, ~broken)] += shares > 0
  others = seen[np.ix_(~broken, ~broken)][~np.eye(9, dtype=bool)]
  if name != "cutmix":  # whose box may have no pixel
    assert abs(others.mean() - 150 / 9) < 1
    assert (abs(others - 150 / 9) < 5 * np.sqrt(150 / 9)).all()


@pytest.mark.parametrize("weights", [np.ones(6), np.full((6, 6), 0.5)])
def test_weights_above_0_change_no_draw(weights):
  b = marked()
  plain = augment.mixup(key(), b, num_classes=6)
  other = augment.mixup(key(), {**b, "weights": weights}, num_classes=6)
  for name in ("inputs", "labels"):
    np.testing.assert_array_equal(plain[name], other[name])


@pytest.mark.parametrize("name", MIXES)
def test_a_label_counts_in_a_pair_as_its_example_does(name):
  batch, weights = marked(), np.array([1, 1e-9, 0.5, 3, 0, 1], np.float32)
  mix = lambda batch: MIXES[name](key(), batch, alpha=1.0, num_classes=6)
  counted = {**batch, "where": weights > 0}  # the same draws, by which each label has its share
  shares = np.asarray(mix(counted)["labels"], np.float64)
  out = mix({**batch, "weights": weights})
  np.testing.assert_allclose(out["weights"], shares @ weights, rtol=1e-5)
  want = (shares * weights)[weights > 0]
  got = np.asarray(out["labels"])[weights > 0]
  np.testing.assert_allclose(got, want / want.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("entry", ["weights", "where"])
@pytest.mark.parametrize("missing", [-999.0, np.nan])
@pytest.mark.parametrize("name", MIXES)
def test_a_target_counts_in_a_pair_as_its_own_entry_does(name, missing, entry):
  counts = np.array([[1, 0], [1, 1], [0, 1], [1, 1], [0, 0], [1, 0]], bool)
  targets = np.arange(1.0, 13).reshape(6, 2)
  weights = counts if entry == "where" else counts * np.float32([[1, 2]])
  mix = lambda batch: MIXES[name](key(), {**marked(), **batch}, alpha=1.0)
  # The same draws, by which each label has its share.
  shares = np.asarray(mix({"labels": jnp.eye(6), "where": counts.any(1)})["labels"], np.float64)
  out = mix({"labels": jnp.where(counts, targets, missing), entry: jnp.asarray(weights)})
  np.testing.assert_allclose(out["weights"], shares @ weights, rtol=1e-5)
  np.testing.assert_allclose(out["weights"] * out["labels"], shares @ (weights * targets), rtol=1e-5)
  if entry == "where":
    np.testing.assert_array_equal(out["where"], shares @ counts > 0)


def test_an_example_that_does_not_count_needs_no_label():
  b = {"inputs": jnp.zeros((3, 1)), "labels": np.array([0, -1, 1]), "where": np.array([True, False, True])}
  np.testing.assert_allclose(augment.mixup(key(), b, num_classes=2)["labels"][::2].sum(-1), 1, rtol=1e-6)

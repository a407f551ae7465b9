"""The Vision Transformer against its equations in float64 NumPy, and the noise that each block draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.special import softmax

from jaxreg import constraints, models, paths
from jaxreg.models._vit import POLICIES, _Block

TINY = {"patch_size": 2, "width": 8, "depth": 3, "num_heads": 2, "d_ff": 12}
IMAGES = np.random.default_rng(0).normal(size=(3, 4, 6, 2)).astype(np.float32)


def tiny(**changes):
  return models.ViT(**{**TINY, **changes})


def initial(model, images=IMAGES):
  """Parameters whose biases, scales and token are not 0 and 1."""
  params = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), images)["params"]
  random = np.random.default_rng(1)
  return jax.tree.map(lambda x: x + 0.2 * random.normal(size=x.shape).astype(np.float32), params)


def layer_norm(x, p):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def affine(x, p):
  return x @ p["kernel"] + p["bias"]


def gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sincos(row, column, width):
  """The encoding of one patch, number by number."""
  n = width // 4
  omegas = [10000 ** (-i / (n - 1)) for i in range(n)]
  parts = [(np.sin, column), (np.cos, column), (np.sin, row), (np.cos, row)]
  return np.array([function(place * omega) for function, place in parts for omega in omegas])


def expected_features(model, params, images):
  """The network in float64, example by example and head by head."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  size, heads = model.patch_size, model.num_heads
  features = []
  for image in images.astype(np.float64):
    tokens = []
    for row in range(image.shape[0] // size):
      for column in range(image.shape[1] // size):
        patch = image[row * size : (row + 1) * size, column * size : (column + 1) * size]
        token = affine(patch.ravel(), p["patches"])
        if model.positions == "sincos":
          token = token + sincos(row, column, model.width)
        else:
          token = token + p["positions"][len(tokens)]
        tokens.append(token)
    x = np.stack([p["token"][0], *tokens] if model.pooling == "token" else tokens)
    for layer in range(model.depth):
      block = jax.tree.map(lambda leaf: leaf[layer], p["stacked"])  # noqa: B023
      y = layer_norm(x, block["attention_norm"])
      query, key, value = (np.split(affine(y, block[name]), heads, -1) for name in ("query", "key", "value"))
      attended = [
        softmax(q @ k.T / np.sqrt(q.shape[-1]), axis=-1) @ v
        for q, k, v in zip(query, key, value, strict=True)
      ]
      scale = block["attention_scale"]["scale"] if model.layer_scale else 1
      x = x + scale * affine(np.concatenate(attended, -1), block["out"])
      y = affine(gelu(affine(layer_norm(x, block["mlp_norm"]), block["hidden"])), block["mlp"])
      x = x + (block["mlp_scale"]["scale"] if model.layer_scale else 1) * y
    x = layer_norm(x, p["norm"])
    features.append(x[0] if model.pooling == "token" else x.mean(0))
  return np.stack(features)


@pytest.mark.parametrize(
  "options",
  [{}, {"positions": "learned", "pooling": "token", "layer_scale": 0.5}],
  ids=["sincos, mean", "learned, token, LayerScale"],
)
def test_the_features_are_the_equations(options):
  model = tiny(**options)
  params = initial(model)
  features = model.apply({"params": params}, IMAGES, train=False)
  np.testing.assert_allclose(features, expected_features(model, params, IMAGES), rtol=2e-5, atol=2e-5)


def test_the_publications_size():
  """22.0 million parameters with the classifier of 1000 classes, as the table of ViT-S/16 says."""
  shape = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  init = functools.partial(models.ViT().init, train=False)
  leaves = jax.tree.leaves(jax.eval_shape(init, jax.random.key(0), shape)["params"])
  block = 4 * (384 * 384 + 384) + 384 * 1536 + 1536 + 1536 * 384 + 384 + 4 * 384
  count = sum(x.size for x in leaves)
  assert count == 16 * 16 * 3 * 384 + 384 + 12 * block + 2 * 384
  assert round((count + 385 * 1000) / 1e6, 1) == 22.0


def branches(model, batch, key):
  """What each branch adds to each example `[batch, 2 depth]`, if it is kept and drawn at rate 0, 1.

  Each branch is a constant: its last layer has a zero kernel and a bias of one unit of its own.
  """
  images = np.zeros((batch, model.patch_size, model.patch_size, 1), np.float32)
  shapes = jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), images)["params"]
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  for layer in range(model.depth):
    params["stacked"]["out"]["bias"][layer, 2 * layer] = 1
    params["stacked"]["mlp"]["bias"][layer, 2 * layer + 1] = 1
  seen = []

  def record(function, args, kwargs, context):
    if context.module.path == ("norm",):
      seen.append(args[0])
    return function(*args, **kwargs)

  with nn.intercept_methods(record):
    model.apply({"params": params}, images, train=True, rngs={"dropout": key})
  return np.asarray(seen[0][:, 0, : 2 * model.depth])


NARROW = {"patch_size": 1, "width": 12, "depth": 5, "num_heads": 1, "d_ff": 1, "positions": "learned"}


def test_stochastic_depth_draws_for_each_block_and_example_independently():
  number, rate = 4000, 0.5
  added = branches(models.ViT(**NARROW, branch_rate=rate), number, jax.random.key(3))
  rates = np.repeat([0.1, 0.2, 0.3, 0.4, 0.5], 2)
  kept = added > 0
  np.testing.assert_allclose(added, kept / (1 - rates), rtol=1e-6)
  error = np.sqrt(rates * (1 - rates) / number)
  assert (np.abs(kept.mean(0) - (1 - rates)) < 4 * error).all()
  correlation = np.corrcoef(kept.T) - np.eye(10)
  assert np.abs(correlation).max() < 4.5 / np.sqrt(number), "two branches share their draws"
  # Neighbours in the batch share none either.
  assert np.abs(np.corrcoef(kept[1:, 4], kept[:-1, 4])[0, 1]) < 4.5 / np.sqrt(number)


def test_the_schedule_of_the_rates():
  added = branches(
    models.ViT(**NARROW, branch_rate=0.4, branch_schedule="linear_from_zero"), 50, jax.random.key(1)
  )
  expected = np.repeat(1 / (1 - np.array([0, 0.1, 0.2, 0.3, 0.4])), 2)
  np.testing.assert_allclose(added.max(0), expected, rtol=1e-6)
  assert (added[:, :2] == 1).all()


def weights_of_attention(**rates):
  """The weights `[batch, heads, queries, keys]` of one block whose scores are all equal."""
  batch, tokens, heads = 300, 6, 2
  width = tokens * heads
  options = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "dropkey_rate": 0.0, **rates}
  block = _Block(num_heads=heads, d_ff=1, layer_scale=0.0, train=True, **options)
  x = np.zeros((batch, tokens, width), np.float32)
  x[:, range(tokens), range(tokens)] = 1  # a LayerNorm keeps which entry is the largest
  shapes = jax.eval_shape(block.init, {"params": jax.random.key(0), "dropout": jax.random.key(0)}, x, None)
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes["params"])
  # The value of token t is the unit vector t in each head: its normalised entry is larger than the rest.
  params["attention_norm"]["scale"][:] = 1
  large, small = np.sort(
    np.unique(np.asarray(nn.LayerNorm().apply({"params": params["attention_norm"]}, x)))
  )[[-1, 0]]
  params["value"]["kernel"] = np.tile(np.eye(width, tokens), heads).astype(np.float32) / (large - small)
  params["value"]["bias"][:] = -small / (large - small)
  seen = []

  def record(function, args, kwargs, context):
    if context.module.path == ("out",):
      seen.append(args[0])
    return function(*args, **kwargs)

  with nn.intercept_methods(record):
    block.apply({"params": params}, x, None, rngs={"dropout": jax.random.key(5)})
  return np.asarray(seen[0]).reshape(batch, tokens, heads, tokens).transpose(0, 2, 1, 3)


def test_dropkey_hides_keys_and_the_rest_sums_to_one():
  weights = weights_of_attention(dropkey_rate=0.7)
  np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
  seen = weights > 1e-4
  number = seen.sum(-1)
  np.testing.assert_allclose(weights, np.where(seen, 1 / number[..., None], 0), atol=1e-5)
  # Without a key, a query attends to all of them: 0.7^6 of the queries add to those that see all.
  all_seen = 0.3**6 + 0.7**6
  assert abs((number == 6).mean() - all_seen) < 4 * np.sqrt(all_seen / number.size)
  drawn = seen[number < 6]
  one = np.array([0.3 * (1 - 0.3**5) / (1 - all_seen)])  # a key is seen, given that some are and some not
  assert abs(drawn.mean() - one[0]) < 4 * 0.5 / np.sqrt(drawn.size)
  assert (seen[:, 0] != seen[:, 1]).mean() > 0.3, "the heads share their draws"


def test_attention_dropout_is_inverted_dropout_of_the_weights():
  weights = weights_of_attention(attention_dropout_rate=0.25)
  kept = weights > 1e-4
  np.testing.assert_allclose(weights, kept / 6 / 0.75, atol=1e-5)
  assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / kept.size)


NOISY = {"dropout_rate": 0.2, "attention_dropout_rate": 0.1, "dropkey_rate": 0.1, "branch_rate": 0.3}


@pytest.mark.parametrize("name", NOISY)
def test_each_noise_draws_in_training_only(name):
  model = tiny(**{name: 0.5})
  variables = {"params": initial(tiny())}
  quiet = model.apply(variables, IMAGES, train=False)
  np.testing.assert_array_equal(quiet, tiny().apply(variables, IMAGES, train=True))
  drawn = [model.apply(variables, IMAGES, train=True, rngs={"dropout": jax.random.key(k)}) for k in (0, 0, 1)]
  np.testing.assert_array_equal(drawn[0], drawn[1])
  for other in (quiet, drawn[2]):
    assert np.abs(drawn[0] - other).max() > 1e-3


def gradient_of(model):
  def loss(params):
    out = model.apply({"params": params}, IMAGES, train=True, rngs={"dropout": jax.random.key(2)})
    return (out[:, :3] ** 2).sum()

  return jax.grad(loss)


@pytest.mark.thorough
def test_every_policy_has_the_same_gradient_and_draws_and_recomputes():
  params = initial(tiny())
  results = {name: jax.jit(gradient_of(tiny(**NOISY, remat=name)))(params) for name in POLICIES}
  for name in POLICIES[1:]:
    for one, other in zip(jax.tree.leaves(results[name]), jax.tree.leaves(results[""]), strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
  products = {
    name: str(jax.make_jaxpr(gradient_of(tiny(remat=name)))(params)).count("dot_general") for name in POLICIES
  }
  assert (
    products["nothing_saveable"] > products["dots_with_no_batch_dims_saveable"] > products["dots_saveable"]
  )
  assert products["dots_saveable"] == products[""]


def test_the_program_does_not_grow_with_depth():
  sizes = {
    str(jax.make_jaxpr(gradient_of(tiny(depth=depth, **NOISY)))(initial(tiny(depth=depth)))).count(" = ")
    for depth in (2, 9)
  }
  assert len(sizes) == 1


def test_in_bfloat16_the_softmax_is_float32():
  model, params = tiny(), initial(tiny())
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  features = model.apply({"params": half}, IMAGES.astype(jnp.bfloat16), train=False)
  assert features.dtype == jnp.bfloat16
  exact = expected_features(model, params, IMAGES)
  assert np.abs(features.astype(np.float32) - exact).max() < 0.05 * np.abs(exact).max()
  text = str(jax.make_jaxpr(functools.partial(model.apply, train=False))({"params": half}, IMAGES))
  assert "exp" in text
  assert ":bf16[3,2,6,6] = exp" not in text


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", ["mean", "token"])
def test_split_over_explicit_axes_it_draws_and_computes_the_same(pooling):
  model, images = tiny(**NOISY, pooling=pooling, layer_scale=0.3), np.repeat(IMAGES, 2, axis=0)[:4]
  params = initial(model)

  @jax.jit
  def apply(params, images):
    return model.apply({"params": params}, images, train=True, rngs={"dropout": jax.random.key(2)})

  whole = apply(params, images)
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
  with jax.set_mesh(mesh):
    params = jax.device_put(params, NamedSharding(mesh, P()))
    split = apply(params, jax.device_put(images, NamedSharding(mesh, P("data"))))
  assert split.sharding.spec[0] == "data"
  np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-5)


def test_norms_per_unit_treat_each_block_by_itself():
  params = {name: tree for name, tree in initial(tiny())["stacked"].items() if "norm" not in name}
  limited = constraints.max_norm({"stacked": params}, limit=0.4)["stacked"]
  for name, tree in params.items():
    for layer, kernel in enumerate(np.asarray(tree["kernel"], np.float64)):
      factor = np.minimum(1, 0.4 / np.linalg.norm(kernel, axis=0))
      np.testing.assert_allclose(limited[name]["kernel"][layer], kernel * factor, rtol=1e-5)
  assert paths.incoming_axes("backbone/stacked/query/kernel", 3) == (1,)
  assert paths.incoming_axes("stacked/hidden/bias", 2) == (1,)
  assert paths.incoming_axes("layers/stacked/0/weight", 3) == (2,)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"patch_size": 4}, r"patch_size must divide the sides of the images, \(4, 6\), got 4"),
    ({"num_heads": 3}, "num_heads must divide width=8, got 3"),
    ({"width": 6, "num_heads": 2}, "width must be a multiple of 4 with positions=sincos, got 6"),
    ({"depth": 0}, "depth must be at least 1"),
    ({"remat": "all"}, "remat must be one of"),
    ({"pooling": "max"}, "pooling must be one of"),
    ({"positions": "none"}, "positions must be one of"),
  ],
)
def test_what_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(functools.partial(tiny(**options).init, train=False), jax.random.key(0), IMAGES)


def test_other_inputs_are_refused():
  with pytest.raises(ValueError, match=r"ViT needs images .*got \(3, 48\)"):
    jax.eval_shape(functools.partial(tiny().init, train=False), jax.random.key(0), IMAGES.reshape(3, -1))

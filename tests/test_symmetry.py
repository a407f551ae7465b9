"""Permuted and rescaled networks: the same outputs, other gradients, and which optimizers notice."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg import optim, symmetry

WHERE = "Gradient Descent under Reparameterization"
ORDER = np.array([2, 0, 3, 1])
LAYER = {"incoming": "a/*", "outgoing": "b/kernel"}


def make(seed=0):
  rng = np.random.default_rng(seed)
  params = {
    "a": {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)},
    "b": {"kernel": rng.normal(size=(4, 2)), "bias": rng.normal(size=2)},
  }
  return jax.tree.map(jnp.asarray, params), rng.normal(size=(8, 3)), np.exp(rng.normal(size=4))


def mlp(params, x, activation=jax.nn.relu):
  x = activation(x @ params["a"]["kernel"] + params["a"]["bias"][None])
  return x @ params["b"]["kernel"] + params["b"]["bias"][None]


def gap(apply, params, other, *inputs):
  """The largest difference of the outputs, relative to the largest output."""
  first, second = apply(params, *inputs), apply(other, *inputs)
  return jnp.abs(first - second).max() / jnp.abs(first).max()


def loss(params, x):
  return jnp.mean(jnp.square(mlp(params, x)) * jnp.array([[1.0, 3.0]])) + jnp.mean(mlp(params, x))


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  "Local Minima",
  "a layer of n units has n! permutations that are the same function",
  size="toy",
)
def test_permuted_units_are_the_same_function(x64):
  params, x, _ = make()
  other = symmetry.permute_units(params, ORDER, **LAYER)
  np.testing.assert_array_equal(other["a"]["bias"], params["a"]["bias"][ORDER])
  assert np.abs(other["a"]["kernel"] - params["a"]["kernel"]).max() > 0.1
  assert gap(mlp, params, other, x) < 1e-14
  back = symmetry.permute_units(other, np.argsort(ORDER), **LAYER)
  chex.assert_trees_all_equal(back, params)
  # Without the other side it is another function.
  assert gap(mlp, params, {**other, "b": params["b"]}, x) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("make_tx", [lambda: optax.sgd(0.1), lambda: optim.exact_adam(0.1)])
def test_optimizers_commute_with_permutations(make_tx, x64):
  """And those that normalise leaves; one that raises the gradient to a power, element by element, too."""
  params, x, _ = make(1)
  tx = optax.chain(optim.p_norm_sgd(1.0, p=3.0), optim.trust_region(1.0, blocks="leaf"), make_tx())

  def step(params):
    return optax.apply_updates(params, tx.update(jax.grad(loss)(params, x), tx.init(params), params)[0])

  moved = jit(step)(params)
  first = symmetry.permute_units(moved, ORDER, **LAYER)
  then = jit(step)(symmetry.permute_units(params, ORDER, **LAYER))
  chex.assert_trees_all_close(first, then, rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  WHERE,
  "ReLU units can be rescaled: f(Aw) = f(w), and the gradient becomes A^-1 times it",
  size="toy",
)
def test_rescaled_units_are_the_same_function_with_other_gradients(x64):
  params, x, scales = make(2)
  other = symmetry.rescale_units(params, scales, **LAYER)
  assert gap(mlp, params, other, x) < 1e-14
  gradient = jit(jax.grad(loss))
  g, h = gradient(params, x), gradient(other, x)
  np.testing.assert_allclose(h["a"]["kernel"], np.asarray(g["a"]["kernel"]) / scales, rtol=1e-10)
  np.testing.assert_allclose(h["a"]["bias"], g["a"]["bias"] / scales, rtol=1e-10)
  np.testing.assert_allclose(h["b"]["kernel"], np.asarray(g["b"]["kernel"]) * scales[:, None], rtol=1e-10)
  np.testing.assert_allclose(h["b"]["bias"], g["b"]["bias"], rtol=1e-10)
  step = lambda w, g: jax.tree.map(lambda w, g: w - 0.1 * g, w, g)
  assert gap(mlp, step(params, g), step(other, h), x) > 0.1
  leaky = lambda params, x: mlp(params, x, jax.nn.leaky_relu)
  assert gap(leaky, params, other, x) < 1e-14
  for activation in (jax.nn.gelu, jnp.tanh, jax.nn.softmax):
    curved = lambda params, x, activation=activation: mlp(params, x, activation)
    assert gap(curved, params, other, x) > 1e-3
  forgotten = {**other, "a": {**other["a"], "bias": params["a"]["bias"]}}
  assert gap(mlp, params, forgotten, x) > 1e-2


@pytest.mark.thorough
def test_channels_through_pooling_and_flattening(x64):
  """A convolution, a max pool, and a dense layer on the flattened image: rows are positions by channels."""
  rng = np.random.default_rng(3)
  params = {
    "a": {"kernel": jnp.asarray(rng.normal(size=(2, 2, 1, 4))), "bias": jnp.asarray(rng.normal(size=4))},
    "b": {"kernel": jnp.asarray(rng.normal(size=(2 * 2 * 4, 3)))},
  }

  def apply(params, x):
    kinds = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    x = (
      jax.lax.conv_general_dilated(x, params["a"]["kernel"], **kinds) + params["a"]["bias"][None, None, None]
    )
    x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(len(x), -1) @ params["b"]["kernel"]

  x = rng.normal(size=(5, 4, 4, 1))
  scaled = symmetry.rescale_units(params, np.exp(rng.normal(size=4)), **LAYER)
  permuted = symmetry.permute_units(params, ORDER, **LAYER)
  error = jit(lambda a, b: gap(apply, a, b, x))
  assert error(params, scaled) < 1e-14
  assert error(params, permuted) < 1e-14
  assert error(scaled, {**scaled, "b": params["b"]}) > 0.1


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  WHERE,
  "BN: forward is invariant to the scale of the weights, backward is not: the gradient is divided by it",
  size="toy",
)
def test_batch_normalisation(x64):
  rng = np.random.default_rng(4)
  params = {
    "a": {"kernel": jnp.asarray(rng.normal(size=(3, 4)))},
    "b": {"kernel": jnp.asarray(rng.normal(size=(4, 2)))},
  }
  x = rng.normal(size=(16, 3))

  def apply(params):
    z = x @ params["a"]["kernel"]
    z = (z - z.mean(0)[None]) / jnp.sqrt(z.var(0))[None]
    return jnp.square(jax.nn.relu(z) @ params["b"]["kernel"])

  scales = np.array([2.0, 0.1, 7.0, 1.0])
  other = symmetry.rescale_normalized(params, scales, incoming="a/kernel")
  assert gap(apply, params, other) < 1e-13
  gradient = jit(jax.grad(lambda params: apply(params).mean()))
  g, h = (np.asarray(gradient(w)["a"]["kernel"]) for w in (params, other))
  np.testing.assert_allclose(h, g / scales, rtol=1e-9, atol=1e-14)
  np.testing.assert_allclose((g * params["a"]["kernel"]).sum(0), 0, atol=1e-14)
  by_a_number = symmetry.rescale_normalized(params, 3.0, incoming="a/kernel")
  np.testing.assert_allclose(by_a_number["a"]["kernel"], 3 * params["a"]["kernel"])


def _torch_mlp(params, x):
  hidden = jax.nn.relu(x @ params["0"]["weight"].T + params["0"]["bias"][None])
  return hidden @ params["2"]["weight"].T + params["2"]["bias"][None]


def _torch():
  shapes = {"0": {"weight": (4, 4), "bias": (4,)}, "2": {"weight": (4, 4), "bias": (4,)}}
  rng = np.random.default_rng(7)
  params = jax.tree.map(lambda shape: rng.normal(size=shape), shapes, is_leaf=lambda x: isinstance(x, tuple))
  return params, _torch_mlp, rng.normal(size=(5, 4)), {"incoming": "0/*", "outgoing": "2/weight"}


def _equinox_images():
  """Channels first, the bias of a convolution `[out, 1, 1]`, and a flattened image channel by channel."""
  keys = jax.random.split(jax.random.key(0), 3)
  model = eqx.nn.Sequential(
    [
      eqx.nn.Conv2d(4, 4, 2, key=keys[0]),
      eqx.nn.Lambda(jax.nn.relu),
      eqx.nn.Lambda(jnp.ravel),
      eqx.nn.Linear(16, 16, key=keys[1]),
    ]
  )
  params, static = eqx.partition(model, eqx.is_array)
  apply = lambda params, x: jax.vmap(eqx.combine(params, static))(x)
  layer = {"incoming": "layers/0/*", "outgoing": "layers/3/weight"}
  return params, apply, jax.random.normal(keys[2], (5, 4, 3, 3)), layer


@pytest.mark.thorough
@pytest.mark.parametrize("make", [_torch, _equinox_images])
def test_square_weights_have_their_units_on_the_first_axis(make, x64):
  """The shapes of `[out, in]` fit either way, so that only the network can tell."""
  params, apply, x, layer = make()
  scaled = symmetry.rescale_units(params, np.array([2.0, 0.1, 7.0, 0.5]), **layer)
  permuted = symmetry.permute_units(params, ORDER, **layer)
  error = jit(lambda a, b: gap(apply, a, b, x))
  for other in (scaled, permuted):
    assert error(params, other) < 1e-6
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other)))


@pytest.mark.thorough
def test_a_normalised_weight_is_scaled_row_by_row(x64):
  params, apply, x, _ = _torch()
  normalised = lambda params: (lambda z: (z - z.mean(0)[None]) / z.std(0)[None])(apply(params, x))
  other = symmetry.rescale_normalized(params, np.array([2.0, 0.1, 7.0, 0.5]), incoming="2/*")
  assert gap(normalised, params, other) < 1e-12
  np.testing.assert_allclose(other["2"]["weight"][1], 0.1 * params["2"]["weight"][1], rtol=1e-12)


def test_refusals():
  params = {"a": {"kernel": jnp.ones((3, 4))}, "b": {"kernel": jnp.ones((6, 2))}}
  with pytest.raises(TypeError, match="permutation must be integers"):
    symmetry.permute_units(params, jnp.ones(4), **LAYER)
  with pytest.raises(ValueError, match="permutation must hold the numbers"):
    symmetry.permute_units(params, jnp.array([0, 0, 1, 2]), **LAYER)
  with pytest.raises(ValueError, match="b/kernel must have 4 units on axis -2"):
    symmetry.permute_units(params, ORDER, **LAYER)
  weights = {"a": {"weight": jnp.ones((3, 4))}, "b": {"weight": jnp.ones((2, 5))}}
  for units, wrong in (
    (4, "a/weight must have 4 units on axis 0"),
    (3, "b/weight must have 3 units on axis 1"),
  ):
    with pytest.raises(ValueError, match=wrong):
      symmetry.permute_units(weights, jnp.arange(units), incoming="a/*", outgoing="b/weight")
  with pytest.raises(ValueError, match="scales must lie in"):
    symmetry.rescale_units(params, jnp.array([1.0, -1.0]), **LAYER)
  with pytest.raises(ValueError, match=r"mask: 'c/\*' selects no parameter"):
    symmetry.rescale_units(params, jnp.ones(4), incoming="c/*", outgoing="b/kernel")

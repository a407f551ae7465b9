"""Other people's code: one call in plain JAX, Linen, NNX and Equinox, and in a loop of plain Optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from sklearn.datasets import load_digits

from jaxreg import losses

CLASSES, FEATURES = 10, 64


def _plain():
  params = {"kernel": jax.random.normal(jax.random.key(1), (FEATURES, 3 * CLASSES)) / 8}
  return params, lambda params, x: x @ params["kernel"]


def _linen():
  model = nn.Dense(3 * CLASSES)
  return model.init(jax.random.key(1), jnp.zeros((1, FEATURES))), model.apply


def _nnx():
  graph, params = nnx.split(nnx.Linear(FEATURES, 3 * CLASSES, rngs=nnx.Rngs(1)))
  return params, lambda params, x: nnx.merge(graph, params, copy=True)(x)


def _equinox():
  params, static = eqx.partition(eqx.nn.Linear(FEATURES, 3 * CLASSES, key=jax.random.key(1)), eqx.is_array)
  return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)


@pytest.mark.parametrize("framework", [_plain, _linen, _nnx, _equinox])
def test_the_same_dropmax_call_trains_every_kind_of_model(framework):
  params, apply = framework()
  images, labels = load_digits(return_X_y=True)
  x, y = jnp.asarray(images[:200] / 16, jnp.float32), jnp.asarray(labels[:200])

  def objective(params, key):
    o, ph, rh = jnp.split(apply(params, x), 3, axis=-1)
    return losses.dropmax(key, o, ph, rh, y).mean()

  @jax.jit
  def step(params, state, key):
    loss, grads = jax.value_and_grad(objective)(params, key)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

  tx = optax.adam(0.1)
  state = tx.init(params)
  first = None
  for i in range(40):
    params, state, loss = step(params, state, jax.random.fold_in(jax.random.key(0), i))
    first = float(loss) if first is None else first
  o, ph, _ = jnp.split(apply(params, x), 3, axis=-1)
  error = np.mean(np.asarray(losses.dropmax_log_probs(o, ph).argmax(-1)) != np.asarray(y))
  assert loss < first - 1
  assert error < 0.1


@pytest.mark.thorough
def test_group_softmax_takes_the_last_layer_of_every_kind_of_model():
  """Its kernel and bias, as each framework names them; training goes on through them and the features."""
  x, labels = jax.random.normal(jax.random.key(0), (20, 6)), jnp.arange(20) % 3
  linen = nn.Dense(3).init(jax.random.key(1), x)["params"]
  of_nnx = nnx.Linear(6, 3, rngs=nnx.Rngs(1))
  of_equinox = eqx.nn.Linear(6, 3, key=jax.random.key(1))
  loss = jax.jit(lambda *arrays: losses.group_softmax(*arrays, labels, num_groups=2, kind="II").mean())
  slope = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
  for kernel, bias in (
    (jnp.ones((6, 3)), jnp.zeros(3)),
    (linen["kernel"], linen["bias"]),
    (of_nnx.kernel[...], of_nnx.bias[...]),
    (of_equinox.weight.T, of_equinox.bias),
  ):
    value, gradients = slope(x, kernel, bias)
    lower = loss(*(a - 0.01 * g for a, g in zip((x, kernel, bias), gradients)))
    assert lower < value

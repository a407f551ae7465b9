"""Per-example Jacobians against JAX's own Hessian, on a residual ReLU network with BatchNorm's averages."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness, losses

CHANNELS, CLASSES, EXAMPLES = 2, 3, 5


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


def _conv(x, kernel):
  return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _outputs(activation):
  def apply_fn(params, batch, *, key):
    """A residual block with normalisation by constants, pooled."""
    x = batch["x"]
    normed = (_conv(x, params["first"]) - 0.1) * 1.7
    x = x + _conv(activation(normed), params["second"])
    logits = activation(x).mean(axis=(1, 2)) @ params["last"]
    return logits if key is None else logits * jax.random.bernoulli(key, 0.5, (CLASSES,))[None]

  return apply_fn


def _outer(logits, batch):
  return losses.softmax_cross_entropy(logits, batch["y"]).mean()


def _problem():
  rng = np.random.default_rng(0)
  params = {
    "first": jnp.asarray(rng.normal(size=(3, 3, CHANNELS, CHANNELS)) / 3),
    "second": jnp.asarray(rng.normal(size=(3, 3, CHANNELS, CHANNELS)) / 3),
    "last": jnp.asarray(rng.normal(size=(CHANNELS, CLASSES))),
  }
  return params, {
    "x": jnp.asarray(rng.normal(size=(EXAMPLES, 4, 4, CHANNELS))),
    "y": jnp.arange(EXAMPLES) % 3,
  }


def _hessian(apply_fn, params, batch, where):
  part = flatness.subset(params, where)
  loss = lambda flat: _outer(apply_fn(part.merge(flat), batch, key=None), batch)
  return jax.jit(jax.hessian(loss))(part.flat)


@pytest.mark.parametrize(("where", "chunk_size"), [("first", 2), ("last", 16)])
def test_of_one_layer_it_is_jax_s_hessian(where, chunk_size):
  """Chunks of two leave an example over; a convolution is used at every position."""
  params, batch = _problem()
  apply_fn = _outputs(jax.nn.relu)
  found = flatness.gauss_newton_matrix(apply_fn, _outer, params, batch, mask=where, chunk_size=chunk_size)
  expected = np.asarray(_hessian(apply_fn, params, batch, where))
  np.testing.assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())
  np.testing.assert_array_equal(found, found.T)


def test_it_is_the_gauss_newton_matrix_where_the_hessian_is_another():
  """After a smooth activation: J' A J from JAX's dense Jacobian of the whole batch."""
  params, batch = _problem()
  apply_fn = _outputs(jnp.tanh)
  found = flatness.gauss_newton_matrix(apply_fn, _outer, params, batch, mask="first", chunk_size=3)
  part = flatness.subset(params, "first")
  outputs = lambda flat: apply_fn(part.merge(flat), batch, key=None)
  jacobian, probs = jax.jit(jax.jacfwd(outputs))(part.flat), jax.nn.softmax(outputs(part.flat))
  inner = jnp.einsum("nk,kl->nkl", probs, jnp.eye(CLASSES)) - jnp.einsum("nk,nl->nkl", probs, probs)
  expected = jnp.einsum("nkd,nkl,nle->de", jacobian, inner, jacobian) / EXAMPLES
  np.testing.assert_allclose(found, expected, atol=1e-13)
  assert np.abs(found - _hessian(apply_fn, params, batch, "first")).max() > 1e-3


def test_of_a_dense_layer_it_is_the_layer_s_hessian():
  params, batch = nets.make_params(), nets.make_batch()
  z, h = nets.second(params, batch), nets.first(params, batch)

  def after(params, z):
    return jax.nn.relu(z) @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"][None]

  found = flatness.gauss_newton_matrix(
    lambda params, batch, *, key: after(params, nets.second(params, batch)),
    lambda logits, batch: losses.softmax_cross_entropy(logits, batch["labels"]).mean(),
    params,
    batch,
    mask="Dense_1/*",
  )
  head = lambda z, batch, *, key: losses.softmax_cross_entropy(after(params, z), batch["labels"])
  np.testing.assert_allclose(found, flatness.DenseLayer(head, z, h, batch).hessian().matrix(), atol=1e-14)


def test_each_example_draws_its_own_noise():
  """Of 400 equal examples, chunk after chunk, half of each output is dropped: the mean says so."""
  outputs = lambda params, x, *, key: params[None] * jax.random.bernoulli(key, 0.5, (1, 1))
  outer = lambda z, x: 0.5 * (z**2).sum(axis=-1).mean()
  found = flatness.gauss_newton_matrix(outputs, outer, jnp.ones(1), jnp.ones(400), key=jax.random.key(0))
  assert float(found[0, 0]) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(400))


def test_bad_arguments():
  params, batch = _problem()
  for options, apply_fn, message in (
    ({"chunk_size": 0}, _outputs(jnp.tanh), "chunk_size must be at least 1, got 0"),
    (
      {},
      lambda params, batch, *, key: params["last"],
      r"apply_fn must return the outputs \[5, ...\], got",
    ),
    ({"mask": "none"}, _outputs(jnp.tanh), "mask: 'none' selects no parameter"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.gauss_newton_matrix(apply_fn, _outer, params, batch, **options)

"""The Gauss-Newton matrix and its diagonal against JAX's dense Hessians and Jacobians, in float64."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness, losses
from jaxreg._cpu.convolution import convolution
from jaxreg._jacobians import pull_back

pytestmark = pytest.mark.usefixtures("x64")

CHANNELS, CLASSES, EXAMPLES = 2, 3, 5


def _conv(x, kernel, stride=1):
  layout = ("NHWC", "HWIO", "NHWC")
  return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)


def _outputs(activation):
  def apply_fn(params, batch, *, key):
    """A residual block with normalisation by constants, pooled."""
    x = batch["x"]
    normed = (_conv(x, params["first"]) - 0.1) * 1.7
    x = x + _conv(activation(normed), params["second"])
    logits = activation(x).mean(axis=(1, 2)) @ params["last"]
    return logits if key is None else logits * jax.random.bernoulli(key, 0.5, (CLASSES,))[None]

  return apply_fn


def outer(logits, batch):
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
  loss = lambda flat: outer(apply_fn(part.merge(flat), batch, key=None), batch)
  return jax.jit(jax.hessian(loss))(part.flat)


@pytest.mark.thorough
@pytest.mark.parametrize(("where", "chunk_size"), [("first", 2), ("last", 16)])
def test_of_one_layer_it_is_jax_s_hessian(where, chunk_size):
  """Chunks of two leave an example over; a convolution is used at every position."""
  params, batch = _problem()
  apply_fn = _outputs(jax.nn.relu)
  found = flatness.gauss_newton_matrix(apply_fn, outer, params, batch, mask=where, chunk_size=chunk_size)
  expected = np.asarray(_hessian(apply_fn, params, batch, where))
  np.testing.assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())
  np.testing.assert_array_equal(found, found.T)


@pytest.mark.thorough
def test_it_is_the_gauss_newton_matrix_where_the_hessian_is_another():
  """After a smooth activation: J' A J from JAX's dense Jacobian of the whole batch."""
  params, batch = _problem()
  apply_fn = _outputs(jnp.tanh)
  found = flatness.gauss_newton_matrix(apply_fn, outer, params, batch, mask="first", chunk_size=3)
  part = flatness.subset(params, "first")
  outputs = lambda flat: apply_fn(part.merge(flat), batch, key=None)
  jacobian, probs = jax.jit(jax.jacfwd(outputs))(part.flat), jax.nn.softmax(outputs(part.flat))
  inner = jnp.einsum("nk,kl->nkl", probs, jnp.eye(CLASSES)) - jnp.einsum("nk,nl->nkl", probs, probs)
  expected = jnp.einsum("nkd,nkl,nle->de", jacobian, inner, jacobian) / EXAMPLES
  np.testing.assert_allclose(found, expected, atol=1e-13)
  assert np.abs(found - _hessian(apply_fn, params, batch, "first")).max() > 1e-3


@pytest.mark.thorough
def test_of_a_dense_layer_it_is_the_layer_s_hessian():
  params, batch = nets.make_params(), nets.make_batch()

  def after(params, z):
    return jax.nn.relu(z) @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"][None]

  found = flatness.gauss_newton_matrix(
    lambda params, batch, *, key: after(params, nets.second(params, batch)),
    lambda logits, batch: losses.softmax_cross_entropy(logits, batch["labels"]).mean(),
    params,
    batch,
    mask="Dense_1/*",
  )
  part = flatness.subset(params, "Dense_1/*")

  def loss(flat):
    logits = after(params, nets.second(part.merge(flat), batch))
    return losses.softmax_cross_entropy(logits, batch["labels"]).mean()

  np.testing.assert_allclose(found, jax.hessian(loss)(part.flat), atol=1e-14)


def test_each_example_draws_its_own_noise():
  """Of 400 equal examples, chunk after chunk, half of each output is dropped: the mean says so."""
  outputs = lambda params, x, *, key: params[None] * jax.random.bernoulli(key, 0.5, (1, 1))
  outer = lambda z, x: 0.5 * (z**2).sum(axis=-1).mean()
  found = flatness.gauss_newton_matrix(outputs, outer, jnp.ones(1), jnp.ones(400), key=jax.random.key(0))
  assert float(found[0, 0]) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(400))


@pytest.mark.thorough
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
      flatness.gauss_newton_matrix(apply_fn, outer, params, batch, **options)


def apply_fn(params, batch, *, key, activation=jax.nn.relu):
  """Convolution, normalisation by constants, a dense layer at each position, pooling, a dense layer."""
  x = _conv(batch["x"], params["conv"]["kernel"], stride=2) + params["conv"]["bias"][None, None, None]
  x = (x - 0.1) * params["norm"]["scale"][None, None, None]
  x = activation(x) @ params["positions"]["kernel"]
  return activation(x).mean(axis=(1, 2)) @ params["last"]["kernel"] + params["last"]["bias"][None]


def problem(side=6):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / 2)
  params = {
    "conv": {"kernel": draw(3, 3, 2, CHANNELS), "bias": draw(CHANNELS)},
    "norm": {"scale": 1 + draw(CHANNELS)},
    "positions": {"kernel": draw(CHANNELS, 4)},
    "last": {"kernel": draw(4, CLASSES), "bias": draw(CLASSES)},
  }
  return params, {"x": draw(EXAMPLES, side, side, 2), "y": jnp.arange(EXAMPLES) % CLASSES}


def expected(apply_fn, params, batch, where="*"):
  """The diagonal of J' A J, from JAX's dense Jacobian of the whole batch."""
  part = flatness.subset(params, where)
  outputs = lambda flat: apply_fn(part.merge(flat), batch, key=None)
  jacobian, probs = jax.jit(jax.jacfwd(outputs))(part.flat), jax.nn.softmax(outputs(part.flat))
  inner = jnp.einsum("nk,kl->nkl", probs, jnp.eye(probs.shape[1])) - jnp.einsum("nk,nl->nkl", probs, probs)
  return np.asarray(jnp.einsum("nkd,nkl,nld->d", jacobian, inner, jacobian)) / len(probs)


@pytest.mark.thorough
@pytest.mark.parametrize("side", [4, pytest.param(6, marks=pytest.mark.thorough)])
def test_of_a_relu_network_it_is_the_diagonal_of_the_hessian(side):
  """A layer with few positions is summed by pairs of them, one with many by outputs."""
  params, batch = problem(side)
  part = flatness.subset(params)
  loss = lambda flat: outer(apply_fn(part.merge(flat), batch, key=None), batch)
  hessian = np.asarray(jax.jit(jax.hessian(loss))(part.flat))
  found = flatness.gauss_newton_diagonal(apply_fn, outer, params, batch)
  np.testing.assert_allclose(found, np.diag(hessian), atol=1e-14)
  assert np.abs(hessian - np.diag(found)).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_of_a_smooth_network_it_is_that_of_the_jacobians(chunk_size):
  params, batch = problem()
  smooth = lambda params, batch, *, key: apply_fn(params, batch, key=key, activation=jnp.tanh)
  found = flatness.gauss_newton_diagonal(smooth, outer, params, batch, chunk_size=chunk_size)
  np.testing.assert_allclose(found, expected(smooth, params, batch), atol=1e-15)


@pytest.mark.thorough
def test_few_examples_at_once_change_nothing(monkeypatch):
  """Two of five examples at once, with one left over."""
  params, batch = problem()
  monkeypatch.setattr("jaxreg.flatness._jacobians._ENTRIES", 2 * CLASSES * 18 * CHANNELS)
  few = lambda params, batch, *, key: apply_fn(params, batch, key=key)  # is compiled anew
  found = flatness.gauss_newton_diagonal(few, outer, params, batch, mask="conv/kernel")
  np.testing.assert_allclose(found, expected(apply_fn, params, batch, "conv/kernel"), atol=1e-15)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("strides", "padding", "dilations"),
  [
    ((1, 1), "SAME", {}),
    ((2, 1), "VALID", {}),
    ((1, 2), [(0, 2), (-1, 0)], {"rhs_dilation": (2, 1)}),
    ((1, 1), [(1, 1), (1, 1)], {"lhs_dilation": (2, 1)}),
  ],
)
def test_the_models_own_convolution_counts_as_a_layer(strides, padding, dilations):
  """Its input is divided by a one that XLA cannot see through."""
  params, x = {"w": problem()[0]["conv"]["kernel"]}, problem()[1]["x"]
  options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), **dilations}
  outputs = lambda params, x, *, key: jnp.tanh(convolution(x, params["w"], strides, padding, **options)).sum(
    (1, 2)
  )
  found = pull_back(
    outputs, (True,), params, x, lambda z: jnp.broadcast_to(jnp.eye(CHANNELS), (EXAMPLES, 2, 2))
  )
  assert len(found.layers) == 1
  assert not found.others
  jacobian = found.flat()
  expected = jax.jacfwd(lambda w: outputs({"w": w}, x, key=None))(params["w"]).reshape(jacobian.shape)
  np.testing.assert_allclose(jacobian, expected, atol=1e-14)


def _twice(params, x, *, key):
  return jnp.tanh(x @ params["w"]) @ params["w"]


def _transposed(params, x, *, key):
  return jnp.tanh(x @ params["w"].T)


def _in_a_loop(params, x, *, key):
  return jax.lax.scan(lambda h, _: (jnp.tanh(h @ params["w"]), None), x, length=2)[0]


def _on_a_vector(params, x, *, key):
  return jax.vmap(lambda x: jnp.tanh(x @ params["w"]))(x)


def _on_tokens(params, x, *, key):
  tokens = jnp.stack([x, 2 * x], axis=1).reshape(-1, 3)  # all tokens of all examples
  return jnp.tanh(tokens @ params["w"]).reshape(len(x), 2, 3).sum(axis=1)


def _to_prototypes(params, x, *, key):
  """The layer's inputs are as many as the examples, and none of them."""
  return x @ (jnp.cos(jnp.arange(12.0).reshape(4, 3)) @ params["w"]).T


@pytest.mark.thorough
@pytest.mark.parametrize(
  "function",
  [
    *(_twice, _on_tokens, pytest.param(_transposed, marks=pytest.mark.thorough)),
    *(pytest.param(f, marks=pytest.mark.thorough) for f in (_in_a_loop, _on_a_vector, _to_prototypes)),
  ],
)
def test_parameters_that_are_no_kernel_of_one_layer(function):
  rng = np.random.default_rng(0)
  params, x = {"w": jnp.asarray(rng.normal(size=(3, 3)))}, jnp.asarray(rng.normal(size=(4, 3)))
  of_first = lambda z, x: losses.softmax_cross_entropy(z, jnp.zeros(len(z), int)).mean()
  found = flatness.gauss_newton_diagonal(function, of_first, params, x)
  np.testing.assert_allclose(found, expected(function, params, x), atol=1e-15)
  matrix = flatness.gauss_newton_matrix(function, of_first, params, x)
  np.testing.assert_allclose(jnp.diag(matrix), found, atol=1e-15)


def test_a_loss_that_is_not_convex_counts_with_its_sign():
  outputs = lambda params, x, *, key: x * params[None]
  concave = lambda z, x: -(z**2).sum(axis=1).mean()
  x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
  found = flatness.gauss_newton_diagonal(outputs, concave, jnp.ones(2), x)
  np.testing.assert_allclose(found, -2 * np.array([(1 + 9) / 2, (4 + 16) / 2]))


@pytest.mark.thorough
def test_batch_by_batch_with_the_running_averages_as_arguments():
  params, batch = problem()
  norm = params.pop("norm")
  with_state = lambda params, batch, *, key, model_state: apply_fn(
    {**params, "norm": model_state}, batch, key=key
  )
  loss_fn = lambda params, batch, *, key, model_state: outer(
    with_state(params, batch, key=key, model_state=model_state), batch
  )
  batches = [jax.tree.map(lambda x: x[:3], batch), jax.tree.map(lambda x: x[3:], batch)]
  curvature = flatness.Curvature(loss_fn, params, batches, mask="*/kernel", model_state=norm)
  found = curvature.gauss_newton_diagonal(with_state, outer)
  whole = lambda params, batch, *, key: with_state(params, batch, key=key, model_state=norm)
  np.testing.assert_allclose(found, expected(whole, params, batch, "*/kernel"), atol=1e-15)


def test_bad_arguments_of_the_diagonal():
  params, batch = problem()
  for outputs, where, message in (
    (lambda params, batch, *, key: params["last"]["kernel"], "*", r"must return the outputs \[5, ...\], got"),
    (apply_fn, "none", "mask: 'none' selects no parameter"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.gauss_newton_diagonal(outputs, outer, params, batch, mask=where)
  with pytest.raises(TypeError, match="apply_fn must"):
    flatness.gauss_newton_diagonal(lambda params, batch: 0, outer, params, batch)
  empty = flatness.Curvature(lambda p, x, *, key: (x * p).sum(), jnp.ones(1), iter_nothing())
  with pytest.raises(ValueError, match="data must have at least one batch"):
    empty.gauss_newton_diagonal(lambda p, x, *, key: x * p, lambda z, x: z.sum())


def iter_nothing():
  class Nothing:
    def __iter__(self):
      return iter(())

  return Nothing()

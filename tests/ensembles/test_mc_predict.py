"""Monte Carlo prediction against the enumeration of all masks."""

import decimal
import functools

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import linen as nn
from flax import nnx

from jaxreg import ensembles, noise

RNG = np.random.default_rng(0)
X, KERNEL = np.float32(RNG.normal(size=(4, 3))), np.float32(RNG.normal(size=(3, 3)) * 2)


def apply_fn(kernel, x, *, key, rate=0.5):
  return noise.dropout(key, x, rate=rate, inverted=False) @ kernel


@functools.partial(jax.jit, static_argnames=("num_samples", "per_example", "chunk_size"))
def predict(key, num_samples, per_example=True, chunk_size=None, rate=0.5):
  return ensembles.mc_predict(
    functools.partial(apply_fn, rate=rate),
    KERNEL,
    X,
    key=key,
    num_samples=num_samples,
    per_example=per_example,
    chunk_size=chunk_size,
  )


def entropy(probs):
  return -(probs * np.log(np.where(probs > 0, probs, 1))).sum(-1)


def exact():
  """All 8 masks of the 3 inputs: probabilities `[masks, batch, classes]` and the masks' weights."""
  masks = oracles.all_masks(3)
  return oracles.softmax(masks[:, None] * X @ KERNEL), oracles.mask_probabilities(masks, np.full(3, 0.5))


@pytest.mark.parametrize("per_example", [True, False])
@pytest.mark.claim(
  "adaptive_sgd",
  "testing",
  "the ensemble's mean is estimated by (1/M) sum f(x, z_i); printed is x_i, but x is the same in every term",
  status="erratum",
  size="enumeration",
)
def test_the_limit_is_the_exact_ensemble(per_example):
  probs, weights = exact()
  mean = np.einsum("m,mbk->bk", weights, probs)
  variance = np.einsum("m,mbk->bk", weights, (probs - mean) ** 2)
  got = predict(jax.random.key(0), 20_000, per_example)
  assert (np.abs(np.exp(got.mean_log_probs) - mean) < 5 * np.sqrt(variance / 20_000)).all()
  np.testing.assert_allclose(got.variance, variance, atol=0.01)
  np.testing.assert_allclose(got.expected_entropy, weights @ entropy(probs), atol=0.02)
  np.testing.assert_allclose(got.entropy, entropy(mean), atol=0.02)
  assert (got.mutual_information > 0.01).all()


@pytest.mark.slow
@pytest.mark.claim(
  "adaptive_sgd", "testing", "the squared error of sampling is the variance of the draws over M", size="toy"
)
def test_the_error_falls_with_the_root_of_the_number():
  probs, weights = exact()
  mean = np.einsum("m,mbk->bk", weights, probs)
  variance = np.einsum("m,mbk->", weights, (probs - mean) ** 2)
  run = jax.jit(jax.vmap(lambda key: predict(key, 25).mean_log_probs))
  errors = np.exp(run(jax.random.split(jax.random.key(1), 500))) - mean
  np.testing.assert_allclose((errors**2).sum((1, 2)).mean(), variance / 25, rtol=0.2)


@pytest.mark.claim(
  "adaptive_sgd",
  "testing",
  "the scatter of the draws measures uncertainty: H[mean] = mean H + I, I at least 0, and 0 without noise",
)
def test_decomposition():
  got = predict(jax.random.key(2), 7)
  np.testing.assert_allclose(got.entropy, entropy(np.exp(np.float64(got.mean_log_probs))), rtol=1e-5)
  np.testing.assert_allclose(got.entropy, got.expected_entropy + got.mutual_information, rtol=1e-6)
  silent = predict(jax.random.key(2), 7, rate=0.0)
  np.testing.assert_allclose(silent.variance, 0, atol=1e-12)
  np.testing.assert_allclose(silent.mutual_information, 0, atol=1e-6)
  assert (silent.mutual_information >= 0).all()
  np.testing.assert_allclose(np.exp(silent.mean_log_probs), oracles.softmax(X @ KERNEL), rtol=1e-5)


@pytest.mark.parametrize("weights", [None, [0.5, 0.0, 0.2, 0.1, 0.1, 0.1, 0.3]])
def test_uncertainty_of_any_ensemble(weights):
  """In float64 from the probabilities, of which some are 0."""
  probs = oracles.softmax(np.random.default_rng(1).normal(size=(7, 4, 3)) * 3)
  probs[2, 0] = 0.25, 0.75, 0
  probs[:, 1] = 0, 0, 1
  w = np.ones(7) / 7 if weights is None else np.float64(weights) / np.sum(weights)
  mean = np.einsum("m,mbk->bk", w, probs)
  with np.errstate(divide="ignore"), jax.enable_x64(True):
    got = jax.jit(ensembles.uncertainty)(
      np.log(probs), weights=None if weights is None else np.float64(weights)
    )
  np.testing.assert_allclose(np.exp(got.mean_log_probs), mean, rtol=1e-12)
  np.testing.assert_allclose(got.variance, np.einsum("m,mbk->bk", w, (probs - mean) ** 2), atol=1e-14)
  np.testing.assert_allclose(got.entropy, entropy(mean), atol=1e-12)
  np.testing.assert_allclose(got.expected_entropy, w @ entropy(probs), atol=1e-12)
  np.testing.assert_allclose(got.mutual_information, entropy(mean) - w @ entropy(probs), atol=1e-12)


def in_order(key, draws):
  """An `apply_fn` whose draw `i` with `key` is `draws[i]`; the draws are its parameters."""
  data = jax.random.key_data(jax.random.split(key, len(draws)))
  return lambda draws, x, *, key: jnp.asarray(draws)[
    (data == jax.random.key_data(key)[None]).all(-1).argmax()
  ]


@pytest.mark.thorough
def test_moments_are_divided_by_the_number_of_draws_which_come_too():
  draws = jnp.array([[1.0, 4.0], [2.0, 0.0], [3.0, 0.0], [6.0, 0.0]])
  of_key = in_order(jax.random.key(9), draws)
  got = ensembles.mc_regress(of_key, draws, jnp.zeros(2), key=jax.random.key(9), num_samples=4)
  np.testing.assert_array_equal(got.samples, draws)
  np.testing.assert_allclose(got.mean, [3, 1])
  np.testing.assert_allclose(got.variance, [3.5, 3])
  log_probs = jax.nn.log_softmax(draws)
  predicted = ensembles.mc_predict(of_key, draws, jnp.zeros(2), key=jax.random.key(9), num_samples=4)
  np.testing.assert_allclose(predicted.variance, np.var(np.exp(np.float64(log_probs)), axis=0), rtol=1e-5)


def test_the_mean_of_huge_outputs_exists_where_the_exact_one_does():
  huge = np.float32([3.4e38, 3.4e38, -3.4e38, -3.4e38])
  got = ensembles.mc_regress(
    lambda params, x, *, key: jnp.asarray(huge), None, jnp.zeros(4), key=jax.random.key(0), num_samples=3
  )
  np.testing.assert_allclose(got.mean, huge, rtol=1e-6)


def exact_softmax(row):
  """Of finite numbers of any size, by decimal arithmetic."""
  with decimal.localcontext(prec=60, Emin=decimal.MIN_EMIN):
    gaps = [decimal.Decimal(float(x)) - decimal.Decimal(float(max(row))) for x in row]
    terms = [gap.exp() if gap > -(10**6) else decimal.Decimal(0) for gap in gaps]
    return [float(term / sum(terms)) for term in terms]


def test_huge_logits_have_the_exact_mean_entropy_and_gradient():
  levels = np.float32([0, 1, -1, 1e4, -1e4, 1e30, -1e30, 3.4e38, -3.4e38])
  draws = np.random.default_rng(2).choice(levels, size=(3, 20, 3))
  probs = np.apply_along_axis(exact_softmax, -1, draws)
  mean = probs.mean(0)

  def summed(draws):
    apply_fn = in_order(jax.random.key(10), draws)
    result = ensembles.mc_predict(apply_fn, draws, jnp.zeros(20), key=jax.random.key(10), num_samples=3)
    return jnp.exp(result.mean_log_probs[:, 0]).sum(), result

  slope, result = jax.jit(jax.grad(summed, has_aux=True))(draws)
  np.testing.assert_allclose(np.exp(result.mean_log_probs), mean, atol=1e-6)
  np.testing.assert_allclose(result.variance, probs.var(0), atol=1e-6)
  np.testing.assert_allclose(result.entropy, entropy(mean), atol=1e-5)
  np.testing.assert_allclose(result.mutual_information, entropy(mean) - entropy(probs).mean(0), atol=1e-5)
  np.testing.assert_allclose(slope, probs[..., :1] * (np.eye(3)[0] - probs) / 3, atol=1e-6)


@pytest.mark.thorough
def test_shared_masks_are_one_function_of_the_input():
  """On equal rows a shared mask gives equal rows, masks of their own do not."""
  rows = jnp.ones((3, 3))
  run = functools.partial(ensembles.mc_regress, apply_fn, KERNEL, rows, num_samples=2)
  both = jax.jit(lambda a, b: (run(key=a, per_example=False), run(key=b)))
  shared, own = both(*jax.random.split(jax.random.key(3)))
  np.testing.assert_array_equal(shared.mean, shared.mean[:1].repeat(3, 0))
  assert (own.mean[0] != own.mean[1]).any()


def test_same_key_same_answer_in_any_chunks():
  want = predict(jax.random.key(4), 7)
  got = predict(jax.random.key(4), 7, chunk_size=3)
  chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)
  assert (predict(jax.random.key(5), 7).mean_log_probs != want.mean_log_probs).any()


def test_regression_has_the_moments_of_the_masks():
  """Of sum m_j x_j w_j: mean p x w and variance p (1 - p) sum (x_j w_j)^2."""
  got = jax.jit(
    lambda key: ensembles.mc_regress(apply_fn, KERNEL, X, key=key, num_samples=20_000, chunk_size=5_000)
  )(jax.random.key(6))
  np.testing.assert_allclose(got.mean, 0.5 * X @ KERNEL, atol=0.1)
  np.testing.assert_allclose(got.variance, 0.25 * X**2 @ KERNEL**2, rtol=0.05)


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match=r"log_probs must be log-probabilities, .*log_softmax of logits"):
    ensembles.uncertainty(jnp.array([[3.0, -1.0], [0.0, -1.0]]))
  with pytest.raises(ValueError, match=r"log_probs must be log-probabilities, .*jnp.log of probabilities"):
    ensembles.uncertainty(jnp.full((2, 4), 0.25))
  run = functools.partial(ensembles.mc_predict, apply_fn, KERNEL, X)
  key = jax.random.key(8)
  with pytest.raises(ValueError, match="num_samples"):
    run(key=key, num_samples=0)
  with pytest.raises(ValueError, match="chunk_size"):
    run(key=key, num_samples=2, chunk_size=0)
  with pytest.raises(TypeError, match="key must be a typed key"):
    run(key=0, num_samples=2)


class LinenNet(nn.Module):
  rate: float

  @nn.compact
  def __call__(self, x, *, dropout, use_running_average):
    x = nn.Dropout(self.rate, deterministic=not dropout)(x)
    return nn.Dense(3)(nn.BatchNorm(use_running_average=use_running_average)(x))


class NNXNet(nnx.Module):
  def __init__(self, rate, rngs):
    self.dropout, self.norm = nnx.Dropout(rate), nnx.BatchNorm(3, rngs=rngs)
    self.dense = nnx.Linear(3, 3, rngs=rngs)

  def __call__(self, x, *, rngs=None):
    return self.dense(self.norm(self.dropout(x, rngs=rngs)))


class EquinoxNet(eqx.Module):
  dropout: eqx.nn.Dropout
  norm: eqx.nn.BatchNorm
  dense: eqx.nn.Linear

  def __init__(self, rate):
    self.dropout, self.dense = eqx.nn.Dropout(rate), eqx.nn.Linear(3, 3, key=jax.random.key(0))
    self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")

  def __call__(self, x, state, *, key=None):
    x, state = self.norm(self.dropout(x, key=key), state)
    return self.dense(x), state


MEAN, VAR, BIAS = np.float32([0.3, -0.2, 0.5]), np.float32([0.5, 2, 1]), np.float32([0.1, 0, -0.3])


def linen(rate):
  net = LinenNet(rate)
  stats = {"BatchNorm_0": {"mean": MEAN, "var": VAR}}
  norm = {"scale": np.ones(3, np.float32), "bias": np.zeros(3, np.float32)}
  params = {"Dense_0": {"kernel": KERNEL, "bias": BIAS}, "BatchNorm_0": norm}
  variables = {"params": params, "batch_stats": stats}

  def sampled(variables, x, *, key):
    modes = {"dropout": True, "use_running_average": True}
    return net.apply(variables, x, **modes, rngs={"dropout": key}, mutable=False)

  return sampled, variables, net.apply(variables, X, dropout=False, use_running_average=True)


def of_nnx(rate):
  net = NNXNet(rate, nnx.Rngs(0))
  net.dense.kernel[...], net.dense.bias[...] = KERNEL, BIAS
  net.norm.mean[...], net.norm.var[...] = MEAN, VAR
  graph, state = nnx.split(net)

  def sampled(state, x, *, key):
    net = nnx.view(nnx.merge(graph, state), deterministic=False, use_running_average=True)
    return net(x, rngs=nnx.Rngs(key))

  return sampled, state, nnx.view(net, deterministic=True, use_running_average=True)(X)


def equinox(rate):
  net, state = eqx.nn.make_with_state(EquinoxNet)(rate)
  net = eqx.tree_at(lambda n: (n.dense.weight, n.dense.bias), net, (jnp.asarray(KERNEL.T), jnp.asarray(BIAS)))
  state = state.set(net.norm.batch_state_index, (jnp.asarray(MEAN), jnp.asarray(VAR)))
  is_norm = lambda layer: isinstance(layer, eqx.nn.BatchNorm)
  is_layer = lambda layer: is_norm(layer) or isinstance(layer, eqx.nn.Dropout)
  evaluated = lambda layer: eqx.nn.inference_mode(layer, value=is_norm(layer))

  def sampled(net, x, *, key):
    net = jax.tree.map(evaluated, net, is_leaf=is_layer)
    return jax.vmap(lambda x, key: net(x, state, key=key)[0])(x, jax.random.split(key, len(x)))

  dynamic, static = eqx.partition(net, eqx.is_array)
  plain = eqx.nn.inference_mode(net)
  fn = lambda params, x, *, key: sampled(eqx.combine(params, static), x, key=key)
  return fn, dynamic, jax.vmap(lambda x: plain(x, state)[0])(X)


@pytest.mark.parametrize(
  "form", [linen, *(pytest.param(form, marks=pytest.mark.thorough) for form in (of_nnx, equinox))]
)
def test_batch_norm_with_running_averages_as_the_guide_says(form):
  """At rate 0 the evaluation exactly; at 1/2 the mean over all masks."""
  sampled, params, evaluated = form(0.0)
  np.testing.assert_array_equal(sampled(params, X, key=jax.random.key(0)), evaluated)
  sampled, params, _ = form(0.5)
  masks = oracles.all_masks(3)
  hidden = (2 * masks[:, None] * np.float64(X) - MEAN) / np.sqrt(np.float64(VAR) + 1e-5)
  probs = oracles.softmax(hidden @ np.float64(KERNEL) + BIAS)
  run = jax.jit(functools.partial(ensembles.mc_predict, sampled, num_samples=20_000, chunk_size=2000))
  got = np.exp(run(params, X, key=jax.random.key(1)).mean_log_probs)
  assert (np.abs(got - probs.mean(0)) < 5 * probs.std(axis=0) / np.sqrt(20_000)).all()

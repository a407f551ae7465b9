"""Sharpness-aware steps at zero gradients; Langevin dynamics whose variance is known; noise on gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit
from flax import nnx

from jaxreg import optim

CURVATURE = np.array([1.0, 4.0, 0.0])


def loss(w):
  return 0.5 * jnp.sum(jnp.asarray(CURVATURE, w.dtype) * w**2)


gradient = jax.grad(loss)


@pytest.mark.thorough
def test_sam_survives_a_gradient_of_zero():
  """Optax's does not, and stays NaN."""
  flat, w = jnp.zeros(3), jnp.array([0.5, -0.2, 1.0])
  tx = optim.sam(optax.sgd(0.1), rho=0.3)
  updates, state = tx.update(gradient(flat), tx.init(flat), flat, grad_fn=gradient)
  np.testing.assert_array_equal(updates, 0)
  updates, _ = tx.update(gradient(w), state, w, grad_fn=gradient)
  assert np.isfinite(updates).all()
  assert np.abs(updates).max() > 0
  adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.3))
  theirs = optax.contrib.sam(optax.sgd(0.1), adversary)
  state, w = theirs.init(flat), flat
  for _ in range(2):
    updates, state = theirs.update(gradient(w), state, w)
    w = w + updates
  assert np.isnan(w).any()


def test_sam_moves_bfloat16_parameters():
  """Rounded to bfloat16, rho / sqrt(1000) is nothing beside 1, and the step that of the inner optimizer."""
  w = jnp.ones(1000, jnp.bfloat16)
  seen = []

  def slope(w):
    """Of sum(w) + 500 |w - 1|^2: 1 at the start, and 1000 times as steep as that from there on."""
    seen.append(w)
    return 1 + 1000 * (w - 1)

  tx = optim.sam(optax.sgd(0.5), rho=0.05)
  updates, _ = tx.update(jnp.ones_like(w), tx.init(w), w, grad_fn=slope)
  assert seen[0].dtype == jnp.float32
  assert updates.dtype == jnp.bfloat16
  assert (seen[0] != 1).all()
  want = -0.5 * (1 + 1000 * 0.05 / np.sqrt(1000))
  np.testing.assert_allclose(np.float64(updates), want, rtol=2**-8)


def test_sam_perturbs_each_of_its_blocks():
  """Each leaf, unit or number moves by rho of its own norm; together they move by rho."""
  rng = np.random.default_rng(6)
  params = {"a": {"kernel": rng.normal(size=(3, 2))}, "b": {"weight": rng.normal(size=(3, 2))}}
  grads = jax.tree.map(lambda w: rng.normal(size=w.shape), params)
  length = lambda g, axis=None: np.sqrt((g**2).sum(axis, keepdims=True))
  whole = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
  a, b = grads["a"]["kernel"], grads["b"]["weight"]
  want = {
    "global": (a / whole, b / whole),
    "leaf": (a / length(a), b / length(b)),
    "unit": (a / length(a, 0), b / length(b, 1)),
    "element": (np.sign(a), np.sign(b)),
  }

  def top(blocks, grads):
    seen = []
    tx = optim.sam(optax.sgd(0.1), rho=0.3, blocks=blocks)
    tx.update(grads, tx.init(params), params, grad_fn=lambda w: seen.append(w) or w)
    return seen[0]

  tops = jit(lambda grads: {blocks: top(blocks, grads) for blocks in want})(grads)
  for blocks, directions in want.items():
    moved = jax.tree.leaves(jax.tree.map(np.subtract, tops[blocks], params))
    for got, direction in zip(moved, directions, strict=True):
      np.testing.assert_allclose(got, 0.3 * direction, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "make",
  [
    lambda: optim.p_norm_sgd(0.1, p=3.0),
    lambda: optim.sgld(0.1, key=jax.random.key(0)),
    lambda: optim.gradient_noise(key=jax.random.key(0), variance=100.0),
    lambda: optim.sam(optax.sgd(0.1)),
  ],
)
def test_integers_beside_the_parameters_stay(make):
  """Such as counters, which `optax.adam` takes too."""
  params = {"w": jnp.array([0.5, -2.0]), "count": jnp.array([3, 4])}
  grads = {"w": jnp.array([1.0, -4.0]), "count": jnp.zeros(2, jnp.int32)}
  tx, extra = make(), {}

  def grad_fn(top):
    assert top["count"] is params["count"]
    return grads

  if tx.update.__module__.endswith("_sam"):
    extra = {"grad_fn": grad_fn}
  updates, _ = tx.update(grads, tx.init(params), params, **extra)
  new = optax.apply_updates(params, updates)
  np.testing.assert_array_equal(new["count"], params["count"])
  assert new["count"].dtype == jnp.int32
  assert (new["w"] != params["w"]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("make", [optim.sam, lambda inner: optim.reparameterize(inner, lambda y: y)])
def test_what_is_within_is_a_transform(make):
  with pytest.raises(TypeError, match=r"inner must be an Optax transform, such as optax\.sgd.*got 0\.1"):
    make(0.1)


def test_sam_with_batch_normalisation_counts_the_first_pass_alone(x64):
  """Three steps of the docstring's example, in NumPy: the statistics never see the perturbed weights."""
  x = np.random.default_rng(0).normal(size=(8, 3)) + 1.0
  calls = []

  def loss_and_stats(w, stats):
    z = x * w[None, :]
    return jnp.mean(jnp.square(z - z.mean(0)[None, :])), 0.9 * stats + 0.1 * z.mean(0)

  tx = optim.sam(optax.sgd(0.1), rho=0.5)

  def step(w, stats, state):
    grads, after = jax.grad(loss_and_stats, has_aux=True)(w, stats)
    again = lambda w: (calls.append(w), jax.grad(loss_and_stats, has_aux=True)(w, stats)[0])[1]
    updates, state = tx.update(grads, state, w, grad_fn=again)
    return w + updates, after, state

  w, stats = jnp.array([1.0, -2.0, 0.5]), jnp.zeros(3)
  state, step = tx.init(w), jit(step)
  want, seen = np.array([1.0, -2.0, 0.5]), np.zeros(3)
  slope = lambda w: 2 * w * x.var(0) / 3  # of the mean of w_j^2 var(x_j)
  for _ in range(3):
    w, stats, state = step(w, stats, state)
    seen = 0.9 * seen + 0.1 * x.mean(0) * want
    want = want - 0.1 * slope(want + 0.5 * slope(want) / np.linalg.norm(slope(want)))
    np.testing.assert_allclose(w, want, rtol=1e-10)
    np.testing.assert_allclose(stats, seen, rtol=1e-10)
  assert len(calls) == 1  # of one trace: a single second pass


@pytest.mark.claim(
  "adaptive_sgd",
  "Injected Noises",
  "noise on the updates is Bayesian: Langevin steps have the posterior variance, over 1 - eps lambda / 4",
  size="toy",
)
def test_sgld_has_the_variance_of_its_recursion(x64):
  """On a quadratic it is 1 / (lambda (1 - eps lambda / 4)); 4000 chains, each with its coordinate's noise."""
  eps, n, lam = 0.4, 10, np.array([0.05, 0.2])
  tx = optim.sgld(eps, key=jax.random.key(3), num_examples=n)

  def step(carry, _):
    w, state = carry
    updates, state = tx.update(jnp.asarray(lam)[:, None] * w, state)
    return (w + updates, state), None

  start = jnp.zeros((2, 4000))
  w = jit(lambda w: jax.lax.scan(step, (w, tx.init(w)), length=60)[0][0])(start)
  after = lambda a: (1 - a**120) / (1 - a**2)  # of the recursion w <- a w + noise from 0
  want = eps * after(1 - eps * n * lam / 2)
  np.testing.assert_allclose(np.var(w, axis=1), want, rtol=0.09)
  stationary = 1 / (n * lam * (1 - eps * n * lam / 4))
  np.testing.assert_allclose(want, stationary, rtol=1e-2)


def check_normal(noise, std):
  """Mean, variance and the fourth moment of `[several]` draws, each within 4 standard errors."""
  x, n = np.asarray(noise, np.float64).ravel() / std, np.size(noise)
  for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
    assert abs((x**power).mean() - moment) < 4 * np.sqrt(variance / n), (power, (x**power).mean())


def check_unrelated(*draws):
  for x, y in itertools.combinations(map(np.ravel, draws), 2):
    assert abs(np.corrcoef(x, y)[0, 1]) < 4 / np.sqrt(x.size)


def test_sgld_noise_is_a_function_of_key_and_step():
  """Of standard deviation sqrt(eps T), and another one for each leaf and step."""
  g = {"a": np.zeros(4000, np.float32), "b": np.zeros(4000, np.float32)}
  tx = optim.sgld(lambda t: 0.25 / (t + 1), key=jax.random.key(0), temperature=4.0)
  state, update = tx.init(g), jit(tx.update)
  first, state = update(g, state)
  second, _ = update(g, state)
  again, _ = update(g, tx.init(g))
  np.testing.assert_array_equal(first["a"], again["a"])
  check_normal(first["a"], np.sqrt(0.25 * 4))
  check_normal(second["a"], np.sqrt(0.125 * 4))
  check_unrelated(first["a"], first["b"], second["a"], second["b"])
  with pytest.raises(TypeError, match="key must be a typed key"):
    optim.sgld(0.1, key=0)  # type: ignore[arg-type]


def test_gradient_noise_has_the_schedule_of_the_paper():
  """Normal, of variance eta / t^gamma, added to the gradient, and another one for each leaf and step."""
  g = {"a": np.ones(4000, np.float32), "b": np.full(4000, -2.0, np.float32)}
  tx = optim.gradient_noise(key=jax.random.key(1), variance=0.09, gamma=2.0)
  state, update = tx.init(g), jit(tx.update)
  draws = []
  for t in (1, 2, 3):
    noisy, state = update(g, state)
    for name in g:
      draws.append(noisy[name] - g[name])
      check_normal(draws[-1], 0.3 / t)
  check_unrelated(*draws)
  assert isinstance(tx, optax.GradientTransformationExtraArgs)
  with pytest.raises(ValueError, match="variance must lie in"):
    optim.gradient_noise(key=jax.random.key(1), variance=-1.0)


@pytest.mark.thorough
def test_the_key_of_a_step_wins_over_the_constructors():
  g = jnp.zeros(3)
  own, without = optim.gradient_noise(key=jax.random.key(1)), optim.gradient_noise()
  state = own.init(g)
  keys = jax.random.split(jax.random.key(2), 3)
  several, after = jax.vmap(lambda key: own.update(g, state, key=key))(keys)
  assert len(np.unique(several)) == 9
  np.testing.assert_array_equal(after.rng_key, jnp.stack([state.rng_key] * 3))
  want = jax.vmap(lambda key: without.update(g, without.init(g), key=key)[0])(jax.random.clone(keys))
  np.testing.assert_array_equal(several, want)


def test_the_second_gradient_in_nnx_optimizer():
  """`nnx.Optimizer` passes arrays, so a second gradient of variables has another structure."""
  x, rate, rho = jnp.arange(6.0).reshape(2, 3), 0.1, 0.5

  def loss_fn(net):
    return 0.5 * jnp.square(net(x)).sum()

  def step(pure):
    net = nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optim.sam(optax.sgd(rate), rho=rho), wrt=nnx.Param)
    graph, start = nnx.graphdef(net), np.asarray(net.kernel[...])
    optimizer.update(
      net, nnx.grad(loss_fn)(net), grad_fn=lambda params: pure(nnx.grad(loss_fn)(nnx.merge(graph, params)))
    )
    return start, np.asarray(net.kernel[...])

  w, new = step(nnx.as_pure)
  first = x.T @ x @ w  # of the quadratic
  top = w + rho * first / np.linalg.norm(first)
  np.testing.assert_allclose(new, w - rate * x.T @ x @ top, rtol=1e-5)
  with pytest.raises(TypeError, match="grad_fn must return a tree like the gradients given to update"):
    step(lambda gradients: gradients)

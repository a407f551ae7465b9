"""Attacks against closed forms of logistic and softmax regression, corners of the box, and eigenvectors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import adversarial

SOURCE = "regularization"
ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}
STEPS = {"eps": 0.3, "step_size": 0.2, "num_steps": 4}
RNG = np.random.default_rng(0)
W, X, Y = RNG.normal(size=4), RNG.normal(size=(3, 4)), np.array([1.0, -1.0, 1.0])
KERNEL = RNG.normal(size=(4, 5))


def logistic(x):
  return jax.nn.softplus(-Y * (x @ jnp.asarray(W, x.dtype)))


def log_probs(x, kernel=KERNEL):
  return jax.nn.log_softmax(x @ jnp.asarray(kernel, x.dtype))


def key(seed=0):
  return jax.random.key(seed)


def fast(loss, x, eps, **options):
  return adversarial.pgd(None, loss, x, eps=eps, num_steps=1, random_start=False, **options)


def norm(delta, kind):
  return np.linalg.norm(np.asarray(delta), ORDERS[kind], axis=1)


@pytest.mark.claim(
  SOURCE,
  "adversarial training",
  "x + eps sign(gradient): a logistic loss is then softplus(-y f + eps L1 norm of w), the most in the box",
  size="enumeration",
)
def test_fgsm_is_the_worst_corner_of_logistic_regression():
  eps = 0.25
  with jax.enable_x64(True):
    moved = np.asarray(jit(lambda x: fast(logistic, x, eps))(X))
  got = np.log1p(np.exp(-Y * (moved @ W)))
  np.testing.assert_allclose(got, np.log1p(np.exp(-Y * (X @ W) + eps * np.abs(W).sum())), rtol=1e-12)
  corners = np.array(list(itertools.product((-eps, eps), repeat=4)))
  worst = np.log1p(np.exp(-Y * ((X + corners[:, None]) @ W))).max(axis=0)
  np.testing.assert_allclose(got, worst, rtol=1e-12)


def test_fgsm_clips_last_and_stays_where_there_is_no_gradient():
  x = np.array([[0.1, 0.5], [0.95, 0.5]], np.float32)
  moved = jit(lambda x: fast(lambda x: x[:, 0], x, 0.2, clip=(0.0, 1.0)))(x)
  np.testing.assert_allclose(moved, [[0.3, 0.5], [1.0, 0.5]], rtol=1e-6)


@pytest.mark.thorough
def test_an_attack_without_a_known_gradient_is_nan():
  loss = lambda x: x[:, 0] * jnp.array([1.0, jnp.nan])
  for kind in ("linf", "l2"):
    moved = adversarial.pgd(key(), loss, jnp.ones((2, 3)), eps=0.2, step_size=0.1, num_steps=2, norm=kind)
    np.testing.assert_array_equal(np.isnan(moved)[:, 0], [False, True])


def test_a_target_turns_a_step_round():
  x = jnp.asarray(X, jnp.float32)
  up, down = jit(lambda x: [fast(logistic, x, 0.3, targeted=target) - x for target in (False, True)])(x)
  np.testing.assert_allclose(up, -0.3 * Y[:, None] * np.sign(W), rtol=1e-5)
  np.testing.assert_allclose(down, -up, rtol=1e-5)


def test_the_default_step_size_is_two_and_a_half_radii_over_all_steps():
  options = {"eps": 1.0, "num_steps": 10, "random_start": False, "norm": "l2"}
  run = lambda **step: adversarial.pgd(
    None, lambda x: x[:, 0] ** 2, jnp.full((1, 2), 0.01), **options, **step
  )
  np.testing.assert_array_equal(run(), run(step_size=0.25))


@pytest.mark.thorough
def test_pgd_reaches_the_worst_point_of_the_ball_and_never_leaves_it():
  """For a linear function that is eps times the dual norm of its gradient; also where clipped, it stays."""

  def attacks(x, eps):
    linear = lambda x: x @ jnp.asarray(W, x.dtype)
    options = {"eps": eps, "step_size": 0.1, "num_steps": 40}
    free = {kind: adversarial.pgd(key(), linear, x, norm=kind, **options) - x for kind in ORDERS}
    return free, adversarial.pgd(key(), linear, x, norm="l2", clip=(0.0, 1.0), **options)

  x, attack = jnp.asarray(np.clip(X / 4 + 0.5, 0, 1), jnp.float32), jit(attacks)
  deltas, clipped = attack(x, 0.3)
  dual = {"linf": np.abs(W).sum(), "l2": np.linalg.norm(W), "l1": np.abs(W).max()}
  for kind, delta in deltas.items():
    assert norm(delta, kind).max() <= 0.3 * (1 + 1e-5)
    np.testing.assert_allclose(delta @ W, 0.3 * dual[kind], rtol=1e-3)
  assert clipped.min() >= 0
  assert clipped.max() <= 1
  assert norm(clipped - x, "l2").max() <= 0.3 * (1 + 1e-5)
  # No ball, no move: nothing is divided by the radius.
  jax.tree.map(lambda delta: np.testing.assert_array_equal(delta, 0), attack(x, 0.0)[0])


def test_a_traced_number_of_steps_moves_as_far_as_a_static_one():
  """Up the gradient of `3 a - 4 b` by a tenth a step, until the ball ends after five."""
  loss, options = lambda x: x @ jnp.array([3.0, -4.0]), {"eps": 0.5, "step_size": 0.1, "random_start": False}
  run = jit(lambda number: adversarial.pgd(None, loss, jnp.zeros((1, 2)), num_steps=number, **options))
  for number, far in ((0, 0.0), (2, 0.2), (9, 0.5)):
    np.testing.assert_allclose(run(number), [[far, -far]], rtol=1e-6)


def test_the_ball_is_spent_on_the_coordinates_that_may_move():
  """Of the loss `3 a + 4 b`, where a is at the end of its range: b moves by all of eps."""
  x = jnp.array([[1.0, 0.5]])
  options = {"eps": 0.3, "step_size": 0.02, "num_steps": 60, "clip": (0.0, 1.0), "random_start": False}
  run = lambda x: adversarial.pgd(None, lambda x: x @ jnp.array([3.0, 4.0]), x, norm="l2", **options)
  np.testing.assert_allclose(jit(run)(x), [[1.0, 0.8]], rtol=2e-3)


@pytest.mark.thorough
def test_the_start_is_uniform_in_the_ball():
  """The second moment of a coordinate in three dimensions: 1/3, 1 / (n + 2), 2 / ((n + 1)(n + 2))."""
  options = {"eps": 2.0, "step_size": 0.0, "num_steps": 1}
  draw = lambda key, x, kind: adversarial.pgd(key, lambda x: x.sum(-1), x, norm=kind, **options) / 2
  starts = jit(lambda x: {kind: draw(key(), x, kind) for kind in ORDERS})(jnp.zeros((20000, 3)))
  for kind, second_moment in (("linf", 1 / 3), ("l2", 1 / 5), ("l1", 1 / 10)):
    start = np.asarray(starts[kind])
    assert norm(start, kind).max() <= 1 + 1e-5
    np.testing.assert_allclose((start**2).mean(0), second_moment, rtol=0.05)
    np.testing.assert_allclose(start.mean(0), 0, atol=0.02)


@pytest.mark.thorough
def test_the_curvature_is_that_of_softmax_regression_and_power_iteration_finds_its_top():
  """One iteration is W (diag p - pp') W' times the first direction; more draw nearer to its eigenvector."""
  p = oracles.softmax(X @ KERNEL)
  matrices = np.stack([KERNEL @ (np.diag(row) - np.outer(row, row)) @ KERNEL.T for row in p])
  top = np.linalg.eigh(matrices)[1][:, :, -1]
  iterations = (1, 3, 300)
  with jax.enable_x64(True):
    move = lambda x, n: adversarial.virtual_adversarial(key(), log_probs, x, eps=0.5, num_steps=n) - x
    moves = np.asarray(jit(lambda x: jnp.stack([move(x, n) for n in iterations]))(X))
    first = np.asarray(jax.random.normal(key(), X.shape))
  np.testing.assert_allclose(np.linalg.norm(moves, axis=-1), 0.5, rtol=1e-12)
  product = np.einsum("bij,bj->bi", matrices, first)
  want = 0.5 * product / np.linalg.norm(product, axis=-1, keepdims=True)
  np.testing.assert_allclose(moves[0], want, rtol=1e-9)
  cosine = np.abs((moves * top).sum(-1)) / 0.5
  assert (np.diff(cosine, axis=0) > 0).all()
  np.testing.assert_allclose(cosine[-1], 1, atol=1e-6)


@pytest.mark.thorough
def test_vat_of_a_linear_regression_is_the_largest_singular_value():
  """Half the squared distance of `x @ W` is largest along its first left singular vector."""
  w = np.random.default_rng(5).normal(size=(4, 3))
  divergence = lambda clean, moved: jnp.square(moved - clean).sum(axis=-1) / 2
  options = {"eps": 0.5, "num_steps": 60, "divergence": divergence}
  with jax.enable_x64(True):
    x = jnp.asarray(np.random.default_rng(6).normal(size=(2, 4)))
    moved = adversarial.virtual_adversarial(key(), lambda x: x @ w, x, **options)
    value = adversarial.vat_loss(key(), lambda x: x @ w, x, **options)
  left, singular, _ = np.linalg.svd(w)
  np.testing.assert_allclose(abs((moved - x) @ left[:, 0]), 0.5, rtol=1e-8)
  np.testing.assert_allclose(value, (0.5 * singular[0]) ** 2 / 2, rtol=1e-8)


@pytest.mark.claim(
  SOURCE,
  "adversarial training",
  "virtual adversarial examples come from the model's own prediction, without labels",
)
def test_vat_loss_is_the_divergence_from_a_fixed_prediction():
  def run(kernel, x):
    model = lambda x: log_probs(x, kernel)
    moved = adversarial.virtual_adversarial(key(), model, x, eps=0.5, num_steps=3)
    return adversarial.vat_loss(key(), model, x, eps=0.5, num_steps=3).sum(), moved

  with jax.enable_x64(True):
    (value, moved), gradient = jit(jax.value_and_grad(run, has_aux=True))(KERNEL, X)
  p, q = oracles.softmax(X @ KERNEL), oracles.softmax(np.asarray(moved) @ KERNEL)
  np.testing.assert_allclose(value, (p * np.log(p / q)).sum(), rtol=1e-10)
  # Only the prediction at x' moves: this is the gradient of a cross-entropy with the targets p.
  np.testing.assert_allclose(gradient, np.asarray(moved).T @ (q - p), rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_vat_is_finite_where_the_prediction_is_certain_or_flat_or_impossible():
  def impossible(x):
    return jnp.stack([-jnp.square(x).sum(-1), jnp.full(len(x), -jnp.inf)], axis=-1)

  @jit
  def run(x):
    certain = adversarial.virtual_adversarial(key(), lambda x: log_probs(1e4 * x), x, eps=0.1)
    flat = adversarial.virtual_adversarial(key(), lambda x: log_probs(0 * x), x, eps=0.1)
    value = lambda x: adversarial.vat_loss(key(), impossible, x, eps=0.1).sum()
    return certain - x, flat - x, jax.value_and_grad(value)(x)

  certain, flat, losses = run(jnp.asarray(X, jnp.float32))
  for delta in (certain, flat):
    np.testing.assert_allclose(norm(delta, "l2"), 0.1, rtol=1e-4)
  assert all(np.isfinite(x).all() for x in losses)


def test_refusals():
  x = jnp.zeros((3, 4))
  with pytest.raises(TypeError, match="x must be floating"):
    fast(logistic, jnp.zeros((3, 4), int), 0.1)
  with pytest.raises(ValueError, match=r"loss_of_inputs must give \[batch\]"):
    fast(lambda x: x.sum(), x, 0.1)
  with pytest.raises(ValueError, match="eps must lie"):
    fast(logistic, x, -0.1)
  with pytest.raises(ValueError, match=r"eps must be a scalar or have shape \(3,\), got shape \(3, 1\)"):
    fast(logistic, x, np.full((3, 1), 0.1))
  with pytest.raises(ValueError, match="norm must be"):
    adversarial.pgd(key(), logistic, x, norm="l3", **STEPS)
  with pytest.raises(TypeError, match="key must be a typed key"):
    adversarial.pgd(None, logistic, x, **STEPS)
  with pytest.raises(ValueError, match="num_steps must be at least 1"):
    adversarial.vat_loss(key(), log_probs, x, eps=0.1, num_steps=0)
  with pytest.raises(ValueError, match="log_probs_fn must give"):
    adversarial.vat_loss(key(), logistic, x, eps=0.1)


def test_inputs_lie_within_the_clip():
  """Pixels up to 255 under a clip of (0, 1) would move by 254, whatever the radius; rounding is no fault."""
  x = 255 * jnp.ones((3, 4))
  calls = {
    "pgd": lambda x, clip: fast(logistic, x, 8.0, clip=clip),
    "attack": lambda x, clip: adversarial.attack(
      key(), lambda x: x, x, jnp.zeros(3, int), eps=8.0, methods=("apgd_ce",), num_steps=2, clip=clip
    ),
    "trades": lambda x, clip: adversarial.trades_loss(key(), jax.nn.log_softmax, x, clip=clip, **STEPS),
  }
  for call in calls.values():
    with pytest.raises(ValueError, match=r"x must lie in clip \(0.0, 1.0\), got values from 255 to 255"):
      call(x, (0.0, 1.0))
    with pytest.raises(ValueError, match="clip must be two numbers, the smaller one first"):
      call(x, (255.0, 0.0))
    assert jnp.isfinite(call((x / 255 - 0.1307) / 0.3081, (-0.1307 / 0.3081, (1 - 0.1307) / 0.3081))).all()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ORDERS)
def test_each_example_may_have_its_own_radius(kind):
  """One radius for the batch and one an example agree, example by example; a radius of 0 moves nothing."""
  x, each = jnp.asarray(X, jnp.float32), np.float32([0.0, 0.1, 0.4])

  def attacks(eps):
    options = {"norm": kind, "step_size": eps, "num_steps": 3}
    return {
      "fast": fast(logistic, x, eps),
      "pgd": adversarial.pgd(key(), logistic, x, eps=eps, **options),
      "virtual": adversarial.virtual_adversarial(key(), log_probs, x, eps=eps),
      "vat": adversarial.vat_loss(key(), log_probs, x, eps=eps),
      "trades": adversarial.trades_loss(key(), log_probs, x, eps=eps, **options),
    }

  attacks = jit(attacks)
  got, one_by_one = attacks(each), [attacks(eps) for eps in each]
  for name, found in got.items():
    want = [moved[name][i] for i, moved in enumerate(one_by_one)]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
  for name in ("fast", "pgd", "virtual"):
    np.testing.assert_array_equal(got[name][0], x[0])


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e38])
def test_a_direction_does_not_depend_on_the_size_of_the_gradient(size):
  slope = np.float32([[2.0, -1.0, 3.0]])
  loss = lambda x: (x * (slope * np.float32(size))).sum(axis=-1)
  options = {"norm": "l2", "eps": 0.5, "step_size": 0.5, "num_steps": 1, "random_start": False}
  got = adversarial.pgd(None, loss, jnp.zeros((1, 3)), **options)
  np.testing.assert_allclose(got, 0.5 * slope / np.sqrt(14), rtol=1e-6)


@pytest.mark.parametrize(("kind", "eps"), [("linf", 0.03), ("l2", 0.4), ("l1", 2.0)])
def test_rounding_to_a_narrow_dtype_stays_in_the_ball(kind, eps):
  x = jax.random.uniform(key(1), (16, 50)).astype(jnp.bfloat16)
  loss = lambda x: x.astype(jnp.float32) @ jnp.linspace(-1, 1, 50)
  moved = adversarial.pgd(key(), loss, x, eps=eps, num_steps=5, norm=kind)
  delta = np.asarray(moved, np.float64) - np.asarray(x, np.float64)
  assert 0.9 * eps < norm(delta, kind).max() <= eps


@pytest.mark.parametrize("clip", [None, (0.0, 0.3)])
def test_rounding_stays_in_the_ball_far_from_0_and_in_the_bounds(clip):
  """The neighbours of 20000 are 0.002 away in float32; 0.3 lies between two numbers of bfloat16."""
  x = jnp.array([[20000.0, 3.0]]) if clip is None else jnp.full((1, 2), 0.25, jnp.bfloat16)
  moved = np.asarray(fast(lambda x: x.sum(-1), x, 1e-3 if clip is None else 0.1, clip=clip), np.float64)
  if clip is None:
    np.testing.assert_allclose(moved, [[20000, 3.001]], rtol=1e-6)
    assert (moved - np.asarray(x) <= 1e-3).all()
  else:
    assert (moved > 0.25).all()
    assert (moved <= 0.3).all()

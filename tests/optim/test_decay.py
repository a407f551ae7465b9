"""Weight decay: the norm that each kind leads to, and what a sphere keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType
from scipy.optimize import brentq

from jaxreg import optim

SIZE, ETA, RATE, GRADIENT = 400, 0.1, 0.1, 3.0
GAUSSIAN = np.sqrt(2 / np.pi)  # E|x| of a standard normal number


def walk(tx, steps=1500, w=None):
  """The norms and the angles of steps along random gradients of a scale-invariant function of a kernel.

  The function is `a @ w / |w|`, with `a` scaled so that its gradient has the norm `GRADIENT / |w|`.
  """

  def function(w, a):
    return a @ w["kernel"] / jnp.linalg.norm(w["kernel"])

  def step(carry, key):
    w, state = carry
    a = jax.random.normal(key, (SIZE,))
    across = a - (a @ w["kernel"]) * w["kernel"] / jnp.sum(w["kernel"] ** 2)
    g = jax.grad(function)(w, GRADIENT * a / jnp.linalg.norm(across))
    updates, state = tx.update(g, state, w)
    new = optax.apply_updates(w, updates)
    old, new_norm = (jnp.linalg.norm(x["kernel"]) for x in (w, new))
    cosine = jnp.clip(w["kernel"] @ new["kernel"] / (old * new_norm), -1, 1)
    return (new, state), (new_norm, jnp.arccos(cosine))

  start = np.random.default_rng(0).normal(size=SIZE)
  w = {"kernel": jnp.asarray(start if w is None else w)}
  keys = jax.random.split(jax.random.key(1), steps)
  _, (norms, angles) = jax.jit(lambda w: jax.lax.scan(step, (w, tx.init(w)), keys))(w)
  return np.asarray(norms), np.asarray(angles)


def settled(tx, **options):
  norms, angles = walk(tx, **options)
  return norms[len(norms) // 2 :].mean(), angles[len(angles) // 2 :].mean()


def balanced(step, shrink):
  """The norm that a shrinkage by `shrink` and an orthogonal step of length `step(norm)` keep."""
  return brentq(lambda norm: (1 - shrink) ** 2 * norm**2 + step(norm) ** 2 - norm**2, 1e-6, 1e6)


def cautious(length, mean):
  """As `balanced`, where half of the entries shrink; `mean` is that of an update over its root mean square.

  The closed form of the guide, for normally distributed weights.
  """

  def left(norm):
    s = length(norm)
    return RATE * (1 - ETA * RATE / 2) * norm**2 - ETA * s**2 - ETA * RATE * GAUSSIAN * mean * s * norm

  return brentq(left, 1e-3, 1e3)


STEPS = {
  "sgd": (optax.sgd, lambda norm: GRADIENT / norm, GAUSSIAN),
  "unit steps": (lambda rate: optim.trust_region(rate, blocks="leaf"), lambda norm: 1.0, GAUSSIAN),
  "sign": (optax.sign_sgd, lambda norm: np.sqrt(SIZE), 1.0),
}


@pytest.mark.parametrize("name", ["sgd", "unit steps"])
@pytest.mark.parametrize("kind", ["decoupled", "independent", "corrected"])
def test_the_norm_settles_where_growth_and_decay_balance(name, kind, x64):
  make, length, _ = STEPS[name]
  peak, rate = 2 * ETA, 0.02 if kind == "independent" else RATE
  shrink = {"decoupled": ETA * RATE, "independent": 0.02, "corrected": ETA * ETA / peak * RATE}[kind]
  tx = optim.decay(make(ETA), lambda t: ETA, rate=rate, kind=kind, peak=peak)
  norm, angle = settled(tx, steps=3000)
  np.testing.assert_allclose(norm, balanced(lambda norm: ETA * length(norm), shrink), rtol=1e-3)
  np.testing.assert_allclose(angle, np.sqrt(2 * shrink), rtol=0.02)
  # The formulas of the guide.
  power = 4 if name == "sgd" else 2
  scale = GRADIENT**2 if name == "sgd" else 1
  squared = {
    "decoupled": ETA / (RATE * (2 - ETA * RATE)),
    "independent": ETA**2 / (0.02 * (2 - 0.02)),
    "corrected": peak / (RATE * (2 - ETA**2 * RATE / peak)),
  }[kind]
  np.testing.assert_allclose(norm**power, scale * squared, rtol=4e-3)


def test_coupled_decay_of_normalised_steps_depends_on_the_gradient(x64):
  norm, _ = settled(optim.decay(STEPS["sgd"][0](ETA), ETA, rate=RATE, kind="coupled"))
  np.testing.assert_allclose(norm, balanced(lambda norm: ETA * GRADIENT / norm, ETA * RATE), rtol=1e-3)
  norm, _ = settled(optim.decay(STEPS["unit steps"][0](ETA), ETA, rate=RATE, kind="coupled"))

  def radial(norm):
    decay = RATE * norm
    return 2 * norm * decay / np.hypot(GRADIENT / norm, decay) - ETA

  np.testing.assert_allclose(norm, brentq(radial, 1e-3, 1e3), rtol=1e-3)
  np.testing.assert_allclose(norm, (ETA * GRADIENT / (2 * RATE)) ** (1 / 3), rtol=2e-3)


@pytest.mark.parametrize("name", STEPS)
def test_cautious_decay_takes_half_of_the_entries(name, x64):
  make, length, mean = STEPS[name]
  norm, _ = settled(optim.decay(make(ETA), ETA, rate=RATE, kind="cautious"), steps=3000)
  np.testing.assert_allclose(norm, cautious(length, mean), rtol=0.01)


@pytest.mark.thorough
def test_the_corrected_norm_does_not_follow_the_learning_rate(x64):
  """At a tenth of the peak decoupled decay lowers the norm by the root of 10, corrected decay by nothing."""
  norms = {}
  for kind in ("decoupled", "corrected"):
    for factor in (1.0, 0.1):
      rate = factor * ETA
      tx = optim.trust_region(rate, blocks="leaf")
      tx = optim.decay(tx, lambda t, rate=rate: rate, rate=1.0, kind=kind, peak=ETA)
      norms[kind, factor], _ = settled(tx, steps=6000, w=np.eye(SIZE)[0] * 0.3)
  np.testing.assert_allclose(norms["decoupled", 1.0] / norms["decoupled", 0.1], np.sqrt(10), rtol=0.03)
  np.testing.assert_allclose(norms["corrected", 1.0] / norms["corrected", 0.1], 1, rtol=0.03)


def test_adam_has_the_norm_of_steps_with_a_root_mean_square_of_1(x64):
  norm, _ = settled(optim.decay(optax.adam(ETA), ETA, rate=RATE), steps=3000)
  np.testing.assert_allclose(norm, np.sqrt(SIZE * ETA / (2 * RATE)), rtol=0.05)


@pytest.mark.parametrize("blocks", ["leaf", "unit"])
def test_a_fixed_norm_keeps_the_norm_and_turns_by_the_learning_rate(blocks):
  """In float32, over steps with momentum: rounding does not add up."""
  tx = optim.decay(optax.sgd(7.0, momentum=0.9), 0.03, rate=2.0, kind="fixed_norm", blocks=blocks)
  rng, axis = np.random.default_rng(0), 0 if blocks == "unit" else None
  w = start = {"kernel": jnp.asarray(rng.normal(size=(30, 4)), jnp.float32), "bias": jnp.ones(4)}
  state, update = tx.init(w), jax.jit(tx.update)
  for _ in range(2000):
    g = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), w)
    updates, state = update(g, state, w)
    w = optax.apply_updates(w, updates)
  norms = [np.sqrt(np.square(np.float64(x["kernel"])).sum(axis)) for x in (start, w)]
  np.testing.assert_allclose(*norms, rtol=3e-7)
  # Without momentum, across the weights: the angle has the tangent 0.06.
  tx = optim.decay(optax.sgd(7.0), 0.03, rate=2.0, kind="fixed_norm")
  norms, angles = walk(tx, steps=20)
  np.testing.assert_allclose(angles, np.arctan(0.06), rtol=1e-3)


def test_a_block_of_norm_0_has_no_sphere():
  w = {"kernel": jnp.array([[0.0, 3.0], [0.0, 4.0]])}
  g = {"kernel": jnp.array([[1.0, 4.0], [2.0, -3.0]])}
  tx = optim.decay(optax.sgd(0.5), 0.1, rate=1.0, kind="fixed_norm", blocks="unit")
  moved = optax.apply_updates(w, tx.update(g, tx.init(w), w)[0])["kernel"]
  np.testing.assert_allclose(moved[:, 0], [-0.5, -1.0], rtol=1e-6)
  turned = np.array([3.0, 4.0]) - 0.1 * np.array([4.0, -3.0])
  np.testing.assert_allclose(moved[:, 1], 5 * turned / np.linalg.norm(turned), rtol=1e-6)


def test_optax_has_two_of_the_kinds():
  rng = np.random.default_rng(0)
  w, g = ({"kernel": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)} for _ in range(2))
  schedule = optax.cosine_decay_schedule(0.1, 10)
  ours = optim.decay(optax.adam(schedule), schedule, rate=0.3)
  coupled = optim.decay(optax.adam(schedule), schedule, rate=0.3, kind="coupled")
  theirs = optax.adamw(schedule, weight_decay=0.3)
  l2 = optax.chain(optax.add_decayed_weights(0.3), optax.adam(schedule))
  for mine, other in ((ours, theirs), (coupled, l2)):
    state, their_state = mine.init(w), other.init(w)
    for _ in range(3):
      got, state = mine.update(g, state, w)
      want, their_state = other.update(g, their_state, w)
    np.testing.assert_allclose(got["kernel"], want["kernel"], rtol=1e-5)


@pytest.mark.parametrize(
  ("options", "match"),
  [
    ({"kind": "l2"}, "kind must be one of"),
    ({"blocks": "global"}, "blocks must be one of"),
    ({"rate": -0.1}, r"rate must lie in \[0"),
    ({"kind": "corrected", "learning_rate": lambda t: 0.1}, "peak must be the largest learning rate"),
    ({"peak": 0.0}, "peak must lie in"),
    ({"inner": 0.1}, "inner must be an Optax transform"),
  ],
)
def test_refusals(options, match):
  with pytest.raises((ValueError, TypeError), match=match):
    optim.decay(**{"inner": optax.sgd(0.1), "learning_rate": 0.1, "rate": 0.1, **options})


def test_params_are_needed():
  tx, g = optim.decay(optax.sgd(0.1), 0.1, rate=0.1), {"kernel": jnp.ones(2)}
  with pytest.raises(ValueError, match="params must be given"):
    tx.update(g, tx.init(g))


@pytest.mark.parametrize("blocks", ["leaf", "unit"])
def test_a_fixed_norm_in_nnx_with_split_parameters(blocks):
  """`nnx.Optimizer` splits a state in the structure of the parameters as the parameters are split."""
  axes = (AxisType.Auto, AxisType.Auto)
  with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=axes)):
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("model", None))
    net = nnx.Linear(8, 6, kernel_init=init, rngs=nnx.Rngs(0))
    before = np.asarray(net.kernel[...], np.float64)
    tx = optim.decay(optax.sgd(0.1), 0.1, rate=1.0, kind="fixed_norm", blocks=blocks)
    optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, x):
      optimizer.update(net, nnx.grad(lambda net: net(x).sum())(net))

    for _ in range(3):
      step(net, optimizer, jnp.ones((4, 8)))
    after, axis = np.asarray(net.kernel[...], np.float64), 0 if blocks == "unit" else None
    assert net.kernel[...].sharding.spec[0] == "model"
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(np.linalg.norm(after, axis=axis), np.linalg.norm(before, axis=axis), rtol=1e-5)


def test_coupled_decay_goes_inside_an_optimizer_that_takes_a_second_gradient():
  w = {"kernel": jnp.array([2.0, -1.0])}
  grad_fn = lambda w: {"kernel": jnp.array([1.0, 4.0]) * w["kernel"]}
  options = {"rate": 1.0, "kind": "coupled"}
  outside = optim.decay(optim.sam(optax.sgd(0.1), rho=0.5), 0.1, **options)
  with pytest.raises(ValueError, match=r"^kind must not be coupled around an optimizer"):
    outside.update(grad_fn(w), outside.init(w), w, grad_fn=grad_fn)
  inside = optim.sam(optim.decay(optax.sgd(0.1), 0.1, **options), rho=0.5)
  updates, _ = inside.update(grad_fn(w), inside.init(w), w, grad_fn=grad_fn)
  kernel, curvature = np.array([2.0, -1.0]), np.array([1.0, 4.0])
  moved = kernel + 0.5 * curvature * kernel / np.linalg.norm(curvature * kernel)
  np.testing.assert_allclose(updates["kernel"], -0.1 * (curvature * moved + kernel), rtol=1e-6)
  plain = optim.decay(optax.sgd(0.1), 0.1, **options)  # does not call grad_fn
  updates, _ = plain.update(grad_fn(w), plain.init(w), w, grad_fn=grad_fn)
  np.testing.assert_allclose(updates["kernel"], -0.1 * (curvature * kernel + kernel), rtol=1e-6)

"""The exponential average against its sums in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging, losses
from jaxreg.averaging._ema import warmed_decay

ITERATES = np.random.default_rng(0).normal(size=(9, 3))
START = np.full(3, 5.0)


@functools.partial(jax.jit, static_argnames="ramp")
def run(start, iterates, decay, ramp=True):
  """The averages after each step."""

  def step(state, params):
    state = average.update(state, params)
    return state, average.params(state)

  average = averaging.ema(decay=decay, ramp=ramp)
  return jax.lax.scan(step, average.init(start), iterates)


def test_the_plain_mean_first_then_an_exponential_one():
  """With decay 0.75 the mean of the first four, and from then on a quarter of what is new."""
  with jax.enable_x64(True):
    _, got = run(jnp.asarray(START), jnp.asarray(ITERATES), 0.75)
  want = [ITERATES[: t + 1].mean(0) for t in range(4)]
  for new in ITERATES[4:]:
    want.append(0.75 * want[-1] + 0.25 * new)
  np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.thorough
def test_without_the_ramp_the_start_keeps_its_weight():
  with jax.enable_x64(True):
    state, got = run(jnp.asarray(START), jnp.asarray(ITERATES), 0.75, ramp=False)
  weights = 0.25 * 0.75 ** np.arange(9)[::-1]
  np.testing.assert_allclose(got[-1], 0.75**9 * START + weights @ ITERATES, rtol=1e-12)
  assert state.count == 9


def test_the_decay_warms_up_as_in_timm():
  """Its `ModelEmaV3(decay=0.9, use_warmup=True, warmup_gamma=2, warmup_power=2/3).get_decay(number)`."""
  number = np.array([1, 2, 3, 11, 1001])
  want = [0.0, 0.23685717163111208, 0.3700394750525634, 0.69714656786131, 0.9]
  np.testing.assert_allclose(warmed_decay(number, decay=0.9, warmup=2.0, power=2 / 3), want, rtol=1e-6)
  average = averaging.ema(warmup=3.0)
  state = average.update(average.init(START), START)
  got = average.update(state, START + 4).params  # the second decay is 1 - 1 / (1 + 1/3)
  np.testing.assert_allclose(got, START + 3, rtol=1e-6)


def test_dtypes_and_extremes_of_the_decay():
  narrow = jnp.asarray(ITERATES, jnp.bfloat16)
  with jax.enable_x64(True):  # a state that changed its dtype could not be scanned
    state, got = run({"w": narrow[0]}, {"w": narrow}, 1.0)
  assert got["w"].dtype == np.float32
  np.testing.assert_allclose(state.params["w"], np.float64(narrow).mean(0), rtol=1e-5)  # the ramp alone
  _, got = run(narrow[0], narrow, 0.0)
  np.testing.assert_array_equal(got, narrow.astype(np.float32))


def test_refusals():
  for name, value in (("decay", 1.5), ("warmup", 0.0), ("power", -1.0)):
    with pytest.raises(ValueError, match=f"{name} must lie in"):
      averaging.ema(**{name: value})


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "semi-supervised learning",
  "P(y given x) also from P(x): a teacher's targets need no labels",
  size="toy",
)
def test_a_mean_teacher_gets_no_gradient():
  x, y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 3)), jnp.float32)
  average = averaging.ema(decay=0.5, ramp=False)
  state = average.init(jnp.ones((3, 3)))

  def loss(student):
    teacher = average.params(average.update(state, student))
    return losses.consistency(x @ student, y @ teacher).sum()

  def fixed(student, teacher):
    return losses.consistency(x @ student, y @ teacher).sum()

  student = jnp.eye(3)
  got, want = jax.jit(lambda w: (jax.grad(loss)(w), jax.grad(fixed)(w, 0.5 * w + 0.5)))(student)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert jnp.abs(got).max() > 0.01

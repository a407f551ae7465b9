"""Windows of exponential averages, and Adagrad's regret."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import optim
from papers import adaptive_sgd


@pytest.mark.claim(
  "adaptive_sgd",
  "Adam",
  "20 and 2000 batches averaging: it is (1 + beta)/(1 - beta), 19 and 1999, not 1/(1 - beta)",
  status="erratum",
  size="toy",
)
def test_the_window_has_the_variance_of_a_flat_mean(x64):
  np.testing.assert_allclose(
    [adaptive_sgd.ewa_window(0.9), adaptive_sgd.ewa_window(0.999)], [19, 1999], rtol=1e-9
  )
  weights = 0.9 ** np.arange(3000.0)
  np.testing.assert_allclose(weights.sum() ** 2 / (weights**2).sum(), 19, rtol=1e-9)
  np.testing.assert_allclose((weights * np.arange(1, 3001)).sum() / weights.sum(), 1 / (1 - 0.9), rtol=1e-9)
  for steps in (1, 2, 7):
    some = weights[:steps]
    np.testing.assert_allclose(
      adaptive_sgd.ewa_window(0.9, steps=steps), some.sum() ** 2 / (some**2).sum(), rtol=1e-10
    )


@pytest.mark.thorough
@pytest.mark.parametrize("debias", [True, False])
def test_weights_are_those_of_the_recursion(debias, x64):
  mean, total = np.zeros(6), 0.0
  for row in np.eye(6):
    mean, total = 0.8 * mean + 0.2 * row, 0.8 * total + 0.2
  want = mean / total if debias else mean
  np.testing.assert_allclose(adaptive_sgd.ewa_weights(0.8, steps=6, debias=debias), want, rtol=1e-12)
  np.testing.assert_allclose(adaptive_sgd.ewa_weights(1.0, steps=4), 0.25, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  "Adagrad",
  "what the factor 1/sqrt(t) guarantees: a regret that grows as the root of t",
  size="toy",
)
def test_adagrad_keeps_its_regret(x64):
  """On f_t(x) = |x - c_t| summed over coordinates; the best fixed x is the median of the c_t."""
  rng = np.random.default_rng(0)
  rate = 0.5
  c = rng.normal(size=(4000, 3)) * np.array([1.0, 0.1, 3.0]) + 0.4
  tx = optim.exact_adagrad(rate)

  def step(carry, c):
    x, state = carry
    g = jnp.sign(x - c)
    updates, state = tx.update(g, state, x)
    return (x + updates, state), (x, g)

  start = jnp.full(3, 2.0)
  x, g = jit(lambda c: jax.lax.scan(step, (start, tx.init(start)), c)[1])(c)
  mean_regret = []
  for steps in (250, 4000):
    best = np.median(c[:steps], axis=0)
    regret = (np.abs(x[:steps] - c[:steps]) - np.abs(best - c[:steps])).sum()
    diameter = np.abs(x[:steps] - best[None]).max()
    bound = adaptive_sgd.adagrad_regret_bound(g[:steps], learning_rate=rate, diameter=diameter)
    sizes = np.sqrt((np.float64(g[:steps]) ** 2).sum(0)).sum()
    np.testing.assert_allclose(bound, (diameter**2 / (2 * rate) + rate) * sizes, rtol=1e-12)
    assert 0 < regret <= bound
    mean_regret.append((regret / steps, bound / steps))
  # 16 times the steps: the bound on the mean falls to a quarter.
  np.testing.assert_allclose(mean_regret[1][1] / mean_regret[0][1], 0.25, rtol=0.1)
  assert mean_regret[1][0] < 0.5 * mean_regret[0][0]


def test_refusals():
  with pytest.raises(ValueError, match="1 - decay must lie in"):
    adaptive_sgd.ewa_window(1.0)
  with pytest.raises(ValueError, match="decay must lie in"):
    adaptive_sgd.ewa_weights(-0.1, steps=3)
  with pytest.raises(ValueError, match=r"gradients must be \[T, n\]"):
    adaptive_sgd.adagrad_regret_bound(jnp.ones(3), learning_rate=0.1, diameter=1.0)

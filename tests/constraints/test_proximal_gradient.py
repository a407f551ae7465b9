"""FISTA against scikit-learn's lasso, and its backtracking against the curvature."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso

from jaxreg.constraints import prox_elastic_net, prox_l1, proximal_gradient

RNG = np.random.default_rng(0)
DESIGN = RNG.normal(size=(30, 12)) * np.linspace(0.2, 1, 12)
TARGETS = DESIGN[:, :4].sum(1) + 0.1 * RNG.normal(size=30)


def squares(weights):
  return jnp.mean((jnp.asarray(DESIGN) @ weights - jnp.asarray(TARGETS)) ** 2) / 2


@pytest.mark.thorough
@pytest.mark.parametrize("step", [100.0, 0.3])
@pytest.mark.parametrize(
  ("prox", "peer"),
  [
    (functools.partial(prox_l1, weight=0.05, mask="*"), Lasso(0.05, fit_intercept=False, tol=1e-12)),
    (
      functools.partial(prox_elastic_net, weight=0.05, ratio=0.4, mask="*"),
      ElasticNet(0.05, l1_ratio=0.4, fit_intercept=False, tol=1e-12),
    ),
  ],
  ids=["lasso", "elastic net"],
)
def test_it_finds_the_solution_of_scikit_learn(x64, prox, peer, step):
  result = jax.jit(lambda start: proximal_gradient(squares, start, prox, num_steps=1500, step=step))(
    jnp.zeros(12)
  )
  want = peer.fit(DESIGN, TARGETS).coef_
  np.testing.assert_allclose(result.params, want, atol=1e-7)
  np.testing.assert_array_equal(np.asarray(result.params) == 0, want == 0)
  # No step is longer than backtracking needs: half of it would do for the largest curvature.
  largest = np.linalg.eigvalsh(DESIGN.T @ DESIGN / len(DESIGN)).max()
  assert result.step == 0.3 if step == 0.3 else result.step >= 0.5 / largest


def test_a_tree_in_float32_and_refusals():
  loss = lambda params: squares(params["w"]) + params["b"] ** 2
  start = {"w": jnp.zeros(12), "b": jnp.ones(())}
  prox = functools.partial(prox_l1, weight=0.05, mask="*")
  result = jax.jit(lambda start: proximal_gradient(loss, start, prox))(start)
  want = Lasso(0.05, fit_intercept=False).fit(DESIGN, TARGETS).coef_
  np.testing.assert_allclose(result.params["w"], want, atol=1e-3)
  assert result.losses.shape == (100,)
  assert result.params["b"] == 0
  for options, match in (
    ({"shrink": 1.0}, "shrink must"),
    ({"shrink": 0.0}, "shrink must"),
    ({"step": 0.0}, "step must"),
  ):
    with pytest.raises(ValueError, match=match):
      proximal_gradient(loss, start, prox, **options)
  with pytest.raises(TypeError, match="prox must"):
    proximal_gradient(loss, start, 3)

"""CosFace and ArcFace: no margin, angles by hand, and slopes at angles of 0 and pi."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import losses


def test_no_margin_is_the_normalised_softmax():
  rng = np.random.default_rng(0)
  x, kernel, labels = rng.normal(size=(6, 4)), rng.normal(size=(4, 3)), rng.integers(0, 3, 6)
  cosines = (x @ kernel) / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(kernel, axis=0)
  with jax.enable_x64(True):
    both = lambda x, w: [f(x, w, labels, margin=0.0) for f in (losses.cosface, losses.arcface)]
    for got in jit(both)(x, kernel):
      np.testing.assert_allclose(got, oracles.cross_entropy(64 * cosines, labels), rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_arcface_widens_the_angle_and_never_pays_for_a_wider_one():
  """In the plane, with classes at angles of 0 and pi: -log p = log(1 + exp(s (-cos - psi)))."""
  angles = np.linspace(0, math.pi, 40)
  x = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], 1), jnp.float32)
  kernel = jnp.array([[2.0, -3.0], [0.0, 0.0]])
  function = lambda x: losses.arcface(x, kernel, jnp.zeros(40, int), margin=0.5, scale=2.0)
  loss, slope = jit(lambda x: (function(x), jax.grad(lambda x: function(x).sum())(x)))(x)
  psi = np.where(angles + 0.5 <= math.pi, np.cos(angles + 0.5), -2 - np.cos(angles + 0.5))
  np.testing.assert_allclose(loss, np.log1p(np.exp(2 * (-np.cos(angles) - psi))), rtol=1e-5, atol=1e-6)
  assert (np.diff(loss) > 0).all()
  assert np.isfinite(slope).all()
  assert np.abs(slope).max() < 4  # twice the scale: an angle changes by at most one a unit


@pytest.mark.thorough
def test_features_of_0_have_no_gradient_and_nan_stays_nan():
  kernel, labels = jnp.array([[2.0, -3.0], [1.0, 0.5]]), jnp.array([0, 1])
  x = jnp.array([[0.0, 0.0], [jnp.nan, 1.0]])
  slopes = lambda f: jax.vmap(jax.value_and_grad(lambda x, y: f(x, kernel, y)))(x, labels)
  for loss, slope in jit(lambda: [slopes(f) for f in (losses.cosface, losses.arcface)])():
    np.testing.assert_array_equal(np.isnan(loss), [False, True])
    np.testing.assert_array_equal(slope[0], 0)
    assert np.isnan(slope[1]).all()


@pytest.mark.thorough
def test_refusals():
  x, kernel, labels = jnp.ones((2, 4)), jnp.ones((4, 3)), jnp.array([0, 1])
  for function in (losses.cosface, losses.arcface):
    for options, name in (({"margin": -0.1}, "margin"), ({"scale": 0.0}, "scale")):
      with pytest.raises(ValueError, match=f"{name} must lie in"):
        function(x, kernel, labels, **options)
  with pytest.raises(ValueError, match="margin must lie in"):
    losses.arcface(x, kernel, labels, margin=4.0)

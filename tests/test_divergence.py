"""Divergences of predictions that nearly agree, against float64 sums of terms of the second order."""

import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import losses, penalties

RNG = np.random.default_rng(0)
Z = np.float32(RNG.normal(size=(4, 10)) * 3)
NOISE = RNG.normal(size=Z.shape)


def moved(scale):
  return np.float32(Z + scale * NOISE)


def divergence(z, v):
  """Sums `p (exp(-d) - 1 + d)` with `d = log(p / q)`, from the difference of the logits."""
  z, v = np.float64(z), np.float64(v)
  p, q, gap = oracles.softmax(z), oracles.softmax(v), z - v
  gap -= (q * gap).sum(-1, keepdims=True)
  d = gap - np.log1p((q * np.expm1(gap)).sum(-1, keepdims=True))
  return (p * (np.expm1(-d) + d)).sum(-1)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0])
def test_small_divergences_keep_their_digits(scale):
  other = moved(scale)
  want = divergence(other, Z)
  np.testing.assert_allclose(losses.distillation(Z, other, temperature=1.0), want, rtol=1e-4)
  want = (want + divergence(Z, other)) / 2
  np.testing.assert_allclose(losses.r_drop(Z, other), want, rtol=1e-4)
  views = np.stack([Z, other], 1)
  mean = np.log(oracles.softmax(np.float64(views)).mean(1))
  want = (divergence(views[:, 0], mean) + divergence(views[:, 1], mean)) / 2
  np.testing.assert_allclose(losses.jensen_shannon(views), want, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 100.0, 1e4])
def test_distillation_at_high_temperatures(temperature):
  other = moved(1.0)
  t = np.float64(temperature)
  want = t**2 * divergence(other / t, Z / t)
  np.testing.assert_allclose(losses.distillation(Z, other, temperature=temperature), want, rtol=1e-5)


def test_a_mean_activation_near_its_target():
  got = penalties.kl_sparsity(jnp.full((2, 1), 0.0501), target=0.05)
  p, q = 0.05, np.float64(np.float32(0.0501))
  p = np.float64(np.float32(p))
  want = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
  np.testing.assert_allclose(got, want, rtol=1e-3)

"""Distillation: its gradient, its limits, and classes that are excluded."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import losses

rng = np.random.default_rng(3)
Z, V = (rng.normal(size=(6, 5)) * 3 for _ in range(2))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_gradient_is_the_temperature_times_the_gap_and_the_students_alone(temperature):
  total = lambda z, v: losses.distillation(z, v, temperature=temperature).sum()
  to_student, to_teacher = jit(jax.grad(total, argnums=(0, 1)))(jnp.float32(Z), jnp.float32(V))
  gap = oracles.softmax(Z / temperature) - oracles.softmax(V / temperature)
  np.testing.assert_allclose(to_student, temperature * gap, rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(to_teacher, 0)


def test_at_high_temperature_it_matches_centred_logits():
  """Eq. 4 of the paper, as a loss: half the variance over the classes of the difference."""
  with jax.enable_x64(True):
    got = jit(lambda z, v: losses.distillation(z, v, temperature=1e4))(Z, V)
  np.testing.assert_allclose(got, (Z - V).var(axis=-1) / 2, rtol=1e-3)


@pytest.mark.thorough
def test_at_temperature_1_it_is_the_cross_entropy_of_soft_labels_less_their_entropy():
  p, q = oracles.softmax(V), oracles.softmax(Z)
  got = losses.distillation(jnp.float32(Z), jnp.float32(V), temperature=1.0)
  np.testing.assert_allclose(got, -(p * np.log(q)).sum(-1) + (p * np.log(p)).sum(-1), rtol=1e-4)


def test_a_class_that_the_teacher_excludes_does_not_count():
  teacher = jnp.log(jnp.array([0.25, 0.75, 0.0]))
  value = jit(jax.value_and_grad(lambda z: losses.distillation(z, teacher, temperature=1.0)))
  for student in (np.array([1, 1, -np.inf], np.float32), np.array([1, 1, -1e4], np.float32)):
    loss, gradient = value(student)
    assert loss == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), rel=1e-5)
    np.testing.assert_allclose(gradient, [0.25, -0.25, 0], atol=1e-6)

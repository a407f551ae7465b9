"""The teacher's part in a loss; `test_ema.py` has its average."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging, losses


@pytest.mark.claim(
  "regularization",
  "semi-supervised learning",
  "P(y given x) also from P(x): a teacher's targets need no labels",
)
def test_the_teacher_gets_no_gradient():
  x, y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 3)), jnp.float32)
  state = averaging.mean_teacher_init(jnp.ones((3, 3)))

  def loss(student):
    teacher = averaging.mean_teacher_update(state, student, decay=0.5, ramp=False).params
    return losses.consistency(x @ student, y @ teacher).sum()

  def fixed(student, teacher):
    return losses.consistency(x @ student, y @ teacher).sum()

  student = jnp.eye(3)
  got, want = jax.jit(lambda w: (jax.grad(loss)(w), jax.grad(fixed)(w, 0.5 * w + 0.5)))(student)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert jnp.abs(got).max() > 0.01

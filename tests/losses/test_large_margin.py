"""The penalty on unequal wrong logits: its digits where it or the cross-entropy is small."""

import decimal

import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import losses

D = decimal.Decimal


def exact(logits, label, weight):
  """The equation in decimal arithmetic."""
  with decimal.localcontext(prec=60):
    logits = [D(float(x)) for x in logits]
    total = lambda row: sum((x - max(row)).exp() for x in row).ln() + max(row)
    wrong = logits[:label] + logits[label + 1 :]
    mass = total(wrong)
    log_q = [x - mass for x in wrong]
    penalty = sum((x.exp() - D(1) / len(wrong)) * x for x in log_q)
    return float(total(logits) - logits[label] + D(float(np.float32(weight))) / 2 * penalty)


@pytest.mark.parametrize(
  ("logits", "weight"),
  [
    ([60, 0, 1e-3, 2e-3], 0.3),  # 1e-7, of which the equation as printed leaves nothing in float32
    ([60, 0, 1e-6, 0], 1e10),
    ([88, 1, 1.0001, 1.0002, 1], 0.3),
    ([80, *[0] * 999, 1e-3], 0.3),
    ([80, *[0] * 999, 12], 0.3),
    ([20, 0, 0], 0.3),
    ([1e4, 9e3, 9001, -1e4], 0.3),
    ([0, 1000, -1000, 999], 1.0),
  ],
)
def test_digits_of_small_and_large_penalties(logits, weight):
  logits = np.float32(logits)
  got = losses.large_margin(jnp.asarray(logits), jnp.array(0), weight=weight)
  np.testing.assert_allclose(got, exact(logits, 0, weight), rtol=4e-7)

"""Appendix B, footnote 1: the argument on gradients, for the wrong classes."""

import numpy as np
import oracles
import pytest
from contract import jit

from papers import dropmax

pytestmark = pytest.mark.usefixtures("x64")
K = 5
MASKS = oracles.all_masks(K)


def correctly_classified(number):
  """Target 0 with the largest logit; Condition 1: rho_t above the one rho of all others."""
  rng = np.random.default_rng(0)
  o = rng.normal(size=(number, K))
  o[:, 0] = o.max(-1) + rng.exponential(0.3, number)
  other = rng.uniform(0.05, 0.6, (number, 1))
  rho = np.concatenate([rng.uniform(other, 0.99), np.repeat(other, K - 1, 1)], 1)
  return o, np.log(rho / (1 - rho)), np.zeros(number, int)


def sides(o, ph, y, target):
  return jit(lambda *x: dropmax.dropmax_nontarget_gradients(*x, target=target))(o, ph, y)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["kept", "sampled"])
def test_every_side_by_enumeration(target):
  rng = np.random.default_rng(1)
  o, ph = 2 * rng.normal(size=(2, 30, K))
  y = rng.integers(0, K, 30)
  got = sides(o, ph, y, target)
  for i, (row, prior, t) in enumerate(zip(o, ph, y)):
    rho = oracles.sigmoid(prior)
    keep = np.where(np.arange(K) == t, 1.0, rho) if target == "kept" else rho
    exact = oracles.mask_probabilities(MASKS, keep) @ oracles.masked_softmax(row, MASKS)
    gated, plain = rho * np.exp(row), oracles.softmax(row)
    want = {
      "regularizer": exact - plain,
      "regularizer_printed": gated / gated.sum() - plain,
      "softmax": plain,
      "softmax_printed": plain,
    }
    for name, values in want.items():
      values[t] = 0
      np.testing.assert_allclose(got[name][i], values, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.thorough
@pytest.mark.claim(
  "dropmax",
  "appendix, B, footnote 1",
  "the printed argument for wrong classes: under Condition 1 the regulariser opposes the loss",
)
def test_the_printed_side_opposes_the_loss():
  o, ph, y = correctly_classified(500)
  assert (np.asarray(sides(o, ph, y, "sampled")["regularizer_printed"])[:, 1:] < 0).all()
  # With rho_t below the others' it has the other sign.
  assert (np.asarray(sides(o, -ph, y, "sampled")["regularizer_printed"])[:, 1:] > 0).all()


@pytest.mark.thorough
@pytest.mark.claim(
  "dropmax",
  "appendix, B, footnote 1",
  "gradients of wrong classes are smaller than those of softmax: with the target kept, not with it sampled",
  status="erratum",
)
def test_smaller_gradients_need_the_target_kept():
  o, ph, y = correctly_classified(1000)
  share = {}
  for target in ("kept", "sampled"):
    got = {name: np.asarray(side)[:, 1:] for name, side in sides(o, ph, y, target).items()}
    share[target] = (np.abs(got["softmax"] + got["regularizer"]) < got["softmax"]).mean()
  assert share["kept"] == 1
  assert share["sampled"] < 0.75

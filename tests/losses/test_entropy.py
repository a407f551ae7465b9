"""Terms for unlabelled examples, and the losses with them: who teaches, and what the limits are."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import ensembles, losses

LOGITS = jnp.array([[3.0, -1.0, 0.5], [0.1, 0.0, 0.2], [-4.0, 4.0, 1.0]])
LABELS = jnp.array([2, 0, 1])


def test_entropy_is_that_of_flat_and_of_sure_predictions():
  np.testing.assert_allclose(
    losses.entropy(jnp.array([[7.0] * 4, [1e4, 0, 0, 0]])), [np.log(4), 0], rtol=1e-6
  )


@pytest.mark.parametrize(
  "gaps", [[1e-3, 2e-3], [4, 0], [12, 13], [17], [20, 20], [32, 40, 41], [60, 63], [80], [1e4, 3]]
)
@pytest.mark.parametrize("offset", [0, 1024])
def test_entropy_of_nearly_certain_predictions_has_its_digits(gaps, offset):
  """Against decimal arithmetic, and as the expected entropy of a member of an ensemble."""
  logits = np.float32([offset, *(offset - np.float32(gap) for gap in gaps)])
  with decimal.localcontext(prec=60):
    terms = [(decimal.Decimal(float(x)) - decimal.Decimal(float(logits[0]))).exp() for x in logits]
    probs = [term / sum(terms) for term in terms]
    want = float(-sum(p * p.ln() for p in probs))
  np.testing.assert_allclose(losses.entropy(jnp.asarray(logits)), want, rtol=1e-6)
  log_probs = jax.nn.log_softmax(jnp.asarray(logits))
  member = ensembles.uncertainty(log_probs[None]).expected_entropy
  np.testing.assert_allclose(member, want, rtol=1e-5)  # of rounded log-probabilities


SOFT = jnp.array([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
MASKED = [
  ("entropy", ()),
  *(
    (name, (labels,)) for name in ("confidence_penalty", "focal", "bi_tempered") for labels in ([2, 0], SOFT)
  ),
  ("softmax_cross_entropy", (SOFT,)),
  ("sparsemax", (SOFT,)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("name", "labels"),
  # `test_excluded_classes` has each loss with its values.
  [*MASKED[:2], *(pytest.param(*row, marks=pytest.mark.thorough) for row in MASKED[2:])],
)
def test_a_class_with_a_logit_of_minus_infinity_is_as_if_left_out(name, labels):
  """In value and gradient; where it has a share of soft labels, that is 0."""
  function = lambda o, *labels: getattr(losses, name)(o, *labels).sum()
  without = [jnp.array([1, 0]) if isinstance(y, list) else jnp.delete(y, 1, axis=1) for y in labels]
  labels = [jnp.array(y) for y in labels]
  masked = LOGITS[:2].at[:, 1].set(-jnp.inf)
  value, slope = jit(jax.value_and_grad(function))(masked, *labels)
  want, want_slope = jit(jax.value_and_grad(function))(jnp.delete(LOGITS[:2], 1, axis=1), *without)
  np.testing.assert_allclose(value, want, rtol=1e-6)
  np.testing.assert_allclose(slope, np.insert(want_slope, 1, 0, axis=1), atol=1e-6)


@pytest.mark.thorough
def test_divergence_shows_in_pseudo_labels():
  nan, unsure = jnp.array([[jnp.nan, 0.0]]), jnp.array([[0.1, 0.0]])
  for pair in ((nan, nan), (nan, unsure), (unsure, nan)):
    assert np.isnan(losses.pseudo_label(*pair)).all()
  np.testing.assert_array_equal(losses.pseudo_label(unsure, unsure), 0)


def test_pseudo_labels_pass_above_the_threshold_and_teach_one_way():
  function = lambda o, target: losses.pseudo_label(o, target, threshold=0.9).sum()
  value, (own, teacher) = jit(jax.value_and_grad(function, (0, 1)))(LOGITS[::-1], LOGITS)
  p = oracles.softmax(LOGITS)
  np.testing.assert_array_equal(p.max(-1) > 0.9, [True, False, True])
  want = np.array([1, 0, 1])[:, None] * (oracles.softmax(LOGITS[::-1]) - oracles.one_hot([0, 2, 1], 3))
  np.testing.assert_allclose(own, want, atol=1e-6)
  np.testing.assert_array_equal(teacher, 0)
  np.testing.assert_allclose(value, oracles.cross_entropy(LOGITS[::-1], [0, 2, 1])[[0, 2]].sum(), rtol=1e-6)


@pytest.mark.thorough
def test_weights_of_nothing_are_the_cross_entropy():
  want = losses.softmax_cross_entropy(LOGITS, LABELS)
  prior = jnp.log(jnp.array([0.5, 0.2, 0.3]))
  np.testing.assert_array_equal(losses.confidence_penalty(LOGITS, LABELS, weight=0.0), want)
  np.testing.assert_array_equal(losses.logit_adjustment(LOGITS, LABELS, prior, weight=0.0), want)
  never = jnp.array([0.0, -jnp.inf, 0.0])  # a class without examples
  traced = jax.jit(lambda weight: losses.logit_adjustment(LOGITS, LABELS, never, weight=weight))
  for got in (losses.logit_adjustment(LOGITS, LABELS, never, weight=0.0), traced(0.0)):
    np.testing.assert_allclose(got, want, rtol=1e-6)
  equal = losses.logit_adjustment(LOGITS, LABELS, jnp.full(3, 7.0))  # as frequent, and not normalised
  np.testing.assert_allclose(equal, want, rtol=1e-5)


@pytest.mark.thorough
def test_r_drop_of_impossible_classes_and_of_a_prediction_with_itself():
  """No NaN where both exclude a class, in value and slope; none of either for twice the same."""
  log_p = jnp.array([[-jnp.inf, 0.0, -3.0], [-1.0, -0.5, -1e4]])
  value, slope = jit(lambda p: (losses.r_drop(p, p), jax.grad(lambda p: losses.r_drop(p, p).sum())(p)))(log_p)
  np.testing.assert_array_equal(value, 0)
  np.testing.assert_array_equal(slope, 0)
  np.testing.assert_array_equal(losses.r_drop(log_p[:1], jnp.log(jnp.full((1, 3), 1 / 3))), jnp.inf)


def test_refusals():
  with pytest.raises(ValueError, match="threshold must lie in"):
    losses.pseudo_label(LOGITS, LOGITS, threshold=1.5)
  with pytest.raises(ValueError, match="weight must lie in"):
    losses.confidence_penalty(LOGITS, LABELS, weight=-1.0)
  with pytest.raises(ValueError, match="weight must lie in"):
    losses.logit_adjustment(LOGITS, LABELS, jnp.zeros(3), weight=-1.0)

"""Classes excluded by a logit of -inf: +inf for such a label, the loss without the class for the others."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases_losses import bi_tempered
from contract import jit

from jaxreg import losses
from jaxreg.losses import dropmax_qp_terms

INF = math.inf
# The second class is excluded; the label is another one, the excluded one, and one without rivals.
LOGITS = np.float32([[1, -INF, 0], [1, -INF, 0], [-INF, -INF, 2]])
LABELS = np.array([0, 1, 2])
NEAR = math.log1p(math.exp(-1))  # 0.3132617, the cross-entropy of the first example
P = math.exp(-NEAR)
ENTROPY = -(P * math.log(P) + (1 - P) * math.log(1 - P))
GATES = np.ones_like(LOGITS)
GATE = math.log1p(math.exp(-1))  # -log sigmoid(1)
partial = functools.partial
plain = (NEAR, INF, 0)
tempered = tuple(bi_tempered(np.float64(LOGITS), LABELS, 0.8, 1.3))


def drawn(function, **options):
  return lambda o, y: function(jax.random.key(0), o, y, **options)


# name: the loss, whether it takes soft labels, and its values for the three examples.
CASES = {
  "softmax_cross_entropy": (losses.softmax_cross_entropy, True, plain),
  **{
    f"focal {gamma}": (partial(losses.focal, gamma=gamma), True, ((1 - P) ** gamma * NEAR, INF, 0))
    for gamma in (0.0, 0.5, 2.0)
  },
  "poly_loss": (losses.poly_loss, True, (NEAR + 2 * (1 - P), INF, 0)),
  "generalized_cross_entropy": (losses.generalized_cross_entropy, True, ((1 - P**0.7) / 0.7, 1 / 0.7, 0)),
  "generalized_cross_entropy 0": (partial(losses.generalized_cross_entropy, q=0.0), True, plain),
  "active_passive": (
    losses.active_passive,
    True,
    (NEAR / (2 * NEAR + 1) + 4 * (1 - P), INF, 0),
  ),
  "active_passive, symmetric": (
    partial(losses.active_passive, active_weight=0.1, normalized=False),
    True,
    (0.1 * NEAR + 4 * (1 - P), INF, 0),
  ),
  "forward_correction": (
    lambda o, y: losses.forward_correction(o, y, np.float32([[0.8, 0.1, 0.1], [0, 1, 0], [0.2, 0, 0.8]])),
    True,
    (-math.log(0.8 * P + 0.2 * (1 - P)), -math.log(0.1 * P), -math.log(0.8)),
  ),
  "logit_adjustment": (
    lambda o, y: losses.logit_adjustment(o, y, jnp.log(jnp.array([0.5, 0.3, 0.2]))),
    True,
    (math.log1p(0.4 * math.exp(-1)), INF, 0),
  ),
  "logit_adjustment of a class without examples": (
    lambda o, y: losses.logit_adjustment(
      jnp.where(jnp.isneginf(o), 0, o), y, jnp.log(jnp.array([0.5, 0.0, 0.5]))
    ),
    True,
    (NEAR, INF, math.log1p(math.exp(-2))),
  ),
  "label_smoothing 0": (partial(losses.label_smoothing, smoothing=0.0), True, plain),
  "label_smoothing 0 over the others": (
    partial(losses.label_smoothing, smoothing=0.0, over="others"),
    True,
    plain,
  ),
  "label_smoothing 0.1": (losses.label_smoothing, True, (INF, INF, INF)),
  "label_smoothing 1 over the others": (
    partial(losses.label_smoothing, smoothing=1.0, over="others"),
    True,
    (INF, NEAR + 0.5, INF),  # the mean of the cross-entropies of the two others
  ),
  "large_margin 0": (partial(losses.large_margin, weight=0.0), False, plain),
  "large_margin 0.3": (losses.large_margin, False, (INF, INF, INF)),
  "confidence_penalty": (losses.confidence_penalty, True, (NEAR - 0.1 * ENTROPY, INF, 0)),
  "bi_tempered": (losses.bi_tempered, True, tempered),
  "bi_tempered at t1 1": (
    partial(losses.bi_tempered, t1=1.0, t2=1.3),
    True,
    (bi_tempered(np.float64([1, 0]), np.array(0), 1, 1.3), INF, 0),
  ),
  "sparsemax": (losses.sparsemax, True, (0, INF, 0)),
  "sampled_softmax": (drawn(losses.sampled_softmax, rate=0.0), False, plain),
  "random_dropmax": (drawn(losses.random_dropmax, rate=0.0), False, plain),
  "deterministic_attention": (lambda o, y: losses.deterministic_attention(o, GATES, y), True, plain),
  "deterministic_dropmax": (
    lambda o, y: losses.deterministic_dropmax(o, GATES, y),
    True,
    tuple(loss + 3 * GATE + 2 for loss in plain),
  ),
  "dropmax": (
    lambda o, y: losses.dropmax_terms(jax.random.key(0), o, 1e3 * GATES, 0 * GATES, y)["nll"],
    False,
    plain,
  ),
  "dropmax_qp": (
    lambda o, y: dropmax_qp_terms(jax.random.key(0), o, 1e3 * GATES, y)["nll"],
    False,
    plain,
  ),
  "entropy": (lambda o, y: losses.entropy(o), False, (ENTROPY, ENTROPY, 0)),
  "z_loss": (lambda o, y: losses.z_loss(o), False, ((1 + NEAR) ** 2, (1 + NEAR) ** 2, 4)),
  "pseudo_label": (
    lambda o, y: losses.pseudo_label(o, jax.nn.one_hot(y, 3), threshold=0.0),
    False,
    plain,
  ),
  "pseudo_label below the threshold": (
    lambda o, y: losses.pseudo_label(o, jax.nn.one_hot(y, 3)),
    False,
    (0, 0, 0),
  ),
  "distillation": (
    lambda o, y: losses.distillation(o, LOGITS[[0, 2, 2]], temperature=1.0),
    False,
    (0, math.log1p(math.exp(1)), 0),
  ),
  "consistency": (
    lambda o, y: losses.consistency(o, LOGITS[[0, 2, 2]]),
    False,
    (0, 2 * P**2 / 3, 0),
  ),
}


# A name with a space is another case of a loss.
@pytest.mark.thorough
@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=pytest.mark.thorough if " " in name else ()) for name in CASES]
)
def test_values_and_gradients_of_excluded_classes(name):
  function, takes_soft, want = CASES[name]
  counts = np.isfinite(want)
  forms = [LABELS, np.eye(3, dtype=np.float32)[LABELS]] if takes_soft else [LABELS]

  @jit  # one program for both forms of the labels
  def run(o, forms):
    results = []
    for y in forms:
      loss, pull = jax.vjp(lambda o, y=y: function(o, y), o)
      results.append((loss, pull(jnp.asarray(counts, loss.dtype))[0]))
    return results

  for loss, gradient in run(LOGITS, forms):
    np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-6)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(np.asarray(gradient)[~counts], 0, atol=1e-6)


def test_an_excluded_label_has_the_gradient_of_its_one_hot_form():
  labels = jnp.asarray(LABELS)
  for function, y in (
    (losses.softmax_cross_entropy, labels),
    (losses.softmax_cross_entropy, jax.nn.one_hot(labels, 3)),
    (optax.softmax_cross_entropy_with_integer_labels, labels),
  ):
    loss, gradient = jit(jax.value_and_grad(lambda o, f=function, y=y: f(o, y).sum()))(LOGITS)
    assert loss == INF
    np.testing.assert_allclose(gradient, [[P - 1, 0, 1 - P], [P, -1, 1 - P], [0, 0, 0]], atol=1e-6)


def test_without_any_class_the_loss_is_infinite():
  assert jit(losses.softmax_cross_entropy)(np.full((1, 3), -INF, np.float32), np.array([1])) == INF


def test_a_weight_has_a_gradient_beside_a_class_without_examples():
  log_prior = jnp.log(jnp.array([0.5, 0.0, 0.5]))
  loss = lambda tau: losses.logit_adjustment(jnp.zeros((1, 3)), jnp.array([0]), log_prior, weight=tau).sum()
  np.testing.assert_allclose(jit(jax.value_and_grad(loss))(1.0), (math.log(2), 0), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["dense", "scan", "gather"])
def test_group_softmax_without_a_class(form):
  """A bias of -inf excludes it in every group, also in one without features."""
  bias, features = np.float32([0.0, -INF, 0.0]), np.ones((2, 4), np.float32)
  kernel = np.zeros((4, 3), np.float32)
  kernel[:, 0] = 0.25  # logits of 1, -inf, 0
  for sizes in ([4], [0, 4]):
    loss = jit(partial(losses.group_softmax, num_groups=sizes, kind="II", form=form))
    empty = math.log(2) if len(sizes) == 2 else 0
    np.testing.assert_allclose(loss(features, kernel, bias, np.array([0, 1])), [NEAR + empty, INF], rtol=1e-6)

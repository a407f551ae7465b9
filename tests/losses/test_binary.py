"""Losses of labels that are each yes or no: the forms for two classes, Optax's, and the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import losses

RNG = np.random.default_rng(0)
LOGITS = np.float32(RNG.normal(size=(6, 3)) * 3)
LABELS = RNG.integers(0, 2, (6, 3))
OF_LABELS = (
  *("asymmetric", "binary_confidence_penalty", "binary_cross_entropy", "binary_focal", "binary_poly_loss"),
)
pair = lambda z: jnp.stack([jnp.zeros_like(z), z], axis=-1)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("binary", "softmax"),
  [
    (losses.binary_cross_entropy, losses.softmax_cross_entropy),
    (lambda z, y: losses.binary_cross_entropy(z, y, smoothing=0.1), losses.label_smoothing),
    (lambda z, y: losses.binary_focal(z, y, alpha=None), losses.focal),
    (losses.binary_poly_loss, losses.poly_loss),
    (losses.binary_confidence_penalty, losses.confidence_penalty),
  ],
)
def test_it_is_the_softmax_of_two_classes(binary, softmax):
  """Value and gradient, of hard and soft labels."""
  shares = np.float32(RNG.uniform(size=LABELS.shape))
  for of, other in (
    (lambda z: binary(z, LABELS), lambda z: softmax(pair(z), LABELS)),
    (lambda z: binary(z, shares), lambda z: softmax(pair(z), np.stack([1 - shares, shares], -1))),
  ):
    np.testing.assert_allclose(of(LOGITS), other(LOGITS), rtol=1e-5, atol=1e-6)
    got, want = (jax.grad(lambda z, f=f: f(z).sum())(LOGITS) for f in (of, other))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_focal_is_optax_s():
  for alpha in (0.25, 0.6, None):
    got = losses.binary_focal(LOGITS, LABELS, alpha=alpha, gamma=1.5)
    want = optax.losses.sigmoid_focal_loss(LOGITS, LABELS, alpha=alpha, gamma=1.5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_asymmetric_without_margin_is_focal():
  """Of the same power on both sides; twice it at the weights one half."""
  got = losses.asymmetric(LOGITS, LABELS, gamma_yes=2.0, gamma_no=2.0, margin=0.0)
  np.testing.assert_allclose(got, 2 * losses.binary_focal(LOGITS, LABELS, alpha=0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_an_absent_label_within_the_margin_has_neither_loss_nor_gradient():
  z = jnp.array([-20.0, np.log(0.04 / 0.96), np.log(0.06 / 0.94)])
  of = lambda z, gamma: losses.asymmetric(z, jnp.zeros(3, int), gamma_no=gamma).sum()
  slope = jax.grad(of)
  curve = jax.grad(lambda z, gamma: slope(z, gamma).sum())
  for gamma in (0.0, 0.5, 4.0):
    assert not any(map(np.any, (of(z[:1].repeat(3), gamma), slope(z, gamma)[:2], curve(z, gamma)[:2])))
    assert of(z, gamma) > 0
    assert slope(z, gamma)[2] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_LABELS)
def test_an_infinite_logit_is_certain(name):
  """A right one has a loss and a gradient of 0; a wrong one a loss that shows, and finite gradients."""
  of = getattr(losses, name)
  z, y = jnp.array([np.inf, -np.inf]), jnp.array([1, 0])
  assert not np.any(of(z, y))
  assert not np.any(jax.grad(lambda z: of(z, y).sum())(z))
  wrong = of(z, 1 - y)
  assert (wrong > (1 if name == "asymmetric" else 1e28)).all()  # the margin bounds that of an absent label
  assert np.isfinite(jax.grad(lambda z: of(z, 1 - y).sum())(z)).all()


@pytest.mark.parametrize("name", OF_LABELS)
def test_labels_are_within_0_and_1(name):
  of = getattr(losses, name)
  np.testing.assert_array_equal(of(LOGITS, LABELS > 0), of(LOGITS, LABELS.astype(np.float32)))
  with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\], got 2"):
    of(LOGITS, np.full(LOGITS.shape, 2))
  with pytest.raises(ValueError, match=r"labels must have shape \(6, 3\), one for each logit, got \(6,\)"):
    of(LOGITS, LABELS[:, 0])
  traced = jax.jit(of)(jnp.asarray(LOGITS), jnp.full(LOGITS.shape, -1))
  assert np.isnan(traced).all()
  # Of a label that is not known, `where` takes out that one alone.
  got = of(LOGITS, np.where(LABELS, -1, 0), where=LABELS == 0)
  np.testing.assert_array_equal(got, np.where(LABELS, 0, of(LOGITS, np.zeros_like(LABELS))))

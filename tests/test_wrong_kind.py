"""Inputs of the wrong kind are refused with the remedy where their values are known, outside of `jit`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import adversarial, augment, averaging, calibration, ensembles, losses, noise, plots

LOGITS = np.float32([[2.0, -1.0, 0.5], [-3.0, -1.0, -2.0]])  # the second row has no positive logit
LOG_PROBS = np.asarray(jax.nn.log_softmax(LOGITS))
LABELS = np.array([0, 1])
IMAGES = np.float32(np.random.default_rng(0).uniform(size=(2, 8, 8, 3)))
key = functools.partial(jax.random.key, 0)

OF_LOG_PROBS = {
  "uncertainty": lambda x: ensembles.uncertainty(x[None]),
  "arithmetic": lambda x: ensembles.arithmetic(x[None]),
  "arithmetic of a list": lambda x: ensembles.arithmetic([np.asarray(x).tolist()]),
  "arithmetic of all that count": lambda x: ensembles.arithmetic(
    np.stack([np.full_like(x, 7), x]), weights=np.float32([0, 1])
  ),
  "geometric": lambda x: ensembles.geometric(x[None]),
  **{
    name: lambda x, name=name: getattr(calibration, name)(x, LABELS[: len(x)])
    for name in ("nll", "brier", "ece_bins", "smooth_ece", "risk_coverage")
  },
  **{name: getattr(calibration, name) for name in ("conformal_scores", "least_confidence")},
  "aps_scores": lambda x: calibration.aps_scores(key(), x),
  "vat_loss": lambda x: adversarial.vat_loss(key(), lambda _: x, LOGITS[: len(x)], eps=0.1),
  "trades_loss": lambda x: adversarial.trades_loss(
    key(), lambda _: x, LOGITS[: len(x)], eps=0.1, step_size=0.1, num_steps=1
  ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_LOG_PROBS)
def test_logits_and_probabilities_are_no_log_probabilities(name):
  call = OF_LOG_PROBS[name]
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(call(jnp.asarray(LOG_PROBS))))
  for given in (LOGITS, LOGITS[1:], np.exp(LOG_PROBS), LOG_PROBS - 1):
    with pytest.raises(
      ValueError, match=r"log_prob.* must be log-probabilities, .*jax.nn.log_softmax of logits"
    ):
      call(jnp.asarray(given))


def test_a_plot_refuses_logits_too():
  half = np.full((2, 3), 0.5)
  plots.retain_maps(half, half, LABELS, LOG_PROBS)
  with pytest.raises(ValueError, match="log_probs must be log-probabilities"):
    plots.retain_maps(half, half, LABELS, LOGITS)


@pytest.mark.thorough
def test_log_probabilities_may_be_coarse_excluded_or_broken():
  many = jax.nn.log_softmax(np.random.default_rng(0).normal(size=(4, 2, 1000)).astype(np.float32))
  assert np.isfinite(ensembles.uncertainty(many.astype(jnp.bfloat16)).entropy).all()
  excluded = np.log(np.float32([[0.5, 0.5, 1e-30], [0.5, 0.5, 1e-30]]).round(3) + 0)
  np.testing.assert_allclose(ensembles.uncertainty(excluded).entropy, np.log(2), rtol=1e-6)
  assert np.isnan(ensembles.uncertainty(jnp.full((2, 3), jnp.nan)).entropy)


def test_logits_pass_inside_of_jit_where_no_value_is_known():
  assert np.isfinite(jax.jit(ensembles.uncertainty)(LOGITS).entropy).all()


ONE = np.float32([[0.5], [-2.0]])  # one logit an example
OF_LOGITS = {
  **{
    name: functools.partial(getattr(losses, name), labels=LABELS)
    for name in (
      *("softmax_cross_entropy", "focal", "poly_loss", "label_smoothing", "large_margin"),
      *("confidence_penalty", "bi_tempered", "sparsemax", "generalized_cross_entropy", "active_passive"),
    )
  },
  **{
    name: getattr(losses, name)
    for name in (
      *("entropy", "z_loss", "softmax_log_probs", "bi_tempered_log_probs"),
      "sparsemax_log_probs",
    )
  },
  "logit_adjustment": lambda x: losses.logit_adjustment(x, LABELS, np.zeros(1, np.float32)),
  "distillation": lambda x: losses.distillation(x, x),
  "consistency": lambda x: losses.consistency(x, x),
  "pseudo_label": lambda x: losses.pseudo_label(x, x),
  "r_drop": lambda x: losses.r_drop(x, x),
  "jensen_shannon": lambda x: losses.jensen_shannon(x),
  "sampled_softmax": lambda x: losses.sampled_softmax(key(), x, LABELS),
  "random_dropmax": lambda x: losses.random_dropmax(key(), x, LABELS),
  "dropmax": lambda x: losses.dropmax(key(), x, x, x, LABELS),
  "dropmax_qp": lambda x: losses.dropmax_qp(key(), x, x, LABELS),
  "dropmax_log_probs": lambda x: losses.dropmax_log_probs(x, x),
  "deterministic_dropmax": lambda x: losses.deterministic_dropmax(x, x, LABELS),
  "energy": calibration.energy,
  "temper": functools.partial(calibration.temper, temperature=1.0),
  "fit_temperature": lambda x: calibration.fit_temperature(x, LABELS),
  "nll": lambda x: calibration.nll(x, LABELS),
}


@pytest.mark.parametrize("name", OF_LOGITS)
def test_one_logit_an_example_is_refused_also_inside_of_jit(name):
  for call in (OF_LOGITS[name], jax.jit(OF_LOGITS[name])):
    with pytest.raises(
      ValueError, match=r"(logits|log_probs) must have at least 2 classes, got \(2, 1\); .*zeros"
    ):
      call(ONE)


LONGER = [
  pytest.param(name, marks=pytest.mark.thorough) for name in ("rand_augment", "auto_augment", "augmix")
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["trivial_augment", "lighting", "color_jitter", *LONGER])
def test_pixels_outside_of_the_range_are_refused(name):
  call = lambda x, **options: getattr(augment, name)(key(), {"inputs": x}, **options)["inputs"]
  standardised = (IMAGES - IMAGES.mean()) / IMAGES.std()
  for x in (255 * IMAGES, standardised, jnp.asarray(standardised)):
    with pytest.raises(
      ValueError, match=r"inputs must lie in value_range, \[0, 1\], got values from .*normalize"
    ):
      call(x)
  wide = call(255 * IMAGES, value_range=(0.0, 255.0))
  assert 1 < wide.max() <= 255


def test_inputs_of_a_bernoulli_decoder_are_at_most_1():
  outputs = np.zeros((1, 2), np.float32)
  with pytest.raises(
    ValueError, match=r"x must lie in \[0, 1\] for 'bernoulli', got values from 0 to 255; divide"
  ):
    losses.reconstruction(outputs, np.float32([[0, 255]]), likelihood="bernoulli")
  assert losses.reconstruction(outputs, np.float32([[0, 255]])) == 255**2 / 2


@pytest.mark.parametrize("axis", [0, 7, None, "last", 1.0, True, (1,)])
def test_an_axis_of_channels_is_named_with_those_that_there_are(axis):
  images = jnp.asarray(IMAGES)
  for call in (
    lambda: augment.flip(key(), {"inputs": images}, channel_axis=axis),
    lambda: noise.drop_block(key(), images, rate=0.5, block_size=2, channel_axis=axis),
    lambda: noise.spatial_dropout(key(), images, rate=0.5, channel_axis=axis),
  ):
    with pytest.raises(ValueError, match=r"^channel_axis must be one of the axes -3, -2, -1.*, got"):
      call()


@pytest.mark.parametrize(
  "pair", [0.2, None, "ab", ("a", "b"), (0.1,), (0.1, (0.2, 0.3)), (0.1, np.nan), (0.1, 2)]
)
def test_two_numbers_are_asked_for_by_name(pair):
  images = {"inputs": jnp.asarray(IMAGES)}
  for call in (
    lambda: augment.random_resized_crop(key(), images, area=pair),
    lambda: augment.random_erasing(key(), images, area=pair),
  ):
    with pytest.raises(ValueError, match=r"^area must (be two numbers|be a number|be a scalar|lie in)"):
      call()
  with pytest.raises(ValueError, match=r"^lengths must (be two numbers|be a number|be a scalar|lie in)"):
    averaging.power_ema(lengths=pair)

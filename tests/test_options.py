"""Options are scalars, or of the shape of the result: another shape would broadcast the result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import (
  adversarial,
  augment,
  calibration,
  constraints,
  losses,
  noise,
  objective,
  penalties,
  reparam,
)
from jaxreg._checks import check_option

RNG = np.random.default_rng(0)
BATCH, CLASSES = 3, 4
X, Y, Z = (RNG.normal(size=(BATCH, CLASSES)).astype(np.float32) for _ in range(3))
LABELS, PRIOR = np.array([0, 3, 1]), np.log(np.float32([0.1, 0.2, 0.3, 0.4]))
SOFT = np.asarray(jax.nn.softmax(Z))
KERNEL = RNG.normal(size=(CLASSES, CLASSES)).astype(np.float32)
PARAMS = {"kernel": KERNEL}
IMAGES = X[:, None, :, None]
DROPMAX = (X, Y, Z, LABELS)
UNLABELLED = np.array([0, -1, 1])
key = functools.partial(jax.random.key, 0)
swapped = lambda function: lambda *arrays, **options: function(key(), *arrays, **options)


def augmented(function, *arrays, **options):
  return lambda x, **option: function(*arrays, {"inputs": x, "labels": x}, **options, **option)["inputs"]


def attacked(**options):
  return lambda x, **option: adversarial.pgd(key(), lambda x: x.sum(1), x, num_steps=1, **options, **option)


def penalised(weight):
  return objective.penalty(penalties.l2, weight=weight)


# function, its arrays, the option, three values. The result is `[batch]`, or starts with the batch.
PER_EXAMPLE = [
  (losses.confidence_penalty, (X, LABELS), "weight", (0.0, 0.1, 2.0)),
  (losses.focal, (X, LABELS), "gamma", (0.0, 0.5, 2.0)),
  (losses.focal, (X, SOFT), "gamma", (0.0, 0.5, 2.0)),
  (losses.poly_loss, (X, LABELS), "epsilon", (-1.0, 0.0, 2.0)),
  (losses.poly_loss, (X, SOFT), "epsilon", (-1.0, 0.0, 2.0)),
  *((losses.generalized_cross_entropy, (X, labels), "q", (0.0, 0.7, 1.0)) for labels in (LABELS, SOFT)),
  *(
    (losses.active_passive, (X, labels), option, (0.0, 0.5, 2.0))
    for labels in (LABELS, SOFT)
    for option in ("active_weight", "passive_weight")
  ),
  (losses.logit_adjustment, (X, LABELS, PRIOR), "weight", (0.0, 0.5, 1.0)),
  (losses.label_smoothing, (X, LABELS), "smoothing", (0.0, 0.1, 1.0)),
  (losses.label_smoothing, (X, SOFT), "smoothing", (0.0, 0.1, 1.0)),
  (losses.large_margin, (X, LABELS), "weight", (0.0, 0.3, 1.0)),
  (losses.distillation, (X, Y), "temperature", (0.5, 1.0, 4.0)),
  (losses.pseudo_label, (X, Y), "threshold", (0.0, 0.5, 1.0)),
  (losses.semi_supervised, (X[:, 0], Y[:, 0], UNLABELLED), "weight", (0.0, 0.5, 2.0)),
  (losses.cosface, (X, KERNEL, LABELS), "margin", (0.0, 0.2, 1.0)),
  (losses.cosface, (X, KERNEL, LABELS), "scale", (1.0, 2.0, 64.0)),
  (losses.arcface, (X, KERNEL, LABELS), "margin", (0.0, 0.2, 1.0)),
  (losses.arcface, (X, KERNEL, LABELS), "scale", (1.0, 2.0, 64.0)),
  (losses.cosine_log_probs, (X, KERNEL), "scale", (1.0, 2.0, 64.0)),
  (losses.softmax_log_probs, (X,), "logit_scale", (0.25, 1.0, 2.0)),
  *(
    (swapped(losses.dropmax), DROPMAX, option, (0.1, 0.5, 2.0))
    for option in ("temperature", "kl_weight", "entropy_weight", "auxiliary_weight")
  ),
  (swapped(losses.dropmax_qp), (X, Y, LABELS), "temperature", (0.1, 0.5, 2.0)),
  (swapped(losses.dropmax_qp), (X, Y, LABELS), "entropy_weight", (0.1, 0.5, 2.0)),
  (losses.deterministic_dropmax, (X, Y, LABELS), "auxiliary_weight", (0.0, 0.5, 2.0)),
  (swapped(losses.random_dropmax), (X, LABELS), "rate", (0.0, 0.5, 1.0)),
  (
    lambda loss, weight: losses.multitask({"task": loss}, weights={"task": weight}),
    (X[:, 0],),
    "weight",
    (0.0, 0.5, -1.0),
  ),
  (functools.partial(swapped(noise.label_noise), num_classes=4), (LABELS,), "rate", (0.0, 0.5, 1.0)),
  (calibration.energy, (X,), "temperature", (0.5, 1.0, 2.0)),
  (
    lambda x, rate: augment.flip(key(), {"inputs": x}, rate=rate)["inputs"],
    (X[:, None, :, None],),
    "rate",
    (0.0, 0.5, 1.0),
  ),
]
DROPOUTS = ("dropout", "alpha_dropout", "gaussian_dropout", "recurrent_dropout", "stochastic_depth")
# The others have scalars only, or broadcast to the entries of an array.
SCALARS = [
  (swapped(losses.dropmax_diagnostics), DROPMAX, "temperature", 0.1),
  (swapped(losses.sampled_softmax), (X, LABELS), "rate", 0.5),
  (losses.bi_tempered, (X, LABELS), "t1", 0.5),
  (losses.bi_tempered, (X, LABELS), "t2", 1.5),
  (losses.sparsemax_log_probs, (X,), "eps", 0.1),
  (functools.partial(losses.group_softmax, num_groups=2), (X, KERNEL, None, LABELS), "power", 2.0),
  (swapped(noise.gaussian_noise), (X,), "std", 0.5),
  (swapped(noise.embedding_noise), (X,), "alpha", 0.5),
  (functools.partial(swapped(noise.concrete_dropout), rate_logit=0.5), (X,), "temperature", 0.5),
  (swapped(noise.dropconnect), (X, KERNEL), "rate", 0.5),
  (swapped(noise.dropconnect_params), (PARAMS,), "rate", 0.5),
  (functools.partial(swapped(noise.drop_block), block_size=1), (X[..., None],), "rate", 0.5),
  (swapped(noise.shake_drop), (X,), "rate", 0.5),
  *((swapped(getattr(noise, name)), (X,), "rate", 0.5) for name in DROPOUTS),
  (swapped(noise.weight_noise), (PARAMS,), "std", 0.5),
  (functools.partial(noise.scale_weights, mask={"kernel": True}), (PARAMS,), "rate", 0.5),
  (functools.partial(noise.concrete_dropout_kl, rate_logit=0.5), (KERNEL,), "length_scale", 0.5),
  (penalties.elastic_net, (PARAMS,), "ratio", 0.5),
  (penalties.kl_sparsity, (SOFT,), "target", 0.5),
  (penalties.activity_variance, (X,), "target", 0.5),
  (penalised, (), "weight", 0.5),
  (constraints.max_norm, (PARAMS,), "limit", 0.5),
  (functools.partial(constraints.prox_l1, step=0.1), (PARAMS,), "weight", 0.5),
  (constraints.soft_threshold, (X,), "threshold", 0.5),
  (attacked(step_size=0.1), (X,), "eps", 0.5),
  (attacked(eps=0.1), (X,), "step_size", 0.5),
  (functools.partial(swapped(adversarial.vat_loss), jax.nn.log_softmax), (X,), "eps", 0.5),
  (calibration.temper, (X,), "temperature", 0.5),
  (lambda x, alpha: augment.mixup(key(), {"inputs": x, "labels": x}, alpha=alpha), (X,), "alpha", 0.5),
  (augmented(augment.normalize, None, std=1.0), (IMAGES,), "mean", 0.5),
  (augmented(augment.random_erasing, key()), (IMAGES,), "rate", 0.5),
  (reparam.weight_standardization, (PARAMS,), "eps", 0.5),
]
NAMES = lambda rows: [f"{row[2]}-{number}" for number, row in enumerate(rows)]


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("function", "arrays", "option", "values"),
  # Each fifth is in the default set.
  [
    pytest.param(*row, id=name, marks=[pytest.mark.thorough] if number % 5 else [])
    for number, (row, name) in enumerate(zip(PER_EXAMPLE, NAMES(PER_EXAMPLE)))
  ],
)
def test_one_value_an_example_is_as_in_a_loop(function, arrays, option, values):
  call = lambda value: function(*arrays, **{option: value})

  @jit  # one program: compiling takes longer than all else
  def run(traced):
    return jax.vmap(call)(traced), call(traced), call(np.float32(values))

  one_by_one, got, of_known_values = run(np.float32(values))
  want = np.stack([np.asarray(one_by_one)[i, i] for i in range(len(values))])
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
  np.testing.assert_allclose(of_known_values, want, rtol=2e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("function", "arrays", "option", "value"),
  [(*row[:3], np.asarray(row[3])) for row in (*PER_EXAMPLE, *SCALARS)],
  ids=NAMES((*PER_EXAMPLE, *SCALARS)),
)
def test_another_shape_is_refused_by_name(function, arrays, option, value):
  value = np.float32(value.reshape(-1)[-1])
  # One that never fits, and one that makes `[batch]` a matrix, unless it fits the entries of a matrix.
  shapes = [(1, BATCH + 2), (BATCH + 2,)]
  one_result = (function, option) in [(row[0], row[2]) for row in PER_EXAMPLE]
  shapes += [(BATCH, 1), (1, BATCH), (1,), (BATCH, CLASSES)] if one_result else []
  for shape in shapes:
    with pytest.raises(ValueError, match=rf"{option}.*\bmust be a scalar.*, got shape \({shape[0]},"):
      function(*arrays, **{option: np.full(shape, value)})
    with pytest.raises(ValueError, match=rf"{option}.*\bmust be a scalar"):
      jax.eval_shape(lambda traced: function(*arrays, **{option: traced}), np.full(shape, value))


@pytest.mark.thorough
def test_vmap_over_an_option_of_scalars():
  gammas = jnp.array([0.0, 0.5, 2.0])
  got = jit(jax.vmap(lambda gamma: losses.focal(X, LABELS, gamma=gamma)))(gammas)
  want = [losses.focal(X, LABELS, gamma=gamma) for gamma in (0.0, 0.5, 2.0)]
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_an_option_of_noise_may_be_one_value_a_feature_or_an_example():
  for std in (np.float32([[0, 1, 2, 3]]), np.float32([[0], [1], [2]])):
    got = noise.gaussian_noise(key(), X, std=std)
    np.testing.assert_allclose(got, X + std * jax.random.normal(key(), X.shape), rtol=1e-6)


def test_the_message_says_what_is_allowed():
  with pytest.raises(ValueError, match=r"^gamma must be a scalar or have shape \(3,\), got shape \(3, 1\)$"):
    losses.focal(X, LABELS, gamma=np.ones((3, 1)))
  with pytest.raises(
    ValueError, match=r"^std must be a scalar or broadcast to shape \(3, 4\), got shape \(3,\)$"
  ):
    noise.gaussian_noise(key(), X, std=np.ones(3))
  with pytest.raises(ValueError, match=r"^ratio must be a scalar, got shape \(3,\)$"):
    penalties.elastic_net(PARAMS, ratio=np.ones(3))
  with pytest.raises(ValueError, match=r"^x must lie in"):
    check_option(np.array([0.5, 2.0]), "x", (2,), high=1)

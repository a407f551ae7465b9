"""DropMax against float64 NumPy in probability form, enumerations of hard masks and closed forms."""

import functools
import inspect
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.optimize
import scipy.special
from contract import jit
from scipy.special import log_expit, logit

from jaxreg import losses
from jaxreg._dropmax_masks import dropmax_log_mask, dropmax_masked_logits
from jaxreg.losses import deterministic_dropmax_terms, dropmax_qp_terms

K = 10
log_mask = jit(dropmax_log_mask, static_argnames="num_samples")
monte_carlo = jit(losses.dropmax_log_probs, static_argnames="num_samples")
# Section 1.7: a = 1 + W(1/e), the root of a = 1 + exp(-a).
A = 1 + scipy.special.lambertw(1 / math.e).real


def random_inputs(seed=0, batch=6, classes=K, scale=2.0, dtype=np.float64):
  rng = np.random.default_rng(seed)
  o, ph, rh = (rng.normal(size=(batch, classes)).astype(dtype) * scale for _ in range(3))
  return o, ph, rh, rng.integers(0, classes, batch)


def logit_noise(seed, shape, dtype=np.float64):
  return np.asarray(jax.random.logistic(jax.random.key(seed), shape, dtype), np.float64)


@functools.cache
def compiled_terms(**static):
  return jit(functools.partial(losses.dropmax_terms, **static))


# Given always, so that one program serves all values.
TRACED = ("temperature", "kl_weight", "entropy_weight", "auxiliary_weight")
DEFAULTS = {name: inspect.signature(losses.dropmax_terms).parameters[name].default for name in TRACED}


def terms(*arrays, seed=0, **keywords):
  """`dropmax_terms`, compiled; temperatures and weights are traced."""
  static = {name: keywords.pop(name) for name in ("num_samples", "class_reduction") if name in keywords}
  return compiled_terms(**static)(jax.random.key(seed), *arrays, **DEFAULTS | keywords)


def inner_terms(*arrays, seed=0, **keywords):
  """`dropmax_terms`, for use inside another transformation."""
  return losses.dropmax_terms(jax.random.key(seed), *arrays, **keywords)


def gradients_by_term(function):
  """`x -> {term: gradient of its sum}` of a function that returns terms; one draw of the masks serves all."""

  def gradients(x):
    values, pull = jax.vjp(function, x)
    names = [*values]
    only = {name: jnp.stack([jnp.full_like(v, name == each) for each in names]) for name, v in values.items()}
    pulled = jax.vmap(lambda cotangent: pull(cotangent)[0])(only)
    return {name: jax.tree.map(lambda g, i=i: g[i], pulled) for i, name in enumerate(names)}

  return gradients


def wrong(labels, classes):
  return oracles.one_hot(labels, classes) == 0


# Values: 5.7 points 1 and 2.


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize("temperature", [0.1, 0.7])
@pytest.mark.claim(
  "dropmax", "Eq. 5, 11", "the objective: likelihood under relaxed masks, KL, entropy, auxiliary loss"
)
def test_terms_equal_the_probability_form(samples, temperature):
  o, ph, rh, y = random_inputs()
  want = oracles.dropmax_terms(o, ph, rh, y, logit_noise(0, (samples, 6, K)), temperature=temperature)
  got = terms(o, ph, rh, y, temperature=temperature, num_samples=samples)
  assert got.keys() == want.keys()
  for name in want:
    np.testing.assert_allclose(got[name], want[name], rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("terms", [losses.dropmax_terms, dropmax_qp_terms, deterministic_dropmax_terms])
def test_a_loss_takes_the_options_of_its_terms(terms):
  """And names them itself, and itself in what it says to another."""
  name = terms.__name__.removesuffix("_terms")
  loss = getattr(losses, name)
  assert inspect.signature(loss).parameters == inspect.signature(terms).parameters
  scores = [jnp.array([[0.5, -1.0, 2.0]])] * (3 if name == "dropmax" else 2)
  other = {"temperature": 0.3, "num_samples": 3, "kl_weight": 2.0, "entropy_weight": 3.0}
  other |= {"auxiliary_weight": 5.0, "posterior_logits": scores[0] + 1, "class_reduction": "mean"}
  options = {n: value for n, value in other.items() if n in inspect.signature(loss).parameters}
  arguments = lambda: [jax.random.key(0), *scores, jnp.array([1])][name == "deterministic_dropmax" :]
  call = lambda function: jit(functools.partial(function, **options))(*arguments())
  want = sum(np.asarray(term) for term in call(terms).values())
  np.testing.assert_allclose(call(loss), want, rtol=1e-6)
  with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'temprature'"):
    loss(*arguments(), temprature=0.3)


def test_weights_scale_their_own_term_only():
  arrays = random_inputs(3, dtype=np.float32)
  plain = terms(*arrays)
  for option, name in (
    ("kl_weight", "kl"),
    ("entropy_weight", "neg_entropy"),
    ("auxiliary_weight", "auxiliary"),
  ):
    scaled = terms(*arrays, **{option: 3.0})
    for other in plain:
      factor = 3.0 if other == name else 1.0
      np.testing.assert_allclose(scaled[other], factor * plain[other], rtol=1e-6)
    assert (terms(*arrays, **{option: 0.0})[name] == 0).all()


def test_class_mean_divides_entropy_and_auxiliary_by_the_classes():
  arrays = random_inputs(5, dtype=np.float32)
  total, mean = terms(*arrays), terms(*arrays, class_reduction="mean")
  for name, factor in (("nll", 1), ("kl", 1), ("neg_entropy", K), ("auxiliary", K)):
    np.testing.assert_allclose(factor * mean[name], total[name], rtol=1e-6, err_msg=name)


@pytest.mark.claim(
  "dropmax",
  "section 4",
  "at equal retain probabilities of 1/2 the KL is log 2 and entropy and auxiliary terms cancel",
)
def test_first_step_values():
  """Section 5.6: with all heads at zero."""
  o = ph = rh = jnp.zeros((3, K))
  first = terms(o, ph, rh, jnp.arange(3))
  np.testing.assert_allclose(first["kl"], math.log(2), rtol=1e-6)
  np.testing.assert_allclose(first["neg_entropy"], -K * math.log(2), rtol=1e-6)
  np.testing.assert_allclose(first["auxiliary"], K * math.log(2), rtol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax",
  "Eq. 13",
  "the entropy is maximised: the printed regulariser lacks its minus signs",
  status="erratum",
)
def test_entropy_is_maximised():
  """Eq. 13 is printed without its minus signs: the term is minus the entropy, lowest at rho = 1/2."""
  o, ph, rh, y = random_inputs(6)
  rho = oracles.sigmoid(ph)
  entropy = (scipy.special.entr(rho) + scipy.special.entr(1 - rho)).sum(-1)
  assert (entropy > 0).all()
  np.testing.assert_allclose(terms(o, ph, rh, y)["neg_entropy"], -entropy, rtol=1e-10)
  total = jit(lambda weight: losses.dropmax(jax.random.key(0), o, ph, rh, y, entropy_weight=weight))
  np.testing.assert_allclose(total(1.0) - total(0.0), -entropy, rtol=1e-9)
  push = jit(jax.grad(lambda ph: inner_terms(o, ph, rh, y)["neg_entropy"].sum()))(ph)
  assert (np.sign(push) == np.sign(ph)).all()  # descent moves every rho towards 1/2


def test_values_and_finite_gradients_at_extreme_logits():
  """By logarithms in float64: there the probabilities are 0 and 1."""

  @jit
  def value_and_grads(key, o, ph, rh, y):
    loss, pull = jax.vjp(lambda *arrays: losses.dropmax(key, *arrays, y), o, ph, rh)
    return loss, *pull(jnp.ones_like(loss)), losses.dropmax_log_probs(o, ph)

  for seed in range(5):
    rng = np.random.default_rng(seed)
    o, ph, rh = (rng.choice([-s, 0, s], (8, K)).astype(np.float32) for s in (1e4, 1e3, 1e3))
    y = rng.integers(0, K, 8)
    loss, *gradients, log_probs = value_and_grads(jax.random.key(seed), o, ph, rh, y)
    assert all(np.isfinite(x).all() for x in gradients)

    other, q, eps = wrong(y, K), np.float64(ph + rh), math.log(1e-20)
    noise = logit_noise(seed, (8, K), np.float32)
    gated = o + np.where(other, np.logaddexp(log_expit((q + noise) / 0.1), eps), 0)
    likelihood = gated[~other] - np.logaddexp.reduce(gated, axis=-1)
    on = oracles.sigmoid(q) * (log_expit(q) - log_expit(ph))
    off = oracles.sigmoid(-q) * (log_expit(-q) - log_expit(-ph))
    want = np.where(other, on + off - log_expit(-rh), -log_expit(ph) - log_expit(rh)).sum(-1)
    want -= likelihood
    want += (oracles.sigmoid(ph) * log_expit(ph) + oracles.sigmoid(-ph) * log_expit(-ph)).sum(-1)
    np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-3)
    gated = o + np.logaddexp(log_expit(ph), eps)
    want = gated - np.logaddexp.reduce(gated, axis=-1, keepdims=True)
    np.testing.assert_allclose(log_probs, want, rtol=1e-5, atol=1e-3)


@pytest.mark.thorough
def test_terms_of_sure_logits_keep_their_values_and_gradients():
  """In probabilities, clamped or with an eps, gradients are gone from 17 on, and values end at 16 or 46."""
  o, y, flat = jnp.zeros((1, 2)), jnp.array([0]), jnp.zeros((1, 2))

  def of_sure(x):
    both = jnp.stack([x, x])[None]  # the target and another class
    prior, residual = inner_terms(o, both, flat, y, posterior_logits=flat), inner_terms(o, flat, both, y)
    sure, shut = jnp.stack([1e3, x])[None], jnp.array([[0.0, -1e3]])
    return {
      "other": inner_terms(o, sure, flat, y, posterior_logits=shut)["kl"][0],
      "target": inner_terms(o, jnp.stack([x, 0.0])[None], flat, y, posterior_logits=flat)["kl"][0],
      "neg_entropy": prior["neg_entropy"][0] / 2,
      "auxiliary": residual["auxiliary"][0],
    }

  x = np.array([-100.0, -60.0, -30.0, -18.0, 18.0, 30.0, 60.0])
  values, slopes = jit(jax.vmap(lambda x: (of_sure(x), jax.jacrev(of_sure)(x))))(np.float32(x))
  small = np.exp(-np.abs(x))
  near, p = np.log1p(small), oracles.sigmoid(x)
  wants = {
    "other": (near + np.maximum(x, 0), p),
    "target": (near + np.maximum(-x, 0), -oracles.sigmoid(-x)),
    "neg_entropy": (-near - np.abs(x) * small / (1 + small), small / (1 + small) ** 2 * x),
    "auxiliary": (2 * near + np.abs(x), 2 * p - 1),
  }
  for name, (value, slope) in wants.items():
    np.testing.assert_allclose(np.float64(values[name]), value, rtol=1e-5, atol=1e-37, err_msg=name)
    np.testing.assert_allclose(np.float64(slopes[name]), slope, rtol=1e-5, atol=1e-37, err_msg=name)


# Gradients: 1.6 and 5.7 points 3 and 4.


@pytest.mark.usefixtures("x64")
@pytest.mark.claim("dropmax", "section 4", "gradients of the KL and entropy terms in the retain logits")
@pytest.mark.claim(
  "dropmax", "section 4", "the likelihood never trains the target mask, and drops wrong classes"
)
def test_analytic_gradients():
  o, ph, rh, y = random_inputs(8)
  rho, g, r = oracles.sigmoid(ph), oracles.sigmoid(ph + rh), oracles.sigmoid(rh)
  other, target = wrong(y, K), oracles.one_hot(y, K)
  by_term = jit(gradients_by_term(lambda x: inner_terms(*x, y)))((o, ph, rh))
  check = lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)

  both = by_term["kl"][1] + by_term["neg_entropy"][1]
  check(both, rho - np.where(other, g, 1) + rho * (1 - rho) * ph)
  check(by_term["kl"][2], np.where(other, g * (1 - g) * rh, 0))
  check(by_term["auxiliary"][2], r - target)
  z = oracles.relaxed_mask(ph + rh, y, logit_noise(0, (1, 6, K)), 0.1)[0]
  p = oracles.masked_softmax(o, z)
  check(by_term["nll"][0], p - target)
  check(by_term["nll"][2], np.where(other, p * z / (z + 1e-20) * (1 - z) / 0.1, 0))


@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax",
  "poster",
  "easy examples settle at retain probabilities of 0.78 (target) and 0.22 (others)",
  size="toy",
)
def test_fixed_point_of_the_prior():
  """Section 1.7: gradient descent on ph with g = 0 ends at rho = 0.782188 and 0.217812."""
  o, y = jnp.zeros((2, K)), jnp.array([0, 3])
  far = jnp.full((2, K), -1e3)

  def objective(ph):
    parts = inner_terms(o, ph, far, y)
    return parts["kl"] + parts["neg_entropy"]

  step = lambda _, ph: ph - 1.0 * jax.grad(lambda ph: objective(ph).sum())(ph)
  start = jnp.asarray(random_inputs(10, batch=2)[1])
  ph, value = jit(lambda ph: (end := jax.lax.fori_loop(0, 300, step, ph), objective(end)))(start)
  rho, other = oracles.sigmoid(ph), wrong(y, K)
  np.testing.assert_allclose(rho[~other], 0.782188, atol=1e-6)
  np.testing.assert_allclose(rho[other], 0.217812, atol=1e-6)
  np.testing.assert_allclose(np.abs(ph), A, atol=1e-6)
  np.testing.assert_allclose(value, -0.278465 * K, atol=1e-6 * K)
  np.testing.assert_allclose(value, -(A - 1) * K, atol=1e-9)


# Who gets gradient from what: the table of 1.5.


def random_heads(features=4, classes=5, batch=3):
  rng = np.random.default_rng(11)
  head = lambda: {"kernel": rng.normal(size=(features, classes)), "bias": rng.normal(size=classes)}
  weights = {name: jax.tree.map(jnp.asarray, head()) for name in ("classifier", "prior", "residual")}
  return {"features": jnp.asarray(rng.normal(size=(batch, features))), **weights}, jnp.array([0, 2, 4])


@functools.cache
def compiled_gradients(**options):
  def gradients(key, weights, labels):
    heads = lambda weights: losses.dropmax_heads(**weights, **options)
    function = lambda weights: losses.dropmax_terms(key, labels=labels, **heads(weights))
    return gradients_by_term(function)(weights)

  return jit(gradients)


def term_gradient(name, weights, labels, **options):
  return compiled_gradients(**options)(jax.random.key(0), weights, labels)[name]


def flows(gradient):
  """Which arguments get any gradient; a head's kernel and bias must agree."""
  into = {}
  for name, tree in gradient.items():
    leaves = [bool((leaf != 0).any()) for leaf in jax.tree.leaves(tree)]
    assert len(set(leaves)) == 1
    into[name] = leaves[0]
  return into


GETS_GRADIENT = {
  "nll": {"classifier", "residual", "features"},
  "kl": {"prior", "residual", "features"},
  "neg_entropy": {"prior", "features"},
  "auxiliary": {"residual", "features"},
}


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("branch_only", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("stop_gradient", ["activations", "parameters"])
@pytest.mark.parametrize("name", GETS_GRADIENT)
def test_who_gets_gradient_from_what(name, stop_gradient, branch_only):
  weights, labels = random_heads()
  gradient = term_gradient(name, weights, labels, stop_gradient=stop_gradient, branch_only=branch_only)
  want = set(GETS_GRADIENT[name])
  if branch_only and name != "nll":  # the likelihood still reaches the features through the logits
    want -= {"features"}
  assert {argument for argument, flow in flows(gradient).items() if flow} == want


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("branch_only", [False, True])
@pytest.mark.parametrize(("stop_gradient", "through_prior"), [("activations", False), ("parameters", True)])
def test_what_reaches_the_features_through_the_barred_prior(stop_gradient, through_prior, branch_only):
  """With the other two kernels at zero only sg[W_theta]^T h is left of h in the likelihood."""
  weights, labels = random_heads()
  for name in ("classifier", "residual"):
    weights[name]["kernel"] = jnp.zeros_like(weights[name]["kernel"])
  gradient = term_gradient("nll", weights, labels, stop_gradient=stop_gradient, branch_only=branch_only)
  assert flows({"features": gradient["features"]})["features"] == (through_prior and not branch_only)


@pytest.mark.usefixtures("x64")
def test_stop_gradient_variants_differ_in_the_features_only():
  weights, labels = random_heads()
  values, gradients = [], []
  for variant in ("activations", "parameters"):
    outputs = losses.dropmax_heads(**weights, stop_gradient=variant)
    values.append(jit(losses.dropmax)(jax.random.key(0), labels=labels, **outputs))
    gradients.append(term_gradient("kl", weights, labels, stop_gradient=variant, branch_only=False))
  np.testing.assert_allclose(values[0], values[1], rtol=1e-12)
  for name in ("classifier", "prior", "residual"):
    chex.assert_trees_all_close(gradients[0][name], gradients[1][name], rtol=1e-9, atol=1e-12)
  assert (gradients[0]["features"] != gradients[1]["features"]).any()


def test_the_whole_prior_activation_is_stopped_by_default():
  """As in the released code: there is no posterior of its own, whose gradient would reach the features."""
  weights, _ = random_heads()
  assert set(losses.dropmax_heads(**weights)) == {"logits", "retain_logits", "residual_logits"}
  stopped = losses.dropmax_heads(**weights, stop_gradient="activations")
  chex.assert_trees_all_equal(losses.dropmax_heads(**weights), stopped)


# The likelihood under a mask: 5.7 point 5.


@pytest.mark.parametrize("mask", [0.0, 0.3, 1.0])
@pytest.mark.claim("dropmax", "Eq. 5", "with all masks equal, also all 0, it is the softmax")
def test_equal_masks_give_the_softmax(mask):
  o = random_inputs(12, dtype=np.float32)[0]
  masked = dropmax_masked_logits(o, jnp.full(o.shape, mask))
  np.testing.assert_allclose(jax.nn.softmax(masked), oracles.softmax(o), rtol=1e-5)
  log_probs = losses.dropmax_log_probs(o, jnp.full(o.shape, logit(0.3), jnp.float32))
  np.testing.assert_allclose(log_probs, np.log(oracles.softmax(o)), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_eps_is_1e_20():
  masked = dropmax_masked_logits(jnp.zeros(3), jnp.array([0.0, 1e-20, 1.0]))
  np.testing.assert_allclose(masked, np.log([1e-20, 2e-20, 1.0]), rtol=1e-12, atol=1e-15)
  mask = log_mask(jax.random.key(0), jnp.full((1, 3), -1e4), jnp.array([1]))
  np.testing.assert_allclose(mask[0, 0], [math.log(1e-20), 0, math.log(1e-20)], rtol=1e-12)


def test_another_variant_is_refused():
  with pytest.raises(ValueError, match="stop_gradient"):
    losses.dropmax_heads(**random_heads()[0], stop_gradient="everything")


# The estimator: 5.5 and 5.7 point 6. Its table is in theory/test_dropmax_enumeration.py.


def enumerated_nll(o, g, target=0):
  """E NLL over the 2^(K-1) hard masks with z_t = 1, and its variance."""
  masks = oracles.all_masks(len(o))
  masks = masks[masks[:, target] == 1]
  keep = np.where(np.arange(len(o)) == target, 1.0, g)
  weights = oracles.mask_probabilities(masks, keep)
  nll = -np.log(oracles.masked_softmax(o, masks)[:, target])
  mean = weights @ nll
  return mean, weights @ (nll - mean) ** 2


def test_relaxed_estimator_approaches_enumeration_as_it_cools():
  o = np.r_[0.0, 4.0, np.linspace(-1, 1, 4)]
  g = np.array([1, 0.2, 0.3, 0.5, 0.7, 0.9])
  mean, variance = enumerated_nll(o, g)
  posterior = jnp.asarray(np.r_[0, logit(g[1:])], jnp.float32)[None]
  logits = jnp.asarray(o, jnp.float32)[None]
  cold = terms(
    logits,
    posterior,
    posterior,
    jnp.array([0]),
    posterior_logits=posterior,
    temperature=1e-3,
    num_samples=40_000,
  )
  # The relaxation at tau moves the mean by some tau * pi^2 / 12 * |d2|, far below the sampling error.
  assert abs(float(cold["nll"][0]) - mean) <= 4 * math.sqrt(variance / 40_000) + 1e-3


@pytest.mark.parametrize(
  ("g", "temperature", "mean"), [(0.2, 0.1, 0.2016), (0.5, 0.1, 0.5), (0.2, 1.0, 0.283)]
)
def test_mean_of_the_relaxed_mask(g, temperature, mean):
  shape = (1, 10)
  masks = np.exp(
    log_mask(
      jax.random.key(2),
      jnp.full(shape, logit(g), jnp.float32),
      jnp.array([0]),
      temperature=temperature,
      num_samples=20_000,
    )
  )[:, :, 1:]
  assert abs(masks.mean() - mean) <= 4 * masks.std() / math.sqrt(masks.size) + 5e-4
  hard = (masks > 0.5).mean()
  assert abs(hard - g) <= 4 * math.sqrt(g * (1 - g) / masks.size)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax",
  "Eq. 7",
  "the likelihood under the expected mask bounds the expected likelihood",
  size="enumeration",
)
def test_jensen_bound():
  """-log p(y | rho-mask with z_t = 1) >= E_z NLL."""
  for seed in range(5):
    rng = np.random.default_rng(seed)
    o, g = rng.normal(size=8) * 3, rng.uniform(0.05, 0.95, 8)
    g[0] = 1.0
    bound = losses.softmax_cross_entropy(dropmax_masked_logits(o, g), jnp.array(0))
    mean, variance = enumerated_nll(o, g)
    assert variance > 1e-6
    assert float(bound) > mean


# Masks and predictions: 5.7 point 7.


@pytest.mark.claim("dropmax", "section 4", "one mask an example, the target always kept in training")
def test_mask_shape_and_target():
  _, ph, _, y = random_inputs(15, batch=4)
  masks = log_mask(jax.random.key(0), jnp.asarray(ph, jnp.float32) - 5, y, num_samples=50)
  assert masks.shape == (50, 4, K)
  target = np.broadcast_to(~wrong(y, K), masks.shape)
  np.testing.assert_array_equal(masks[target], 0)
  assert (np.asarray(masks)[~target] < 0).all()
  assert float(masks.min()) >= np.float32(math.log(1e-20))


@pytest.mark.usefixtures("x64")
def test_prediction_has_the_eps():
  """It decides where all classes are shut: then by the logits alone."""
  o = np.array([2.0, -1.0, 0.5])
  shut = losses.dropmax_log_probs(o, jnp.full(3, -1e3))
  np.testing.assert_allclose(shut, np.log(oracles.softmax(o)), rtol=1e-12)
  one_open = losses.dropmax_log_probs(o, jnp.array([-1e3, 0.0, -1e3]))
  np.testing.assert_allclose(one_open[0] - one_open[1], 3 + math.log(1e-20) - math.log(0.5), rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.claim("dropmax", "section 4", "prediction needs no label and no sampling")
def test_the_prior_adds_its_margin_to_the_prediction():
  """At the fixed point the expected mask adds a = 1.28 nats to the target's margin."""
  log_probs = losses.dropmax_log_probs(jnp.zeros(2), jnp.array([A, -A]))
  np.testing.assert_allclose(log_probs[0] - log_probs[1], A, rtol=1e-12)
  np.testing.assert_allclose(A, 1.2784645, atol=5e-8)


@pytest.mark.parametrize("label", [None, 2])
@pytest.mark.claim(
  "dropmax",
  "appendix, Fig. 2",
  "Monte-Carlo prediction, with and without the mask of the target",
  size="enumeration",
)
def test_monte_carlo_prediction_against_enumeration(label):
  classes, samples = 6, 20_000
  o, ph = (x[0] for x in random_inputs(17, batch=1, classes=classes, dtype=np.float32)[:2])
  rho, masks = oracles.sigmoid(ph), oracles.all_masks(classes)
  weights = oracles.mask_probabilities(masks, rho)
  if label is not None:
    masks = masks.copy()
    masks[:, label] = rho[label]
  probs = oracles.masked_softmax(o, masks)
  want = weights @ probs
  error = np.sqrt(weights @ (probs - want) ** 2 / samples)
  labels = None if label is None else jnp.array(label)
  run = lambda seed: np.exp(monte_carlo(o, ph, num_samples=samples, key=jax.random.key(seed), labels=labels))
  got = run(0)
  assert (np.abs(got - want) <= 4 * error + 1e-6).all()
  np.testing.assert_allclose(got.sum(), 1, rtol=1e-5)
  assert (got != run(1)).any()
  # It is neither the expected-mask prediction nor the other variant: those differ by more than the error.
  assert (np.abs(got - oracles.masked_softmax(o, rho)) > 8 * error).any()


def test_monte_carlo_label_takes_the_dropping_of_that_class_away():
  o, ph = jnp.zeros((1, 4)), jnp.zeros((1, 4))
  run = lambda **options: np.asarray(monte_carlo(o, ph, num_samples=1, key=jax.random.key(0), **options))[0]
  seen = [run(labels=jnp.array([k]))[k] for k in range(4)]
  assert min(seen) > math.log(0.5 / 3.5) - 1e-5
  assert run().min() < -40


def test_diagnostics_against_numpy():
  o, ph, rh, y = random_inputs(18, dtype=np.float32)
  got = jit(functools.partial(losses.dropmax_diagnostics, num_samples=5))(jax.random.key(6), o, ph, rh, y)
  want = oracles.dropmax_diagnostics(o, ph, rh, y, logit_noise(6, (5, 6, K), np.float32))
  chex.assert_trees_all_close(jax.device_get(got), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ("option", "value"),
  [
    ("temperature", 0.0),
    ("temperature", -1.0),
    ("num_samples", 0),
    ("class_reduction", "max"),
    ("kl_weight", math.nan),
    ("entropy_weight", math.nan),
    ("auxiliary_weight", math.nan),
  ],
)
def test_options_out_of_range_are_refused(option, value):
  with pytest.raises(ValueError, match=option):
    losses.dropmax_terms(jax.random.key(0), *random_inputs(), **{option: value})

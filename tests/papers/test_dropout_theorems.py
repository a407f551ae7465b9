"""The theorems on dropout's Hessian and noise against the enumeration of all masks of a small network."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers.flatness import _theorems as theorems

KEEP, NUMBER, WIDTHS = 0.8, 7, (5, 8, 6, 1)
STAGES = {"start": 0, "trained": 200, "stationary": 20_000}
LAYERS = ("Dense_0/*", "Dense_1/*", "Dense_2/*")
MASKS = np.array(list(itertools.product((0.0, 1.0), repeat=WIDTHS[-2])))


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


def weights(keep=KEEP):
  kept = MASKS.sum(axis=1)
  return keep**kept * (1 - keep) ** (MASKS.shape[1] - kept)


def contributions(params, x):
  """What the theorems are given."""
  h = x
  for layer in ("Dense_0", "Dense_1"):
    h = jax.nn.relu(h @ params[layer]["kernel"] + params[layer]["bias"])
  return h * params["Dense_2"]["kernel"][:, 0], params["Dense_2"]["bias"][0]


def output(params, x, scale):
  """Of one example, with the last hidden layer multiplied by `scale`: what they are held against."""
  first, second, last = (params[f"Dense_{i}"] for i in range(3))
  h = jnp.maximum(x @ first["kernel"] + first["bias"], 0)
  h = jnp.maximum(h @ second["kernel"] + second["bias"], 0) * scale
  return (h @ last["kernel"] + last["bias"])[0]


def unflatten(flat):
  sizes = list(itertools.chain(*((b, a * b) for a, b in itertools.pairwise(WIDTHS))))
  parts = jnp.split(flat, np.cumsum(sizes)[:-1])
  return {
    f"Dense_{i}": {"bias": parts[2 * i], "kernel": parts[2 * i + 1].reshape(a, b)}
    for i, (a, b) in enumerate(itertools.pairwise(WIDTHS))
  }


def blocks():
  """Where each layer's bias and kernel are in the vector of all parameters."""
  ends = np.cumsum([0] + [a * b + b for a, b in itertools.pairwise(WIDTHS)])
  return dict(zip(LAYERS, itertools.starmap(slice, itertools.pairwise(ends))))


@functools.cache
def data():
  random = np.random.default_rng(0)
  x = random.normal(size=(NUMBER, WIDTHS[0]))
  return x, np.sin(2 * x[:, 0]) + random.normal(size=NUMBER)


def per_mask(flat, keep=KEEP):
  """`[masks, examples]`: the loss."""
  loss = lambda scale, x, y: (output(unflatten(flat), x, scale) - y) ** 2 / 2
  return jax.vmap(jax.vmap(loss, (None, 0, 0)), (0, None, None))(jnp.asarray(MASKS / keep), *data())


def mean_loss(flat):
  return jnp.asarray(weights()) @ per_mask(flat).mean(axis=1)


@jax.jit
def descend(flat, steps):
  return jax.lax.fori_loop(0, steps, lambda _, flat: flat - 0.02 * jax.grad(mean_loss)(flat), flat)


@functools.cache
def at(stage):
  """All parameters as one vector, after some steps of gradient descent on the mean loss."""
  flat = np.random.default_rng(1).normal(size=sum(a * b + b for a, b in itertools.pairwise(WIDTHS))) * 0.5
  return np.asarray(descend(flat, STAGES[stage]))


HESSIAN = jax.jit(jax.hessian(mean_loss))
GRADIENTS = jax.jit(jax.jacrev(per_mask))


@functools.cache
def exact_hessian(stage):
  return np.asarray(HESSIAN(at(stage)))


@functools.cache
def gradients(stage):
  """`[masks, examples, D]`."""
  return np.asarray(GRADIENTS(at(stage)))


def alone(flat):
  """`[n, 1 + m]`: the output, and what each unit contributes to it, by dropping all others."""
  every = np.concatenate([np.ones((1, WIDTHS[-2])), np.eye(WIDTHS[-2])])
  values = jax.vmap(jax.vmap(output, (None, None, 0)), (None, 0, None))(unflatten(flat), data()[0], every)
  bias = flat[blocks()["Dense_2/*"]][0]
  return values - bias * jnp.array([[0.0] + WIDTHS[-2] * [1.0]])


@functools.cache
def outputs_and_gradients(stage):
  """`[n, 1 + m]` and `[n, 1 + m, D]`."""
  return np.asarray(alone(at(stage))), np.asarray(jax.jit(jax.jacrev(alone))(at(stage)))


@functools.cache
def compiled(function, options):
  return jax.jit(functools.partial(function, contributions, **dict(options)))


@functools.cache
def computed(function, stage, options):
  return np.asarray(compiled(function, options)(unflatten(jnp.asarray(at(stage))), *data()))


def call(function, stage, **options):
  return computed(function, stage, tuple(({"keep_prob": KEEP} | options).items()))


def enumerated(stage, sampling):
  """The covariance of the gradient, over all masks and, of a single example, over the examples."""
  w, g = weights(), gradients(stage)
  if sampling == "full_batch":
    centred = g - np.einsum("k,kid->id", w, g)
    return np.einsum("k,kid,kie->de", w, centred, centred) / NUMBER**2
  centred = g - np.einsum("k,kid->d", w, g) / NUMBER
  return np.einsum("k,kid,kie->de", w, centred, centred) / NUMBER


def distance(one, other):
  return np.linalg.norm(one - other) / np.linalg.norm(other)


def cosine(one, other):
  return (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)


# The noise and the mean loss.


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.8, 1.0])
def test_moments_of_the_noise(keep):
  eta, p = np.array([1 / keep - 1, -1]), np.array([keep, 1 - keep])
  assert abs(p @ eta) < 1e-15
  moments = theorems._moments(keep, jnp.zeros(()))
  np.testing.assert_allclose(moments, [p @ eta**k for k in (2, 3, 4)], rtol=1e-12, atol=1e-15)


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.claim(
  "flatness",
  "Eq. 2",
  "the mean loss is the loss and (1-p)/2np times the contributions' squares",
  size="enumeration",
)
def test_expected_loss_is_the_mean_over_masks(stage):
  np.testing.assert_allclose(call(theorems.expected_dropout_loss, stage), mean_loss(at(stage)), rtol=1e-13)


@pytest.mark.thorough
@pytest.mark.claim("flatness", "B.2", "a_i, twice the mean loss, is the squared residual and the penalty")
def test_a_is_twice_the_mean_loss():
  _, high = theorems.loewner_bounds(contributions, unflatten(at("start")), *data(), keep_prob=KEEP)
  np.testing.assert_allclose(high, 2 * (weights() @ per_mask(at("start"))).max(), rtol=1e-13)


# Theorem 1.


@pytest.mark.thorough
def test_many_narrow_examples_are_all_counted():
  """With keep_prob 1/2 an output w x has the mean Hessian (1 + (1 - p) / p) x^2: a sum of twos."""
  hidden = lambda w, x: (w * x, jnp.zeros((), w.dtype))
  ones = jnp.ones((1000, 1), jnp.bfloat16)
  got = theorems.dropout_hessian(hidden, ones[0], ones, ones[:, 0], keep_prob=0.5, chunk_size=1)
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(got, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.claim(
  "flatness",
  "theorem 1",
  "the mean Hessian, exactly and at any parameters, within the weights of one layer",
  size="enumeration",
)
def test_theorem_1_is_exact_within_a_layer(layer, stage):
  inside = exact_hessian(stage)[blocks()[layer], blocks()[layer]]
  np.testing.assert_allclose(call(theorems.dropout_hessian, stage, mask=layer), inside, atol=1e-12)
  assert np.abs(inside).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness",
  "theorem 1",
  "the mean Hessian of all parameters: second derivatives across layers do not vanish; its error is 0.5 at "
  "initialisation, 0.1 after 200 steps, and goes with the mean gradient",
  status="erratum",
  size="enumeration",
)
def test_theorem_1_fails_across_layers():
  errors = {s: distance(call(theorems.dropout_hessian, s), exact_hessian(s)) for s in STAGES}
  assert 0.4 < errors["start"] < 0.7
  assert 0.05 < errors["trained"] < 0.2
  assert errors["stationary"] < 1e-4


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness",
  "Eq. 2",
  "the mean Hessian of all parameters, by the squares' second derivatives",
  size="enumeration",
)
def test_equation_2_is_exact_on_all_parameters():
  plain = lambda flat: ((alone(flat)[:, 0] - data()[1]) ** 2).mean() / 2
  squares = lambda flat: (alone(flat)[:, 1:] ** 2).sum(axis=1).mean() / 2
  loss = lambda flat: theorems.expected_dropout_loss(contributions, unflatten(flat), *data(), keep_prob=KEEP)
  hessians = jax.jit(lambda flat: [jax.hessian(f)(flat) for f in (plain, squares, loss)])
  plain, squares, whole = hessians(at("start"))
  np.testing.assert_allclose(plain + (1 - KEEP) / KEEP * squares, exact_hessian("start"), atol=1e-12)
  np.testing.assert_allclose(whole, exact_hessian("start"), atol=1e-12)


@pytest.mark.thorough
def test_without_dropout_they_are_gauss_newton_and_no_noise():
  values, jacobian = outputs_and_gradients("start")
  got = call(theorems.dropout_hessian, "start", keep_prob=1.0)
  np.testing.assert_allclose(got, jacobian[:, 0].T @ jacobian[:, 0] / NUMBER, atol=1e-13)
  np.testing.assert_array_equal(call(theorems.dropout_covariance_exact, "start", keep_prob=1.0), 0)
  example = (values[:, :1] - data()[1][:, None]) * jacobian[:, 0]
  got = call(theorems.dropout_covariance_exact, "start", keep_prob=1.0, sampling="single_example")
  np.testing.assert_allclose(got, np.cov(example.T, ddof=0), atol=1e-13)


# Theorem 2 and the exact covariance.


@pytest.mark.thorough
def test_theorem_2_is_computed_as_printed():
  _, jacobian = outputs_and_gradients("start")
  losses = per_mask(at("start"), keep=1.0)
  a, b = 2 * weights() @ per_mask(at("start")), 2 * np.asarray(losses[-1])  # the last mask keeps all
  ratio = (1 - KEEP) / KEEP
  whole = np.einsum("i,id,ie->de", a, jacobian[:, 0], jacobian[:, 0])
  units = np.einsum("i,ijd,ije->de", ratio * b, jacobian[:, 1:], jacobian[:, 1:])
  np.testing.assert_allclose(call(theorems.dropout_covariance, "start"), (whole + units) / NUMBER, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness",
  "theorem 2",
  "the covariance of an example's gradient: its error is 0.1 at initialisation, 1 after 200 steps, 3 in the "
  "end, for terms that are dropped",
  status="erratum",
  size="enumeration",
)
def test_theorem_2_is_no_identity():
  error = lambda s: distance(call(theorems.dropout_covariance, s), enumerated(s, "single_example"))
  assert 0.05 < error("start") < 0.2
  assert 0.7 < error("trained") < 1.4
  assert 2 < error("stationary") < 4


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("sampling", ["full_batch", "single_example"])
@pytest.mark.claim(
  "flatness",
  "B.2",
  "the covariance of the gradient, in closed form with no term neglected: of a batch and of an example",
  size="enumeration",
)
def test_exact_covariance_is_that_over_all_masks(stage, sampling):
  got, want = call(theorems.dropout_covariance_exact, stage, sampling=sampling), enumerated(stage, sampling)
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [0.3, 0.5])
def test_exact_covariance_at_other_rates(keep):
  kept = MASKS.sum(axis=1)
  chance = keep**kept * (1 - keep) ** (MASKS.shape[1] - kept)
  g = np.asarray(jax.jit(jax.jacrev(functools.partial(per_mask, keep=keep)))(at("start")))
  g = g - np.einsum("k,kid->id", chance, g)
  want = np.einsum("k,kid,kie->de", chance, g, g) / NUMBER**2
  got = call(theorems.dropout_covariance_exact, "start", keep_prob=keep)
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness", "section 8", "Hessian and covariance are similar, as printed and exactly", size="toy"
)
def test_hessian_and_covariance_are_similar():
  for stage in STAGES:
    hessian = call(theorems.dropout_hessian, stage)
    assert 0.75 < cosine(hessian, call(theorems.dropout_covariance, stage)) < 0.97
    exact = cosine(hessian, call(theorems.dropout_covariance_exact, stage, sampling="single_example"))
    assert 0.55 < exact < 0.9
    exact = cosine(hessian, call(theorems.dropout_covariance_exact, stage))
    assert 0.55 < exact < 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.claim(
  "flatness",
  "proposition 1",
  "the printed covariance is between min b_i and max a_i times the Hessian, whatever the labels and outputs",
  size="toy",
)
def test_loewner_bounds(stage):
  hessian, covariance = (call(f, stage) for f in (theorems.dropout_hessian, theorems.dropout_covariance))
  low, high = theorems.loewner_bounds(contributions, unflatten(at(stage)), *data(), keep_prob=KEEP)
  tiny = 1e-13 * np.linalg.norm(covariance, 2)
  assert np.linalg.eigvalsh(covariance - float(low) * hessian).min() > -tiny
  assert np.linalg.eigvalsh(float(high) * hessian - covariance).min() > -tiny
  # They are the residuals' and losses' own, and say something.
  losses = per_mask(at(stage), keep=1.0)[-1]
  np.testing.assert_allclose([low, high], [2 * losses.min(), 2 * (weights() @ per_mask(at(stage))).max()])
  assert 0 < low < high


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness",
  "proposition 1",
  "the exact covariance is not between those bounds",
  status="erratum",
  size="toy",
)
def test_loewner_bounds_do_not_hold_for_the_exact_covariance():
  hessian = call(theorems.dropout_hessian, "trained")
  covariance = call(theorems.dropout_covariance_exact, "trained", sampling="single_example")
  low, high = theorems.loewner_bounds(contributions, unflatten(at("trained")), *data(), keep_prob=KEEP)
  assert -1e-3 < np.linalg.eigvalsh(covariance - float(low) * hessian).min() < -1e-5
  assert -0.2 < np.linalg.eigvalsh(float(high) * hessian - covariance).min() < -0.05


# How they are called.

MATRICES = (
  theorems.dropout_hessian,
  theorems.dropout_covariance,
  functools.partial(theorems.dropout_covariance_exact, sampling="full_batch"),
  functools.partial(theorems.dropout_covariance_exact, sampling="single_example"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("function", MATRICES)
def test_chunks_change_nothing(function):
  whole = call(function, "start")
  np.testing.assert_array_equal(whole, whole.T)
  # Three and three and one, filled up.
  np.testing.assert_allclose(call(function, "start", chunk_size=3), whole, rtol=0, atol=1e-13)


@pytest.mark.thorough
@pytest.mark.parametrize("function", MATRICES)
def test_selected_parameters_are_a_block_of_the_whole(function):
  whole, here = call(function, "start", chunk_size=3), blocks()["Dense_1/*"]
  np.testing.assert_allclose(call(function, "start", mask="Dense_1/*"), whole[here, here], atol=1e-13)


@pytest.mark.thorough
def test_several_patterns_are_alternatives():
  assert call(theorems.dropout_hessian, "start", mask=("Dense_0/kernel", "Dense_2/kernel")).shape == (46, 46)


@pytest.mark.thorough
@pytest.mark.parametrize("function", MATRICES)
def test_single_precision_stays_single_and_is_compiled(function):
  params, x, y = jax.tree.map(
    lambda x: jnp.asarray(x, jnp.float32), (unflatten(jnp.asarray(at("start"))), *data())
  )
  compiled = jax.jit(functools.partial(function, contributions, mask="Dense_1/*"))
  # A probability in double precision does not widen the result.
  got = compiled(params, x, y, keep_prob=np.float64(KEEP))
  assert got.dtype == jnp.float32
  want = call(function, "start", mask="Dense_1/*")
  assert distance(np.asarray(got, np.float64), want) < 1e-5


def refused(error, message, function=theorems.dropout_hessian, **changed):
  x, y = data()
  arguments = {
    "contribution_fn": contributions,
    "params": unflatten(jnp.asarray(at("start"))),
    "inputs": x,
    "targets": y,
    "keep_prob": KEEP,
  }
  with pytest.raises(error, match=message) as caught:
    function(**arguments | changed)
  assert "\n" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5, float("nan")])
def test_probabilities_are_checked(keep):
  for function in (*MATRICES, theorems.expected_dropout_loss, theorems.loewner_bounds):
    refused(ValueError, r"keep_prob must lie in \(0, 1\]", function, keep_prob=keep)


@pytest.mark.thorough
def test_bad_arguments():
  x, y = data()
  refused(TypeError, "targets must be floating, got int", targets=y.astype(int))
  refused(ValueError, r"targets must have shape \(7,\), one per input, got \(6,\)", targets=y[:6])
  refused(ValueError, "inputs must have shape .* n at least 1", inputs=x[:0], targets=y[:0])
  refused(ValueError, "contribution_fn must return", contribution_fn=lambda p, x: x)
  refused(ValueError, "contribution_fn must return", contribution_fn=lambda p, x: (x.sum(), x))
  refused(ValueError, "mask: 'Conv.*' selects no parameter; there are Dense_0/bias, Dense_0/k", mask="Conv*")
  refused(ValueError, "chunk_size must be at least 1", chunk_size=0)
  refused(TypeError, "count must be floating", params={"count": 1}, contribution_fn=lambda p, x: (x, x[0]))
  exact = theorems.dropout_covariance_exact
  refused(
    ValueError, "sampling must be 'full_batch' or 'single_example', got 'batch'", exact, sampling="batch"
  )

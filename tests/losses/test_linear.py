"""Losses of features and a kernel: the values of all logits, split over devices, and the memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg import losses

EXAMPLES, FEATURES, CLASSES = 22, 4, 8
_rng = np.random.default_rng(0)
_draw = lambda *shape: _rng.normal(size=shape).astype(np.float32)
X, TEACHER_X = _draw(EXAMPLES, FEATURES), _draw(EXAMPLES, 3)
W, BIAS, TEACHER_W = _draw(FEATURES, CLASSES), _draw(CLASSES), _draw(3, CLASSES)
HEADS = tuple(_draw(FEATURES, CLASSES) for _ in range(3))
LABELS = _rng.integers(0, CLASSES, EXAMPLES)
SOFT = _rng.dirichlet(np.ones(CLASSES), EXAMPLES).astype(np.float32)
PRIOR = np.log(_rng.dirichlet(np.ones(CLASSES))).astype(np.float32)
WHERE = np.arange(EXAMPLES) % 3 != 1


def dropmax(*args, **kwargs):
  """The terms without a random mask, which draw nothing and are the same in any chunk."""
  terms = losses.dropmax_terms(jax.random.key(0), *args, **kwargs)
  return terms["kl"] + terms["neg_entropy"] + terms["auxiliary"]


# The loss, its features, its kernels and its labels.
CALLS = {
  "softmax_cross_entropy": (losses.softmax_cross_entropy, X, W, (LABELS,)),
  "soft labels": (losses.softmax_cross_entropy, X, W, (SOFT,)),
  "label_smoothing": (partial(losses.label_smoothing, smoothing=0.1), X, W, (LABELS,)),
  "z_loss": (losses.z_loss, X, W, ()),
  "focal": (losses.focal, X, W, (LABELS,)),
  "poly_loss": (losses.poly_loss, X, W, (LABELS,)),
  "confidence_penalty": (losses.confidence_penalty, X, W, (LABELS,)),
  "entropy": (losses.entropy, X, W, ()),
  "distillation": (losses.distillation, (X, TEACHER_X), (W, TEACHER_W), ()),
  "logit_adjustment": (partial(losses.logit_adjustment, log_prior=PRIOR), X, W, (LABELS,)),
  "dropmax": (dropmax, X, HEADS, (LABELS,)),
}
each_loss = pytest.mark.parametrize("name", CALLS)


def as_tuple(x):
  return x if isinstance(x, tuple) else (x,)


def plain(loss, x, w, labels, **options):
  rows = as_tuple(x) if isinstance(x, tuple) else (x,) * len(as_tuple(w))
  return loss(*(a @ b for a, b in zip(rows, as_tuple(w), strict=True)), *labels, **options)


def chunks(loss, x, w, labels, **options):
  return losses.linear(loss, x, w, *labels, chunk_size=5, **options)


def weighted(compute, call, **options):
  """A sum in which every example counts otherwise, and its first and second derivatives along a direction."""
  loss, x, w, labels = call

  def total(x, w):
    return (compute(loss, x, w, labels, **options) * jnp.arange(1.0, EXAMPLES + 1)).sum() / EXAMPLES

  def run(x, w):
    gradient = jax.grad(total, (0, 1))
    ones = jax.tree.map(jnp.cos, (x, w))
    return compute(loss, x, w, labels, **options), *jax.jvp(gradient, (x, w), ones)

  return jax.jit(run)(*jax.tree.map(jnp.asarray, (x, w)))


def close(found, expected, tol=1e-5):
  leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
  for a, b in leaves:
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol * max(1, float(np.abs(b).max())))


@each_loss
@pytest.mark.thorough
def test_value_gradient_and_hessian_product_are_those_of_all_logits(name):
  close(weighted(chunks, CALLS[name]), weighted(plain, CALLS[name]))


@each_loss
@pytest.mark.thorough
def test_examples_that_do_not_count_have_no_influence(name):
  loss, x, w, labels = CALLS[name]
  bad = jax.tree.map(lambda x: np.where(WHERE[:, None], x, np.nan), x)
  value, *derivatives = weighted(chunks, (loss, bad, w, labels), where=WHERE)
  expected, *others = weighted(plain, (loss, x, w, labels), where=WHERE)
  close(value, expected)
  assert not np.asarray(value)[~WHERE].any()
  for found, other in zip(derivatives, others, strict=True):
    close(found[1], other[1])  # the kernel's


def dropmax_in_float64(z, fixed):
  """The posterior has the prior as a constant."""
  terms = oracles.dropmax_terms(*z, LABELS, np.zeros((1, EXAMPLES, CLASSES)), fixed[1] + z[2])
  return terms["kl"] + terms["neg_entropy"] + terms["auxiliary"]


def distillation_in_float64(z, fixed):
  p, q = oracles.softmax(fixed[1] / 4), oracles.softmax(z[0] / 4)
  return 16 * (p * np.log(p / q)).sum(-1)


entropy = lambda z: -(oracles.softmax(z) * np.log(oracles.softmax(z))).sum(-1)
likelihood = lambda z: np.exp(-oracles.cross_entropy(z, LABELS))
of_logits = lambda oracle: lambda z, fixed: oracle(*z)
# Of the logits, and of those that get no gradient; with the defaults of each loss.
ORACLES = {
  "softmax_cross_entropy": of_logits(lambda z: oracles.cross_entropy(z, LABELS)),
  "soft labels": of_logits(lambda z: -(SOFT * np.log(oracles.softmax(z))).sum(-1)),
  "label_smoothing": of_logits(lambda z: oracles.smoothed_cross_entropy(z, LABELS, 0.1)),
  "z_loss": of_logits(lambda z: np.log(np.exp(z).sum(-1)) ** 2),
  "focal": of_logits(lambda z: (1 - likelihood(z)) ** 2 * oracles.cross_entropy(z, LABELS)),
  "poly_loss": of_logits(lambda z: oracles.cross_entropy(z, LABELS) + 2 * (1 - likelihood(z))),
  "confidence_penalty": of_logits(lambda z: oracles.cross_entropy(z, LABELS) - 0.1 * entropy(z)),
  "entropy": of_logits(entropy),
  "distillation": distillation_in_float64,
  "logit_adjustment": of_logits(lambda z: oracles.cross_entropy(z + PRIOR, LABELS)),
  "dropmax": dropmax_in_float64,
}


@pytest.mark.thorough
@each_loss
def test_value_and_gradient_are_those_in_float64(name):
  """The gradient by central differences, of a sum in which every example counts otherwise."""
  loss, x, w, labels = CALLS[name]
  biases = tuple(np.full_like(BIAS, n) + BIAS for n in range(len(as_tuple(w))))
  given = as_tuple(x), as_tuple(w), biases
  weights = np.arange(1.0, EXAMPLES + 1) / EXAMPLES

  def logits_of(x, w, b):
    return [h @ k + c for h, k, c in zip(x * (len(w) // len(x)), w, b, strict=True)]

  def ours(x, w, b):
    x, w = x if len(x) > 1 else x[0], w if len(w) > 1 else w[0]
    values = losses.linear(loss, x, w, *labels, bias=b if len(b) > 1 else b[0], chunk_size=5)
    return (values * weights).sum(), values

  (_, values), gradients = jax.jit(jax.value_and_grad(ours, (0, 1, 2), has_aux=True))(*given)
  wide = jax.tree.map(np.float64, given)
  fixed = logits_of(*wide)
  oracle = lambda leaves: ORACLES[name](logits_of(*tree.unflatten(leaves)), fixed)
  leaves, tree = jax.tree.flatten(wide)
  np.testing.assert_allclose(values, oracle(leaves), rtol=1e-5, atol=1e-5)
  for number, (leaf, found) in enumerate(zip(leaves, jax.tree.leaves(gradients), strict=True)):
    expected = np.zeros_like(leaf)
    for index in np.ndindex(leaf.shape):
      step = np.zeros_like(leaf)
      step[index] = 1e-5
      beside = lambda moved, n=number: oracle([*leaves[:n], moved, *leaves[n + 1 :]])
      expected[index] = ((beside(leaf + step) - beside(leaf - step)) * weights).sum() / 2e-5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.thorough
def test_bias_and_more_leading_axes_in_chunks_of_any_size():
  expected = oracles.linear(oracles.cross_entropy, X, W, LABELS, BIAS)
  for size in (1, 5, 11, 22, 100):
    found = losses.linear(
      losses.softmax_cross_entropy,
      X.reshape(2, 11, FEATURES),
      W,
      LABELS.reshape(2, 11),
      bias=BIAS,
      chunk_size=size,
    )
    assert found.shape == (2, 11)
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_summed_in_float32():
  """The gradient of a kernel adds 4096 terms of one sign, which stop growing in bfloat16 at 256 of them."""
  x, w = jnp.ones((4096, 2), jnp.bfloat16), jnp.zeros((2, 2), jnp.bfloat16)
  labels = np.zeros(4096, int)
  total = lambda w: losses.linear(losses.softmax_cross_entropy, x, w, labels, chunk_size=4).sum()
  value, gradient = jax.jit(jax.value_and_grad(total))(w)
  assert value.dtype == jnp.float32
  assert gradient.dtype == jnp.bfloat16
  np.testing.assert_allclose(value, 4096 * np.log(2), rtol=1e-5)
  np.testing.assert_allclose(gradient.astype(np.float32), [[-2048, 2048]] * 2, rtol=1e-5)


@pytest.mark.thorough
def test_a_random_loss_draws_anew_in_each_chunk():
  draw = lambda key, logits: jax.random.uniform(key, logits.shape[:-1])
  values = losses.linear(draw, X, W, key=jax.random.key(0), chunk_size=5)
  again = losses.linear(draw, X, W, key=jax.random.key(0), chunk_size=5)
  np.testing.assert_array_equal(values, again)
  assert len(set(np.asarray(values).tolist())) == EXAMPLES


@pytest.mark.thorough
def test_dropmax_is_that_of_the_rows_and_the_key_of_each_chunk():
  key = jax.random.key(0)

  def by_rows(x, heads):
    total = 0
    for number, rows in enumerate([*(slice(c, 20, 4) for c in range(4)), slice(20, 22)]):
      logits = (x[rows] @ w for w in heads)
      loss = losses.dropmax(jax.random.fold_in(key, number), *logits, LABELS[rows], num_samples=2)
      total += (loss * jnp.arange(1.0, EXAMPLES + 1)[rows]).sum()
    return total

  def ours(x, heads):
    loss = partial(losses.dropmax, num_samples=2)
    values = losses.linear(loss, x, heads, LABELS, key=jax.random.clone(key), chunk_size=5)
    return (values * jnp.arange(1.0, EXAMPLES + 1)).sum()

  close(*(jax.jit(jax.value_and_grad(f, (0, 1)))(X, HEADS) for f in (ours, by_rows)))


def split_calls():
  """Cross-entropy, and what has several kernels; the examples divide by the devices."""
  return ["softmax_cross_entropy", "soft labels", "distillation", "dropmax"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", split_calls())
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (1, 4), (2, 2)])
def test_classes_and_examples_split_on_an_explicit_mesh(name, shape):
  mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
  loss, x, w, labels = CALLS[name]
  place = lambda tree, spec: jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, spec)), tree)
  total = lambda x, w, labels: losses.linear(loss, x, w, *labels, chunk_size=4)
  gradient = lambda x, w, labels: jax.value_and_grad(lambda x, w: total(x, w, labels).sum(), (0, 1))(x, w)
  with jax.set_mesh(mesh):
    found = jax.jit(gradient)(place(x, P("data")), place(w, P(None, "model")), place(labels, P("data")))
  expected = jax.value_and_grad(lambda x, w: plain(loss, x, w, labels).sum(), (0, 1))(x, w)
  close(found, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("name", split_calls())
@pytest.mark.parametrize("shape", [(1, 2), (1, 4), (2, 2)])
def test_classes_and_examples_split_in_shard_map(name, shape):
  mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
  loss, x, w, labels = CALLS[name]
  part = lambda x, w, labels: losses.linear(loss, x, w, *labels, chunk_size=3, class_axis="model")
  specs = P("data"), P(None, "model"), P("data")
  split = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P("data"))
  total = lambda x, w: (split(x, w, labels) * jnp.arange(1.0, EXAMPLES + 1)).sum()
  both = jax.tree.map(jnp.asarray, (x, w))
  run = lambda compute: jax.jit(lambda *both: jax.jvp(jax.value_and_grad(compute, (0, 1)), both, both))(*both)
  full = lambda x, w: (plain(loss, x, w, labels) * jnp.arange(1.0, EXAMPLES + 1)).sum()
  close(run(total), run(full))


@pytest.mark.thorough
def test_memory_does_not_grow_with_examples_times_classes():
  def temporaries(compute, examples, classes):
    shapes = (examples, 64), (64, classes)
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    labels = jax.ShapeDtypeStruct((examples,), jnp.int32)
    total = lambda x, w, labels: compute(losses.softmax_cross_entropy, x, w, (labels,)).mean()
    compiled = jax.jit(jax.value_and_grad(total, (0, 1))).lower(x, w, labels).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  usual = lambda loss, x, w, labels: losses.linear(loss, x, w, *labels)
  whole, ours = temporaries(plain, 8192, 32768), temporaries(usual, 8192, 32768)
  assert ours <= whole / 8
  # Twice the examples need no more than their features, labels and losses do.
  assert temporaries(usual, 16384, 32768) - ours <= 4 * 8192 * (2 * 64 + 8)


@pytest.mark.parametrize(
  ("change", "error", "message"),
  [
    ({"features": X.astype(int)}, TypeError, "features must be floating"),
    ({"features": X[:, :3]}, ValueError, "features must have shape"),
    ({"features": (X, X)}, ValueError, "features must be 1 or as many as the 1 kernels"),
    (
      {"kernel": W.T},
      ValueError,
      r"for kernel .*; an embedding is \[classes, features\], so give its transpose",
    ),
    ({"kernel": W[0]}, ValueError, r"kernel must be \[features, classes\]"),
    ({"kernel": ()}, ValueError, "kernel must be an array or a tuple of at least one"),
    ({"bias": BIAS[:3]}, ValueError, "bias must have shape"),
    ({"bias": (BIAS, BIAS)}, ValueError, "bias must have one array for each of the 1 kernels"),
    ({"labels": LABELS + CLASSES}, ValueError, "labels must lie in"),
    ({"labels": SOFT[:3]}, ValueError, "labels must have the leading axes"),
    ({"where": WHERE.astype(int)}, TypeError, "where must be bool"),
    ({"where": WHERE[:3]}, ValueError, "where must have shape"),
    ({"chunk_size": 0}, ValueError, "chunk_size"),
  ],
)
def test_wrong_arguments_are_refused(change, error, message):
  given = {"features": X, "kernel": W, "labels": LABELS, **change}
  arrays = [given.pop(name) for name in ("features", "kernel", "labels")]
  with pytest.raises(error, match=message):
    losses.linear(losses.softmax_cross_entropy, *arrays, **given)


def test_a_loss_that_returns_its_mean_is_refused():
  for options in ({}, {"where": LABELS >= 0}, {"chunk_size": 2}):
    with pytest.raises(ValueError, match=r"loss must return \[examples\], here \[\d+\], got shape \(\)"):
      losses.linear(lambda z, y, **_: losses.focal(z, y).mean(), X, W, LABELS, **options)


def test_a_random_loss_without_a_key_is_refused():
  with pytest.raises(TypeError, match=r"\(logits, logits, logits, labels\) .* get a key if it is random"):
    losses.linear(losses.dropmax, X, (W, W, W), LABELS)


def test_labels_of_a_loss_of_the_logits_alone_are_refused():
  with pytest.raises(TypeError, match="and no labels if it is of the logits alone"):
    losses.linear(losses.z_loss, X, W, LABELS)


def test_a_loss_of_ones_own_needs_no_where():
  smoothing = jnp.full(EXAMPLES, 0.1)
  own = lambda z, y, s: losses.label_smoothing(z, y, smoothing=s)
  broken = np.where(WHERE[:, None], X, np.nan)
  got = losses.linear(own, broken, W, LABELS, smoothing, where=WHERE, chunk_size=4)
  each = losses.label_smoothing(X @ W, LABELS, smoothing=0.1)
  np.testing.assert_allclose(got, np.where(WHERE, each, 0), rtol=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 0.0])
def test_unknown_numbers_do_not_reach_the_gradient_of_a_loss_of_ones_own(broken):
  """Squared errors, each divided by the example's own variance: least squares of the known targets."""
  own = lambda z, y, v: (z[:, 0] - y) ** 2 / v
  kernel, variance = W[:, :1], np.linspace(1, 2, EXAMPLES, dtype=np.float32)
  target = TEACHER_X[:, 0]
  unknown = [np.where(WHERE, y, np.float32(broken)) for y in (target, variance)]
  total = lambda w: losses.linear(own, X, w, *unknown, where=WHERE, chunk_size=4).sum()
  value, gradient = jax.value_and_grad(total)(kernel)
  x, y, v = (np.float64(a[WHERE]) for a in (X, target, variance))
  error = x @ kernel[:, 0] - y
  np.testing.assert_allclose(value, (error**2 / v).sum(), rtol=1e-5)
  np.testing.assert_allclose(gradient[:, 0], 2 * x.T @ (error / v), rtol=1e-4, atol=1e-5)

"""A loss with terms: values and gradients, keys, weights, one forward pass, devices, the report."""

import functools
import zlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import explicit_mesh, jit
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg import adversarial, augment, losses, noise, objective, penalties
from jaxreg.objective import compose, example_term, penalty, perturbation

ALPHA, BETA = 0.3, 0.07
CLASSES = 3


def network(seed=0, dtype=None):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
  params = {
    "Dense_0": {"kernel": draw(3, 4), "bias": draw(4)},
    "Dense_1": {"kernel": draw(4, CLASSES), "bias": draw(CLASSES)},
  }
  return params, {"inputs": draw(8, 3), "labels": jnp.asarray(rng.integers(CLASSES, size=8))}


def logits_fn(params, x):
  first, last = params["Dense_0"], params["Dense_1"]
  hidden = jnp.tanh(jnp.matmul(x, first["kernel"]) + first["bias"][None])
  return jnp.matmul(hidden, last["kernel"]) + last["bias"][None], hidden


def loss_fn(params, batch, *, key):
  """One value an example, and the outputs; with a key the inputs have noise."""
  x = batch["inputs"]
  logits, hidden = logits_fn(params, x if key is None else x + jax.random.normal(key, x.shape, x.dtype))
  return losses.softmax_cross_entropy(logits, batch["labels"]), {"logits": logits, "hidden": hidden}


def mean_fn(params, batch, *, key):
  return loss_fn(params, batch, key=key)[0].mean()


def consistency(key, view):
  return losses.consistency(view.aux["logits"], view.again(key=key).aux["logits"])


def drawn(key, view):
  """A term whose value is its draw."""
  del view
  return jax.random.uniform(key)


def folded(key, name):
  return jax.random.fold_in(key, zlib.crc32(name.encode()))


def np_nll(params, x, labels):
  """The loss of each example, in float64."""
  wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  hidden = np.tanh(np.asarray(x, np.float64) @ wide["Dense_0"]["kernel"] + wide["Dense_0"]["bias"])
  logits = hidden @ wide["Dense_1"]["kernel"] + wide["Dense_1"]["bias"]
  top = logits.max(-1, keepdims=True)
  log_probs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
  return -log_probs[np.arange(len(labels)), np.asarray(labels)], hidden, log_probs


# Values and gradients.


@pytest.mark.claim(
  "regularization",
  "parameter norm penalties",
  "the objective is J + alpha Omega, on affine weights, not biases",
)
def test_gradient_is_that_of_the_loss_and_alpha_times_the_penalty_s(x64):
  params, batch = network()
  # Not compiled: fused, the plain gradient would be rounded otherwise in the last bit.
  plain = jax.grad(mean_fn)(params, batch, key=None)
  terms = {"l2": penalty(penalties.l2, weight=ALPHA), "l1": penalty(penalties.l1, weight=BETA)}
  got = jax.grad(compose(mean_fn, terms))(params, batch)
  for layer in params:
    w = np.asarray(params[layer]["kernel"])
    want = plain[layer]["kernel"] + ALPHA * w + BETA * np.sign(w)
    np.testing.assert_allclose(got[layer]["kernel"], want, rtol=1e-13)
    # Bit for bit: nothing is added to what the mask leaves out.
    np.testing.assert_array_equal(got[layer]["bias"], plain[layer]["bias"])
  everywhere = jax.grad(compose(mean_fn, {"l2": penalty(penalties.l2, weight=ALPHA, mask="*")}))(
    params, batch
  )
  want = plain["Dense_0"]["bias"] + ALPHA * params["Dense_0"]["bias"]
  np.testing.assert_allclose(everywhere["Dense_0"]["bias"], want, rtol=1e-13)


@pytest.mark.thorough
def test_without_terms_or_weights_it_is_the_loss_itself():
  params, batch = network()
  for terms in ({}, {"l2": penalty(penalties.l2, weight=0.0)}):
    got = jax.value_and_grad(compose(mean_fn, terms))(params, batch, key=jax.random.key(1))
    chex.assert_trees_all_equal(got, jax.value_and_grad(mean_fn)(params, batch, key=jax.random.key(1)))
  got = jax.value_and_grad(compose(loss_fn, {}, has_aux=True), has_aux=True)(params, batch)[0][0]
  np.testing.assert_allclose(got, mean_fn(params, batch, key=None), rtol=1e-6)


def test_terms_add_up_and_the_metrics_are_their_values(x64):
  params, batch = network()
  terms = {
    "elastic": penalty(penalties.elastic_net, weight=ALPHA, ratio=0.25),
    "sparse": example_term(lambda key, view: penalties.l1_activity(view.aux["hidden"]), weight=BETA),
    "entropy": example_term(
      lambda key, view: losses.entropy(jax.nn.log_softmax(view.aux["logits"])), weight=2.0
    ),
  }
  objective_fn = compose(loss_fn, terms, has_aux=True, with_metrics=True)
  loss, (aux, metrics) = jax.jit(objective_fn)(params, batch)
  nll, hidden, log_probs = np_nll(params, batch["inputs"], batch["labels"])
  w = [np.asarray(params[layer]["kernel"]) for layer in params]
  want = {
    "data": nll.mean(),
    "elastic": ALPHA * sum(0.25 * np.abs(x).sum() + 0.75 / 2 * (x**2).sum() for x in w),
    "sparse": BETA * np.abs(hidden).sum(-1).mean(),
    "entropy": -2 * (np.exp(log_probs) * log_probs).sum(-1).mean(),
  }
  want["loss"] = sum(want.values())
  means = {name: total / count for name, (total, count) in metrics.items()}
  chex.assert_trees_all_close(means, want, rtol=1e-12)
  np.testing.assert_allclose(loss, want["loss"], rtol=1e-12)
  np.testing.assert_allclose(aux["hidden"], hidden, rtol=1e-12)


@pytest.mark.thorough
def test_a_loss_may_be_several_terms_by_name():
  """`losses.dropmax_terms` as they come."""
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(5, 9)), jnp.float32)
  labels = jnp.arange(5) % 3
  dropmax = lambda params, batch, *, key: losses.dropmax_terms(key, *jnp.split(params, 3, axis=-1), batch)
  composed = compose(
    dropmax, {"square": penalty(lambda params: (params**2).sum(), weight=0.5)}, with_metrics=True
  )
  loss, metrics = composed(logits, labels, key=jax.random.key(3))
  want = losses.dropmax_terms(jax.random.key(3), *jnp.split(logits, 3, axis=-1), labels)
  assert metrics.keys() == {*want, "square", "loss"}
  for name, values in want.items():
    np.testing.assert_allclose(metrics[name], (np.asarray(values, np.float64).sum(), 5), rtol=1e-5)
  total = (
    sum(np.asarray(values, np.float64).mean() for values in want.values()) + 0.5 * np.square(logits).sum()
  )
  np.testing.assert_allclose(loss, total, rtol=1e-5)


@pytest.mark.parametrize("length", [2, 3])
def test_losses_of_different_rank_add_up_example_by_example(length):
  each, tokens = np.arange(2.0), np.arange(2.0 * length).reshape(2, length)
  terms_fn = lambda params, batch, *, key: {"one": params, "each": params * each, "tokens": params * tokens}
  seen = []
  watch = example_term(lambda key, view: seen.append(view.loss) or jnp.zeros(()), weight=1.0)
  loss = compose(terms_fn, {"watch": watch})(jnp.float32(2), {"inputs": jnp.ones((2, 1))})
  np.testing.assert_allclose(loss, 2 * (1 + each.mean() + tokens.mean()), rtol=1e-6)
  np.testing.assert_allclose(seen[0], 2 * (1 + each[:, None] + tokens), rtol=1e-6)


@pytest.mark.thorough
def test_weights_and_options_may_be_schedules():
  params, batch = network()
  schedule = optax.linear_schedule(0.0, 1.0, transition_steps=10)
  terms = {
    "elastic": penalty(penalties.elastic_net, weight=schedule, ratio=schedule),
    "noise": perturbation(noise.gaussian_noise, on="inputs", std=schedule),
  }
  composed = jax.jit(compose(mean_fn, terms))
  w = [np.asarray(params[layer]["kernel"], np.float64) for layer in params]
  x = batch["inputs"]
  for step in (0, 5, 20):
    at = min(step / 10, 1)
    moved = x + at * jax.random.normal(folded(jax.random.key(0), "noise"), x.shape)
    want = mean_fn(params, {**batch, "inputs": moved}, key=jax.random.key(0))
    want += at * sum(at * np.abs(x).sum() + (1 - at) / 2 * (x**2).sum() for x in w)
    np.testing.assert_allclose(composed(params, batch, key=jax.random.key(0), step=step), want, rtol=1e-5)
  with pytest.raises(ValueError, match="step must be given: weight of elastic is a schedule"):
    compose(mean_fn, terms)(params, batch)
  with pytest.raises(ValueError, match="step must be given: std of noise is a schedule"):
    compose(mean_fn, {"noise": terms["noise"]})(params, batch, key=jax.random.key(0))


def test_a_half_precision_loss_is_widened():
  for terms in ({}, {"l2": penalty(penalties.l2, weight=1.0)}):
    composed = compose(lambda params, batch, *, key: params["kernel"].sum(), terms)
    assert composed({"kernel": jnp.ones((2, 2), jnp.bfloat16)}, None).dtype == jnp.float32


# Weights of the examples.


@pytest.mark.thorough
def test_weights_count_and_a_broken_example_that_does_not_reaches_nothing(x64):
  params, batch = network()
  weights, where = np.array([1.0, 2, 0, 1, 0.5, 3, 1, 2]), np.arange(8) != 3
  broken = batch["inputs"].at[3].set(jnp.nan)
  terms = {"sparse": example_term(lambda key, view: penalties.l1_activity(view.aux["hidden"]), weight=BETA)}
  composed = compose(loss_fn, terms, has_aux=True)
  given = {**batch, "inputs": broken, "weights": jnp.asarray(weights), "where": where}
  (loss, _), grads = jax.jit(jax.value_and_grad(composed, has_aux=True))(params, given)
  nll, hidden, _ = np_nll(params, batch["inputs"], batch["labels"])
  want = np.average(nll + BETA * np.abs(hidden).sum(-1), weights=weights * where)
  np.testing.assert_allclose(loss, want, rtol=1e-12)
  chex.assert_tree_all_finite(grads)
  alone = compose(loss_fn, terms, has_aux=True)(params, {**batch, "inputs": broken, "where": where})[0]
  np.testing.assert_allclose(alone, (nll + BETA * np.abs(hidden).sum(-1))[where].mean(), rtol=1e-12)


@pytest.mark.parametrize("by", ["where", "weights", "weights_fn"])
def test_an_example_that_does_not_count_needs_no_label(x64, by):
  """Under `jit` a label of -1 makes the loss and the gradient of its example NaN."""
  params, batch = network()
  counts = np.arange(8) % 3 != 1
  labels = jnp.where(counts, batch["labels"], -1)
  smooth = lambda key, view: losses.label_smoothing(view.aux["logits"], view.batch["labels"], smoothing=0.5)
  options = {"weights_fn": lambda batch: jnp.asarray(counts, float)} if by == "weights_fn" else {}
  composed = compose(loss_fn, {"smooth": example_term(smooth, weight=BETA)}, has_aux=True, **options)
  given = {**batch, "labels": labels}
  if by != "weights_fn":
    given[by] = jnp.asarray(counts, bool if by == "where" else float)
  (loss, _), grads = jax.jit(jax.value_and_grad(composed, has_aux=True))(params, given)
  nll, _, log_probs = np_nll(params, batch["inputs"], batch["labels"])
  want = (nll + BETA * (0.5 * nll - 0.5 * log_probs.mean(-1)))[counts].mean()
  np.testing.assert_allclose(loss, want, rtol=1e-12)
  few = {name: x[np.flatnonzero(counts)] for name, x in batch.items()}
  chex.assert_trees_all_close(grads, jax.grad(lambda params: composed_of_few(params, few))(params), rtol=1e-9)


@pytest.mark.parametrize("length", [None, 5])
def test_padding_in_a_tuple_reaches_nothing_and_tokens_without_weight_are_context(x64, length):
  rng = np.random.default_rng(0)
  counts = np.array([1, 1, 0, 1, 1, 0, 1, 1]) > 0
  shape = (8,) if length is None else (8, length)
  where = np.broadcast_to(counts.reshape(-1, *[1] * (len(shape) - 1)), shape)
  x, y, tokens = rng.normal(size=(*shape, 5)), rng.integers(3, size=shape), rng.integers(4, size=shape)
  table, kernel = rng.normal(size=(4, 5)), rng.normal(size=(5, 3))

  def tuple_loss(kernel, batch, *, key):
    x, y, tokens, _ = batch
    context = jnp.asarray(table)[tokens].mean(axis=0, keepdims=True)
    return losses.softmax_cross_entropy((x + context) @ kernel, y)

  padded = np.where(where[..., None], x, np.nan), np.where(where, y, -1), tokens, where
  got = jax.jit(jax.value_and_grad(compose(tuple_loss, {}, weights_fn=lambda batch: batch[3] * 1.0)))(
    kernel, tuple(map(jnp.asarray, padded))
  )
  logits = (x + table[tokens].mean(axis=0)) @ kernel
  p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  nll = -np.log(np.take_along_axis(p, y[..., None], axis=-1))[..., 0]
  by_logit = (p - np.eye(3)[y]) * where[..., None] / where.sum()
  inputs = (x + table[tokens].mean(axis=0)).reshape(-1, 5)
  np.testing.assert_allclose(got[0], nll[where].mean(), rtol=1e-12)
  np.testing.assert_allclose(got[1], inputs.T @ by_logit.reshape(-1, 3), rtol=1e-12)


@pytest.mark.parametrize("padding", [3e38, -np.finfo(np.float32).max, 1e20, complex(np.nan, 1), 3e38j])
def test_huge_and_complex_padding_reaches_no_gradient(padding):
  rng = np.random.default_rng(0)
  where, x, w = np.arange(6) < 4, rng.normal(size=(6, 3)), rng.normal(size=3)
  dtype = np.complex64 if isinstance(padding, complex) else np.float32
  given = np.where(where[:, None], x, padding).astype(dtype)
  square = lambda w, batch, *, key: jnp.square(jnp.abs(batch["inputs"] @ w))
  batch = {"inputs": jnp.asarray(given), "where": jnp.asarray(where)}
  value, slope = jax.jit(jax.value_and_grad(compose(square, {})))(jnp.float32(w), batch)
  np.testing.assert_allclose(value, np.square(x @ w)[where].mean(), rtol=1e-5)
  np.testing.assert_allclose(slope, 2 * (x @ w)[where] @ x[where] / 4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_of_weight_0_stay_for_a_term_that_counts_them(dtype):
  x = np.array([1.0, 3e4, np.inf], dtype)
  term = example_term(
    lambda key, view: jnp.float32(view.batch["inputs"]), weight=1.0, weights_fn=lambda batch: jnp.ones(3)
  )
  composed = compose(lambda params, batch, *, key: jnp.zeros(3), {"all": term})
  loss = composed(jnp.zeros(()), {"inputs": x, "weights": jnp.float32([1, 0, 0])})
  np.testing.assert_allclose(loss, 30_001 / 3, rtol=1e-3)


def composed_of_few(params, batch):
  """The same objective in plain JAX, of examples that all count."""
  log_probs = jax.nn.log_softmax(logits_fn(params, batch["inputs"])[0])
  nll = -jnp.take_along_axis(log_probs, batch["labels"][:, None], axis=-1)[:, 0]
  return (nll + BETA * (0.5 * nll - 0.5 * log_probs.mean(-1))).mean()


def test_a_term_with_other_weights_sees_its_own_labels(x64):
  """The loss counts the labelled examples, the term the others: each sees labels where its own weight is."""
  params, batch = network()
  labelled = np.arange(8) < 5
  labels = jnp.where(labelled, batch["labels"], -1)
  seen = {}

  def without_label(key, view):
    seen["labels"] = np.asarray(view.batch["labels"])
    return jnp.square(view.aux["logits"]).sum(-1)

  terms = {
    "unlabelled": example_term(
      without_label, weight=1.0, weights_fn=lambda batch: jnp.asarray(batch["labels"] < 0, float)
    )
  }
  composed = compose(
    loss_fn, terms, has_aux=True, weights_fn=lambda batch: jnp.asarray(batch["labels"] >= 0, float)
  )
  loss, _ = composed(params, {**batch, "labels": labels})
  nll, _, _ = np_nll(params, batch["inputs"], batch["labels"])
  logits = np.asarray(logits_fn(params, batch["inputs"])[0])
  want = nll[labelled].mean() + np.square(logits).sum(-1)[~labelled].mean()
  np.testing.assert_allclose(loss, want, rtol=1e-12)
  np.testing.assert_array_equal(seen["labels"], np.where(labelled, 0, -1))


@pytest.mark.parametrize("mix", [augment.mixup, augment.cutmix])
def test_padding_of_nan_reaches_no_example_that_counts_by_mixing(mix):
  params, batch = network()
  counts = np.arange(8) < 5
  shape = (8, 1, 1, 3) if mix is augment.cutmix else (8, 3)
  given = {
    "inputs": jnp.where(counts[:, None], batch["inputs"], jnp.nan).reshape(shape),
    "labels": jnp.where(counts, batch["labels"], -1),
    "where": jnp.asarray(counts),
  }
  flat = lambda params, batch, *, key: loss_fn(
    params, {**batch, "inputs": batch["inputs"].reshape(8, 3)}, key=key
  )
  mixed = perturbation(mix, on="batch", num_classes=CLASSES)
  composed = compose(flat, {"mix": mixed}, has_aux=True)
  (loss, _), grads = jax.jit(jax.value_and_grad(composed, has_aux=True))(params, given, key=jax.random.key(0))
  assert np.isfinite(loss)
  chex.assert_tree_all_finite(grads)


@pytest.mark.thorough
def test_a_term_may_count_other_examples_than_the_loss(x64):
  """Semi-supervised: the loss counts labelled examples, the term all."""
  params, batch = network()
  labelled = np.arange(8) < 3
  terms = {
    "sparse": example_term(
      lambda key, view: penalties.l1_activity(view.aux["hidden"]),
      weight=BETA,
      weights_fn=lambda batch: jnp.ones(len(batch["labels"])),
    )
  }
  composed = compose(
    loss_fn, terms, has_aux=True, with_metrics=True, weights_fn=lambda batch: batch["labelled"]
  )
  batch["labelled"] = jnp.asarray(labelled, float)
  loss, (_, metrics) = composed(params, batch)
  nll, hidden, _ = np_nll(params, batch["inputs"], batch["labels"])
  sparse = BETA * np.abs(hidden).sum(-1).mean()
  np.testing.assert_allclose(loss, nll[:3].mean() + sparse, rtol=1e-12)
  np.testing.assert_allclose(metrics["sparse"], (8 * sparse, 8), rtol=1e-12)
  np.testing.assert_allclose(metrics["loss"], (3 * loss, 3), rtol=1e-12)
  # Parts with 2, 1 and no labels: each term's sums and counts add up.
  parts = [jax.tree.map(lambda x, rows=rows: x[rows], batch) for rows in (slice(2), slice(2, 5), slice(5, 8))]
  found = [composed(params, part)[1][1] for part in parts]
  for name in ("data", "sparse"):
    np.testing.assert_allclose(np.sum([each[name] for each in found], axis=0), metrics[name], rtol=1e-12)


@pytest.mark.thorough
def test_metrics_add_up_over_parts_of_a_batch(x64):
  params, batch = network()
  batch["weights"] = jnp.asarray([1.0, 2, 0, 1, 0.5, 3, 1, 0])
  terms = {"l2": penalty(penalties.l2, weight=ALPHA), "other": example_term(consistency, weight=BETA)}
  composed = compose(loss_fn, terms, has_aux=True, with_metrics=True)
  metrics = lambda batch: composed(params, batch)[1][1]
  whole = metrics(batch)
  part = lambda rows: metrics(jax.tree.map(lambda x: x[rows], batch))
  parts = part(slice(0, 3)), part(slice(3, 8))
  added = jax.tree.map(lambda *each: sum(each), *parts)
  chex.assert_trees_all_close(added, whole, rtol=1e-12)


# Forward passes.


def counted():
  calls = []

  def count(params, batch, *, key):
    calls.append(key)
    return loss_fn(params, batch, key=key)

  return calls, count


@pytest.mark.thorough
def test_terms_share_one_forward_pass():
  params, batch = network()
  clean = lambda key, view: losses.consistency(view.aux["logits"], view.again(key=None).aux["logits"])
  terms = {
    "l2": penalty(penalties.l2, weight=ALPHA),
    "sparse": example_term(lambda key, view: penalties.l1_activity(view.aux["hidden"]), weight=1.0),
    "z": example_term(lambda key, view: losses.z_loss(view.aux["logits"]), weight=1.0),
    "again": example_term(lambda key, view: view.again().aux["hidden"].sum(-1), weight=1.0),
  }
  for more, passes in (
    ({}, 1),
    ({"r_drop": example_term(consistency, weight=1.0)}, 2),
    ({"one": example_term(clean, weight=1.0), "two": example_term(clean, weight=2.0)}, 2),
  ):
    calls, count = counted()
    composed = compose(count, {**terms, **more}, has_aux=True)
    jax.jit(jax.grad(composed, has_aux=True))(params, batch, key=jax.random.key(0))
    assert len(calls) == passes
    calls.clear()
    jax.jit(composed.report)(params, batch, key=jax.random.key(0))
    assert len(calls) == passes


def test_a_pass_without_noise_inside_of_a_loop_is_not_used_outside_of_it():
  params, batch = network()

  def loop(key, view):
    return jax.lax.fori_loop(0, 2, lambda _, total: total + view.again(key=None).loss, jnp.zeros(8))

  terms = {
    "in": example_term(loop, weight=1.0),
    "out": example_term(lambda key, view: view.again(key=None).loss, weight=1.0),
  }
  loss, _ = jax.jit(compose(loss_fn, terms, has_aux=True))(params, batch)
  np.testing.assert_allclose(loss, 4 * np_nll(params, batch["inputs"], batch["labels"])[0].mean(), rtol=1e-5)


def test_a_teacher_s_parameters_and_other_batches():
  params, batch = network()
  teacher, other = network(1)
  terms = {
    "teacher": example_term(
      lambda key, view: view.again(params=view.batch["teacher"], key=None).loss, weight=1.0
    ),
    "other": example_term(lambda key, view: view.again(batch=other, key=None).loss, weight=1.0),
  }
  _, (_, metrics) = compose(loss_fn, terms, has_aux=True, with_metrics=True)(
    params, {**batch, "teacher": teacher}, key=jax.random.key(0)
  )
  for name, nll in (
    ("teacher", np_nll(teacher, batch["inputs"], batch["labels"])[0]),
    ("other", np_nll(params, other["inputs"], other["labels"])[0]),
  ):
    np.testing.assert_allclose(metrics[name][0] / metrics[name][1], nll.mean(), rtol=1e-5)


@pytest.mark.thorough
def test_attacks_take_the_loss_of_the_inputs(x64):
  """FGSM on a loss of one value an example, and on a mean: the attacked loss of both is NumPy's."""
  params, batch = network()

  def fgsm(key, view, *, eps):
    moved = adversarial.pgd(
      None, view.loss_of_inputs, view.batch["inputs"], eps=eps, num_steps=1, random_start=False
    )
    return view.loss_of_inputs(moved)

  slope = jax.grad(lambda x: loss_fn(params, {**batch, "inputs": x}, key=None)[0].sum())(batch["inputs"])
  moved = np.asarray(batch["inputs"]) + 0.1 * np.sign(slope)
  want = mean_fn(params, batch, key=None) + 0.5 * np_nll(params, moved, batch["labels"])[0].mean()
  terms = {"fgsm": example_term(fgsm, weight=0.5, eps=0.1)}
  np.testing.assert_allclose(compose(mean_fn, terms)(params, batch), want, rtol=1e-12)
  np.testing.assert_allclose(compose(loss_fn, terms, has_aux=True)(params, batch)[0], want, rtol=1e-12)


# Keys and perturbations.


@pytest.mark.thorough
def test_a_term_s_key_has_its_name_and_no_other_term_changes_a_draw():
  params, batch = network()
  key = lambda: jax.random.key(7)
  one = {
    "one": example_term(drawn, weight=1.0),
    "noise": perturbation(noise.weight_noise, on="params", std=0.1),
  }
  more = {"two": example_term(drawn, weight=1.0), **one, "l2": penalty(penalties.l2, weight=1.0)}
  more["input_noise"] = perturbation(noise.gaussian_noise, on="inputs", std=0.0)
  values = lambda terms: compose(mean_fn, terms, with_metrics=True)(params, batch, key=key())[1]
  few, many = values(one), values(more)
  for name in few.keys() - {"loss"}:
    np.testing.assert_array_equal(few[name], many[name])
  for name in ("one", "two"):
    np.testing.assert_array_equal(many[name][0], jax.random.uniform(folded(key(), name)))
  noisy = noise.weight_noise(folded(key(), "noise"), params, std=0.1)
  np.testing.assert_allclose(many["data"][0], mean_fn(noisy, batch, key=key()), rtol=1e-6)


def test_inputs_are_perturbed_in_every_pass_and_the_batch_once():
  params, batch = network()
  key, x = jax.random.key(5), batch["inputs"]
  moved = lambda key, name: x + jax.random.normal(folded(key, name), x.shape)
  seen = {}

  def look(own, view):
    seen["again"] = view.again(key=own).aux
    seen["clean"] = view.again(key=None).aux
    seen["same"] = view.again(inputs=view.batch["inputs"]).aux
    seen["first"], seen["batch"] = view.aux, view.batch
    return jnp.zeros(())

  show = lambda params, batch, *, key: (jnp.zeros(8), batch)
  terms = {
    "noise": perturbation(noise.gaussian_noise, on="inputs", std=1.0),
    "labels": perturbation(noise.label_noise, on="labels", num_classes=CLASSES, rate=0.5),
    "look": example_term(look, weight=1.0),
  }
  aux = compose(show, terms, has_aux=True)(params, batch, key=key)[1]
  np.testing.assert_array_equal(seen["clean"]["inputs"], x)
  np.testing.assert_array_equal(seen["batch"]["inputs"], x)
  chex.assert_trees_all_equal(seen["first"], seen["same"], aux)
  np.testing.assert_allclose(aux["inputs"], moved(jax.random.key(5), "noise"), rtol=1e-6)
  np.testing.assert_allclose(
    seen["again"]["inputs"], moved(folded(jax.random.key(5), "look"), "noise"), rtol=1e-6
  )
  flipped = noise.label_noise(
    folded(jax.random.key(5), "labels"), batch["labels"], num_classes=CLASSES, rate=0.5
  )
  for one in (*seen.values(), aux):
    np.testing.assert_array_equal(one["labels"], flipped)
  assert (flipped != batch["labels"]).any()


@pytest.mark.thorough
def test_mixed_examples_and_no_key_is_no_perturbation():
  params, batch = network()
  mixup = functools.partial(augment.mixup, num_classes=CLASSES)
  composed = compose(loss_fn, {"mixup": perturbation(mixup, on="batch", alpha=1.0)}, has_aux=True)
  mixed = mixup(folded(jax.random.key(2), "mixup"), batch, alpha=1.0)
  want = loss_fn(params, mixed, key=jax.random.key(2))[0].mean()
  np.testing.assert_allclose(composed(params, batch, key=jax.random.key(2))[0], want, rtol=1e-6)
  np.testing.assert_allclose(composed(params, batch)[0], mean_fn(params, batch, key=None), rtol=1e-6)


@pytest.mark.thorough
def test_activations_are_perturbed_where_the_loss_says(x64):
  params, batch = network()

  def perturbed_fn(params, batch, *, key, perturb):
    first, last = params["Dense_0"], params["Dense_1"]
    hidden = jnp.tanh(jnp.matmul(batch["inputs"], first["kernel"]) + first["bias"][None])
    hidden = perturb("hidden", hidden)
    logits = perturb("logits", jnp.matmul(hidden, last["kernel"]) + last["bias"][None])
    return losses.softmax_cross_entropy(logits, batch["labels"]), perturb("hidden", hidden)

  terms = {"dropout": perturbation(noise.dropout, on="hidden", rate=0.5)}
  composed = compose(perturbed_fn, terms, has_aux=True)
  _, hidden, _ = np_nll(params, batch["inputs"], batch["labels"])
  own = folded(jax.random.key(2), "dropout")
  loss, twice = composed(params, batch, key=jax.random.key(2))
  once = noise.dropout(jax.random.fold_in(own, 0), hidden, rate=0.5)
  np.testing.assert_allclose(twice, noise.dropout(jax.random.fold_in(own, 1), once, rate=0.5), rtol=1e-12)
  logits = np.asarray(once) @ np.asarray(params["Dense_1"]["kernel"]) + np.asarray(params["Dense_1"]["bias"])
  want = losses.softmax_cross_entropy(logits, batch["labels"]).mean()
  np.testing.assert_allclose(loss, want, rtol=1e-12)
  np.testing.assert_allclose(composed(params, batch)[0], mean_fn(params, batch, key=None), rtol=1e-12)
  wrong = {"dropout": perturbation(noise.dropout, on="hiden", rate=0.5)}
  with pytest.raises(ValueError, match=r"argument perturb, hidden, logits, got 'hiden' for dropout"):
    compose(perturbed_fn, wrong, has_aux=True)(params, batch, key=jax.random.key(0))
  with pytest.raises(ValueError, match=r"argument perturb, none, got 'hiden'"):
    compose(loss_fn, wrong, has_aux=True)(params, batch, key=jax.random.key(0))


@pytest.mark.thorough
def test_the_statistics_of_batch_norm_are_those_of_the_loss_s_pass():
  params, batch = network()

  def normed_fn(params, batch, *, key):
    x = batch["inputs"]
    stats = 0.9 * batch["stats"] + 0.1 * x.mean(0)
    logits, _ = logits_fn(params, x - x.mean(0, keepdims=True))
    return losses.softmax_cross_entropy(logits, batch["labels"]), {"logits": logits, "stats": stats}

  moved = lambda key, view: view.again(inputs=view.batch["inputs"] + 5).loss
  composed = compose(normed_fn, {"moved": example_term(moved, weight=1.0)}, has_aux=True)
  given = {**batch, "stats": jnp.ones(3)}
  (_, aux), _ = jax.value_and_grad(composed, has_aux=True)(params, given)
  np.testing.assert_allclose(aux["stats"], 0.9 + 0.1 * np.asarray(batch["inputs"]).mean(0), rtol=1e-6)


# The report.


def flat(tree):
  return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


@pytest.mark.thorough
def test_the_report_of_ridge_is_the_closed_form(x64):
  """Least squares: the gradient of the loss is `X'(Xw - y) / n`, that of the penalty `alpha w`."""
  rng = np.random.default_rng(0)
  x, y, w = rng.normal(size=(9, 4)), rng.normal(size=9), rng.normal(size=4)
  squares = lambda params, batch, *, key: 0.5 * jnp.square(batch[0] @ params["kernel"] - batch[1])
  l2 = functools.partial(penalties.l2, mask="*")
  composed = compose(squares, {"l2": penalty(l2, weight=ALPHA), "none": penalty(l2, weight=0.0)})
  report = composed.report({"kernel": jnp.asarray(w)}, (jnp.asarray(x), jnp.asarray(y)))
  data, decay = x.T @ (x @ w - y) / 9, ALPHA * w
  norm = np.linalg.norm
  both = data + decay
  for name, value, gradient in (
    ("data", 0.5 * np.mean((x @ w - y) ** 2), data),
    ("l2", ALPHA / 2 * w @ w, decay),
    ("none", 0.0, 0 * w),
    ("loss", 0.5 * np.mean((x @ w - y) ** 2) + ALPHA / 2 * w @ w, both),
  ):
    np.testing.assert_allclose(report.value[name], value, rtol=1e-12)
    np.testing.assert_allclose(report.norm[name], norm(gradient), rtol=1e-12)
    cosine = gradient @ data / (norm(gradient) * norm(data)) if gradient.any() else 0.0
    np.testing.assert_allclose(report.cosine[name], cosine, rtol=1e-12)
  assert [line.split()[0] for line in str(report).splitlines()] == ["term", "data", "l2", "none", "loss"]


@pytest.mark.thorough
def test_the_report_of_example_terms_and_perturbations(x64):
  """Each gradient by itself; a perturbation's is the difference of the loss with and without it."""
  params, batch = network()
  key = lambda: jax.random.key(4)
  terms = {
    "noise": perturbation(noise.weight_noise, on="params", std=0.1),
    "r_drop": example_term(consistency, weight=2.0),
    "l2": penalty(penalties.l2, weight=ALPHA),
  }
  composed = compose(loss_fn, terms, has_aux=True)
  report = jax.jit(composed.report)(params, batch, key=key())

  def data(params, noisy=True):
    moved = noise.weight_noise(folded(key(), "noise"), params, std=0.1) if noisy else params
    return mean_fn(moved, batch, key=key())

  def r_drop(params):
    passes = []
    for each in (key(), folded(key(), "r_drop")):
      moved = noise.weight_noise(folded(each, "noise"), params, std=0.1)
      passes.append(loss_fn(moved, batch, key=each)[1]["logits"])
    return 2 * losses.consistency(*passes).mean()

  want = {
    "data": (data(params), flat(jax.grad(data)(params))),
    "r_drop": (r_drop(params), flat(jax.grad(r_drop)(params))),
    "noise": (
      data(params) - data(params, noisy=False),
      flat(jax.grad(data)(params)) - flat(jax.grad(data)(params, noisy=False)),
    ),
  }
  for name, (value, gradient) in want.items():
    np.testing.assert_allclose(report.value[name], value, rtol=1e-10)
    np.testing.assert_allclose(report.norm[name], np.linalg.norm(gradient), rtol=1e-10)
    cosine = gradient @ want["data"][1] / np.linalg.norm(gradient) / np.linalg.norm(want["data"][1])
    np.testing.assert_allclose(report.cosine[name], cosine, rtol=1e-9)
  whole = jax.grad(compose(loss_fn, terms, has_aux=True), has_aux=True)(params, batch, key=key())[0]
  np.testing.assert_allclose(report.norm["loss"], np.linalg.norm(flat(whole)), rtol=1e-10)


@pytest.mark.thorough
def test_reports_of_several_seeds_are_one_program():
  params, batch = network()
  composed = compose(loss_fn, {"r_drop": example_term(consistency, weight=1.0)}, has_aux=True)
  reports = jit(jax.vmap(lambda key: composed.report(params, batch, key=key)))(
    jax.random.split(jax.random.key(0), 3)
  )
  assert reports.cosine["r_drop"].shape == (3,)
  assert "Report" in str(reports)
  for i, key in enumerate(jax.random.split(jax.random.key(0), 3)):
    one = composed.report(params, batch, key=key)
    chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], reports), one, rtol=1e-4)


# Transformations.


def several():
  """Terms of every kind but for per-device noise, which is another draw."""
  sharp = lambda key, view: losses.entropy(jax.nn.log_softmax(view.aux["logits"]))
  return {"l2": penalty(penalties.l2, weight=ALPHA), "entropy": example_term(sharp, weight=BETA)}


def test_strengths_may_be_traced():
  params, batch = network()

  def loss(alpha, std, key):
    terms = {
      "l2": penalty(penalties.l2, weight=alpha),
      "noise": perturbation(noise.gaussian_noise, on="inputs", std=std),
    }
    return compose(mean_fn, terms)(params, batch, key=key)

  alphas, stds, keys = (
    jnp.array([0.0, 0.1, 0.5]),
    jnp.array([0.1, 0.0, 1.0]),
    jax.random.split(jax.random.key(0), 3),
  )
  got = jit(jax.vmap(loss))(alphas, stds, keys)
  want = [loss(float(alpha), float(std), key) for alpha, std, key in zip(alphas, stds, keys)]
  np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.thorough
def test_another_strength_compiles_nothing():
  """Weights of penalties and example terms, and options of both and of a perturbation."""
  params, batch = network()
  calls, count = counted()

  @jax.jit
  def step(strengths, key):
    terms = {
      "elastic": penalty(penalties.elastic_net, weight=strengths["l1"], ratio=strengths["ratio"]),
      "noise": perturbation(noise.gaussian_noise, on="inputs", std=strengths["std"]),
      "r_drop": example_term(consistency, weight=strengths["r_drop"]),
      "distilled": example_term(distilled, weight=strengths["weight"], temperature=strengths["temperature"]),
    }
    return jax.value_and_grad(compose(count, terms, has_aux=True), has_aux=True)(params, batch, key=key)

  def distilled(key, view, *, temperature):
    return losses.distillation(view.aux["logits"], 2 * view.batch["inputs"], temperature=temperature)

  names = ("l1", "ratio", "std", "r_drop", "weight", "temperature")
  found = [step(dict.fromkeys(names, value), jax.random.key(0))[0][0] for value in (0.1, 0.9, 0.5)]
  assert len(calls) == 2  # of one trace: the loss's pass, and that of R-Drop
  assert len(np.unique(found)) == 3


@pytest.mark.thorough
def test_devices_are_averaged_for_a_sum_counts_the_penalty_once_a_device():
  params, batch = network()
  composed = compose(loss_fn, several(), has_aux=True)
  gradient = jax.grad(lambda params, batch: composed(params, batch)[0])
  whole = jit(gradient)(params, batch)
  parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)

  def shard(reduce, mapped=jax.vmap, **options):
    step = lambda params, batch: reduce(gradient(params, batch), "data")
    return mapped(step, axis_name="data", in_axes=(None, 0), **options)(params, parts)

  mean, total = (
    jit(functools.partial(shard, each, out_axes=None))() for each in (jax.lax.pmean, jax.lax.psum)
  )
  chex.assert_trees_all_close(mean, whole, rtol=1e-4, atol=1e-6)
  w = params["Dense_0"]["kernel"]
  extra = total["Dense_0"]["kernel"] - 4 * (whole["Dense_0"]["kernel"] - ALPHA * w)
  np.testing.assert_allclose(extra, 4 * ALPHA * w, rtol=1e-4, atol=1e-5)
  of_pmap = jax.tree.map(lambda x: x[0], shard(jax.lax.pmean, jax.pmap))
  chex.assert_trees_all_close(of_pmap, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_devices_of_unequal_weights_are_averaged_by_the_counts():
  params, batch = network()
  batch["weights"] = jnp.asarray([1.0, 2, 0, 1, 0.5, 3, 1, 0])
  composed = compose(loss_fn, several(), has_aux=True, with_metrics=True)
  gradient = jax.grad(composed, has_aux=True)
  whole = jit(gradient)(params, batch)[0]
  parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)

  def step(batch):
    grads, (_, metrics) = gradient(params, batch)
    count = metrics["loss"][1]
    share = count / jax.lax.psum(count, "data")
    return jax.lax.psum(jax.tree.map(lambda x: share * x, grads), "data"), jax.lax.psum(metrics, "data")

  got, metrics = jit(jax.vmap(step, axis_name="data", out_axes=None))(parts)
  chex.assert_trees_all_close(got, whole, rtol=1e-4, atol=1e-6)
  _, (_, want) = composed(params, batch)
  chex.assert_trees_all_close(metrics, want, rtol=1e-5)


@pytest.mark.thorough
def test_shard_map_and_explicit_axes_give_what_one_device_gives():
  params, batch = network()
  terms = {**several(), "noise": perturbation(noise.gaussian_noise, on="inputs", std=0.5)}
  terms["r_drop"] = example_term(consistency, weight=1.0)
  composed = compose(loss_fn, terms, has_aux=True)
  value = lambda params, batch, key: composed(params, batch, key=key)[0]
  want = jit(jax.value_and_grad(value))(params, batch, jax.random.key(0))
  mesh = explicit_mesh()
  split = {name: jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))) for name, x in batch.items()}
  report = jit(composed.report)(params, batch, key=jax.random.key(0))
  with jax.set_mesh(mesh):
    got = jax.jit(jax.value_and_grad(value))(params, split, jax.random.key(0))
    chex.assert_trees_all_close(jax.device_get(got), jax.device_get(want), rtol=1e-4, atol=1e-6)
    other = jax.jit(composed.report)(params, split, key=jax.random.key(0))
    chex.assert_trees_all_close(jax.device_get(other), jax.device_get(report), rtol=1e-3, atol=1e-6)
  # With shard_map the user averages; without noise the parts are those of the whole. By default, JAX sums the
  # gradients of shared parameters by itself.
  plain = compose(loss_fn, several(), has_aux=True)

  def mean_of_gradients(params, batch):
    return jax.lax.pmean(jax.grad(lambda params: plain(params, batch)[0])(params), "data")

  def gradient_of_mean(params, batch):
    return jax.grad(lambda params: jax.lax.pmean(plain(params, batch)[0], "data"))(params)

  specs = {name: PartitionSpec("data") for name in batch}
  whole = jax.grad(lambda params: plain(params, batch)[0])(params)
  for each, check_vma, factor in (
    (mean_of_gradients, False, 1),
    (gradient_of_mean, True, 1),
    (mean_of_gradients, True, mesh.shape["data"]),
  ):
    mapped = jax.shard_map(
      each, mesh=mesh, in_specs=(PartitionSpec(), specs), out_specs=PartitionSpec(), check_vma=check_vma
    )
    with jax.set_mesh(mesh):
      got = jax.jit(mapped)(params, split)
    want = jax.tree.map(lambda x, factor=factor: factor * x, whole)
    chex.assert_trees_all_close(jax.device_get(got), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("given", ["where", "weights"])
def test_a_statistic_may_be_as_long_as_the_batch_on_explicit_axes(width, given):
  def loss_of_logits(w, batch, *, key):
    return losses.focal((batch["inputs"] - batch["mean"][None]) @ w, batch["labels"])

  mesh = explicit_mesh()
  put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
  batch = {"inputs": put(jnp.ones((8, width)), "data"), "labels": put(jnp.arange(8) % 3, "data")}
  counts = jnp.arange(8) < 5
  batch |= {given: put(counts if given == "where" else counts / 1, "data"), "mean": put(jnp.ones(width))}
  with jax.set_mesh(mesh):
    value = jax.jit(compose(loss_of_logits, {}))(put(jnp.ones((width, 3))), batch)
  np.testing.assert_allclose(value, np.log(3) * (2 / 3) ** 2, rtol=1e-6)


# Refusals.


def test_a_term_is_made_by_a_constructor():
  for wrong in (penalties.l2, (1.0, penalties.l2), {"weight": 1.0}):
    with pytest.raises(TypeError, match="terms must be made by penalty, example_term or perturbation"):
      compose(loss_fn, {"l2": wrong})
  with pytest.raises(TypeError, match=r"a penalty must be a function .*elastic_net: .*ratio"):
    penalty(penalties.elastic_net, weight=0.1)
  with pytest.raises(TypeError, match=r"an example term must be a function \(key, view\)"):
    example_term(lambda view: 0.0, weight=0.1)
  with pytest.raises(TypeError, match=r"a perturbation must be a function \(key, x\)"):
    perturbation(lambda key: 0.0, on="inputs")
  with pytest.raises(TypeError, match="on must be batch"):
    perturbation(noise.gaussian_noise, on=None, std=1.0)  # type: ignore[arg-type]
  with pytest.raises(ValueError, match="weight must lie in"):
    penalty(penalties.l2, weight=-0.1)


@pytest.mark.parametrize("name", ["loss", "data"])
def test_a_name_of_the_loss_is_taken(name):
  params, batch = network()
  with pytest.raises(ValueError, match=f"the name of a term must not be loss, data.*got '{name}'"):
    compose(mean_fn, {name: penalty(penalties.l2, weight=0.1)})(params, batch)


def test_shapes_and_keys_are_checked():
  params, batch = network()
  for function, message in (
    (
      lambda key, view: jnp.ones(3),
      r"odd must be a scalar or start with the shape of weights, \(8,\), got \(3,\)",
    ),
    (lambda key, view: view.batch["labels"], "the term odd must be floating"),
  ):
    composed = compose(mean_fn, {"odd": example_term(function, weight=1.0)})
    with pytest.raises((ValueError, TypeError), match=message):
      composed(params, {**batch, "weights": jnp.ones(8)}, key=None)
  with pytest.raises(TypeError, match="key must be a typed key"):
    compose(mean_fn, {"drawn": example_term(drawn, weight=1.0)})(params, batch, key=jnp.zeros(2, jnp.uint32))


def tree_fn(params, batch, *, key):
  """A loss of a tree of inputs, and of another entry of the batch."""
  hidden = (batch["inputs"]["image"] + batch["offset"]) @ params
  return losses.softmax_cross_entropy(hidden, batch["labels"])


@pytest.mark.parametrize("by", ["weights", "where", "weights_fn"])
@pytest.mark.parametrize("shape", [(6,), (3, 4)], ids=["examples", "tokens"])
def test_nan_of_weight_0_in_any_entry_of_the_batch_reaches_nothing(x64, by, shape):
  """The gradient is the mean of `x (p - y)` over what counts."""
  rng = np.random.default_rng(0)
  x, kernel = rng.normal(size=(*shape, 5)), rng.normal(size=(5, 3))
  where, labels = rng.random(shape) > 0.4, rng.integers(3, size=shape)
  x_at, y_at = x[where], np.eye(3)[labels[where]]
  p = np.exp(x_at @ kernel)
  expected = x_at.T @ (p / p.sum(axis=1, keepdims=True) - y_at) / len(x_at)
  batch = {
    "inputs": {"image": np.where(where[..., None], x, np.nan)},
    "offset": np.where(where[..., None], 0 * x, np.inf),
    "labels": np.where(where, labels, -1),
    ("mask" if by == "weights_fn" else by): where if by == "where" else where.astype(float),
  }
  composed = compose(tree_fn, {}, weights_fn=(lambda batch: batch["mask"]) if by == "weights_fn" else None)
  for gradient in (jax.grad(composed), jit(jax.grad(composed))):
    np.testing.assert_allclose(gradient(kernel, batch), expected, rtol=1e-10)


@pytest.mark.parametrize("weights", [np.array([1.0, -1.0, 1.0]), np.array([1.0, np.inf, 1.0])])
@pytest.mark.parametrize("by", ["weights", "weights_fn"])
def test_weights_without_sense_are_refused(weights, by):
  composed = compose(
    lambda params, batch, *, key: params * batch["inputs"],
    {},
    weights_fn=(lambda batch: weights) if by == "weights_fn" else None,
  )
  with pytest.raises(ValueError, match=r"weights must lie in \[0, inf\), got values from"):
    composed(1.0, {"inputs": jnp.arange(3.0), "weights": jnp.asarray(weights)})


@pytest.mark.parametrize(
  ("value", "has_aux", "message"),
  [
    (
      (1.0, 2.0),
      False,
      r"the loss must be a scalar or \[batch\], got a tuple; \(loss, aux\) needs has_aux=True",
    ),
    (1.0, True, r"must return \(loss, aux\) with has_aux=True, got a float"),
    ((1.0, 2.0, 3.0), True, r"must return \(loss, aux\)"),
    (((1.0, 2.0), 3.0), True, "the loss must be a scalar"),
    ({}, False, "one or more terms"),
    ({"loss": 1.0}, False, "none of them called loss"),
  ],
)
def test_a_loss_comes_with_the_rest_as_a_pair_or_alone(value, has_aux, message):
  composed = compose(lambda params, batch, *, key: value, {}, has_aux=has_aux)
  with pytest.raises((TypeError, ValueError), match=message):
    composed({"kernel": jnp.ones(2)}, None)


def test_the_module_says_what_it_has():
  assert {"compose", "penalty", "example_term", "perturbation", "View"} <= set(objective.__all__)


@pytest.mark.parametrize("attacked", [False, True])
def test_further_passes_of_nnx_leave_the_statistics(attacked):
  """`nnx.merge` shares its variables, so that BatchNorm changes those of the batch in place."""
  graph, params, stats = nnx.split(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Param, nnx.BatchStat)

  def loss_fn(params, batch, *, key):
    norm = nnx.merge(graph, params, batch["stats"])
    return losses.softmax_cross_entropy(norm(batch["inputs"]), batch["labels"]).mean(), nnx.state(
      norm, nnx.BatchStat
    )

  if attacked:
    attack = functools.partial(adversarial.pgd, eps=0.1, num_steps=1, random_start=False)
    loss_fn = adversarial.adversarial_loss(loss_fn, attack, has_aux=True)
  composed = compose(
    loss_fn, {"again": example_term(lambda key, view: view.again(key=key).loss, weight=1.0)}, has_aux=True
  )
  x = np.random.default_rng(0).normal(3.0, 2.0, (8, 3)).astype(np.float32)
  batch = {"inputs": x, "labels": jnp.arange(8) % 3, "stats": stats}
  for call in (composed, jax.jit(composed), jax.jit(jax.grad(composed, has_aux=True))):
    _, new = call(params, batch, key=jax.random.key(1))
    chex.assert_trees_all_close(new["mean"][...], 0.01 * x.mean(axis=0), rtol=1e-5)
  composed.report(params, batch, key=jax.random.key(1))
  assert not stats["mean"][...].any()


def test_the_report_of_a_whole_nnx_module_is_that_of_its_parameters():
  """Keys and counters of the module have no gradient."""

  class Net(nnx.Module):
    def __init__(self, rngs):
      self.linear, self.dropout = nnx.Linear(3, CLASSES, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

  def loss_fn(net, batch, *, key):
    return losses.softmax_cross_entropy(net.linear(batch["inputs"]), batch["labels"])

  def split_loss_fn(params, batch, *, key):
    return loss_fn(nnx.merge(graph, params, rest), batch, key=key)

  terms = {
    "l2": penalty(penalties.l2, weight=ALPHA),
    "noise": perturbation(noise.gaussian_noise, on="inputs", std=0.1),
  }
  net, (_, batch) = Net(nnx.Rngs(0)), network()
  graph, params, rest = nnx.split(net, nnx.Param, ...)
  whole = compose(loss_fn, terms).report(net, batch, key=jax.random.key(1))
  split = compose(split_loss_fn, terms).report(params, batch, key=jax.random.key(1))
  chex.assert_trees_all_close(whole, split, rtol=1e-6)


@pytest.mark.parametrize(
  "term",
  [
    perturbation(noise.weight_noise, on="params", std=0.1),
    example_term(lambda key, view: view.again(key=key).loss, weight=1.0),
  ],
)
def test_a_whole_nnx_module_is_refused_where_its_statistics_would_be_wrong(term):
  """The noise works on a copy, whose statistics are lost; a further pass would move them twice."""

  class Net(nnx.Module):
    def __init__(self, rngs):
      self.linear, self.norm = nnx.Linear(3, CLASSES, rngs=rngs), nnx.BatchNorm(CLASSES, rngs=rngs)

  def loss_fn(net, batch, *, key):
    return losses.softmax_cross_entropy(net.norm(net.linear(batch["inputs"])), batch["labels"])

  net, (_, batch) = Net(nnx.Rngs(0)), network()
  composed = compose(loss_fn, {"term": term})
  with pytest.raises(ValueError, match="loss_fn must not change params in place"):
    nnx.grad(lambda net: composed(net, batch, key=jax.random.key(1)))(net)
  net.eval()
  nnx.grad(lambda net: composed(net, batch, key=jax.random.key(1)))(net)

"""Group softmax: the paper's bounds and what follows from them, the forms, the groupings."""

import functools

import contract
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg import _group_scores as rules
from jaxreg import losses

FORMS = ("dense", "scan", "gather")
# Compiled as a whole; one operation after the other takes longer.
OPTIONS = ("num_groups", "kind", "form", "power", "grouping")
group_softmax, group_softmax_and_logits = (
  contract.jit(functools.partial(losses.group_softmax, with_logits=with_logits), static_argnames=OPTIONS)
  for with_logits in (False, True)
)
feature_groups = contract.jit(rules.feature_groups, static_argnames="num_groups")
discriminative_scores = contract.jit(rules.discriminative_scores)


def thorough(*values):
  return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def head(seed, *, batch=40, features=12, classes=6, scale=1.0, dtype=np.float64):
  """A random head: `features, kernel, bias, labels`."""
  rng = np.random.default_rng(seed)
  arrays = (rng.normal(size=shape) * scale for shape in ((batch, features), (features, classes), (classes,)))
  return *(x.astype(dtype) for x in arrays), rng.integers(0, classes, batch)


def softmax_loss(features, kernel, bias, labels):
  """As `oracles.cross_entropy`, but for logits of any size."""
  logits = features @ kernel + bias
  return np.logaddexp.reduce(logits, axis=-1) - np.take_along_axis(logits, labels[:, None], -1)[:, 0]


def test_a_head_without_a_bias():
  features, kernel, _, labels = head(3, dtype=np.float32)
  options = {"num_groups": 3, "grouping": rules.fixed_scores}
  groups = np.broadcast_to(np.repeat(np.arange(3), 4), features.shape)
  got, logits = group_softmax_and_logits(features, kernel, None, labels, **options)
  want = oracles.group_softmax(features, kernel, np.zeros(6), labels, groups, 3)
  np.testing.assert_allclose(got, want, rtol=1e-4)
  np.testing.assert_allclose(logits, features @ kernel, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(group_softmax(features, kernel, None, labels, **options), got)


def given(groups):
  """The rule whose scores give these groups."""
  return lambda *_, num_groups: jnp.asarray(groups, jnp.float32)


def random_partition(rng, batch, sizes):
  """Groups of these sizes, another partition for each example."""
  return rng.permuted(np.broadcast_to(np.repeat(np.arange(len(sizes)), sizes), (batch, sum(sizes))), axis=1)


# The bounds.


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax", "proposition 1, Eq. A.2", "softmax <= type I <= type II for any partition", size="toy"
)
@pytest.mark.parametrize("sizes", [(4, 4, 4), (0, 5, 7), *thorough((6, 6), (1,) * 12, (1, 2, 9), (12, 0))])
def test_proposition_1_bounds(x64, sizes):
  rng = np.random.default_rng(len(sizes))
  run = contract.jit(
    lambda *head, kind, groups: losses.group_softmax(
      *head, num_groups=sizes, kind=kind, grouping=given(groups)
    ),
    static_argnames="kind",
  )
  for seed, scale in enumerate((0.03, 0.3, 1.0, 3.0, 30.0)):
    features, kernel, bias, labels = head(seed, batch=200, scale=scale)
    groups = random_partition(rng, 200, sizes)
    softmax = softmax_loss(features, kernel, bias, labels)
    first, second = (run(features, kernel, bias, labels, kind=kind, groups=groups) for kind in ("I", "II"))
    slack = 1e-12 * np.maximum(np.abs(second), 1)
    assert (softmax <= first + slack).all()
    assert (first <= second + slack).all()
    if min(sizes):
      assert (softmax < first).any()
      assert (first < second).any()


@pytest.mark.claim(
  "group_softmax", "Eq. A.4 to A.6", "type I is softmax plus the mean KL to the groups' softmax"
)
def test_type_1_is_softmax_plus_kl(x64):
  features, kernel, bias, labels = head(1)
  groups = random_partition(np.random.default_rng(1), len(labels), (3,) * 4)
  whole = oracles.softmax(features @ kernel + bias)
  shares = [oracles.softmax(4 * (np.where(groups == i, features, 0) @ kernel + bias / 4)) for i in range(4)]
  divergence = np.mean([(whole * np.log(whole / share)).sum(-1) for share in shares], axis=0)
  loss = group_softmax(features, kernel, bias, labels, num_groups=4, grouping=given(groups))
  np.testing.assert_allclose(
    loss, oracles.cross_entropy(features @ kernel + bias, labels) + divergence, rtol=1e-10
  )


@pytest.mark.claim(
  "group_softmax", "Eq. A.3", "type II is softmax minus the log-probability that all groups agree"
)
def test_type_2_is_softmax_minus_agreement(x64):
  features, kernel, bias, labels = head(2)
  groups = random_partition(np.random.default_rng(2), len(labels), (3,) * 4)
  votes = [oracles.softmax(np.where(groups == i, features, 0) @ kernel + bias / 4) for i in range(4)]
  agree = np.prod(votes, axis=0).sum(-1)
  loss = group_softmax(features, kernel, bias, labels, num_groups=4, kind="II", grouping=given(groups))
  softmax = softmax_loss(features, kernel, bias, labels)
  np.testing.assert_allclose(loss, softmax - np.log(agree), rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax",
  "Eq. A.10",
  "type I is softmax if and only if all groups agree; the condition given is sufficient only",
  status="erratum",
)
def test_type_1_is_softmax_if_all_groups_agree(x64):
  """Equal group softmaxes are enough, though the classes differ, which the supplement's condition forbids."""
  rng = np.random.default_rng(3)
  kernel, bias = np.tile(rng.normal(size=(1, 6)) / 4, (12, 1)), rng.normal(size=6)
  features, labels = np.full((5, 12), 0.7), rng.integers(0, 6, 5)
  for rule in (rules.fixed_scores, rules.interleaved_scores):
    loss = group_softmax(features, kernel, bias, labels, num_groups=4, grouping=rule)
    np.testing.assert_allclose(loss, softmax_loss(features, kernel, bias, labels), rtol=1e-12)
  features[:, 0] += 0.5
  loss = group_softmax(features, kernel, bias, labels, num_groups=4, grouping=rules.fixed_scores)
  assert (loss > softmax_loss(features, kernel, bias, labels) + 1e-4).all()


@pytest.mark.thorough
@pytest.mark.claim("group_softmax", "Eq. A.12", "the loss falls with the power, and stays a bound up to G")
def test_power_lowers_the_loss_and_stays_a_bound_up_to_G(x64):
  features, kernel, bias, labels = head(4, batch=300)
  rule = given(random_partition(np.random.default_rng(4), 300, (3,) * 4))
  powers = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)

  @functools.partial(contract.jit, static_argnums=0)
  def run(power):
    return losses.group_softmax(features, kernel, bias, labels, num_groups=4, power=power, grouping=rule)

  values = np.stack([run(power) for power in powers])
  assert (np.diff(values, axis=0) <= 1e-12).all()
  assert (np.diff(values, axis=0) < -1e-3).any(axis=1).all()
  softmax = softmax_loss(features, kernel, bias, labels)
  assert (values[powers.index(4.0)] >= softmax - 1e-12).all()
  # Above G it is none any more.
  assert (values[powers.index(8.0)] < softmax - 1e-6).any()
  for kind, power in (("I", 4.0), ("II", 1.0)):
    by_kind = group_softmax(features, kernel, bias, labels, num_groups=4, kind=kind, grouping=rule)
    np.testing.assert_allclose(by_kind, run(power), rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax", "Eq. A.2 at zero logits", "log C for softmax and type I, G log C for type II"
)
def test_zero_logits():
  arrays = np.ones((3, 16), np.float32), np.zeros((16, 1000), np.float32), np.zeros(1000, np.float32)
  for kind, expected in (("I", np.log(1000)), ("II", 8 * np.log(1000))):
    loss = group_softmax(*arrays, np.array([0, 5, 999]), kind=kind, form="dense")
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_one_group_is_the_softmax(form):
  features, kernel, bias, labels = head(5, dtype=np.float32)
  expected = oracles.cross_entropy(features @ kernel + bias, labels)
  loss = group_softmax(features, kernel, bias, labels, num_groups=1, form=form)
  np.testing.assert_allclose(loss, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.thorough
def test_losses_next_to_zero_keep_their_digits():
  """Value and gradient, where log-sum-exp minus the target's logit has none left in float32."""
  features, labels = np.full((1, 4), 4.0, np.float32), np.array([0])
  kernel, bias = np.eye(4, 3, dtype=np.float32) * 0 + np.array([5, 0, 0], np.float32), np.zeros(3, np.float32)
  for form in FORMS:
    run = lambda x, form=form: losses.group_softmax(
      x, kernel, bias, labels, num_groups=2, kind="II", form=form
    ).sum()
    value, gradient = contract.jit(jax.value_and_grad(run))(features)
    np.testing.assert_allclose(value, 2 * np.log1p(2 * np.exp(-40.0)), rtol=1e-4)
    np.testing.assert_allclose(gradient, -10 * np.exp(-40.0), rtol=1e-4)


# The bias.


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax", "Eq. A.1", "the bias is spread over the features: the groups add up to the whole"
)
@pytest.mark.parametrize("form", FORMS)
def test_the_whole_logits_come_with_the_loss(form):
  features, kernel, bias, labels = head(7, features=11, dtype=np.float32)
  _, logits = group_softmax_and_logits(features, kernel, bias, labels, num_groups=3, form=form)
  np.testing.assert_allclose(logits, features @ kernel + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.claim("group_softmax", "Eq. A.14", "the bias does not change the groups")
def test_the_bias_does_not_change_the_groups(x64):
  features, kernel, bias, labels = head(8, batch=500)
  whole = features[..., None] * kernel + bias / 12
  target = np.take_along_axis(whole, labels[:, None, None], -1)[..., 0]
  scores = target - (whole.sum(-1) - target) / 5
  np.testing.assert_array_equal(
    feature_groups(discriminative_scores(features, kernel, bias, labels), num_groups=4),
    oracles.feature_groups(scores, (3,) * 4),
  )


# The grouping.


@pytest.mark.claim("group_softmax", "Eq. A.13", "groups are the sorted scores cut into equal parts")
@pytest.mark.parametrize("num_groups", [7, (0, 3, 60, 1), *thorough(64, (10, 54, 0))])
def test_groups_are_the_sorted_scores_cut(num_groups):
  rng = np.random.default_rng(9)
  plain = rng.normal(size=(30, 64)).astype(np.float32)
  # ReLU's zeros of both signs, equal values, and two whole rows of them.
  ties = np.round(np.where(rng.random(plain.shape) < 0.4, -0.0, plain), 1)
  ties[:2] = 0.5
  sizes = (
    num_groups
    if isinstance(num_groups, tuple)
    else [len(part) for part in np.array_split(np.arange(64), num_groups)][::-1]
  )
  for scores in (plain, ties):  # by other branches
    got = feature_groups(scores, num_groups=num_groups)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, oracles.feature_groups(scores, sizes))
    np.testing.assert_array_equal(jax.vmap(lambda s: feature_groups(s, num_groups=num_groups))(scores), got)


@pytest.mark.thorough
def test_scores_of_bfloat16_features_are_float32():
  """Sorted in bfloat16, scores that differ would be equal."""
  features, kernel, bias, labels = (
    jnp.asarray(x) for x in head(10, batch=8, features=512, classes=20, dtype=np.float32)
  )
  narrow = features.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
  scores = discriminative_scores(*narrow, bias, labels)
  assert scores.dtype == jnp.float32
  uniform = oracles.uniform_others(labels, 20)
  exact = oracles.scores(*(x.astype(jnp.float32) for x in narrow), labels, uniform)
  assert len(np.unique(scores[0])) == 512 > len(np.unique(scores[0].astype(jnp.bfloat16)))
  np.testing.assert_array_equal(
    feature_groups(scores, num_groups=8), oracles.feature_groups(exact, (64,) * 8)
  )


@pytest.mark.thorough
def test_more_than_256_groups_need_wider_numbers():
  groups = rules.feature_groups(jnp.arange(600.0), num_groups=300)
  assert groups.dtype == jnp.uint16
  np.testing.assert_array_equal(groups, np.repeat(np.arange(300), 2))


# The forms.


def analytic_gradient(features, kernel, bias, labels, groups, sizes, power, weights):
  """Of the weighted sum of the losses in features, kernel and bias, group by group."""
  d_features, d_kernel, d_bias = np.zeros_like(features), np.zeros_like(kernel), np.zeros_like(bias)
  for i, size in enumerate(sizes):
    member = groups == i
    masked = np.where(member, features, 0)
    logits = power * (masked @ kernel + bias * size / sum(sizes))
    probs = oracles.softmax(logits - logits.max(-1, keepdims=True))
    residual = weights[:, None] * (probs - oracles.one_hot(labels, len(bias)))
    d_features += np.where(member, residual @ kernel.T, 0)
    d_kernel += masked.T @ residual
    d_bias += size / sum(sizes) * residual.sum(0)
  return d_features, d_kernel, d_bias


@pytest.mark.claim("group_softmax", "Eq. B.2", "the update of x and W: each group's residual, no factor G")
@pytest.mark.parametrize("kind", ["I", *thorough("II")])
@pytest.mark.parametrize("form", FORMS)
def test_the_analytic_gradient(x64, form, kind):
  features, kernel, bias, labels = head(15, features=11)
  sizes, power = (3, 4, 4), {"I": 3, "II": 1}[kind]
  groups = oracles.feature_groups(
    oracles.scores(features, kernel, labels, oracles.uniform_others(labels, 6)), sizes
  )
  weights = np.random.default_rng(15).normal(size=len(labels))

  def weighted(features, kernel, bias):
    loss = losses.group_softmax(features, kernel, bias, labels, num_groups=3, kind=kind, form=form)
    return (weights * loss).sum()

  got = contract.jit(jax.grad(weighted, (0, 1, 2)))(features, kernel, bias)
  want = analytic_gradient(features, kernel, bias, labels, groups, sizes, power, weights)
  for ours, theirs in zip(got, want):
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_huge_logits_keep_the_digits_of_the_gradient(form):
  """Logits of 1e5 that float32 holds exactly, a few quarters apart."""
  rng = np.random.default_rng(25)
  features = rng.integers(0, 2, (16, 12)).astype(np.float32)
  kernel = (2.0**14 * rng.integers(1, 4, (12, 1)) + rng.integers(-2, 3, (12, 6)) / 4).astype(np.float32)
  labels = rng.integers(0, 6, 16)

  def loss(*arrays):
    options = {"num_groups": 3, "grouping": rules.fixed_scores, "form": form}
    return losses.group_softmax(*arrays, labels, **options).sum()

  arrays = (features, kernel, np.zeros(6, np.float32))
  groups = np.broadcast_to(np.repeat(np.arange(3), 4), features.shape)
  _, *want = analytic_gradient(*map(np.float64, arrays), labels, groups, (4,) * 3, 3, np.ones(16))
  for ours, theirs in zip(contract.jit(jax.grad(loss, (1, 2)))(*arrays), want):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["gather", *thorough("dense", "scan")])
def test_no_examples_have_no_loss_and_no_gradient(form):
  features, kernel, bias, labels = head(26, batch=0, dtype=np.float32)
  run = lambda w: losses.group_softmax(features, w, bias, labels, num_groups=3, form=form)
  loss, gradient = contract.jit(lambda w: (run(w), jax.grad(lambda w: run(w).sum())(w)))(kernel)
  assert loss.shape == (0,)
  np.testing.assert_array_equal(gradient, np.zeros_like(kernel))


def test_the_whole_logits_carry_no_gradient():
  """The other forms have a gradient of their own, of the loss alone."""
  *floats, labels = head(27, batch=3, dtype=np.float32)
  run = lambda *f: losses.group_softmax(*f, labels, num_groups=3, form="dense", with_logits=True)[1].sum()
  for gradient in contract.jit(jax.grad(run, (0, 1, 2)))(*floats):
    np.testing.assert_array_equal(gradient, 0)


def _value_and_gradient(arguments, **options):
  *floats, labels = arguments

  def run(*floats):
    value, pull = jax.vjp(lambda *floats: losses.group_softmax(*floats, labels, **options), *floats)
    return value, pull(jnp.arange(1, len(labels) + 1, dtype=value.dtype))

  return contract.jit(run)(*floats)


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [0, 2**24])
def test_all_forms_agree_in_float64(x64, monkeypatch, kept):
  # Small parts of the examples and of the classes, so that `gather` makes several, the last ones filled up.
  monkeypatch.setattr(losses._group_softmax.forms, "CHUNK", 8 * 5 * 70)
  monkeypatch.setattr(losses._group_softmax.forms, "PARTS", 2)
  monkeypatch.setattr(losses._group_softmax.forms, "KEPT", kept)
  arguments = head(17, batch=21, features=37, classes=70)
  groups = feature_groups(discriminative_scores(*arguments), num_groups=5)
  oracle = oracles.group_softmax(*arguments, groups, 5)
  results = [_value_and_gradient(arguments, num_groups=5, form=form) for form in FORMS]
  for value, gradient in results:
    np.testing.assert_allclose(value, oracle, rtol=1e-10)
    for ours, theirs in zip(gradient, results[0][1]):
      np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10 * np.abs(theirs).max())


def test_what_the_backward_pass_keeps(monkeypatch):
  """At the size of the benchmark, beyond what the caller has anyway: 0.5 MB of groups, 66 MB of residuals."""
  shapes = [(256, 2048), (2048, 1000), (1000,)]
  floats = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  labels = jax.ShapeDtypeStruct((256,), jnp.int32)
  given = sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in (*floats, labels))

  def kept(form):
    pull = lambda x, w, b, y: jax.vjp(
      lambda *f: losses.group_softmax(*f, y, num_groups=64, form=form), x, w, b
    )
    leaves = jax.tree.leaves(jax.eval_shape(pull, *floats, labels)[1])
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves) - given

  assert kept("scan") < 1e6
  assert kept("gather") - kept("scan") == 4 * 256 * 64 * 1000
  assert kept("dense") > 4e8
  monkeypatch.setattr(losses._group_softmax.forms, "KEPT", 256 * 64 * 1000 - 1)
  assert kept("gather") - kept("scan") == 4 * 256 * 2048  # the order of the features


def test_the_form_is_chosen_by_size_and_back_end(monkeypatch):
  from jaxreg.losses._group_softmax import _form

  chosen = lambda *sizes: _form("auto", *sizes).__name__
  assert chosen(256, 4, 2048, 1000) == "dense"
  assert chosen(256, 8, 2048, 1000) == "dense"
  assert chosen(1024, 8, 2048, 1000) == "gather"
  assert chosen(256, 8, 2048, 10) == "dense"
  assert chosen(1024, 8, 2048, 10) == "scan"
  assert chosen(256, 16, 2048, 10) == "gather"
  assert chosen(64, 32, 64, 1000) == "dense"
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert chosen(256, 8, 2048, 1000) == "dense"
  assert chosen(256, 64, 2048, 1000) == "scan"


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_is_multiplied_in_bfloat16_and_summed_in_float32(form):
  *floats, labels = head(18, batch=16, features=64, classes=70, dtype=np.float32)
  narrow = [jnp.asarray(x, jnp.bfloat16) for x in floats]
  rounded = [jnp.asarray(x, jnp.float32) for x in narrow]
  value, gradient = _value_and_gradient([*narrow, labels], num_groups=4, form=form)
  exact_value, exact_gradient = _value_and_gradient([*rounded, labels], num_groups=4, form=form)
  assert value.dtype == jnp.float32
  np.testing.assert_allclose(value, exact_value, rtol=1e-5)
  for ours, theirs in zip(gradient, exact_gradient):
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(
      np.asarray(ours, np.float32), theirs, rtol=0.01, atol=0.005 * np.abs(theirs).max()
    )


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_sharded(form):
  """Batch over the data axis, classes over the model axis."""
  mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
  arguments = head(19, batch=24, features=32, classes=70, dtype=np.float32)
  specs = (("data",), (None, "model"), ("model",), ("data",))
  placed = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec))) for x, spec in zip(arguments, specs)]

  def run(features, kernel, bias, labels):
    loss = lambda *f: losses.group_softmax(*f, labels, num_groups=4, form=form).sum()
    return jax.value_and_grad(loss, (0, 1, 2))(features, kernel, bias)

  want = jax.tree.leaves(contract.jit(run)(*arguments))
  for ours, theirs in zip(jax.tree.leaves(contract.jit(run)(*placed)), want):
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.slow
def test_second_derivatives_and_forward_mode():
  """Forward over reverse through the gradient of our own; forward mode alone wants `dense`."""
  features, kernel, bias, labels = head(20, batch=3, dtype=np.float32)
  direction = np.ones_like(kernel)

  def along(form):
    gradient = jax.grad(
      lambda w: losses.group_softmax(features, w, bias, labels, num_groups=3, form=form).sum()
    )
    return contract.jit(lambda w: jax.jvp(gradient, (w,), (direction,))[1])(kernel)

  for form in ("scan", "gather"):
    np.testing.assert_allclose(along(form), along("dense"), rtol=1e-4, atol=1e-4)
  loss = lambda x, form: losses.group_softmax(x, kernel, bias, labels, num_groups=3, form=form)
  assert jax.jvp(lambda x: loss(x, "dense"), (features,), (features,))[1].shape == (3,)
  with pytest.raises(TypeError, match="forward-mode"):
    jax.jvp(lambda x: loss(x, "scan"), (features,), (features,))


@pytest.mark.thorough
def test_labels_out_of_range_are_nan():
  features, kernel, bias, _ = head(21, batch=3, dtype=np.float32)
  for form in FORMS:
    run = functools.partial(losses.group_softmax, num_groups=3, form=form)
    loss = contract.jit(run)(features, kernel, bias, np.array([-1, 6, 5]))
    np.testing.assert_array_equal(np.isnan(loss), [True, True, False])


# The prediction.


@pytest.mark.parametrize(
  ("options", "error", "message"),
  [
    ({"num_groups": 13}, ValueError, "num_groups must be at most the number of features, 12, got 13"),
    ({"num_groups": 0}, ValueError, "num_groups must be at least 1, got 0"),
    ({"num_groups": 2.0}, TypeError, "num_groups must be an integer, got 2.0"),
    ({"num_groups": (6, 7)}, ValueError, "num_groups must be group sizes that add up to 12 features, got"),
    ({"num_groups": (6.0, 6.0)}, TypeError, "num_groups must be an integer or integers, got"),
    ({"kind": "III"}, ValueError, "kind must be one of I, II, got 'III'"),
    ({"form": "fast"}, ValueError, "form must be one of auto, dense, scan, gather, got 'fast'"),
    ({"power": 0.0}, ValueError, r"power must lie in \(0, inf\), got 0.0"),
  ],
)
def test_mistakes_are_told(options, error, message):
  with pytest.raises(error, match=message):
    losses.group_softmax(*head(23, dtype=np.float32), **options)

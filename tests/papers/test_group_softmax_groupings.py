"""What the supplement derives about the group softmax's grouping, by brute force over all partitions."""

import functools

import contract
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import losses
from jaxreg._group_scores import discriminative_scores, feature_groups, fixed_scores
from papers import group_softmax

pytestmark = pytest.mark.usefixtures("x64")


def thorough(*values):
  return [pytest.param(*value, marks=pytest.mark.thorough) for value in values]


SIZES = [(6, 2), (6, 3), (8, 4), *thorough((9, 3), (12, 2))]


def example(seed, features, classes, scale=1.0):
  """`x, kernel, bias, label` of one example."""
  rng = np.random.default_rng(seed)
  shapes = ((features,), (features, classes), (classes,))
  return *(rng.normal(size=shape) * scale for shape in shapes), int(rng.integers(classes))


def sp(u):
  return np.log1p(np.exp(-u))


def scores_of(x, kernel, bias, label):
  """Eq. A.14, with the bias's part."""
  ingredients = x[:, None] * kernel + bias / len(x)
  target = ingredients[:, label]
  return target - (ingredients.sum(1) - target) / (kernel.shape[1] - 1)


@functools.partial(contract.jit, static_argnums=4)
def sorted_groups(x, kernel, bias, label, num_groups):
  scores = discriminative_scores(x, kernel, bias, label)
  return feature_groups(scores, num_groups=num_groups)


def grouping_losses(*arguments, power):
  *example, groups = arguments
  return _grouping_losses(int(np.max(groups)) + 1, power, *example, groups)


@functools.partial(contract.jit, static_argnums=(0, 1))
def _grouping_losses(num_groups, power, *arguments):
  return group_softmax.grouping_losses(*arguments, num_groups=num_groups, power=power)


def group_relaxation(scores, groups):
  return _group_relaxation(int(np.max(groups)) + 1, scores, groups)


@functools.partial(contract.jit, static_argnums=0)
def _group_relaxation(num_groups, scores, groups):
  return group_softmax.group_relaxation(scores, groups, num_groups=num_groups)


def same_partition(a, b):
  """Whether two vectors of group numbers make the same groups."""
  a, b = np.asarray(a).tolist(), np.asarray(b).tolist()
  return len({*zip(a, b)}) == len({*a}) == len({*b})


@pytest.mark.parametrize(
  ("features", "groups", "number"),
  [(6, 3, 15), (8, 4, 105), (12, 2, 462), (12, 3, 5775), (5, 1, 1), (4, 4, 1)],
)
def test_all_equal_partitions_are_there_once(features, groups, number):
  found = group_softmax.equal_partitions(features, groups)
  assert found.shape == (number, features)
  sets = {frozenset(frozenset(np.flatnonzero(row == i)) for i in range(groups)) for row in found}
  assert len(sets) == number
  assert {len(part) for parts in sets for part in parts} == {features // groups}


def test_losses_are_those_of_the_loss():
  x, kernel, bias, label = example(0, 8, 5)
  groups = group_softmax.equal_partitions(8, 4)
  for kind, power in (("I", 4), ("II", 1)):
    got = grouping_losses(x, kernel, bias, label, groups, power=power)
    every = np.broadcast_to(x, groups.shape), kernel, bias, np.full(len(groups), label)
    np.testing.assert_allclose(got, oracles.group_softmax(*every, groups, power), rtol=1e-12)
    rule = lambda *_, num_groups: jnp.asarray(groups, jnp.float64)
    loss = functools.partial(losses.group_softmax, num_groups=4, kind=kind, grouping=rule)
    np.testing.assert_allclose(got, contract.jit(loss)(*every), rtol=1e-12)


@pytest.mark.claim(
  "group_softmax", "Eq. A.15", "type II is sp of the target's group logit less the others' LSE"
)
@pytest.mark.claim(
  "group_softmax", "Eq. A.19", "the relaxed objective hangs on the groups' sums of scores only"
)
def test_equations_a15_and_a19_the_losses_by_sp():
  x, kernel, bias, label = example(1, 9, 6)
  groups = group_softmax.equal_partitions(9, 3)
  ingredients = x[:, None] * kernel + bias / 9
  others = np.delete(np.arange(6), label)
  z = np.stack([groups == i for i in range(3)]) @ ingredients
  target, others = z[..., label], z[..., others]
  got = grouping_losses(x, kernel, bias, label, groups, power=1.0)
  np.testing.assert_allclose(got, sp(target - np.log(np.exp(others).sum(-1))).sum(0), rtol=1e-12)
  relaxed = group_relaxation(scores_of(x, kernel, bias, label), groups)
  np.testing.assert_allclose(relaxed, sp(target - others.mean(-1)).sum(0), rtol=1e-12)


@pytest.mark.claim(
  "group_softmax", "Eq. A.16 to A.18", "with a mean for the log-sum-exp, a lower bound of type II"
)
@pytest.mark.parametrize("classes", [3, *thorough((100,))])
def test_equations_a16_to_a18_bound_the_loss_from_below(classes):
  groups = group_softmax.equal_partitions(8, 2)
  for seed in range(20):
    arguments = example(seed, 8, classes)
    scores = scores_of(*arguments)
    loss = grouping_losses(*arguments, groups, power=1.0)
    relaxed = group_relaxation(scores, groups)
    assert (loss > relaxed).all()
    # Jensen gives log(C - 1) a group more, and that is what the mean loses.
    tight = group_relaxation(scores - np.log(classes - 1) * 2 / 8, groups)
    assert (loss >= tight - 1e-12).all()
    assert (tight > relaxed).all()
    # As the proof says, type I by G times the logits.
    x, kernel, bias, label = arguments
    every = np.broadcast_to(x, groups.shape), kernel, bias, np.full(len(groups), label)
    first = grouping_losses(*arguments, groups, power=2.0)
    np.testing.assert_allclose(first, oracles.group_softmax(*every, groups, 2.0), rtol=1e-11)
    assert (first > group_relaxation(2 * scores, groups) / 2).all()


@pytest.mark.claim(
  "group_softmax",
  "lemma 1, Eq. A.20 and A.21",
  "sorting and cutting maximises the relaxed objective",
  size="enumeration",
)
@pytest.mark.parametrize(("features", "num_groups"), SIZES)
def test_lemma_1_by_brute_force(features, num_groups):
  partitions = group_softmax.equal_partitions(features, num_groups)
  for seed in range(10):
    arguments = example(seed, features, 5)
    scores = scores_of(*arguments)
    values = np.asarray(group_relaxation(scores, partitions))
    best = partitions[values.argmax()]
    assert same_partition(best, sorted_groups(*arguments, num_groups))
    # Unique for scores that differ: the next is clearly smaller.
    assert np.sort(values)[-1] > np.sort(values)[-2]


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax",
  "Eq. A.25",
  "the exchange widens the groups' sums: printed with the two groups swapped",
  status="erratum",
)
def test_equation_a25_the_exchange_widens_the_sums():
  """For `lambda_j < lambda_j'` with `j` in the group of the larger sum; the printed order has two swapped."""
  rng = np.random.default_rng(3)
  found = 0
  for _ in range(200):
    scores = rng.normal(size=8)
    one, other = scores[:4], scores[4:]
    if one.sum() < other.sum():
      one, other = other, one
    j, k = one.argmin(), other.argmax()
    if one[j] >= other[k]:
      continue
    found += 1
    new_one, new_other = one.sum() - one[j] + other[k], other.sum() - other[k] + one[j]
    assert new_other < other.sum() < one.sum() < new_one
    printed = new_one < one.sum() < new_other < other.sum()
    assert not printed
    # Eq. A.24 and A.26, what it is for: the relaxed objective grows, and by this much.
    before = np.repeat([0, 1], 4)
    after = before.copy()
    after[[j, 4 + k]] = 1, 0
    relaxed = group_relaxation(np.concatenate([one, other]), np.stack([before, after]))
    assert relaxed[0] < relaxed[1]
    np.testing.assert_allclose(
      relaxed, [sp(one.sum()) + sp(other.sum()), sp(new_one) + sp(new_other)], rtol=1e-12
    )
  assert found > 100


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax",
  "Eq. A.16 for two classes",
  "nothing is relaxed: the rule maximises the loss itself",
  size="enumeration",
)
@pytest.mark.parametrize(("features", "num_groups"), SIZES)
def test_with_two_classes_the_rule_is_the_maximiser(features, num_groups):
  partitions = group_softmax.equal_partitions(features, num_groups)
  for seed in range(10):
    arguments = example(seed, features, 2)
    for power in (1.0, float(num_groups)):
      values = np.asarray(grouping_losses(*arguments, partitions, power=power))
      attained = grouping_losses(*arguments, sorted_groups(*arguments, num_groups)[None], power=power)
      np.testing.assert_allclose(attained, values.max(), rtol=1e-12)
      # And the relaxed objective is the loss.
      relaxed = group_relaxation(power * scores_of(*arguments), partitions) / power
      np.testing.assert_allclose(relaxed, values, rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.claim(
  "group_softmax",
  "Eq. A.27",
  "the rule approximately maximises the loss: not at random weights with many classes",
  status="erratum",
  size="toy",
)
def test_equation_a27_at_random_weights_the_rule_is_hardly_adversarial():
  partitions = group_softmax.equal_partitions(9, 3)
  share = {}
  for classes in (2, 100):
    gains = []
    for seed in range(30):
      arguments = example(seed, 9, classes)
      values = np.asarray(grouping_losses(*arguments, partitions, power=1.0))
      attained = grouping_losses(*arguments, sorted_groups(*arguments, 3)[None], power=1.0)[0]
      gains.append((attained - values.mean()) / (values.max() - values.mean()))
    share[classes] = np.mean(gains)
  # Of what the worst grouping adds to the mean of all: all of it, and next to nothing.
  assert share[2] > 1 - 1e-9
  assert abs(share[100]) < 0.2


@pytest.mark.thorough
def test_search_finds_the_maximum_of_a_small_example():
  partitions = group_softmax.equal_partitions(8, 2)
  options = {"num_groups": 2, "power": 1.0, "num_steps": 300}
  search = contract.jit(functools.partial(group_softmax.search_grouping, **options))
  hits = 0
  for seed in range(5):
    arguments = example(seed, 8, 5)
    values = grouping_losses(*arguments, partitions, power=1.0)
    start = sorted_groups(*arguments, 2)
    loss, groups = search(jax.random.key(seed), *arguments, start)
    first = grouping_losses(*arguments, start[None], power=1.0)[0]
    assert first - 1e-12 <= loss <= values.max() + 1e-12
    np.testing.assert_allclose(loss, grouping_losses(*arguments, groups[None], power=1.0)[0], rtol=1e-12)
    assert np.bincount(groups).tolist() == [4, 4]
    hits += bool(loss > values.max() - 1e-9)
  assert hits >= 3


@pytest.mark.claim(
  "group_softmax",
  "Eq. B.1 and B.2",
  "the updates of x have rank sum_i min(C - 1, size of G_i), one less per group than min(CG, D)",
  status="erratum",
  size="toy",
)
@pytest.mark.parametrize(("num_groups", "rank"), [(2, 18), *thorough((1, 9), (7, 63), (8, 64))])
def test_equations_b1_and_b2_the_rank_of_the_updates(num_groups, rank):
  rng = np.random.default_rng(4)
  x, kernel = rng.normal(size=(400, 64)), rng.normal(size=(64, 10)) / 8
  bias, labels = np.zeros(10), rng.integers(0, 10, 400)
  loss = lambda x: losses.group_softmax(
    x, kernel, bias, labels, num_groups=num_groups, kind="II", grouping=fixed_scores
  ).sum()
  sizes = [len(part) for part in np.array_split(np.arange(64), num_groups)]
  assert (
    np.linalg.matrix_rank(contract.jit(jax.grad(loss))(x)) == rank == group_softmax.update_rank(sizes, 10)
  )
  assert rank < min(10 * num_groups, 64) or num_groups == 8


@pytest.mark.slow
@pytest.mark.claim(
  "group_softmax", "Eq. B.2", "groups that differ between examples free the updates' directions", size="toy"
)
def test_per_example_groups_raise_the_effective_rank():
  rng = np.random.default_rng(5)
  x, kernel = rng.normal(size=(256, 256)), rng.normal(size=(256, 10)) / 16
  bias, labels = np.zeros(10), rng.integers(0, 10, 256)

  @functools.partial(contract.jit, static_argnums=0)
  def updates(num_groups):
    loss = lambda x: losses.group_softmax(x, kernel, bias, labels, num_groups=num_groups, kind="II").sum()
    return jax.grad(loss)(x)

  found = {number: np.asarray(updates(number)) for number in (1, 2, 4, 8)}
  ranks = {number: np.linalg.matrix_rank(rows) for number, rows in found.items()}
  effective = {number: float(group_softmax.effective_rank(rows)) for number, rows in found.items()}
  assert ranks[1] == 9
  assert ranks[2] > 10 * ranks[1]
  assert ranks[4] == 256
  assert effective[1] < 9
  assert min(effective[2], effective[8]) > 10 * effective[1]


@pytest.mark.thorough
def test_effective_rank_of_known_spectra():
  assert float(group_softmax.effective_rank(jnp.eye(5, 7))) == pytest.approx(5)
  assert float(group_softmax.effective_rank(jnp.outer(jnp.arange(1.0, 4), jnp.ones(6)))) == pytest.approx(
    1, abs=1e-6
  )
  p = np.array([0.5, 0.3, 0.2])
  entropy = -(p * np.log(p)).sum()
  assert float(group_softmax.effective_rank(jnp.diag(jnp.asarray(p * 7)))) == pytest.approx(np.exp(entropy))


@pytest.mark.parametrize(
  ("run", "message"),
  [
    (lambda: group_softmax.equal_partitions(7, 2), "num_groups must divide the number of features, 7, got 2"),
    (lambda: group_softmax.equal_partitions(40, 2), "num_features must give at most"),
    (
      lambda: group_softmax.grouping_losses(
        np.ones(4), np.ones((3, 2)), np.ones(2), 0, np.zeros((1, 4), int), num_groups=2, power=1
      ),
      r"kernel must be \[features, classes\]",
    ),
    (
      lambda: group_softmax.grouping_losses(
        np.ones(4), np.ones((4, 2)), np.ones(2), 0, np.zeros((1, 3), int), num_groups=2, power=1
      ),
      r"groups must be \[groupings, 4\], got \(1, 3\)",
    ),
  ],
)
def test_mistakes_are_told(run, message):
  with pytest.raises(ValueError, match=message):
    run()

"""Conformal sets of groups and classes, their coverage over many draws, and RAPS, against NumPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import calibration

RNG = np.random.default_rng(0)


def log_probabilities(number, classes=6, seed=1):
  probs = np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), number).clip(1e-7)
  return np.log(probs / probs.sum(1, keepdims=True))


def threshold(scores, alpha):
  """The score whose rank is ceil((n + 1) (1 - alpha)), which a decimal alpha makes exact."""
  rank = math.ceil(round((len(scores) + 1) * (1 - alpha), 9))
  return np.inf if rank > len(scores) else -np.inf if rank < 1 else np.sort(scores)[rank - 1]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 1.0])
def test_each_group_has_the_threshold_of_its_own_examples(alpha):
  scores, groups = RNG.normal(size=400).astype(np.float32), RNG.integers(0, 7, 400)
  groups[groups == 5] = 4  # no example
  groups[:3], groups[3:][groups[3:] == 6] = 6, 0  # three
  where = RNG.uniform(size=400) < 0.8
  run = jit(lambda s, g, w: calibration.conformal_threshold(s, alpha=alpha, groups=g, num_groups=7, where=w))
  want = [threshold(scores[(groups == group) & where], alpha) for group in range(7)]
  np.testing.assert_array_equal(run(scores, groups, where), np.float32(want))
  whole = calibration.conformal_threshold(scores, alpha=alpha, groups=np.zeros(400, int), num_groups=1)
  np.testing.assert_array_equal(whole[0], calibration.conformal_threshold(scores, alpha=alpha))


@pytest.mark.parametrize(
  "dtypes", [("uint8", "uint8"), ("uint8", "int32"), ("int8", "uint8"), ("int32", "uint8")]
)
@pytest.mark.parametrize("known", [True, False])
def test_narrow_integers_do_not_wrap_around(dtypes, known):
  """Neither a group times the number of classes, nor the number of groups or classes, fits 8 bits."""
  groups, labels = np.arange(8) % 4, np.arange(8) // 4 * 99
  scores = (10 * groups + labels)[:, None] + np.arange(100, dtype=np.float32)
  narrow = groups.astype(dtypes[0]), labels.astype(dtypes[1])
  options = {"alpha": 0.5, "by_class": True, "num_groups": 4}

  def sets(groups, labels):
    return calibration.conformal_sets(
      scores, scores, labels, groups=groups, held_out_groups=groups, **options
    )

  own = 10 * groups[:, None] + np.where(np.isin(np.arange(100), (0, 99)), 2 * np.arange(100), np.inf)
  np.testing.assert_array_equal((sets if known else jit(sets))(*narrow), scores <= own)
  members = np.arange(256, dtype="uint8")
  run = functools.partial(calibration.conformal_threshold, alpha=0.5, num_groups=256)
  values = np.arange(256, dtype=np.float32)
  got = (run if known else jit(run))(values, groups=members)
  np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("kind", ["group", "class", "both"])
def test_the_coverage_over_200_draws_is_that_of_the_ranks(kind):
  """Groups of 20 held-out examples have 19 of 21 places below their threshold: coverage 19/21 for alpha 0.1.

  A coverage of one draw has the Beta distribution (19, 2); the mean over draws and new examples lies within
  four standard errors. One threshold for all covers the hard group less often.
  """
  draws, size, new = 200, 20, 50
  rng = np.random.default_rng(3)
  cells = np.repeat(np.arange(4), size), np.repeat(np.arange(4), new)
  hard = np.array([0.5, 1.0, 2.0, 4.0])
  scores = [rng.exponential(size=(draws, len(cell), 4)) * hard[cell][:, None] for cell in cells]
  if kind == "class":
    labels, groups, options = cells, (None, None), {"by_class": True}
  elif kind == "group":
    labels = [np.broadcast_to(np.arange(len(cell)) % 4, cell.shape) for cell in cells]
    groups, options = cells, {"num_groups": 4}
  else:
    labels, groups = [cell // 2 for cell in cells], [cell % 2 for cell in cells]
    options = {"num_groups": 2, "by_class": True}

  def hits(held_out, ours, **options):
    sets = calibration.conformal_sets(ours, held_out, labels[0], alpha=0.1, **options)
    return jnp.take_along_axis(sets, jnp.asarray(labels[1])[:, None], 1)[:, 0]

  def by_cell(**options):
    run = jax.jit(jax.vmap(lambda held_out, ours: hits(held_out, ours, **options)))
    return np.asarray(run(*map(jnp.asarray, scores))).reshape(draws, 4, new).mean(axis=-1)

  own = by_cell(**options, groups=groups[1], held_out_groups=groups[0])
  # The variance of a Beta (19, 2) variable, and of 50 new examples at its mean.
  mean, variance = 19 / 21, 19 * 2 / 21**2 / 22
  deviation = np.sqrt((variance + (mean * (1 - mean) - variance) / new) / draws)
  np.testing.assert_allclose(own.mean(axis=0), mean, atol=4 * deviation)
  pooled = by_cell().mean(axis=0)
  assert pooled[0] > 0.98
  assert pooled[3] < 0.8


def test_too_few_examples_of_a_group_give_full_sets():
  """Nine examples are the fewest that an alpha of 0.1 allows."""
  scores = RNG.uniform(size=(17, 3)).astype(np.float32)
  groups, labels = np.repeat([0, 1], (8, 9)), np.zeros(17, int)
  sets = calibration.conformal_sets(
    np.full((2, 3), 5, np.float32),
    *(scores, labels),
    **{"alpha": 0.1, "groups": np.array([0, 1]), "held_out_groups": groups, "num_groups": 2},
  )
  np.testing.assert_array_equal(sets, [[True] * 3, [False] * 3])
  by_class = calibration.conformal_sets(
    np.full((1, 3), 5, np.float32), scores, labels, alpha=0.1, by_class=True
  )
  np.testing.assert_array_equal(by_class, [[False, True, True]])


def raps(log_probs, share, penalty, num_free):
  """The paper's score of each class: the mass before it, a share of its own, and the penalty of its rank."""
  p = np.exp(log_probs)
  order = np.argsort(-p, axis=1, kind="stable")
  ordered = np.take_along_axis(p, order, 1)
  each = np.cumsum(ordered, 1) - ordered + share * ordered
  each += penalty * np.maximum(np.arange(1, p.shape[1] + 1) - num_free, 0)
  return np.take_along_axis(each, np.argsort(order, axis=1), 1)


@pytest.mark.parametrize(("penalty", "num_free"), [(0.01, 2), (0.3, 1), (0.05, 0), (0.2, 9)])
@pytest.mark.parametrize("seed", [4, None])
def test_sets_are_those_of_regularized_scores(penalty, num_free, seed):
  with jax.enable_x64(True):
    log_probs, labels = log_probabilities(800), RNG.integers(0, 6, 400)
    key = None if seed is None else jax.random.key(seed)
    share = 1 if key is None else np.asarray(jax.random.uniform(jax.random.clone(key), (800, 1), "float64"))
    run = jit(lambda x: calibration.aps_scores(key, x, penalty=penalty, num_free=num_free))
    scores = np.asarray(run(log_probs))
    want = raps(log_probs, share, penalty, num_free)
    for alpha in (0.05, 0.1, 0.4):
      sets = calibration.conformal_sets(scores[400:], scores[:400], labels, alpha=alpha)
      limit = threshold(want[np.arange(400), labels], alpha)
      near = np.abs(want[400:] - limit) < 1e-12
      np.testing.assert_array_equal(np.asarray(sets) | near, (want[400:] <= limit) | near)
  order = np.argsort(want.ravel(), kind="stable")
  assert (np.diff(scores.ravel()[order]) >= -1e-9).all()


def test_a_penalty_leaves_the_first_classes_of_a_confident_network_apart():
  """The mass of the other classes is e^-40 to e^-60; the scores of the first class do not tie at 1."""
  logits = np.zeros((50, 6), np.float32)
  logits[:, 0] = np.linspace(40, 60, 50)
  scores = calibration.aps_scores(None, jax.nn.log_softmax(logits), penalty=0.1, num_free=1)
  assert (np.diff(np.asarray(scores)[:, 0]) > 0).all()
  assert (np.asarray(scores)[:, 0] < 0).all()
  np.testing.assert_allclose(np.sort(np.asarray(scores)[0, 1:]), 0.1 * np.arange(1, 6), rtol=1e-6)


def test_refusals():
  scores, labels = np.zeros((4, 2), np.float32), np.zeros(4, int)
  with pytest.raises(ValueError, match="groups must come with num_groups"):
    calibration.conformal_threshold(scores, labels, alpha=0.1, groups=labels)
  with pytest.raises(ValueError, match="groups must lie in"):
    calibration.conformal_threshold(scores, labels, alpha=0.1, groups=labels + 3, num_groups=3)
  with pytest.raises(ValueError, match=r"groups must be integers of shape \(4,\), got int.* \(2,\)"):
    calibration.conformal_threshold(scores, labels, alpha=0.1, groups=labels[:2], num_groups=3)
  with pytest.raises(ValueError, match="groups must come with held_out_groups"):
    calibration.conformal_sets(scores, scores, labels, alpha=0.1, groups=labels, num_groups=1)
  with pytest.raises(ValueError, match="penalty must lie in"):
    calibration.aps_scores(None, jnp.log(jnp.full(2, 0.5)), penalty=-0.1)
  traced = jit(
    lambda groups: calibration.conformal_threshold(scores, labels, alpha=0.5, groups=groups, num_groups=2)
  )
  assert np.isnan(traced(labels + 2)).all()

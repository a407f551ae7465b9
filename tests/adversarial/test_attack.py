"""The attacks of the ensemble against NumPy in float64, and against networks with a known answer."""

import functools
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import adversarial
from jaxreg.adversarial import _apgd, _square

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(6, 5))
CENTRE, LABELS = RNG.uniform(0.3, 0.7, (40, 6)), RNG.integers(0, 5, 40)
IMAGES = RNG.uniform(0.2, 0.8, (12, 8, 8, 1)).astype(np.float32)


def key(seed=0):
  return jax.random.key(seed)


def linear(x):
  return x.reshape(len(x), -1) @ jnp.asarray(KERNEL, x.dtype)


def distances(labels, dual):
  """How far each example is from the nearest other class: the margin over the dual norm of its slope."""
  z, rows = CENTRE @ KERNEL, np.arange(40)
  gaps = z[rows, labels][:, None] - z
  lengths = np.linalg.norm(KERNEL[:, :, None] - KERNEL[:, None], ord=dual, axis=0)[labels]
  return np.where(gaps > 0, gaps / np.maximum(lengths, 1e-12), np.inf).min(axis=1)


def projected(delta, eps, norm, x):
  """The ball and the bounds 0 and 1, one after the other."""
  if norm == "linf":
    delta = np.clip(delta, -eps, eps)
  else:
    length = np.linalg.norm(delta, axis=1, keepdims=True)
    delta = delta / np.maximum(length, 1e-300) * np.minimum(length, eps)
  return np.clip(x + delta, 0, 1) - x


def direction(gradient, norm):
  return np.sign(gradient) if norm == "linf" else gradient / np.linalg.norm(gradient, axis=1, keepdims=True)


@pytest.mark.parametrize("num_steps", [1, 7, 10, 20, 40, 100, 333])
def test_checkpoints_are_those_of_the_paper(num_steps):
  parts = [0, 22]
  while parts[-1] <= 100:
    parts.append(parts[-1] + max(parts[-1] - parts[-2] - 3, 6))
  places = sorted({int(np.ceil(part * num_steps / 100 - 1e-9)) for part in parts if part <= 100})
  widths = _apgd.checkpoints(num_steps)
  assert np.flatnonzero(widths).tolist() == places[1:]
  assert widths[places[1:]].tolist() == np.diff(places).tolist()
  if num_steps == 100:
    assert places == [0, 22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_step_is_that_of_the_paper(norm):
  x, eps = CENTRE, 0.25
  point, before = (projected(RNG.normal(size=x.shape) / 5, eps, norm, x) for _ in range(2))
  gradient = RNG.normal(size=x.shape)
  onto = lambda delta: _apgd.inside(x, _apgd.project(delta, jnp.full((40, 1), eps), norm), (0.0, 1.0))
  with jax.enable_x64(True):
    got = _apgd.ascent(
      *map(jnp.asarray, (point, before, gradient)), step_size=0.2, share=0.75, norm=norm, onto_ball=onto
    )
  ahead = projected(point + 0.2 * direction(gradient, norm), eps, norm, x)
  want = projected(point + 0.75 * (ahead - point) + 0.25 * (point - before), eps, norm, x)
  np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)


def test_the_step_size_is_halved_by_either_condition():
  """16 rises of 22 are too few, 17 are not; a loss without progress halves a step that was kept before."""
  rises, halved = np.array([16, 17, 17, 17]), np.array([False, False, True, False])
  best, before = np.array([2.0, 2.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0])
  got = _apgd.is_halved(*map(jnp.asarray, (rises, 22, halved, best, before)))
  np.testing.assert_array_equal(got, [True, False, False, True])


def numpy_apgd(x, y, start, eps, norm, num_steps):
  """Auto-PGD on the cross-entropy of the linear model for one example: its first wrong answer, if any."""
  widths, ends = _apgd.checkpoints(num_steps), []

  def evaluate(delta):
    z = (x + delta) @ KERNEL
    p = np.exp(z - z.max())
    p /= p.sum()
    return -np.log(p[y]), KERNEL @ (p - np.eye(5)[y]), z.argmax() != y

  onto = lambda delta: projected(delta[None], eps, norm, x)[0]
  point = before = onto(start)
  loss, gradient, wrong = evaluate(point)
  best, best_gradient, top, step, rises, halved, checked = point, gradient, loss, 2 * eps, 0, False, loss
  ends += [point] if wrong else []
  for number in range(1, num_steps + 1):
    share = 1.0 if number == 1 else 0.75
    ahead = onto(point + step * direction(gradient[None], norm)[0])
    point, before = onto(point + share * (ahead - point) + (1 - share) * (point - before)), point
    previous = loss
    loss, gradient, wrong = evaluate(point)
    ends += [point] if wrong else []
    rises += loss > previous
    if loss > top:
      best, best_gradient, top = point, gradient, loss
    if widths[number]:
      slow = rises < 0.75 * widths[number]
      halve = slow or (not halved and top == checked)
      if halve:
        step, point, gradient, loss = step / 2, best, best_gradient, top
      halved, checked, rises = halve, top, 0
  return ends[0] if ends else None


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_a_run_is_that_of_numpy(norm, dual):
  """From the same random starts, with a radius that half of the examples resist."""
  num_steps, labels = 30, (CENTRE @ KERNEL).argmax(-1)
  eps = float(np.median(distances(labels, dual)))
  with jax.enable_x64(True):
    x, y = jnp.asarray(CENTRE), jnp.asarray(labels)
    values = lambda x: (_apgd.cross_entropy(linear(x), y), linear(x).argmax(-1) != y)
    options = {"radius": jnp.full((40, 1), eps), "norm": norm, "num_steps": num_steps, "clip": (0.0, 1.0)}
    moved, wrong = jit(lambda: _apgd.apgd(key(3), values, x, **options, done=jnp.zeros(40, bool)))()
    starts = eps * np.asarray(_apgd.uniform_start(key(3), x, norm))
  want = [numpy_apgd(*each, eps, norm, num_steps) for each in zip(CENTRE, labels, starts, strict=True)]
  np.testing.assert_array_equal(wrong, [each is not None for each in want])
  assert 5 < np.sum(wrong) < 35
  for got, each in zip(np.asarray(moved), want, strict=True):
    if each is not None:
      np.testing.assert_allclose(got, each, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["apgd_ce", "apgd_dlr"])
def test_the_network_s_gradient_is_once_in_the_program(method):
  """The products of a linear model: its clean answers, and in the loop its answers and their gradient."""
  x, labels = jnp.asarray(CENTRE, jnp.float32), jnp.asarray(LABELS)
  run = jax.jit(lambda x: adversarial.attack(key(), linear, x, labels, eps=0.3, methods=(method,)))
  assert run.lower(x).as_text().count("dot_general") == 3


def test_the_ratio_is_that_of_sorted_logits():
  z, targets = RNG.normal(size=(40, 5)), (LABELS + 1) % 5
  ordered, rows = -np.sort(-z, axis=1), np.arange(40)
  want = -(z[rows, LABELS] - z[rows, targets]) / (ordered[:, 0] - (ordered[:, 2] + ordered[:, 3]) / 2)
  with jax.enable_x64(True):
    got = _apgd.targeted_dlr(jnp.asarray(z), jnp.asarray(LABELS), jnp.asarray(targets))
    scaled = _apgd.targeted_dlr(jnp.asarray(1e30 * z - 1e31), jnp.asarray(LABELS), jnp.asarray(targets))
    value, slope = jax.value_and_grad(
      lambda z: _apgd.targeted_dlr(z, jnp.zeros(1, int), jnp.ones(1, int)).sum()
    )(jnp.ones((1, 5)))
  np.testing.assert_allclose(got, want, rtol=1e-12)
  np.testing.assert_allclose(scaled, want, rtol=1e-12)
  assert value == 0
  assert np.isfinite(slope).all()


@pytest.mark.parametrize("left", [4, 3, 2])
def test_excluded_classes_are_left_out_of_the_ratio(left):
  """Classes with logits of -inf: the scale and its slope are those of the finite logits among the largest."""
  z = np.stack([RNG.permutation(left) for _ in range(20)]) * np.float32(1.5)
  labels, targets = z.argmax(1), z.argsort(1)[:, -2]
  padded = np.concatenate([z, np.full((20, 2), -np.inf, np.float32)], axis=1)
  middle = -np.sort(-z, axis=1)[:, 2:4]
  scale = z.max(1) - middle.mean(1) if left > 2 else 1
  got, slope = jax.value_and_grad(
    lambda z: _apgd.targeted_dlr(z, jnp.asarray(labels), jnp.asarray(targets)).sum()
  )(jnp.asarray(padded))
  np.testing.assert_allclose(got, (-1.5 / scale * np.ones(20)).sum(), rtol=1e-6)
  assert np.isfinite(slope).all()
  assert (slope[np.arange(20), targets] > 0).all()


def test_squares_shrink_as_the_paper_says():
  """The share of the area is halved after 10, 50, 200, ... of 10 000 queries."""
  each = _square.sides(10000, 28, 28, "linf")
  for query, halvings in ((0, 0), (10, 0), (11, 1), (50, 1), (51, 2), (201, 3), (1001, 5), (8001, 9)):
    assert each[query] == max(round((0.8 / 2**halvings * 784) ** 0.5), 1)
  np.testing.assert_array_equal(_square.sides(5000, 28, 28, "linf"), each[::2])
  odd = _square.sides(10000, 28, 28, "l2")
  assert (odd % 2 == 1).all()
  assert odd.min() == 3
  assert _square.sides(10, 4, 9, "l2").max() == 3


@pytest.mark.parametrize("side", [3, 5, 9])
def test_the_bump_has_two_halves_of_nested_rectangles(side):
  """Each half sums rectangles around its centre that weigh 1, 1/4, 1/9, ..., and has length 1."""

  def half(rows):
    out = np.zeros((rows, side))
    for step in range(max(rows, side) // 2 + 1):
      low = max(rows // 2 - step, 0), max(side // 2 - step, 0)
      out[low[0] : rows // 2 + step + 1, low[1] : side // 2 + step + 1] += 1 / (step + 1) ** 2
    return out / np.linalg.norm(out)

  want = np.concatenate([half(side // 2), -half(side - side // 2)])
  np.testing.assert_allclose(_square.bump(side), want / np.linalg.norm(want), rtol=1e-12)


def test_a_square_of_the_maximum_norm_has_one_sign_for_each_channel():
  delta = jnp.asarray(RNG.uniform(-0.1, 0.1, (6, 8, 8, 3)), jnp.float32)
  radius = jnp.float32([0.1, 0.2, 0.1, 0.2, 0.1, 0.0])[:, None, None, None]
  got = np.asarray(jit(_square.changed_square)(key(), delta, 3, radius))
  for old, new, eps in zip(np.asarray(delta), got, radius.ravel(), strict=True):
    rows, columns = (np.flatnonzero((old != new).any(axis=(other, 2))) for other in (1, 0))
    assert rows.tolist() == [*range(rows[0], rows[0] + 3)]
    assert columns.tolist() == [*range(columns[0], columns[0] + 3)]
    inside = new[rows[0] : rows[0] + 3, columns[0] : columns[0] + 3]
    assert (np.abs(inside) == eps).all()
    assert (inside == inside[:1, :1]).all()


def test_a_square_of_the_l2_norm_moves_length_and_spends_what_is_left():
  radius = 1.0
  delta = RNG.normal(size=(20, 8, 8, 2))
  delta *= 0.6 / np.linalg.norm(delta.reshape(20, -1), axis=1)[:, None, None, None]
  with jax.enable_x64(True):
    options = jnp.asarray(delta), 3, jnp.full((20, 1, 1, 1), radius)
    got = np.asarray(_square.moved_square(key(), *options))
    first_key, second_key, *_ = jax.random.split(key(), 4)
    first, second = (np.asarray(_square.windows(each, options[0], 3)[0]) for each in (first_key, second_key))
  assert (first.sum(axis=(1, 2, 3)) == 9).all()
  np.testing.assert_array_equal(
    got[np.broadcast_to(~(first | second), got.shape)], delta[np.broadcast_to(~(first | second), got.shape)]
  )
  assert (got[np.broadcast_to(second & ~first, got.shape)] == 0).all()
  squares = lambda x: (x**2).sum(axis=(1, 2))
  want = squares(np.where(first | second, delta, 0)) + (radius**2 - 0.36) / 2
  np.testing.assert_allclose(squares(np.where(first, got, 0)), want, rtol=1e-12)
  # The window holds a unit vector along the old one plus a bump, for each channel.
  for image in range(20):
    rows, columns = (np.flatnonzero(first[image, ..., 0].any(axis=other)) for other in (1, 0))
    cut = np.ix_(rows, columns)
    for channel in range(2):
      old, new = (each[image, ..., channel][cut] for each in (delta, got))
      old, bump = old / np.linalg.norm(old), _square.bump(3)
      shapes = [sign * each + old for sign in (1, -1) for each in (bump, bump.T)]
      cosines = [(new * each).sum() / np.linalg.norm(new) / np.linalg.norm(each) for each in shapes]
      assert max(cosines) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_first_squares(norm):
  x = jnp.asarray(RNG.uniform(size=(5, 11, 8, 2)), jnp.float32)
  first = np.asarray(_square.stripes(key(), x) if norm == "linf" else _square.tiles(key(), x))
  if norm == "linf":
    assert (np.abs(first) == 1).all()
    assert (first == first[:, :1]).all()
    assert len(np.unique(first[:, 0])) == 2
  else:
    np.testing.assert_allclose(np.linalg.norm(first.reshape(5, -1), axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_an_example_is_moved_if_and_only_if_the_ball_reaches_another_class(norm, dual):
  """The radius is 2 % more or less than the distance of a linear model's nearest other class."""
  labels, rows = (CENTRE @ KERNEL).argmax(-1), np.arange(40)
  far = distances(labels, dual)
  eps = np.where(rows % 2, far * 1.02, far * 0.98).astype(np.float32)
  run = jit(lambda x, eps: adversarial.attack(key(), linear, x, labels, eps=eps, norm=norm, **OPTIONS))
  x = jnp.asarray(CENTRE, jnp.float32)
  moved = run(x, eps)
  np.testing.assert_array_equal(linear(moved).argmax(-1) != labels, rows % 2 == 1)
  np.testing.assert_array_equal((moved == x).all(axis=1), rows % 2 == 0)
  order = {"linf": np.inf, "l2": 2}[norm]
  assert (np.linalg.norm(moved - x, ord=order, axis=1) <= eps * (1 + 1e-5)).all()


OPTIONS = {"methods": ("apgd_ce", "apgd_dlr"), "num_steps": 60}


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_gradients_that_vanish_stop_pgd_but_not_the_others(norm):
  """Logits of 1e6 times a margin: the probabilities are 0 and 1, and the cross-entropy has no gradient."""
  kernel = jnp.asarray(np.random.default_rng(3).normal(size=(64, 4)), jnp.float32)
  logits_fn = lambda x: 1e6 * (x.reshape(len(x), -1) @ kernel)
  x, labels = jnp.asarray(IMAGES), logits_fn(jnp.asarray(IMAGES)).argmax(-1)
  eps = 0.2 if norm == "linf" else 1.5
  loss = lambda x: -jnp.take_along_axis(jax.nn.log_softmax(logits_fn(x)), labels[:, None], 1)[:, 0]
  wrong = lambda x: np.asarray(logits_fn(x).argmax(-1) != labels)

  @functools.partial(jax.jit, static_argnums=0)
  def run(method):
    options = {"eps": eps, "norm": norm, "clip": (0.0, 1.0), "num_steps": 20}
    if method == "pgd":
      return adversarial.pgd(None, loss, x, random_start=False, **options)
    return adversarial.attack(key(), logits_fn, x, labels, methods=(method,), num_queries=300, **options)

  errors = {name: wrong(run(name)).mean() for name in ("pgd", "apgd_ce", "apgd_dlr", "square")}
  assert errors["pgd"] == 0
  assert errors["apgd_dlr"] == 1
  assert errors["square"] > 0.5


@pytest.mark.thorough
def test_wrong_answers_stay_where_they_are_and_chunks_cover_the_batch():
  x, labels = jnp.asarray(CENTRE, jnp.float32), jnp.asarray(LABELS)
  already = np.asarray(linear(x).argmax(-1) != labels)
  whole = jit(lambda x: adversarial.attack(key(), linear, x, labels, eps=0.3, **OPTIONS))(x)
  np.testing.assert_array_equal(whole[already], x[already])
  chunked = jit(lambda x: adversarial.attack(key(), linear, x, labels, eps=0.3, **OPTIONS, chunk_size=7))(x)
  np.testing.assert_array_equal(linear(chunked).argmax(-1) != labels, linear(whole).argmax(-1) != labels)
  np.testing.assert_array_equal(adversarial.attack(key(), linear, x, labels, eps=0.0, **OPTIONS), x)


def test_the_move_is_a_constant_to_differentiation():
  x, labels = jnp.asarray(CENTRE, jnp.float32), (CENTRE @ KERNEL).argmax(-1)

  def total(kernel, x):
    moved = adversarial.attack(key(), lambda x: x @ kernel, x, labels, eps=0.3, **OPTIONS)
    return moved.sum()

  slopes = jit(jax.grad(total, argnums=(0, 1)))(jnp.asarray(KERNEL, jnp.float32), x)
  np.testing.assert_array_equal(slopes[0], 0)
  np.testing.assert_array_equal(slopes[1], 1)


def test_a_gradient_that_is_nan_moves_nothing_out_of_the_ball():
  logits_fn = lambda x: jnp.stack(
    [jnp.where(x.sum(-1) > 1e9, jnp.sqrt(x.sum(-1) * 0), 1.0), *3 * [0 * x[:, 0]]], -1
  )
  x = jnp.ones((2, 3))
  assert np.isnan(jax.grad(lambda x: logits_fn(x).sum())(x)).any()
  moved = adversarial.attack(key(), logits_fn, x, jnp.zeros(2, int), eps=0.1, **OPTIONS)
  np.testing.assert_array_equal(moved, x)


def test_refusals():
  x, labels = jnp.asarray(CENTRE, jnp.float32), jnp.asarray(LABELS)
  attack = functools.partial(adversarial.attack, key(), linear, x, labels, eps=0.1)
  with pytest.raises(ValueError, match=r"methods must not have square unless x is .* got x \(40, 6\)"):
    attack()
  with pytest.raises(ValueError, match="methods must be a collection"):
    attack(methods="apgd_ce")
  with pytest.raises(ValueError, match="methods must be"):
    attack(methods=("fab",))
  with pytest.raises(ValueError, match="norm must be"):
    attack(methods=("apgd_ce",), norm="l1")
  with pytest.raises(ValueError, match="needs 4 classes, got 3 classes"):
    adversarial.attack(key(), lambda x: x[:, :3], x, labels % 3, eps=0.1, methods=("apgd_dlr",))
  with pytest.raises(
    ValueError, match=r"logits_fn must give \[batch, classes\] for a batch of 40, got \(40,\)"
  ):
    adversarial.attack(key(), lambda x: x.sum(-1), x, labels, eps=0.1)
  with pytest.raises(ValueError, match="labels must lie in"):
    adversarial.attack(key(), linear, x, LABELS + 1, eps=0.1, methods=("apgd_ce",))
  for count in ("num_steps", "num_targets", "num_queries", "chunk_size"):
    with pytest.raises(ValueError, match=f"{count} must be at least 1"):
      attack(methods=("apgd_ce",), **{count: 0})


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("name", "norm", "eps"),
  [
    ("abc_mnist_cnn_a_adv", "linf", 0.3),
    ("abc_mnist_cnn_a_adv", "l2", 1.5),
    ("abc_cifar_cnn_a_adv", "linf", 4 / 255),
    ("abc_cifar_cnn_a_adv", "l2", 0.3),
  ],
)
def test_robust_networks_of_others_fall_where_pgd_fells_them(name, norm, eps, data_dir, monkeypatch):
  """Each example that 20 steps of PGD move to a wrong answer, the ensemble of 20 steps moves, too."""
  monkeypatch.syspath_prepend(BENCHMARKS)
  study = importlib.import_module("others_networks").Study(name, data_dir, Path())
  data = study.test(128)
  x, labels = jnp.asarray(data["inputs"]), jnp.asarray(data["labels"])
  with jax.numpy_rank_promotion("allow"):
    logits_fn = functools.partial(study.predict, study.params)
    options = {"eps": eps, "norm": norm, "num_steps": 20, "clip": (0.0, 1.0)}
    methods = {"methods": ("apgd_ce", "apgd_dlr"), "num_targets": 3}
    pgd = jax.jit(
      lambda x: adversarial.pgd(key(), lambda x: study.losses(study.params, x, labels), x, **options)
    )(x)
    moved = jax.jit(lambda x: adversarial.attack(key(1), logits_fn, x, labels, **options, **methods))(x)
    clean, by_pgd, by_both = (
      np.asarray(jax.jit(logits_fn)(each).argmax(-1) != labels) for each in (x, pgd, moved)
    )
  assert by_both[by_pgd | clean].all()
  assert by_both.sum() > clean.sum()
  assert float(moved.min()) >= 0
  assert float(moved.max()) <= 1

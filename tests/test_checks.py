"""The argument checks: what they pass, what they refuse, and what they say."""

import functools
import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import adversarial, constraints, flatness, noise, objective, penalties
from jaxreg._checks import (
  check_count,
  check_floating,
  check_key,
  check_labels,
  check_loss_fn,
  check_range,
  check_wide,
)

X = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)


def _loss(params, batch, *, key):
  return params["kernel"].sum()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_check_floating_passes_the_array_on(dtype):
  x = jnp.arange(3).astype(dtype)
  got = check_floating(x, "x")
  assert got.dtype == dtype
  np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("x", [1.5, np.ones(2), [1.0, 2.0]])
def test_check_floating_takes_array_likes(x):
  assert isinstance(check_floating(x, "x"), jax.Array)


@pytest.mark.parametrize("check", [check_floating, check_wide])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_other_dtypes_are_refused_by_name(check, dtype):
  with pytest.raises(TypeError, match=rf"^radius must be floating, got {dtype}$"):
    check(jnp.ones(3, dtype), "radius")


@pytest.mark.parametrize("check", [check_floating, check_wide])
def test_other_shapes_are_refused_by_name(check):
  assert check(jnp.ones((2, 3)), "x", shape=(2, 3)).shape == (2, 3)
  assert check(jnp.ones(()), "x", shape=()).shape == ()
  with pytest.raises(ValueError, match=r"^radius must have shape \(2,\), got \(3,\)$"):
    check(jnp.ones(3), "radius", shape=(2,))
  with pytest.raises(ValueError, match="radius"):  # the empty shape is a shape too
    check(jnp.ones(3), "radius", shape=())


@pytest.mark.parametrize(
  ("given", "wide"),
  [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
def test_check_wide(given, wide):
  with jax.enable_x64(True):
    assert check_wide(jnp.ones(3, given), "x").dtype == wide


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_check_labels_passes_integers_on(dtype):
  labels = jnp.arange(4).astype(dtype)
  got = check_labels(labels, jnp.ones((4, 4)))
  assert got.dtype == np.promote_types(dtype, np.int32)  # of 8 bits, what is computed would wrap around
  np.testing.assert_array_equal(got, labels)
  assert check_labels(np.zeros((2, 4), int), jnp.ones((2, 4, 3))).shape == (2, 4)
  assert check_labels(1, jnp.ones(3)).shape == ()


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("x64", [False, True])
def test_labels_without_a_sign_stay_integers(dtype, x64):
  with jax.enable_x64(x64):
    labels = np.arange(3, dtype=dtype)
    got = check_labels(labels, jnp.ones((3, 3)))
    assert got.dtype == (np.int64 if x64 else np.int32)
    np.testing.assert_array_equal(got, labels)
    with pytest.raises(ValueError, match=r"labels must lie in .*, got 4294967296"):
      check_labels(np.array([0, 1, 2**32], np.uint64), jnp.ones((3, 3)))  # 0 in 32 bits


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_check_labels_refuses_other_dtypes(dtype):
  with pytest.raises(TypeError, match=f"labels must be integers, got {dtype}"):
    check_labels(jnp.ones(4, dtype), jnp.ones((4, 3)))


@pytest.mark.parametrize(
  ("labels", "scores"), [((3,), (4, 3)), ((4, 3), (4, 3)), ((4, 1), (4, 3)), ((), ()), ((), (4, 3))]
)
def test_check_labels_refuses_other_shapes(labels, scores):
  with pytest.raises(ValueError, match="labels must have the shape of votes"):
    check_labels(jnp.zeros(labels, int), jnp.ones(scores), "votes")


@pytest.mark.parametrize(
  ("labels", "error", "hint"),
  [
    (np.eye(3, dtype=int), ValueError, "convert one-hot labels with labels.argmax"),
    (
      jnp.eye(3),
      TypeError,
      "got float32; soft labels are not supported here: give one class, labels.argmax",
    ),
    (np.array([0, 3, 1]), ValueError, r"must lie in \[0, 3\), got 3"),
    (np.array([0, -1, 1]), ValueError, r"must lie in \[0, 3\), got -1"),
  ],
)
def test_check_labels_names_the_way_out(labels, error, hint):
  with pytest.raises(error, match=rf"^labels .*{hint}"):
    check_labels(labels, jnp.ones((3, 3)))


@pytest.mark.parametrize("given", [np.array([0, 7]), jnp.array([0, 7])])
def test_check_labels_knows_the_range_outside_of_jit(given):
  with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 7"):
    check_labels(given, jnp.ones((2, 3)))
  np.testing.assert_array_equal(check_labels(given, jnp.ones((2, 3)), bounded=False), [0, 7])
  assert jax.jit(lambda labels: check_labels(labels, jnp.ones((2, 3))))(given).shape == (2,)


@pytest.mark.parametrize(
  ("key", "hint"),
  [
    (jax.random.PRNGKey(0), r"uint32 \(2,\); convert a legacy .*jax.random.wrap_key_data\(key\)"),
    (np.zeros(4, np.uint32), "wrap_key_data"),
    (jnp.ones((4, 3)), r"got float32 \(4, 3\); is the key missing or in the wrong position"),
    (None, "None; a key is needed here"),
    (0, "got int$"),
  ],
)
def test_check_key_names_the_way_out(key, hint):
  with pytest.raises(TypeError, match=rf"key must be a typed key.*{hint}"):
    check_key(key)


def test_check_key_passes_a_typed_key_on():
  key = jax.random.key(3)
  assert check_key(key) is key
  assert jax.jit(lambda key: jax.random.uniform(check_key(key)))(key) < 1
  assert check_key(jax.random.key(0, impl="rbg")).ndim == 0


def test_check_key_refuses_several():
  with pytest.raises(ValueError, match=r"single key.*\(3,\).*vmap"):
    check_key(jax.random.split(jax.random.key(0), 3))


@pytest.mark.parametrize(
  "loss_fn",
  [
    lambda params, batch, *, key: 0.0,
    lambda params, batch, key=None: 0.0,
    lambda *args, **kwargs: 0.0,
    jax.jit(lambda params, batch, *, key: 0.0),
    functools.partial(lambda scale, params, batch, *, key: 0.0, 2.0),
    functools.wraps(lambda params, batch: 0.0)(lambda params, batch, *, key: 0.0),
  ],
)
def test_check_loss_fn_passes(loss_fn):
  check_loss_fn(loss_fn)


@pytest.mark.parametrize(
  "use",
  [
    check_loss_fn,
    lambda loss_fn: objective.compose(loss_fn, {}),
    lambda loss_fn: adversarial.adversarial_loss(loss_fn, lambda loss, x: x),
    lambda loss_fn: flatness.hvp(loss_fn, jnp.ones(2), None),
    lambda loss_fn: flatness.chunked(loss_fn, 2),
    lambda loss_fn: flatness.loss_profile(loss_fn, jnp.ones(2), jnp.ones(2), jnp.ones(2), None),
  ],
)
def test_a_loss_without_a_key_is_told_of_it(use):
  with pytest.raises(
    TypeError, match=r"loss_fn must take \(params, batch, \*, key\).*got the signature \(w, x\)"
  ):
    use(lambda w, x: w.sum())


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1, np.float32(1.0), jnp.float32(0.25)])
def test_check_range_passes(value):
  check_range(value, "rate", low=0, high=1)


@pytest.mark.parametrize(
  "value", [-1e-9, 1 + 1e-9, math.nan, math.inf, -math.inf, jnp.float32(2.0), jnp.float32(math.nan)]
)
def test_check_range_refuses_by_name(value):
  with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\], got"):
    check_range(value, "rate", low=0, high=1)


def test_check_range_open_below():
  check_range(1e-9, "rate", low=0, open_low=True)
  with pytest.raises(ValueError, match=r"rate must lie in \(0, inf\), got 0"):
    check_range(0, "rate", low=0, open_low=True)


def test_check_range_takes_infinity_only_where_it_has_a_meaning():
  check_range(math.inf, "limit", low=0, high=math.inf)
  check_range([1.0, math.inf], "limit", low=0, high=math.inf)
  for value in (math.inf, -math.inf, math.nan, [0.0, math.inf], jnp.float32(-math.inf)):
    with pytest.raises(ValueError, match=r"weight must lie in \(-inf, inf\), got"):
      check_range(value, "weight")


def test_check_range_knows_every_entry_of_an_array():
  for make in (np.asarray, jnp.asarray, list):
    check_range(make([0.0, 0.5, 1.0]), "rate", low=0, high=1)
    check_range(make([]), "rate", low=0, high=1)
    for wrong, got in (([0.5, 1.5], "from 0.5 to 1.5"), ([-0.5, 0.5], "from -0.5"), ([0.5, math.nan], "nan")):
      with pytest.raises(ValueError, match=rf"^rate must lie in \[0, 1\], got values .*{got}"):
        check_range(make(wrong), "rate", low=0, high=1)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "use",
  [
    lambda v: noise.dropout(jax.random.key(0), X, rate=v[None]),
    lambda v: noise.alpha_dropout(jax.random.key(0), X, rate=v[None]),
    lambda v: noise.gaussian_noise(jax.random.key(0), X, std=v[None]),
    lambda v: adversarial.pgd(jax.random.key(0), lambda x: (x**2).sum(-1), X, eps=v, num_steps=1),
  ],
)
def test_options_that_are_arrays_are_the_same_eagerly_and_compiled(use):
  """One value a feature, or an example: what a check of the range refused where it was not traced."""
  values = jnp.array([0.1, 0.5, 0.9])
  chex.assert_trees_all_close(use(values), jax.jit(use)(values), rtol=1e-5)
  with pytest.raises(ValueError, match=r"must lie in .*got values from -1 to 0"):
    use(jnp.array([0.1, -1.0, 0.5]))


@pytest.mark.parametrize(
  ("use", "message"),
  [
    (
      lambda: constraints.project(constraints.max_norm),
      "projection must be .*max_norm: .*'limit'; func",
    ),
    (lambda: constraints.proximal(constraints.prox_l1, 0.1), "prox must be .*prox_l1: .*'weight'; functools"),
    (
      lambda: objective.penalty(penalties.elastic_net, weight=0.1),
      "penalty must.*elastic_net: .*ratio",
    ),
    (lambda: objective.penalty(penalties.l2_sp, weight=0.1), "penalty must.*l2_sp: .*'reference'"),
    (
      lambda: constraints.project(lambda: None),
      "projection must be a function .*got <lambda>",
    ),
  ],
)
def test_a_forgotten_option_is_missed_at_once(use, message):
  with pytest.raises(TypeError, match=message):
    use()


def test_functions_whose_options_are_given_pass():
  for projection in (
    functools.partial(constraints.max_norm, limit=1.0),
    jax.jit(functools.partial(constraints.max_norm, limit=1.0)),
    constraints.prox_non_negative,
    optax.projections.projection_l2_ball,
    lambda params: params,
  ):
    constraints.project(projection)
  constraints.proximal(functools.partial(constraints.prox_l1, weight=0.1), 0.1)


def test_check_range_lets_tracers_pass():
  function = jax.jit(lambda rate: (check_range(rate, "rate", low=0, high=1), rate)[1])
  assert function(7.0) == 7.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32", "uint8"])
def test_check_range_knows_arrays_inside_jit(dtype):
  """They are not traced, though a comparison of them would be."""
  inside, outside = jnp.ones((), dtype), jnp.full((), 2, dtype)
  jax.jit(lambda: check_range(inside, "rate", low=0, high=1))()
  with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\], got 2"):
    jax.jit(lambda: check_range(outside, "rate", low=0, high=1))()


def test_check_count_knows_arrays_inside_jit():
  one, none = jnp.int32(1), jnp.int32(0)
  jax.jit(lambda: check_count(one, "num"))()
  with pytest.raises(ValueError, match="num must be at least 1, got 0"):
    jax.jit(lambda: check_count(none, "num"))()


@pytest.mark.parametrize(
  ("make", "got"),
  [
    (
      lambda: objective.penalty(penalties.group_lasso, weight=1.0, sizes=2),
      "group_lasso: got an unexpected keyword argument 'sizes'; its options are axis, size_weighted, mask",
    ),
    (
      lambda: objective.perturbation(noise.gaussian_noise, on="inputs", std=0.1, scale=2.0),
      "gaussian_noise: got an unexpected keyword argument 'scale'; its options are std",
    ),
    (
      lambda: constraints.project(functools.partial(constraints.max_norm, limit=1.0, value=2.0)),
      "max_norm: got an unexpected keyword argument 'value'; its options are limit, axis, mask",
    ),
    (
      lambda: constraints.project(functools.partial(constraints.max_norm)),
      "max_norm: missing a required keyword-only argument: 'limit'; functools.partial binds options",
    ),
  ],
)
def test_an_option_that_a_function_does_not_have_is_refused_where_it_is_bound(make, got):
  with pytest.raises(TypeError, match=re.escape(f"got {got}")):
    make()

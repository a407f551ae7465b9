"""The suite for anybody's loss finds each fault that it is there for, and passes losses that have none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import conformance, losses


def right(logits, labels, where=None):
  if where is not None:
    logits, labels = jnp.where(where[..., None], logits, 0.0), jnp.where(where, labels, 0)
  picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
  return -picked if where is None else jnp.where(where, -picked, 0.0)


def is_always_zero(logits, labels):
  reference = logits  # of the EWC penalty: the parameters against themselves
  return ((logits - reference) ** 2).sum(-1)


def averages_inside(logits, labels):
  return right(logits, labels).mean()


def takes_the_logarithm_of_probabilities(logits, labels):
  return -jnp.log((jax.nn.softmax(logits) * jax.nn.one_hot(labels, logits.shape[-1])).sum(-1))


@jax.custom_vjp
def _half(x):
  return x


_half.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))


def has_half_the_gradient(logits, labels):
  return _half(right(logits, labels))


def computes_in_float32(logits, labels):
  return right(logits.astype(jnp.float32), labels)


def ignores_its_key(key, logits, labels):
  return right(logits + jax.random.normal(jax.random.key(3), logits.shape), labels)


def cannot_be_mapped(logits, labels):
  shape = jax.ShapeDtypeStruct(labels.shape, logits.dtype)
  return jax.pure_callback(lambda x, y: np.asarray(right(x, y)), shape, logits, labels)


def hangs_on_the_devices(logits, labels):
  return right(logits, labels) * (1 + jax.typeof(logits).sharding.mesh.size)


def multiplies_by_where(logits, labels, where=None):
  loss = right(logits, labels % logits.shape[-1])
  return loss if where is None else loss * where


FAULTS = (
  ("limits", is_always_zero),
  ("values", averages_inside),
  ("extremes", takes_the_logarithm_of_probabilities),
  ("gradients", has_half_the_gradient),
  ("dtypes", computes_in_float32),
  ("keys", ignores_its_key),
  ("vmap", cannot_be_mapped),
  ("explicit axes", hangs_on_the_devices),
  ("where", multiplies_by_where),
)


def result(name, function, targets="classes"):
  return conformance._result(name, conformance.CHECKS[name], conformance._case(function, targets))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "function"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_is_found(name, function):
  found = result(name, function)
  assert found.passes is False, found
  assert found.what


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({name for name, _ in FAULTS} - {"keys"}))
def test_what_is_right_passes(name):
  assert result(name, right).passes, result(name, right)


def keras_order(y_true, y_pred):
  return right(y_pred, y_true)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("function", "targets"),
  [
    (losses.focal, "classes"),
    (losses.sampled_softmax, "classes"),
    (functools.partial(losses.label_smoothing, smoothing=0.3), "probabilities"),
    (losses.binary_cross_entropy, "binary"),
    (optax.losses.squared_error, "numbers"),
    (keras_order, "classes"),
  ],
)
def test_losses_pass(function, targets):
  found = conformance.check(function, targets=targets)
  assert [each.name for each in found] == list(conformance.CHECKS)
  assert [each for each in found if each.passes is False] == []


@pytest.mark.thorough
def test_the_command_prints_a_table_and_has_a_status(capsys, monkeypatch):
  checks = {name: conformance.CHECKS[name] for name in ("values", "limits", "where")}
  monkeypatch.setattr(conformance, "CHECKS", checks)
  assert conformance.main([f"{__name__}:is_always_zero"]) == 1
  values, limits, where = (line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines())
  assert values[:2] == ["values", "passes"]
  assert limits == ["limits", "FAILS", "right costs 0, wrong 0"]
  assert where == ["where", "-", "has no such argument"]
  assert conformance.main([f"{__name__}:right"]) == 0


def three(a, b, c):
  return a


@pytest.mark.parametrize(
  ("given", "said"),
  [
    ("right", "function must be MODULE:NAME, got 'right'"),
    ("no_such_module:right", "no_such_module:right: No module named 'no_such_module'"),
    (f"{__name__}:wrong", "has no attribute 'wrong'"),
    (
      f"{__name__}:three",
      "must take ([key,] predictions, labels), and options with defaults; got (a",
    ),
  ],
)
def test_a_mistake_is_one_line(given, said, capsys):
  with pytest.raises(SystemExit) as stopped:
    conformance.main([given])
  assert stopped.value.code == 2
  assert said in capsys.readouterr().err.splitlines()[-1]

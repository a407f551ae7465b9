"""Strengths, rates and temperatures may be traced, so that a sweep is one program: a walk over them all."""

import functools
import importlib
import inspect

import cases_losses
import cases_noise
import cases_penalties
import chex
import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import losses, noise

FOLDERS = ("losses", "noise", "penalties")
CASES = (*contract.CASES, *cases_losses.CASES, *cases_noise.CASES, *cases_penalties.CASES)
LABELS = np.arange(8) % 5
KERNEL = {"kernel": jnp.ones((4, 3))}
# What has no plain case: `(function of the option, a value)`.
OTHERS = {
  "losses.semi_supervised weight": (
    lambda weight: losses.semi_supervised(
      jnp.ones(8), jnp.arange(8.0), jnp.asarray(LABELS) - 2, weight=weight
    ),
    0.5,
  ),
  "losses.multitask weights": (
    lambda weight: losses.multitask({"one": jnp.ones(8)}, weights={"one": weight}),
    0.5,
  ),
  "noise.label_noise rate": (
    lambda rate: noise.label_noise(jax.random.key(0), jnp.asarray(LABELS), num_classes=5, rate=rate),
    0.5,
  ),
  "losses.group_softmax power": (
    lambda power: losses.group_softmax(
      jnp.eye(8, 4), jnp.eye(4, 5), None, jnp.asarray(LABELS), num_groups=2, power=power
    ),
    2.0,
  ),
  "noise.gaussian_dropout std": (
    lambda std: noise.gaussian_dropout(jax.random.key(0), jnp.ones((4, 3)), std=std),
    0.5,
  ),
  "noise.rnn_weight_noise std": (
    lambda std: noise.rnn_weight_noise(
      jax.random.key(0), KERNEL, noise.rnn_weight_noise_init(KERNEL), std=std
    )[0],
    0.5,
  ),
  "noise.layer rate": (
    lambda rate: noise.layer(noise.dropout, rate=rate)(jnp.ones((4, 3)), key=jax.random.key(0)),
    0.5,
  ),
}
# Options that are numbers and cannot be traced, and why.
STATIC = {
  "losses.transition_matrix quantile": "it chooses a row",
  "losses.bi_tempered t2": "the normaliser is a custom derivative for one t2, and 1 is another formula",
  "losses.bi_tempered_log_probs t2": "as in bi_tempered",
  "losses.sparsemax_log_probs eps": "a floor against -inf, no strength",
  "losses.class_weights beta": "weights are made once, from known counts",
}


def strengths():
  """`(name, call, value)` of every option that is a floating number, in the first case that gives it."""
  found = {}
  for case in CASES:
    folder, _, function = case.function.partition(".")
    if folder not in FOLDERS or "." in function:
      continue
    given = inspect.signature(getattr(importlib.import_module(f"jaxreg.{folder}"), function)).parameters
    for option, parameter in given.items():
      if option in case.inputs:  # an array, which all checks of the contract trace
        found.setdefault(f"{case.function} {option}", (None, None))
        continue
      value = case.options.get(option, parameter.default)
      numbers = value if isinstance(value, tuple) and value else (value,)
      if all(isinstance(number, float) for number in numbers):
        found.setdefault(f"{case.function} {option}", (functools.partial(called, case, option), value))
  return {**found, **OTHERS}


def called(case, option, value):
  module = importlib.import_module(f"jaxreg.{case.function.partition('.')[0]}")
  function = getattr(module, case.function.partition(".")[2])
  return function(**contract.make(case), **{**case.options, option: value})


ALL = strengths()


@pytest.mark.thorough
@pytest.mark.parametrize(
  "name", [name for name, (call, _) in ALL.items() if call is not None and name not in STATIC]
)
def test_a_strength_may_be_traced(name):
  call, value = ALL[name]
  got = contract.jit(call)(jax.tree.map(jnp.float32, value))
  chex.assert_trees_all_close(got, call(value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ALL.keys() & STATIC.keys()))
def test_what_is_static_is_so_for_a_reason_that_still_holds(name):
  call, value = ALL[name]
  with pytest.raises((jax.errors.ConcretizationTypeError, jax.errors.TracerBoolConversionError)):
    jax.eval_shape(call, jnp.float32(value))


@pytest.mark.thorough
def test_a_traced_temperature_of_1_is_the_limit():
  """At `t1 = 1` the bi-tempered loss is another formula, and its gradient stays finite."""
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5)), jnp.float32)
  loss = lambda logits, t1: losses.bi_tempered(logits, LABELS, t1=t1, t2=1.3).mean()
  for t1 in (1.0, 0.9999, 0.0):
    got = contract.jit(jax.value_and_grad(loss))(logits, jnp.float32(t1))
    chex.assert_trees_all_close(got, jax.value_and_grad(loss)(logits, t1), rtol=1e-3, atol=1e-5)


def test_the_walk_meets_every_kind_of_strength():
  options = {name.partition(" ")[2] for name in ALL}
  assert {"weight", "rate", "std", "temperature", "smoothing", "gamma", "margin", "scale"} <= options
  assert len(ALL) > 50


def test_every_function_with_a_floating_option_is_walked():
  """By its signature: an option with a floating default, or one that says it takes a number and has none."""
  missing = []
  for folder in FOLDERS:
    module = importlib.import_module(f"jaxreg.{folder}")
    for function in module.__all__:
      if inspect.isclass(getattr(module, function)):
        continue
      for option, parameter in inspect.signature(getattr(module, function)).parameters.items():
        number = isinstance(parameter.default, float)
        number |= (
          parameter.kind == parameter.KEYWORD_ONLY
          and parameter.annotation == "ArrayLike"
          and (parameter.default is parameter.empty)
        )
        name = f"{folder}.{function} {option}"
        whole = name.replace("_terms ", " ")  # the loss that is the sum of the terms
        if number and not {name, whole} & ALL.keys() and name not in STATIC:
          missing.append(name)
  assert not missing

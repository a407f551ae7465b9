"""Options that are numbers: a text is refused by name, and another value compiles nothing."""

import contextlib
import dataclasses
import functools
import importlib
import inspect

import contract
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_contract

from jaxreg import adversarial, calibration, constraints, ensembles, flatness, noise, optim
from jaxreg.ensembles._laplace import Laplace

NUMBERS = ("ArrayLike", "float", "int", "ScalarOrSchedule")
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
LABELS, ROW = jnp.array([0, 1, 2, 0]), jnp.arange(4.0)
LOG_PROBS = jax.nn.log_softmax(LOGITS)
PARAMS = {"kernel": jnp.ones((3, 2))}
DESCENT = optax.sgd(0.1)
IMAGES = {"inputs": jnp.full((4, 8, 8, 3), 0.5), "labels": LABELS}
ATTACK = {"x": LOGITS, "eps": 0.1}
MANY = {
  "apply_fn": lambda params, x, *, key: x @ params["kernel"],
  "params": PARAMS,
  "x": LOGITS,
  "num_samples": 2,
}
SCORES = {"scores": ROW, "other_scores": ROW}
MEMBERS = {"log_probs": LOG_PROBS[None]}
PREDICTED = {"log_probs": LOG_PROBS, "labels": LABELS}
INTERVALS = dict.fromkeys(("low", "high", "targets"), ROW)
HELD_OUT = dict.fromkeys(("held_out_low", "held_out_high", "held_out_targets"), ROW)
# Arguments of functions without a case that names its arguments; a key is added where one is needed.
CALLS = {
  "losses.class_weights": {"counts": np.array([3, 4]), "beta": 0.9, "limit": 3.0},
  "losses.transition_matrix": {"log_probs": LOG_PROBS, "quantile": 0.5},
  "losses.semi_supervised": {"supervised": ROW, "unsupervised": ROW, "labels": LABELS - 1, "weight": 0.5},
  "noise.drop_path_rates": {"rate": 0.5, "num_blocks": 3},
  "noise.label_noise": {"labels": LABELS, "num_classes": 3, "rate": 0.5},
  "noise.rnn_weight_noise": {"params": PARAMS, "carry": noise.rnn_weight_noise_init(PARAMS), "std": 0.5},
  "constraints.dual_init": {"multiplier": 1.0},
  "constraints.dual_step": {
    **{"state": constraints.dual_init(), "penalty": jnp.float32(1), "bound": 1.0},
    **{"learning_rate": 0.1, "decay": 0.5},
  },
  "constraints.lagrangian": {
    **{"state": constraints.dual_init(), "loss": jnp.float32(1), "penalty": jnp.float32(1), "bound": 1.0}
  },
  "constraints.proximal_gradient": {
    "loss_fn": lambda params: (params**2).sum(),
    **{"params": jnp.ones(2), "prox": lambda params, step: params, "num_steps": 2},
  },
  "augment.augmix": {"batch": IMAGES, "severity": 2, "alpha": 1.0},
  "augment.auto_augment": {"batch": IMAGES},
  "augment.color_jitter": {"batch": IMAGES, "brightness": 0.1},
  "augment.cutmix": {"batch": IMAGES, "num_classes": 3},
  "augment.cutout": {"batch": IMAGES, "size": 2},
  "augment.flip": {"batch": IMAGES},
  "augment.lighting": {"batch": IMAGES},
  "augment.manifold_mixup": {"batch": IMAGES, "layers": ["first"], "num_classes": 3},
  "augment.mixup": {"batch": IMAGES, "num_classes": 3},
  "augment.normalize": {"batch": IMAGES, "mean": 0.5, "std": 1.0},
  "augment.pad_crop": {"batch": IMAGES, "padding": 1},
  "augment.rand_augment": {"batch": IMAGES},
  "augment.random_erasing": {"batch": IMAGES},
  "augment.random_resized_crop": {"batch": IMAGES},
  "augment.rotate": {"batch": IMAGES, "max_degrees": 3.0},
  "augment.scale": {"batch": IMAGES, "max_factor": 1.3},
  "augment.translate": {"batch": IMAGES, "max_shift": 1},
  "augment.trivial_augment": {"batch": IMAGES},
  "adversarial.attack": {
    **ATTACK,
    **{"logits_fn": lambda x: x, "labels": LABELS, "num_steps": 1, "methods": ("apgd_ce",)},
  },
  "adversarial.pgd": {
    **ATTACK,
    **{"loss_of_inputs": lambda x: (x**2).sum(-1), "step_size": 0.1, "num_steps": 1},
  },
  "adversarial.trades_loss": {
    **ATTACK,
    **{"log_probs_fn": jax.nn.log_softmax, "step_size": 0.1, "num_steps": 1},
  },
  "adversarial.vat_loss": {**ATTACK, "log_probs_fn": jax.nn.log_softmax},
  "adversarial.virtual_adversarial": {**ATTACK, "log_probs_fn": jax.nn.log_softmax},
  "averaging.batch_norm_statistics": {
    "apply_fn": lambda params, state, x, *, key, train: (x, state),
    **{"params": None, "model_state": jnp.ones(2), "batches": [jnp.ones(2)], "momentum": 0.9},
  },
  "averaging.early_stopping": {"patience": 1},
  "averaging.ema": {},
  "averaging.power_ema": {},
  "averaging.soup": {},
  "averaging.swa": {},
  "averaging.swag": {},
  **dict.fromkeys(("ensembles.arithmetic", "ensembles.geometric", "ensembles.uncertainty"), MEMBERS),
  **dict.fromkeys(("ensembles.mc_predict", "ensembles.mc_regress"), MANY),
  "ensembles.laplace": {
    "apply_fn": lambda params, x, *, key: x @ params["kernel"],
    **{"params": PARAMS, "batch": LOGITS, "likelihood": "normal"},
  },
  "ensembles.probit_log_probs": {"logits": LOGITS, "variance": jnp.ones_like(LOGITS)},
  **{
    f"calibration.{name}": PREDICTED for name in ("nll", "brier", "ece_bins", "smooth_ece", "risk_coverage")
  },
  **{
    f"calibration.{name}": {"log_probs": LOG_PROBS}
    for name in ("aps_scores", "conformal_scores", "least_confidence")
  },
  **dict.fromkeys(("calibration.auroc", "calibration.fpr_at_tpr"), SCORES),
  "calibration.conformal_intervals": {"low": ROW, "high": ROW, **HELD_OUT, "alpha": 0.3},
  "calibration.conformal_risk_threshold": {"scores": LOGITS, "costs": jnp.exp(LOG_PROBS) / 2, "alpha": 0.4},
  "calibration.conformal_sets": {
    **{"scores": LOGITS, "held_out_scores": LOGITS, "held_out_labels": LABELS, "alpha": 0.4}
  },
  "calibration.conformal_threshold": {"scores": LOGITS, "labels": LABELS, "alpha": 0.4},
  "calibration.energy": {"logits": LOGITS},
  "calibration.fit_detector": {"features": LOGITS, "kind": "knn", "num_neighbors": 2, "quantile": 0.9},
  "calibration.fit_temperature": {"logits": LOGITS, "labels": LABELS},
  "calibration.interval_coverage": INTERVALS,
  "calibration.interval_scores": INTERVALS,
  "calibration.temper": {"logits": LOGITS, "temperature": 1.0},
  **{f"optim.{name}": {"inner": DESCENT} for name in ("sam", "asam", "gsam")},
  **{
    f"optim.{name}": {"learning_rate": 0.1}
    for name in ("adaptive", "exact_adam", "exact_adagrad", "fista", "sgld")
  },
  "optim.decay": {"inner": DESCENT, "learning_rate": 0.1, "rate": 0.5, "kind": "corrected"},
  "optim.gradient_noise": {},
  "optim.layer_decay": {"inner": DESCENT, "layers": ("*",), "decay": 0.5},
  "optim.mahalanobis": {"learning_rate": 0.1, "diagonal": 4.0},
  "optim.p_norm_sgd": {"learning_rate": 0.1, "p": 3.0},
  "optim.trust_region": {"learning_rate": 0.1, "numerator_decay": 0.5, "denominator_decay": 0.5},
}
# Options that are ignored, or trees of arrays.
NO_NUMBERS = {
  "averaging.soup score_fn",  # a function
  "constraints.prox_non_negative step",
  *(f"losses.dropmax_heads {name}" for name in ("classifier", "prior", "residual")),
}


# Infinity has a meaning here: all becomes 0, nothing is limited, or the sign is taken.
INFINITE = {
  "constraints.soft_threshold threshold",
  *("constraints.max_norm limit", "constraints.min_max_norm high", "losses.class_weights limit"),
  "optim.p_norm_sgd p",
}


# Infinity is the answer: a threshold that lets every class pass, or no interval that is sure enough.
UNBOUNDED = {
  *("calibration.conformal_intervals alpha", "calibration.conformal_threshold alpha"),
  *("calibration.conformal_risk_threshold alpha", "calibration.conformal_risk_threshold bound"),
}


# Numbers of either sign.
SIGNED = {"bound", "channel_axis", "epsilon", "fill", "max_log_alpha", "mean", "time_axis"}


def function_of(name):
  folder, _, function = name.partition(".")
  return getattr(importlib.import_module(f"jaxreg.{folder}"), function)


def called(name, base, **options):
  """The result of a call; what gives an average or an optimizer is used once."""
  function = function_of(name)
  key = {"key": jax.random.key(0)} if "key" in inspect.signature(function).parameters else {}
  result = function(**{**base(), **key, **options})
  if name.startswith("averaging.") and hasattr(result, "init"):
    metric = {"metric": 1.0} if name == "averaging.early_stopping" else {}
    state = result.update(result.init(PARAMS), PARAMS, **metric)
    return result.sample(jax.random.key(0), state) if hasattr(result, "sample") else result.params(state)
  if name.startswith("optim."):
    functions = {"grad_fn": lambda params: params, "value_fn": lambda params: params["kernel"].sum()}
    return result.update(PARAMS, result.init(PARAMS), PARAMS, **functions)
  return result


def bases():
  """The arguments of every function by its name: of its first case, or of `CALLS`."""
  found = {name: functools.partial(dict, call) for name, call in CALLS.items()}
  for case in test_contract.CASES:
    folder, _, function = case.function.partition(".")
    named = type(case).__call__ is contract.Case.__call__
    if named and folder in test_contract.FOLDERS and "." not in function:
      found.setdefault(case.function, functools.partial(arguments, case))
  return found


def arguments(case):
  return {**contract.make(case), **case.options}


BASES = bases()
OPTIONS = [
  f"{name} {option}"
  for name in BASES
  for option, parameter in inspect.signature(function_of(name)).parameters.items()
  if option != "key" and any(kind in str(parameter.annotation) for kind in NUMBERS)
]


@pytest.mark.parametrize("folder", sorted({name.partition(".")[0] for name in BASES}))
def test_a_text_for_a_number_is_refused_in_one_line_that_names_it(folder):
  options = [name for name in OPTIONS if name.startswith(f"{folder}.") and name not in NO_NUMBERS]
  assert options
  for each in options:
    name, option = each.split(" ")
    with pytest.raises((TypeError, ValueError)) as info:
      called(name, BASES[name], **{option: "0.5"})
    text = str(info.value)
    assert option in text.replace(",", " ").split(), f"{each}: {type(info.value).__name__}: {text}"
    assert "\n" not in text


@pytest.mark.parametrize("folder", sorted({name.partition(".")[0] for name in BASES}))
def test_values_without_sense_are_refused_in_one_line_that_names_the_option(folder):
  options = [name for name in OPTIONS if name.startswith(f"{folder}.") and is_strength(name)]
  for each in options:
    name, option = each.split(" ")
    values = [float("nan"), *[float("inf"), 1e300] * (each not in INFINITE)]
    values += [-0.5, -1] * (option not in SIGNED)
    for value in values:
      with pytest.raises((TypeError, ValueError)) as info:
        called(name, BASES[name], **{option: value})
      text = str(info.value)
      assert option in text.replace(",", " ").split(), f"{each}: {text}"
      assert "\n" not in text


@pytest.mark.thorough
@pytest.mark.parametrize("folder", sorted({name.partition(".")[0] for name in BASES}))
def test_large_and_small_values_give_numbers_or_are_refused(folder):
  """Each is held by float32, as are its square and its inverse."""
  options = [name for name in OPTIONS if name.startswith(f"{folder}.") and is_strength(name)]
  for each in set(options) - UNBOUNDED:
    name, option = each.split(" ")
    given = not_finite(called(name, BASES[name]))
    for value in (1e12, 1e-12, 1e-18):
      refused = "high" if each == "calibration.fit_temperature low" else option
      with contextlib.suppress(ValueError), naming(refused):
        assert not_finite(called(name, BASES[name], **{option: value})) <= given, f"{each}: {value}"


@contextlib.contextmanager
def naming(option):
  """A refusal in the block names the option."""
  try:
    yield
  except ValueError as error:
    if option not in str(error):
      raise AssertionError(f"{option} is not named") from error
    raise


def not_finite(result):
  leaves = [leaf for leaf in jax.tree.leaves(result) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
  return sum(not np.isfinite(np.float64(leaf)).all() for leaf in leaves)


def is_strength(each):
  """Whether an option is one number, not an array of data or a learning rate as Optax has it."""
  name, option = each.split(" ")
  parameter = inspect.signature(function_of(name)).parameters[option]
  given = BASES[name]().get(option, parameter.default)
  return (
    parameter.kind == parameter.KEYWORD_ONLY
    and isinstance(given, float | int)
    and not isinstance(given, bool)
    and each not in NO_NUMBERS
  )


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.endswith("rate") and is_strength(name)])
def test_the_ends_of_a_rate_may_be_integers(name):
  name, option = name.split(" ")
  for end in (0, 1):
    try:
      one = called(name, BASES[name], **{option: float(end)})
    except ValueError:
      continue  # 1 is out of the range of some
    jax.tree.map(np.testing.assert_array_equal, called(name, BASES[name], **{option: end}), one)


def test_every_function_is_called():
  missing = [
    f"{folder}.{name}"
    for folder in test_contract.FOLDERS
    for name in importlib.import_module(f"jaxreg.{folder}").__all__
    if folder not in ("flatness", "objective")
    and not inspect.isclass(function_of(f"{folder}.{name}"))
    and any(
      kind in str(parameter.annotation)
      for parameter in inspect.signature(function_of(f"{folder}.{name}")).parameters.values()
      for kind in NUMBERS
    )
    and f"{folder}.{name}" not in BASES
  ]
  assert set(missing) <= {
    *("adversarial.adversarial_loss", "augment.mix_hidden", "constraints.proximal"),
    *("losses.deterministic_dropmax_terms", "losses.dropmax_qp_terms", "losses.linear"),
    *("losses.multitask_terms", "losses.uncertainty_weighting_terms"),
    *("optim.path_sgd", "optim.reparameterize"),
  }


# Numbers that may be traced, by their annotation, and a value inside of their range.
TRACEABLE = [
  name
  for name in OPTIONS
  for parameter in [inspect.signature(function_of(name.split(" ")[0])).parameters[name.split(" ")[1]]]
  if "ArrayLike" in str(parameter.annotation)
  and isinstance(BASES[name.split(" ")[0]]().get(name.split(" ")[1], parameter.default), float)
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRACEABLE)
def test_another_value_of_a_traced_option_compiles_nothing(name):
  name, option = name.split(" ")
  default = inspect.signature(function_of(name)).parameters[option].default
  value = BASES[name]().get(option, default)
  program = jax.jit(lambda value: called(name, BASES[name], **{option: value}))
  first = program(jnp.float32(value))
  assert contract.compilations(lambda: program(jnp.float32(0.9 * value + 1e-3))) == 0
  for got, want in zip(jax.tree.leaves(first), jax.tree.leaves(called(name, BASES[name]))):
    if jnp.issubdtype(got.dtype, jnp.floating):
      np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
  "name",
  [
    *("calibration.fit_temperature low", "calibration.fit_temperature high"),
    "ensembles.laplace noise_variance",
  ],
)
def test_another_value_in_an_eager_call_compiles_nothing_either(name):
  name, option = name.split(" ")
  call = lambda value: called(name, BASES[name], **{option: value})
  call(50.0 if option == "high" else 0.5)
  assert contract.compilations(lambda: call(40.0 if option == "high" else 0.4)) == 0


def attacked(x, scale):
  return (scale * x**2).sum(axis=-1)


def sampled(params, x, *, key):
  return x @ params["kernel"] + jax.random.normal(key, (len(x), 2))


def shrunk(params, step):
  return params / (1 + step)


def fista_step(scale):
  loss = lambda params: (scale * params**2).sum()
  tx, params = optim.fista(9.0, prox=shrunk), jnp.ones(2)
  return tx.update(params, tx.init(params), params, value_fn=loss, grad_fn=jax.grad(loss))


POSTERIOR = Laplace({"w": jnp.ones(3)}, (), jnp.arange(3.0), sampled, (True,), ())
STEPS = {"eps": 0.1, "step_size": 0.1, "num_steps": 3}
RANGE = jnp.arange(1.0, 17.0)
# Eager calls with a new closure, as a loop of a user's own makes one in each step.
EAGER = {
  **{
    f"pgd {norm}": functools.partial(
      lambda scale, norm: adversarial.pgd(
        jax.random.key(0), lambda x: attacked(x, scale), LOGITS, norm=norm, **STEPS
      ),
      norm=norm,
    )
    for norm in ("linf", "l2", "l1")
  },
  "trades": lambda scale: adversarial.trades_loss(
    jax.random.key(0), lambda x: jax.nn.log_softmax(scale * x), LOGITS, **STEPS
  ),
  "vat": lambda scale: adversarial.vat_loss(
    jax.random.key(0), lambda x: jax.nn.log_softmax(scale * x), LOGITS, eps=0.1, num_steps=2
  ),
  "fista": fista_step,
  "proximal_gradient": lambda scale: constraints.proximal_gradient(
    lambda params: (scale * jnp.square(params - 1)).sum(),
    jnp.zeros(2),
    shrunk,
    num_steps=20,
    step=scale,
    shrink=scale / 4,
  ),
  **{
    f"attack {norm}": functools.partial(
      lambda scale, norm: adversarial.attack(
        *(jax.random.key(0), lambda x: scale * x.mean((1, 2)) @ jnp.eye(3, 4), IMAGES["inputs"], LABELS),
        **{"eps": scale / 9, "clip": (0.0, scale), "norm": norm, "chunk_size": 3},
        **{"num_steps": 3, "num_targets": 2, "num_queries": 5},
      ),
      norm=norm,
    )
    for norm in ("linf", "l2")
  },
  "mc_predict": lambda scale: ensembles.mc_predict(
    lambda params, x, *, key: scale * sampled(params, x, key=key),
    **{"params": PARAMS, "x": LOGITS, "key": jax.random.key(0), "num_samples": 5, "chunk_size": 2},
  ),
  "geometric": lambda scale: ensembles.geometric(LOG_PROBS[None] + 0 * scale),
  "best_precision": lambda scale: dataclasses.replace(
    POSTERIOR, values=scale * POSTERIOR.values
  ).best_precision(),
  **{
    f"fit_detector {kind}": functools.partial(
      lambda scale, **options: calibration.fit_detector(scale * LOGITS, **options)(jnp.tile(LOGITS, (65, 1))),
      **{"kind": kind, "labels": LABELS, "num_classes": 3, "num_neighbors": 2},
    )
    for kind in ("mahalanobis", "relative_mahalanobis", "knn")
  },
  **{
    name: functools.partial(
      lambda scale, name: getattr(flatness, name)(RANGE, jnp.exp(scale * jnp.sin(RANGE))), name=name
    )
    for name in ("power_law_fit", "broken_power_law_fit")
  },
}


@pytest.mark.parametrize("name", EAGER)
def test_an_eager_call_with_another_closure_compiles_nothing(name):
  for scale in (1.0, 2.0):
    EAGER[name](jnp.float32(scale))
  assert contract.compilations(lambda: EAGER[name](jnp.float32(3.0))) == 0
  # Nothing of an earlier closure is kept: the program gives the same.
  program = jax.jit(EAGER[name])
  for scale in (2.0, 0.5):
    first, jitted = EAGER[name](jnp.float32(scale)), program(jnp.float32(scale))
    for got, want in zip(jax.tree.leaves(first), jax.tree.leaves(jitted), strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

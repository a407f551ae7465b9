"""Optimizers and schedules against float64 loops written from their definitions."""

import dataclasses
import fnmatch
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import runs

from jaxreg import train
from jaxreg.train import RunError
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.fields import row_of
from jaxreg.train.registry import REGISTRY, choose
from jaxreg.train.step.optimizer import make_optimizer
from jaxreg.train.step.schedule import make_schedule
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.step import make_train_step

STEPS = 20
SHAPES = {
  "backbone": {"Dense_0": {"kernel": (4, 3), "bias": (3,)}},
  "head": {name: {"kernel": (3, 2), "bias": (2,)} for name in ("classifier", "prior", "residual")},
}


def is_shape(x):
  return isinstance(x, tuple)


def draw(random):
  return jax.tree.map(lambda shape: random.normal(size=shape), SHAPES, is_leaf=is_shape)


def problem():
  """Parameters and 20 random gradients, in float64."""
  random = np.random.default_rng(0)
  return draw(random), [draw(random) for _ in range(STEPS)]


def rate(step):
  """A schedule with a warm-up and a jump, as a plain function; exact in float32, as Optax computes it."""
  return 0.125 * step / 4 if step < 4 else (0.125 if step < 11 else 0.03125)


SCHEDULE = dict(steps_per_epoch=1, num_steps=STEPS, warmup_epochs=4.0, boundaries=(11,), factor=0.25)
LENGTH = ("steps_per_epoch", "num_steps", "warmup_epochs")


def schedule_of(name, peak, **options):
  length = {key: options.pop(key) for key in LENGTH if key in options}
  return make_schedule(choose("optimizer.schedule", name, options), peak, **length)


def optimizer_of(name, schedule, options, *, wrapper=None, **more):
  wrapper = wrapper and choose("optimizer", *wrapper)
  return make_optimizer(choose("optimizer", name, options), schedule, wrapper=wrapper, **more)


def ours(name, options=None, **arguments):
  params, grads = problem()
  with jax.enable_x64(True):
    optimizer = optimizer_of(name, schedule_of("step", 0.125, **SCHEDULE), options or {}, **arguments)
    params = jax.tree.map(jnp.asarray, params)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for grad in grads:
      updates, state = update(jax.tree.map(jnp.asarray, grad), state, params)
      params = optax.apply_updates(params, updates)
    assert jax.tree.leaves(params)[0].dtype == jnp.float64
    return jax.device_get(params)


DECAYING = {
  "kernels_only": lambda path: path[-1] == "kernel",
  "no_branches": lambda path: path[1] not in ("prior", "residual"),
  "everything": lambda path: True,
}


def theirs(direction, *, coupled=0.0, decoupled=0.0, mask="kernels_only", clip_norm=0.0):
  """`direction(memory, g, t)` is what a leaf moves along at the t-th update, t from 1."""
  params, grads = problem()
  flat = {tuple(k.key for k in path): w for path, w in jax.tree_util.tree_leaves_with_path(params)}
  memory = {path: {} for path in flat}
  for step, grad in enumerate(grads):
    grad = {tuple(k.key for k in path): g for path, g in jax.tree_util.tree_leaves_with_path(grad)}
    norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
    for path, w in flat.items():
      g, decays = grad[path], DECAYING[mask](path)
      if clip_norm and norm > clip_norm:
        g = g * clip_norm / norm
      g = g + coupled * decays * w
      flat[path] = w - rate(step) * (direction(memory[path], g, step + 1) + decoupled * decays * w)
  return flat


def assert_same(params, expected):
  got = {tuple(k.key for k in path): w for path, w in jax.tree_util.tree_leaves_with_path(params)}
  assert got.keys() == expected.keys()
  start = {tuple(k.key for k in path): w for path, w in jax.tree_util.tree_leaves_with_path(problem()[0])}
  for path, value in expected.items():
    np.testing.assert_allclose(got[path], value, rtol=1e-10, atol=1e-10, err_msg="/".join(path))
    assert np.abs(value - start[path]).max() > 1e-3


def sgd(memory, g, t, momentum=0.0, nesterov=False):
  memory["m"] = g + momentum * memory.get("m", 0)
  return g + momentum * memory["m"] if nesterov else memory["m"]


def adam(memory, g, t, b1=0.9, b2=0.999, eps=1e-8):
  memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
  memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g**2
  return (memory["m"] / (1 - b1**t)) / (np.sqrt(memory["v"] / (1 - b2**t)) + eps)


def rmsprop(memory, g, t, decay=0.9, eps=1e-8):
  memory["v"] = decay * memory.get("v", 0) + (1 - decay) * g**2
  return g / np.sqrt(memory["v"] + eps)


def centered_rmsprop(memory, g, t):
  memory["v"] = 0.9 * memory.get("v", 0) + 0.1 * g**2
  memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
  return g / np.sqrt(memory["v"] - memory["m"] ** 2 + 1e-8)


def adagrad(memory, g, t, initial=0.1, eps=1e-7):
  memory["v"] = memory.get("v", initial) + g**2
  return g / np.sqrt(memory["v"] + eps)


OPTIMIZERS = {
  "sgd": ("sgd", {"momentum": None, "nesterov": False}, sgd),
  "momentum": ("sgd", {"momentum": 0.9}, lambda *a: sgd(*a, momentum=0.9)),
  "nesterov": ("sgd", {"momentum": 0.8, "nesterov": True}, lambda *a: sgd(*a, momentum=0.8, nesterov=True)),
  "adam": ("adam", {}, adam),
  "adam, own numbers": (
    "adam",
    {"b1": 0.8, "b2": 0.95, "eps": 1e-3},
    lambda *a: adam(*a, b1=0.8, b2=0.95, eps=1e-3),
  ),
  "adamw": ("adamw", {}, adam),
  "rmsprop": ("rmsprop", {"momentum": None}, rmsprop),
  "centered rmsprop": ("rmsprop", {"centered": True}, centered_rmsprop),
  "adagrad": ("adagrad", {}, adagrad),
  "exact adagrad": ("exact_adagrad", {}, lambda *a: adagrad(*a, initial=0.0, eps=0.0)),
  "exact adam": ("exact_adam", {"b1": 0.8, "b2": 0.95}, lambda *a: adam(*a, b1=0.8, b2=0.95, eps=0.0)),
  "exact rmsprop": ("adaptive", {"b2": 0.9, "debias": False}, lambda *a: rmsprop(*a, eps=0.0)),
  "normalised leaves": (
    "trust_region",
    {"blocks": "leaf", "numerator_decay": None},
    lambda memory, g, t: g / np.sqrt((g**2).sum()),
  ),
  "3-norm": ("p_norm_sgd", {"p": 3.0}, lambda memory, g, t: np.sign(g) * np.sqrt(np.abs(g))),
}
# Every direction with decay beside it; some without decay, and with decay in the gradient.
CASES = [(case, "decoupled") for case in OPTIMIZERS]
CASES += [
  (case, how) for case in ("sgd", "adam", "adagrad", "normalised leaves") for how in ("plain", "coupled")
]


@pytest.mark.parametrize(("case", "how"), CASES)
def test_optimizer(case, how):
  name, options, direction = OPTIMIZERS[case]
  if how == "plain":
    assert_same(ours(name, options), theirs(direction))
  else:
    params = ours(name, options, weight_decay=0.25, kind=how)
    assert_same(params, theirs(direction, **{how: 0.25}))


def test_adamw_decays_beside_the_gradient_only():
  with pytest.raises(ValueError, match="kind must not be coupled with adamw"):
    ours("adamw", weight_decay=0.25)


@pytest.mark.parametrize("mask", DECAYING)
@pytest.mark.parametrize(("name", "how"), [("sgd", "coupled"), ("adamw", "decoupled")])
def test_masks_of_weight_decay(name, how, mask):
  """`no_branches`, the rule of DropMax's released code: biases decay, the two mask branches do not."""
  params = ours(name, {}, weight_decay=0.25, kind=how, mask=mask)
  assert_same(params, theirs(sgd if name == "sgd" else adam, mask=mask, **{how: 0.25}))


@pytest.mark.parametrize(("name", "clip_norm"), [("adam", 1.0), ("sgd", 6.5)])
def test_clipping_comes_before_weight_decay(name, clip_norm):
  norms = [np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grad))) for grad in problem()[1]]
  clipped = sum(norm > clip_norm for norm in norms)
  assert clipped == STEPS if clip_norm == 1.0 else 0 < clipped < STEPS
  params = ours(name, clip_norm=clip_norm, weight_decay=0.25)
  assert_same(params, theirs(sgd if name == "sgd" else adam, clip_norm=clip_norm, coupled=0.25))


# Schedules, at explicit steps.


IN_TENS = {"steps_per_epoch": 10, "num_steps": 100}
WARM = {**IN_TENS, "warmup_epochs": 2.0}
IN_PAIRS = {"steps_per_epoch": 2, "num_steps": 8, "factor": 0.5}
THIRDS = {"steps_per_epoch": 7, "num_steps": 30, "boundaries": (1 / 3, 2 / 3), "relative": True}
HALF = 1 / np.sqrt(2)
# The name, the peak, its options, and the rates by step.
SCHEDULES = [
  ("constant", 0.25, IN_TENS, {0: 0.25, 5: 0.25, 99: 0.25}),
  ("step", 1.0, {**IN_TENS, "boundaries": (2, 5.0)}, {0: 1, 19: 1, 20: 0.1, 49: 0.1, 50: 0.01, 99: 0.01}),
  # The thirds of the released code.
  ("step", 1e-3, THIRDS, {0: 1e-3, 9: 1e-3, 10: 1e-4, 19: 1e-4, 20: 1e-5, 29: 1e-5}),
  # Boundaries that coincide each count.
  ("step", 1.0, {**IN_PAIRS, "boundaries": (1, 1)}, {1: 1, 2: 0.25, 4: 0.25, 7: 0.25}),
  ("step", 1.0, {**IN_PAIRS, "boundaries": (1, 1.1, 2)}, {1: 1, 2: 0.25, 4: 0.125, 7: 0.125}),
  ("step", 1.0, {**IN_PAIRS, "boundaries": (0,)}, {1: 0.5, 2: 0.5, 4: 0.5, 7: 0.5}),
  ("cosine", 2.0, IN_TENS, {0: 2, 25: 1 + HALF, 50: 1, 75: 1 - HALF, 100: 0, 150: 0}),
  ("cosine", 2.0, {**IN_TENS, "final": 0.1}, {0: 2, 50: 1.1, 100: 0.2}),
  ("cosine", 1.0, WARM, {0: 0, 1: 0.05, 10: 0.5, 19: 0.95, 20: 1, 60: 0.5, 100: 0}),
  ("constant", 1.0, WARM, {0: 0, 5: 0.25, 20: 1, 99: 1}),
  # The boundaries count from the start of the run; one that falls into the warm-up has acted when it ends.
  ("step", 1.0, {**WARM, "boundaries": (5,)}, {10: 0.5, 20: 1, 49: 1, 50: 0.1, 99: 0.1}),
  ("step", 1.0, {**WARM, "boundaries": (1,)}, {20: 0.1, 99: 0.1}),
  # A fraction of an epoch of warm-up.
  ("constant", 1.0, {**IN_TENS, "warmup_epochs": 0.4}, {0: 0, 1: 0.25, 2: 0.5, 3: 0.75, 4: 1}),
]


def at(steps, *arguments, **options):
  schedule = schedule_of(*arguments, **options)
  return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(("name", "peak", "options", "rates"), SCHEDULES)
def test_a_schedule_at_explicit_steps(name, peak, options, rates):
  found = at(rates, name, peak, **options)
  np.testing.assert_allclose(found, list(rates.values()), rtol=1e-6, atol=1e-6 if name == "cosine" else 0)


@pytest.mark.parametrize(("d_model", "warmup_steps"), [(50, 4000), (512, 3)])
def test_noam(d_model, warmup_steps):
  options = dict(steps_per_epoch=1, num_steps=10_000, d_model=d_model, warmup_steps=warmup_steps)
  steps = [0, 1, 2, 3, 3998, 3999, 4000, 9999]
  t = np.array(steps, np.float64) + 1
  expected = 2.0 * d_model**-0.5 * np.minimum(t**-0.5, t * warmup_steps**-1.5)
  np.testing.assert_allclose(at(steps, "noam", 2.0, **options), expected, rtol=1e-6)
  # The largest is that of the last step of the warm-up.
  assert np.argmax(schedule_of("noam", 2.0, **options)(np.arange(10_000))) == warmup_steps - 1


@pytest.mark.thorough
def test_unbalanced_networks_are_the_same_function():
  fields = {"method.name": "softmax", "model.MLP.widths": (16, 8)}
  data = load_data(runs.make_config(fields)).describe()
  plain, other = (
    build(runs.make_config({**fields, "model.unbalance": spread}), data) for spread in (0.0, 1.0)
  )
  inputs = np.random.default_rng(0).integers(0, 17, (6, *data.input_shape)) / data.scale
  states = [jax.jit(program.init)(np.uint32(3)) for program in (plain, other)]
  logits = [plain.apply_fn(s.params, {}, inputs, key=None, train=False)[0]["logits"] for s in states]
  np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)
  for leaf in ("Dense_0", "Dense_1"):
    ratio = np.divide(*(s.params["backbone"][leaf]["kernel"] for s in states))
    assert np.log(np.abs(ratio)).std() > 0.5


@pytest.mark.thorough
def test_path_sgd_of_the_trainer_is_that_of_its_network():
  """On its logits, without dropout, from an input of ones."""
  config = runs.make_config(
    {"method.name": "softmax", "optimizer.name": "path_sgd", "model.MLP.dropout_rate": 0.0}
  )
  data = load_data(config).describe()
  program = build(config, data)
  state = jax.jit(program.init)(np.uint32(0))
  size = np.prod(data.input_shape)
  x = np.random.default_rng(0).integers(0, 17, (4, *data.input_shape)).astype(data.input_dtype)
  batch = {"inputs": x, "labels": np.arange(4), "weights": np.ones(4, np.float32)}
  after, _ = jax.jit(program.train_step)(state, batch)

  def loss(w):
    hidden, head = w["backbone"]["Dense_0"], w["head"]["classifier"]
    h = jax.nn.relu(jnp.float32(x).reshape(4, size) / data.scale @ hidden["kernel"] + hidden["bias"][None])
    logits = h @ head["kernel"] + head["bias"][None]
    return -jnp.mean(jax.nn.log_softmax(logits)[np.arange(4), np.arange(4)])

  g = jax.device_get(jax.jit(jax.grad(loss))(state.params))
  w = jax.tree.map(lambda w: np.square(np.float64(w)), jax.device_get(state.params))
  leaving = w["head"]["classifier"]["kernel"].sum(1)
  coming = w["backbone"]["Dense_0"]["kernel"].sum(0) + w["backbone"]["Dense_0"]["bias"]
  moved = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), after.params, state.params)
  rate = config.optimizer.learning_rate
  for got, want in (
    (moved["backbone"]["Dense_0"]["kernel"], g["backbone"]["Dense_0"]["kernel"] / leaving),
    (moved["head"]["classifier"]["kernel"], g["head"]["classifier"]["kernel"] / coming[:, None]),
    (moved["head"]["classifier"]["bias"], g["head"]["classifier"]["bias"]),
  ):
    np.testing.assert_allclose(got, -rate * want, rtol=1e-3, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("fields", "match"),
  [
    ({"optimizer.name": "path_sgd", "model.name": "CifarResNet"}, "path_sgd is for networks"),
    ({"optimizer.name": "trust_region", "optimizer.trust_region.blocks": "layer"}, "blocks: must be one of"),
    (
      {"optimizer.name": "mahalanobis", "optimizer.mahalanobis.metric": ("w",)},
      "mahalanobis.metric: must have entries",
    ),
    (
      {"optimizer.schedule.name": "step", "optimizer.schedule.step.boundaries": (10**9,)},
      "^config: .*optimizer",
    ),
  ],
)
def test_refusals_of_optimizers(fields, match):
  config = runs.make_config(fields)
  data = dataclasses.replace(load_data(config).describe(), input_shape=(32, 32, 3))
  with pytest.raises(RunError, match=match):
    build(config, data)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("name", "options", "wrapper"),
  [
    ("sgld", {"temperature": 1.0}, None),
    ("sgd", {}, ("gradient_noise", {"variance": 25.0, "gamma": 0.0})),
    ("noisy_sgd", {"variance": 25.0, "gamma": 0.0}, None),
  ],
)
def test_noise_of_optimizers_is_of_seed_and_step(name, options, wrapper):
  """Replicas have noise of their own, and no two steps the same."""
  optimizer = optimizer_of(name, optax.constant_schedule(0.04), options, wrapper=wrapper)
  params = {"kernel": jnp.zeros((40, 30))}
  objective = lambda params, state, batch, key: (0.0 * params["kernel"].sum(), ({}, {}))
  step = jax.jit(make_train_step(objective, optimizer, optax.constant_schedule(0.04)))

  def start(seed):
    return TrainState(jnp.int32(0), jax.random.key(seed), params, {}, optimizer.init(params))

  batch = {"weights": jnp.ones(2)}
  first, _ = step(start(0), batch)
  second, _ = step(first, batch)
  other, _ = step(start(1), batch)
  moves = first.params["kernel"], second.params["kernel"] - first.params["kernel"], other.params["kernel"]
  for move in moves:
    np.testing.assert_allclose(np.std(move), 0.2, rtol=0.1)
  assert np.abs(np.corrcoef([np.ravel(move) for move in moves]) - np.eye(3)).max() < 0.15


def test_every_optimizer_of_optax_can_be_named():
  """But the deprecated first form of optimistic Adam, and those of differential privacy, which need more."""
  functions = inspect.getmembers(optax, lambda f: inspect.isfunction(f) or isinstance(f, functools.partial))
  takes_rate = lambda f: any("learning_rate" in name for name in inspect.signature(f).parameters)
  known = {
    name for name, f in functions if name[0] != "_" and not name.startswith("scale_") and takes_rate(f)
  }
  assert {"adam", "lbfgs", "nadamw", "polyak_sgd"} < known
  assert known - set(REGISTRY["optimizer"]) == {"optimistic_adam"}


COEFFICIENTS = np.array([1.0, 4.0, 0.5])
START = np.array([0.5, -0.2, 1.0])


def steps_of(name, options, *, learning_rate=0.1, steps=1, axis_name=None, **more):
  """Parameters of 0.5 sum c w^2 after some steps of the trainer's."""
  schedule = optax.constant_schedule(learning_rate)
  optimizer = optimizer_of(name, schedule, options, **more)

  def objective(params, state, batch, key):
    # Devices see different parts of it, which weigh differently.
    count = batch["weights"].sum()
    total = (batch["weights"] * batch["inputs"]).sum() * 0.5 * (COEFFICIENTS * params["w"] ** 2).sum()
    return total / count, ({}, {"loss": (total, count)})

  step = functools.partial(make_train_step(objective, optimizer, schedule), axis_name=axis_name)
  batch = {"weights": jnp.array([1.0, 3.0]), "inputs": jnp.array([0.25, 1.25])}
  with jax.enable_x64(True):
    params = {"w": jnp.asarray(START)}
    state = TrainState(jnp.int32(0), jax.random.key(0), params, {}, optimizer.init(params))
    if axis_name:
      step = jax.vmap(step, in_axes=(None, 0), out_axes=None, axis_name=axis_name)
      batch = jax.tree.map(lambda x: x[:, None], batch)
    run = jax.jit(step)
    for _ in range(steps):
      state, _ = run(state, batch)
    return np.asarray(state.params["w"])


@pytest.mark.parametrize("axis_name", [None, "data"])
def test_sam_of_the_trainer_looks_at_the_same_batch(axis_name):
  g = COEFFICIENTS * START
  wanted = START - 0.1 * COEFFICIENTS * (START + 0.3 * g / np.linalg.norm(g))
  got = steps_of("sgd", {}, wrapper=("sam", {"rho": 0.3}), axis_name=axis_name)
  np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_sam_decays_and_clips_the_gradient_that_it_steps_with():
  g = COEFFICIENTS * START
  there = COEFFICIENTS * (START + 0.3 * g / np.linalg.norm(g))
  clipped = there * min(1, 0.5 / np.linalg.norm(there))
  got = steps_of("sgd", {}, wrapper=("sam", {"rho": 0.3}), clip_norm=0.5, weight_decay=0.2, mask="everything")
  np.testing.assert_allclose(got, START - 0.1 * (clipped + 0.2 * START), rtol=1e-12)


@pytest.mark.thorough
def test_optimizers_that_need_the_loss():
  g, loss = COEFFICIENTS * START, 0.5 * (COEFFICIENTS * START**2).sum()
  got = steps_of("polyak_sgd", {"variant": "sps"}, learning_rate=0.5)
  np.testing.assert_allclose(got, START - loss / (g @ g) * g, rtol=1e-12)
  got = steps_of("polyak_sgd", {"variant": "sps"}, learning_rate=0.3)
  np.testing.assert_allclose(got, START - 0.3 * g, rtol=1e-12)
  assert np.abs(steps_of("lbfgs", {}, learning_rate=1.0, steps=8)).max() < 1e-8


def test_a_metric_by_names_and_other_coordinates():
  got = steps_of("mahalanobis", {"metric": (("w", 4.0), ("*", 3), ("*bias", 7), ("w", 4.0))})
  np.testing.assert_allclose(got, START - 0.1 * COEFFICIENTS * START / 4, rtol=1e-12)
  y = np.arcsinh(START / 0.3)
  moved = y - 0.1 * COEFFICIENTS * START * 0.3 * np.cosh(y)
  wrapper = ("reparameterize", {"coordinates": "sinh", "scale": 0.3})
  np.testing.assert_allclose(steps_of("sgd", {}, wrapper=wrapper), 0.3 * np.sinh(moved), rtol=1e-12)
  for metric in ("w", ("w", 0), ("w", "x"), ("", 1), ("w", 1, 2)):
    with pytest.raises(ValueError, match="metric must have entries such as"):
      steps_of("mahalanobis", {"metric": (metric,)})
  with pytest.raises(ValueError, match="coordinates must be one of linear, sinh, got 'x'"):
    steps_of("sgd", {}, wrapper=("reparameterize", {"coordinates": "x"}))


KL_SPARSITY = {
  "regularizers.names": ("kl_sparsity",),
  "model.MLP.activation": "sigmoid",
  "model.MLP.dropout_rate": 0.0,
}


NOAM = {"optimizer.schedule.name": "noam"}
SPLIT = {**KL_SPARSITY, "model.MLP.widths": (8, 8), "model.MLP.dropout_rates": (0.0, 0.5)}
CONFLICTS = [
  ({**NOAM, "optimizer.schedule.noam.warmup_steps": 0}, r"schedule\.noam\.warmup_steps: must be at least 1"),
  ({**NOAM, "optimizer.schedule.warmup_epochs": 1.0}, r"schedule\.warmup_epochs: noam warms up over"),
  ({"model.unbalance": 1.0, "model.name": "LeNet"}, r"model\.unbalance: must be 0 with model.name=LeNet"),
  ({"model.unbalance": 1.0, "model.MLP.activation": "tanh"}, "must be 0"),
  ({"model.unbalance": 1.0, "model.MLP.layer": "weight_norm"}, "must be 0"),
  ({"optimizer.name": "path_sgd", "model.MLP.activation": "selu"}, "is for"),
  ({"optimizer.name": "path_sgd", "model.name": "RNN"}, "is for"),
  ({"regularizers.names": ("kl_sparsity",)}, "is for"),
  ({**KL_SPARSITY, "model.MLP.widths": ()}, "is for"),
  ({**KL_SPARSITY, "model.MLP.dropout_rate": 0.5}, "is for"),
  (SPLIT, "is for"),
  ({"optimizer.adaptive.b2": 1.5}, r"^optimizer\.adaptive\.b2: must be at least 0 and at most 1, got 1\.5$"),
  ({"optimizer.sam.inner": "sam"}, r"optimizer\.sam\.inner: .*'sam'"),
  (
    {"optimizer.name": "rprop", "optimizer.schedule.name": "cosine"},
    r"optimizer\.schedule: rprop takes .* got cosine",
  ),
  ({"optimizer.name": "lbfgs", "optimizer.clip_norm": 1.0}, "lbfgs searches along the loss itself"),
  ({"optimizer.name": "sam", "optimizer.sam.inner": "lbfgs"}, "optimizer.name=lbfgs, got jit, 1 and sam"),
  ({"optimizer.name": "fista", "augment.names": ("flip",)}, "fista searches along a loss without noise"),
  ({"optimizer.name": "sam", "optimizer.sam.inner": "fista"}, "optimizer.name=fista, got jit, 1 and sam"),
  ({"optimizer.name": "polyak_sgd", "optimizer.clip_norm": 1.0}, "polyak_sgd compares the loss"),
  (
    {"optimizer.name": "sam", "optimizer.sam.inner": "polyak_sgd"},
    "polyak_sgd compares the loss",
  ),
  (
    {"optimizer.name": "gradient_noise", "optimizer.gradient_noise.inner": "noisy_sgd"},
    "noisy_sgd draws the same noise",
  ),
]


@pytest.mark.parametrize(("fields", "message"), CONFLICTS)
def test_what_does_not_go_together(fields, message):
  with pytest.raises(RunError, match=message):
    runs.make_config({"method.name": "softmax", **fields})


def test_an_average_of_ours_may_be_flat():
  runs.make_config(KL_SPARSITY)
  runs.make_config({"optimizer.name": "adaptive", "optimizer.adaptive.b2": 1.0})


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in REGISTRY["optimizer"] if name != "path_sgd"])
def test_every_optimizer_learns(name):
  """Some steps of each on a linear network, by its name: the loss falls."""
  fields = {"method.name": "softmax", "model.MLP.widths": (), "data.subset.limit": 64, "batch_size": 64}
  fields["model.MLP.dropout_rate"] = 0.0
  # The first steps of `dog` are a millionth of the parameters times the rate.
  rates = {"adadelta": 30.0, "dog": 1.0, "lars": 3.0, "lbfgs": 1.0, "polyak_sgd": 1.0, "sgld": 1e-4}
  rate = rates.get(name, 1e-2)
  config = runs.make_config({**fields, "optimizer.name": name, "optimizer.learning_rate": rate})
  dataset = load_data(config)
  program = build(config, dataset.describe())
  state, step = jax.jit(program.init)(np.uint32(0)), jax.jit(program.train_step)
  batch = {"inputs": dataset.train.inputs, "labels": dataset.train.labels, "weights": np.ones(64, np.float32)}
  losses = []
  for _ in range(8):
    state, metrics = step(state, batch)
    losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
  assert np.isfinite(losses).all()
  assert min(losses[4:]) < losses[0]


SMALL = [
  name
  for name in flatten(train.base_config())
  if fnmatch.fnmatch(name, "optimizer.*.eps")
  or fnmatch.fnmatch(name, "optimizer.*.estim_lr0")
  or name == "optimizer.radam.threshold"
]


@pytest.mark.parametrize("field", SMALL)
def test_the_smallest_value_that_is_allowed_gives_finite_steps(field):
  """Of a network with one unit whose gradient is 0."""
  allowed, (_, name, option) = row_of(field).allowed, field.split(".")
  low = float(allowed[1:].partition(",")[0])
  if allowed[0] == "(":
    with pytest.raises(RunError, match=rf"^{field}: must be above 0 and at most 1e6, got 0"):
      runs.make_config({"optimizer.name": name, field: 0.0})
    return
  if name in ("path_sgd", "asam"):  # these need a network or an inner optimizer
    return
  tx = optimizer_of(name, schedule_of("constant", 0.01, **IN_TENS), {option: low})
  params = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}

  def loss(params, **_):
    return jnp.sum(jnp.array([1.0, 0.0]) * (params["kernel"].sum(0) + params["bias"]) ** 2)

  @jax.jit
  def step(params, state):
    value, grads = jax.value_and_grad(loss)(params)
    updates, state = tx.update(
      grads, state, params, value=value, grad=grads, value_fn=loss, grad_fn=jax.grad(loss)
    )
    return optax.apply_updates(params, updates), state

  state = tx.init(params)
  for _ in range(8):
    params, state = step(params, state)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


# Optimizers of optax.contrib, through the trainer.


FROM_CONTRIB = (
  *("acprop", "ademamix", "simplified_ademamix", "adopt", "cocob", "dadapt_adamw", "dog", "dowg"),
  *("momo", "momo_adam", "prodigy", "muon", "sophia", "schedule_free"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FROM_CONTRIB)
def test_a_contributed_optimizer_lowers_the_loss(name):
  wrapper = None
  if name == "schedule_free":
    name, wrapper = "sgd", ("schedule_free", {})
  start = 0.5 * (COEFFICIENTS * START**2).sum()
  tx = optimizer_of(name, schedule_of("constant", 0.1, **IN_TENS), {}, wrapper=wrapper)
  params = {"kernel": jnp.outer(jnp.asarray(START), jnp.ones(2))}

  def loss(params, **_):
    return 0.5 * jnp.sum(COEFFICIENTS[:, None] * params["kernel"] ** 2) / 2

  @jax.jit
  def step(params, state):
    value, grads = jax.value_and_grad(loss)(params)
    more = dict(value=value, grad=grads, value_fn=loss, grad_fn=jax.grad(loss), key=jax.random.key(0))
    updates, state = tx.update(grads, state, params, **more)
    return optax.apply_updates(params, updates), state

  state = tx.init(params)
  for _ in range(30):
    params, state = step(params, state)
  assert loss(params) < start


def test_muon_takes_kernels_by_their_shape():
  """Its updates of a kernel are nearly orthogonal matrices; a convolution's rows are its inputs."""
  rng = np.random.default_rng(0)
  shapes = {
    "Conv_0/kernel": (3, 3, 2, 5),
    "Dense_0/kernel": (6, 4),
    "Dense_0/bias": (4,),
    "Embed_0/embedding": (7, 3),
  }
  params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
  tree = {}
  for name, x in params.items():
    layer, leaf = name.split("/")
    tree.setdefault(layer, {})[leaf] = x
  tx = optimizer_of("muon", schedule_of("constant", 1.0, **IN_TENS), {"nesterov": False})
  updates, _ = tx.update(tree, tx.init(tree), tree)
  for layer, columns in (("Conv_0", 5), ("Dense_0", 4)):
    values = np.linalg.svd(np.asarray(updates[layer]["kernel"]).reshape(-1, columns), compute_uv=False)
    assert values.max() / values.min() < 2
  for layer, leaf in (("Dense_0", "bias"), ("Embed_0", "embedding")):  # Adam's first step
    np.testing.assert_allclose(np.abs(updates[layer][leaf]), 1.0, rtol=1e-4)


def test_sophia_is_a_newton_step_on_a_quadratic():
  """The diagonal of a diagonal Hessian has no error: after an estimate a step is `m / (gamma h)`, clipped."""
  a, w = np.array([4.0, 0.5]), np.array([0.3, -2.0])
  options = {"gamma": 2.0, "b1": 0.0, "b2": 0.0, "update_interval": 1}
  tx = optimizer_of("sophia", schedule_of("constant", 0.5, **IN_TENS), options)
  loss = lambda params, **_: 0.5 * jnp.sum(a * params["kernel"] ** 2)
  params = {"kernel": jnp.asarray(w, jnp.float32)}
  grads = jax.grad(loss)(params)
  _, state = tx.update(grads, tx.init(params), params, value_fn=loss)
  updates, _ = tx.update(grads, state, params, value_fn=loss)
  np.testing.assert_allclose(updates["kernel"], -0.5 * np.clip(a * w / (2.0 * a), -1, 1), rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_schedule_free_evaluates_its_average(decay):
  """In float64 NumPy: `z` steps, `x` is its mean, and the gradient is taken between both."""
  params, grads = problem()
  beta, rate_of, size = 0.9, 0.125, 2**3
  with jax.enable_x64(True):
    tx = optimizer_of(
      "sgd",
      schedule_of("constant", rate_of, **IN_TENS),
      {},
      wrapper=("schedule_free", {"b1": beta}),
      **{"weight_decay": decay, "kind": "decoupled", "mask": "everything"},
    )
    y = jax.tree.map(jnp.asarray, params)
    state = TrainState(jnp.int32(0), None, y, {}, tx.init(y))
    for grad in grads[:size]:
      updates, opt_state = tx.update(jax.tree.map(jnp.asarray, grad), state.opt_state, state.params)
      state = state.replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    shown = Extras(schedule_free=True).predicting(state)
    again = Extras(schedule_free=True).predicting(shown)
  for leaf in (("backbone", "Dense_0", "kernel"), ("head", "prior", "bias")):
    pick = functools.partial(functools.reduce, lambda part, name: part[name], leaf)
    x = z = between = np.asarray(pick(params))
    for t, grad in enumerate(grads[:size], start=1):
      z = z - rate_of * pick(grad) - rate_of * decay * between
      x = x + (z - x) / t
      between = (1 - beta) * z + beta * x
    np.testing.assert_allclose(pick(state.params), between, rtol=1e-10)
    np.testing.assert_allclose(pick(shown.params), x, rtol=1e-8)
    np.testing.assert_array_equal(pick(again.params), pick(shown.params))


@pytest.mark.parametrize("kind", ["independent", "cautious", "corrected", "fixed_norm"])
def test_kinds_of_decay_with_their_schedule(kind):
  """SGD at the schedule of `theirs`, whose peak is 0.125, with a rate that falls by half a cosine."""
  params, grads = problem()
  shape = dict(steps_per_epoch=1, num_steps=STEPS)
  got = ours("adamw", weight_decay=schedule_of("cosine", 0.25, **shape), kind=kind, peak=0.125)
  flat = {tuple(k.key for k in path): w for path, w in jax.tree_util.tree_leaves_with_path(params)}
  norms = {path: np.linalg.norm(w) for path, w in flat.items()}
  memory = {path: {} for path in flat}
  for step, grad in enumerate(grads):
    lam = 0.25 * (1 + np.cos(np.pi * step / STEPS)) / 2
    for path, g in jax.tree_util.tree_leaves_with_path(grad):
      path = tuple(k.key for k in path)
      w, u = flat[path], rate(step) * adam(memory[path], g, step + 1)
      if path[-1] == "bias":
        flat[path] = w - u
      elif kind == "fixed_norm":
        moved = w - rate(step) * lam * norms[path] * u / max(np.linalg.norm(u), 1e-300)
        flat[path] = moved * norms[path] / np.linalg.norm(moved)
      else:
        agrees = np.sign(u) * np.sign(w) >= 0
        by = {"independent": 1.0, "cautious": rate(step) * agrees, "corrected": rate(step) ** 2 / 0.125}
        flat[path] = w - u - lam * by[kind] * w
  for path, value in flat.items():
    np.testing.assert_allclose(functools.reduce(lambda x, k: x[k], path, got), value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
  ("fields", "match"),
  [
    ({"name": "prodigy", "weight_decay.kind": "decoupled"}, "prodigy finds its own learning rate"),
    ({"weight_decay.kind": "fixed_norm", "constraints.names": ("max_norm",)}, "fixed_norm holds norms"),
    ({"name": "schedule_free", "weight_decay.kind": "fixed_norm"}, "fixed_norm holds norms"),
    ({"name": "schedule_free", "constraints.names": ("max_norm",)}, "schedule_free averages itself"),
    ({"name": "dog", "learning_rate": 0.001}, "learning_rate: dog finds .* at least 0.01, got 0.001"),
    ({"name": "momo", "weight_decay.kind": "coupled"}, "momo compares the loss"),
    ({"weight_decay.kind": "l2"}, "optimizer.weight_decay.kind: .*'l2'"),
  ],
)
def test_refusals_of_decay(fields, match):
  fields = {f"optimizer.{name}": value for name, value in fields.items()}
  with pytest.raises(RunError, match=match):
    train.check(runs.make_config({"optimizer.weight_decay.rate": 0.1, **fields}))

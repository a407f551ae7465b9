"""The rows of `toolbox_digits`, trained by `objective.compose` in a loop of one's own, equal the trainer's.

The loop has the network, Optax and functions of the library; from the trainer it takes the names of the keys.
"""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.toolbox_digits import TOOLBOX, get_config
from jaxreg import (
  adversarial,
  augment,
  averaging,
  constraints,
  ensembles,
  losses,
  noise,
  objective,
  paths,
  penalties,
)
from jaxreg.train import keys
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data, make_order
from jaxreg.train.config.choices import chosen_all

STEPS = 3
# Beside the objective of the row `none`: what predicts, from a run that is short enough to average in.
AVERAGES = {
  "ema": {},
  "swa": {"steps": 6, "average.swa.start": 0.4, "average.swa.every": 2},
  "swag": {"steps": 6, "average.swag.every": 1},
  "early_stopping": {"optimizer.learning_rate": 0.3, "average.early_stopping.patience": 1},
}
ENSEMBLES = ("bagging", "deep_ensemble")
ROWS = [name for name in TOOLBOX if name not in (*AVERAGES, *ENSEMBLES)]
QUICK = ("l2", "gaussian_noise", "mixup")


def teacher(key, inputs):
  del key
  kernel = np.random.default_rng(1).normal(size=(64, 10)).astype(np.float32)
  return jax.nn.log_softmax(inputs.reshape(len(inputs), -1) @ kernel)


def log_probs(passed):
  return losses.softmax_log_probs(passed.aux["outputs"]["logits"])


def of_inputs(view):
  return lambda x: log_probs(view.again(inputs=x))


def fgsm(key, view, **options):
  del key
  loss, fast = lambda x: view.again(inputs=x, key=None).loss, {"num_steps": 1, "random_start": False}
  moved = adversarial.pgd(None, loss, view.batch["inputs"], **fast, **options)
  return view.again(inputs=jax.lax.stop_gradient(moved)).loss


def pgd(key, view, **options):
  moved = adversarial.pgd(key, lambda x: view.again(inputs=x, key=None).loss, view.batch["inputs"], **options)
  return view.again(inputs=jax.lax.stop_gradient(moved)).loss


def fixmatch(key, view, *, threshold, cutout_size, **options):
  for_ops, for_cutout = jax.random.split(key)
  strong = augment.rand_augment(for_ops, {"inputs": view.batch["inputs"]}, **options)
  strong = augment.cutout(for_cutout, strong, size=cutout_size, fill=0.5)["inputs"]
  clean = log_probs(view.again(key=None))
  return losses.pseudo_label(log_probs(view.again(inputs=strong)), clean, threshold=threshold)


def augmix(key, view, **options):
  views = [augment.augmix(own, {"inputs": view.batch["inputs"]}, **options) for own in jax.random.split(key)]
  others = [log_probs(view.again(inputs=each["inputs"])) for each in views]
  return losses.jensen_shannon(jnp.stack([log_probs(view), *others], axis=-2))


# `(key, view, **options) -> [batch]`, as a user of `compose` writes them.
TERMS = {
  "r_drop": lambda key, view: losses.r_drop(log_probs(view), log_probs(view.again(key=key))),
  "pi_model": lambda key, view: losses.consistency(log_probs(view), log_probs(view.again(key=key))),
  "mean_teacher": lambda key, view: losses.consistency(
    log_probs(view),
    jax.lax.stop_gradient(log_probs(view.again(params=view.batch["averaged"], key=None))),
  ),
  "distillation": lambda key, view, **options: losses.distillation(
    log_probs(view), teacher(key, view.batch["inputs"]), **options
  ),
  "entropy": lambda key, view: losses.entropy(log_probs(view)),
  "z_loss": lambda key, view: losses.z_loss(view.aux["outputs"]["logits"]),
  "reconstruction": lambda key, view, **options: losses.reconstruction(
    view.aux["outputs"]["reconstruction"], view.batch["inputs"], **options
  ),
  "pseudo_label": lambda key, view, **options: losses.pseudo_label(
    log_probs(view), log_probs(view.again(key=None)), **options
  ),
  "l1_activity": lambda key, view: penalties.l1_activity(view.aux["features"]),
  "kl_sparsity": lambda key, view, **options: penalties.kl_sparsity(
    view.aux["features"], weights=view.batch["all"], **options
  ).sum(),
  "gradient_penalty": lambda key, view: penalties.gradient_penalty(
    lambda _, x: view.again(inputs=x).loss, None, view.batch["inputs"]
  ),
  "jacobian_penalty": lambda key, view, **options: penalties.jacobian_penalty(
    lambda _, x: of_inputs(view)(x), None, view.batch["inputs"], key=key, **options
  ),
  "virtual_adversarial": lambda key, view, **options: adversarial.vat_loss(
    key, of_inputs(view), view.batch["inputs"], **options
  ),
  "trades": lambda key, view, **options: adversarial.trades_loss(
    key, of_inputs(view), view.batch["inputs"], **options
  ),
  "fgsm": fgsm,
  "pgd": pgd,
  "fixmatch": fixmatch,
  "augmix": augmix,
}
ON_LABELS = ("fgsm", "pgd", "gradient_penalty")  # terms that need labels


def given(function, **arguments):
  """The arguments that a function has."""
  return {name: value for name, value in arguments.items() if name in inspect.signature(function).parameters}


def method_loss(config):
  """`(outputs, labels) -> [batch]`, the loss of the row's method."""
  name = config.method.name
  options = config.method[name].loss.to_dict() if name in config.method else {}
  if name in ("softmax", "autoencoder"):
    return lambda outputs, labels: losses.softmax_cross_entropy(outputs["logits"], labels)
  if name == "logit_adjustment":
    log_prior = jnp.log(jnp.asarray(options.pop("class_counts"), jnp.float32))
    return lambda outputs, labels: losses.logit_adjustment(outputs["logits"], labels, log_prior, **options)
  return lambda outputs, labels: getattr(losses, name)(**outputs, labels=labels, **options)


def make_terms(config, step_keys, reference, dual):
  """The row's terms; each draws from the key that it has in the trainer."""
  mask, terms = paths.kernels_only, {}
  augmented = [each for each in chosen_all(config, "noise") if each.kind == "label_noise"]
  augmented += chosen_all(config, "augment")
  for number, each in enumerate(augmented):
    function = getattr(noise if each.kind == "label_noise" else augment, each.name)
    options = {**each.options, **given(function, num_classes=10, value_range=(0.0, 16.0))}
    key = keys.numbered(step_keys.augmentation, number)
    on = "labels" if each.kind == "label_noise" else "batch"
    drawn = lambda _, x, function=function, key=key, options=options: function(key, x, **options)
    terms[each.name] = objective.perturbation(drawn, on=on)
  pixels = lambda _, batch: {**batch, "inputs": batch["inputs"].astype(jnp.float32) / 16}
  terms["pixels"] = objective.perturbation(pixels, on="batch")
  for each in chosen_all(config, "noise"):
    on = {"input_noise": "inputs", "params_noise": "params"}.get(each.kind)
    if on is not None:  # a term of this name has the key of the trainer's first noise of this kind
      function = getattr(noise, each.name)
      options = {**each.options, **given(function, mask=paths.kernels_only)}
      first = lambda key, x, function=function, options=options: function(keys.numbered(key, 0), x, **options)
      terms[on] = objective.perturbation(first, on=on)
  for each in chosen_all(config, "regularizers"):
    options = {name: value for name, value in each.options.items() if name not in ("weight", "limit")}
    weight = dual.multiplier if each.options.get("limit") else each.options["weight"]
    if each.name in TERMS:
      if "clip" in options:
        options["clip"] = options["clip"] or None
      function = lambda key, view, name=each.name, options=options: TERMS[name](key, view, **options)
      counts = None if each.name in ON_LABELS else (lambda batch: batch["all"])
      terms[each.name] = objective.example_term(function, weight=weight, weights_fn=counts)
    else:
      function = getattr(penalties, each.name)
      options |= given(function, mask=mask, reference=reference)
      terms[each.name] = objective.penalty(function, weight=weight, **options)
  return terms


def make_optimizer(config, schedule):
  chain = [optax.adam(schedule)]
  for each in chosen_all(config, "optimizer.constraints"):
    function = getattr(constraints, each.name)
    function = functools.partial(function, **each.options, mask=paths.kernels_only)
    prox = each.kind == "prox"
    chain.append(constraints.proximal(function, schedule) if prox else constraints.project(function))
  return optax.chain(*chain)


def mixed_network(params, x, mixing):
  """The perceptron of the row `manifold_mixup`, whose hidden features are mixed."""
  layers = {"backbone": None, "backbone/Dense_1": params["backbone"]["Dense_0"]}
  affine = lambda layer, x: x @ layer["kernel"] + layer["bias"][None]
  for name, before in {**layers, "head": params["backbone"]["Dense_1"]}.items():
    x = x if before is None else jax.nn.relu(affine(before, x.reshape(len(x), -1)))
    x = augment.mix_hidden(x, mixing, layer=name)
  return {"logits": affine(params["head"]["classifier"], x)}


def applied(program, params, model_state, x, key):
  """The outputs, features and state of the layers, without the trainer's noise on inputs and weights."""
  network, train = program.network, key is not None
  features, state = network.features(params, model_state, x, key=key, train=train)
  outputs, state = network.outputs(params, state, features, key=key, train=train)
  return outputs, features, state


def composed_step(config, program):
  """The start of the optimizer, and a user's own step, `-> (loss, (params, model_state, ...))`."""
  loss, optimizer = method_loss(config), make_optimizer(config, program.schedule)
  limits = {each.name: each.options.get("limit") for each in chosen_all(config, "regularizers")}

  def step(params, model_state, opt_state, kept, batch, number, root, reference):
    average, dual = kept
    step_keys = keys.streams(keys.step(root, number))

    def loss_fn(params, batch, *, key):
      outputs, features, new = applied(program, params, model_state, batch["inputs"], key)
      if "mixing" in batch:
        outputs = mixed_network(params, batch["inputs"], batch["mixing"])
      aux = {"outputs": outputs, "features": features, "model_state": new}
      return loss(outputs, batch["labels"]), aux

    regularized = objective.compose(loss_fn, make_terms(config, step_keys, reference, dual), has_aux=True)
    where = batch["labels"] >= 0
    batch = {
      **batch,
      "all": batch["weights"],
      "weights": batch["weights"] * where,
      "averaged": average.params,
    }
    batch["labels"] = jnp.where(where, batch["labels"], 0)
    (value, aux), grads = jax.value_and_grad(regularized, has_aux=True)(params, batch, key=step_keys.network)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    average = averaging.ema(**config.average.ema.to_dict()).update(average, params)
    if limit := limits.get("l2"):
      rate = config.regularizers.dual_learning_rate
      dual = constraints.dual_step(dual, penalties.l2(params), bound=limit, learning_rate=rate)
    return value, (params, {**model_state, **aux["model_state"]}, opt_state, (average, dual))

  def start(params, model_state):
    kept = averaging.ema().init(params), constraints.dual_init()
    return params, model_state, optimizer.init(params), kept

  return start, jax.jit(step)


def make_batches(config, data, steps=STEPS):
  """Some labelled digits, and some without a label where the row has them."""
  images, labels = data.train.inputs, data.train.labels
  for number in range(steps):
    size = config.batch_size + config.data.unlabelled.batch_size
    index = np.random.default_rng(number).choice(len(images), size, replace=len(images) < size)
    known = np.where(np.arange(size) < config.batch_size, labels[index], -1).astype(np.int32)
    yield {"inputs": images[index], "labels": known, "weights": np.ones(size, np.float32)}


@pytest.mark.thorough
@pytest.mark.parametrize(
  "row", [pytest.param(row, marks=() if row in QUICK else pytest.mark.slow) for row in ROWS]
)
def test_a_row_of_the_toolbox_is_composed(row):
  config = get_config(row)
  if row == "distillation":
    config.teacher.workdir = "runs/none"
  if row == "l2_limit":
    config.regularizers.l2.limit = 60.0  # the weights begin below the row's limit
  data = load_data(config)
  program = build(config, data.describe(), teacher=teacher if row == "distillation" else None)
  state = jax.jit(program.init)(0)
  start, step = composed_step(config, program)
  train_step = jax.jit(program.train_step)
  reference, root = state.params, state.key
  ours = start(state.params, state.model_state)
  for number, batch in enumerate(make_batches(config, data)):
    state, metrics = train_step(state, batch)
    value, ours = step(*ours, batch, number, root, reference)
    total, count = metrics["loss"]
    np.testing.assert_allclose(value, total / count, rtol=1e-6)
  changed = [np.abs(new - old).max() for new, old in zip(*map(jax.tree.leaves, (state.params, reference)))]
  assert max(changed) > 1e-4
  for one, other in zip(*map(jax.tree.leaves, (ours[:2], (state.params, state.model_state))), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
  if row == "l2_limit":
    multiplier = state.extras["multipliers"]["l2"].multiplier
    assert multiplier > 1e-4
    np.testing.assert_allclose(ours[3][1].multiplier, multiplier, rtol=1e-6)


def predicted(program, params, inputs):
  """The log-probabilities of stored inputs."""
  outputs, _, _ = applied(program, params, {}, inputs / 16, None)
  return losses.softmax_log_probs(outputs["logits"])


@pytest.mark.slow
@pytest.mark.parametrize("row", AVERAGES)
def test_what_predicts_is_averaged(row):
  config = get_config(row)
  config.update_from_flattened_dict(AVERAGES[row])
  data = load_data(config)
  program = build(config, data.describe())
  options = config.average[row].to_dict()
  state = jax.jit(program.init)(0)
  start, step = composed_step(config, program)
  train_step, root, reference = jax.jit(program.train_step), state.key, state.params
  ours, inputs, labels = start(state.params, {}), data.val.inputs[:40], data.val.labels[:40]
  mean = averaging.swa()
  gaussian = averaging.swag(scale=options["scale"] if row == "swag" else 1.0)
  swa, swag = mean.init(state.params), gaussian.init({"params": state.params})
  stopping = averaging.early_stopping(**(options if row == "early_stopping" else {"patience": 1}))
  best = stopping.init(state.params)
  for number, batch in enumerate(make_batches(config, data, steps=6)):
    state, _ = train_step(state, batch)
    if not best.should_stop:
      ours = step(*ours, batch, number, root, reference)[1]
    if row == "early_stopping":
      wrong = lambda params: (predicted(program, params, inputs).argmax(-1) != labels).mean()
      state = program.evaluated(state, wrong(state.params))
      best = stopping.update(best, ours[0], wrong(ours[0]))
    if number in (3, 5):  # after step 2 of 6, every second, to the last
      swa = mean.update(swa, ours[0])
    if number > 1:
      swag = gaussian.update(swag, {"params": ours[0]})

  def draw(key):
    for_params, _ = jax.random.split(key)
    return predicted(program, gaussian.sample(for_params, swag)["params"], inputs)

  key = lambda: jax.random.key(7)
  if row == "early_stopping":
    assert best.should_stop
    assert 0 <= best.best_step < 4
    assert state.extras["average"].best_step == best.best_step
  if row == "swag":
    ours = ensembles.arithmetic(jax.lax.map(draw, jax.random.split(key(), options["samples"])))
  else:
    averages = {"ema": ours[3][0], "swa": swa, "early_stopping": best}
    ours = predicted(program, averages[row].params, inputs)
  got = program.predict_fn(program.predicting(state), inputs / 16, key())
  np.testing.assert_allclose(ours, got, rtol=1e-6, atol=2e-6)
  plain = predicted(program, state.params, inputs)
  assert row == "early_stopping" or np.abs(got - plain).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("row", ENSEMBLES)
def test_members_are_trained_and_combined(row):
  """The members begin, draw and learn as `ensembles` says; from the trainer come names of keys and orders."""
  config = get_config(row)
  data = load_data(config)
  program, seeds = build(config, data.describe()), np.arange(config.replicas, dtype=np.uint32)
  order, images, labels = make_order(config, data), data.train.inputs, data.train.labels
  states = jax.jit(jax.vmap(program.init))(seeds)
  start, step = composed_step(config, program)

  def init(seed):
    _, key = keys.root(seed)
    return start(program.network.init(key, jnp.zeros((1, 8, 8, 1)))[0], {})

  ours = jax.vmap(init)(seeds)
  chosen = [np.arange(len(images))] * len(seeds)
  if config.data.bootstrap:
    draw = lambda key: jax.random.randint(key, (1, len(images)), 0, len(images), "int32")[0]
    chosen = [np.asarray(draw(keys.bootstrap(seed))) for seed in seeds]

  def batches(indices):
    weights = np.ones(indices.shape, np.float32)
    return {"inputs": images[indices], "labels": labels[indices].astype(np.int32), "weights": weights}

  def member(state, batch, seed, number):
    return step(*state, batch, number, keys.root(seed)[0], None)[1]

  train_step = jax.jit(jax.vmap(program.train_step))
  for number in range(STEPS):
    states, _ = train_step(states, batches(order(number)))
    plain = dataclasses.replace(order, drawn=())(number)
    own = batches(np.stack([chosen[each][rows] for each, rows in enumerate(plain)]))
    ours = jax.vmap(member, in_axes=(0, 0, 0, None))(ours, own, seeds, number)
  inputs = data.test.inputs[:40]
  ours = jax.vmap(lambda params: predicted(program, params, inputs))(ours[0])
  predict = lambda state: program.predict_fn(state, inputs / 16, jax.random.key(0))
  got = program.target.mean(jax.vmap(predict)(states))
  np.testing.assert_allclose(ensembles.arithmetic(ours), got, rtol=1e-6, atol=2e-6)
  assert np.ptp(ours, axis=0).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("row", ["mc_dropout", "geometric_mean", "weight_scaling_mean"])
def test_predictions_average_over_the_noise(row):
  config = get_config(row)
  data = load_data(config)
  program, samples = build(config, data.describe()), config.evaluate.mc_samples
  state, inputs = jax.jit(program.init)(0), data.test.inputs[:40] / 16
  key = lambda: jax.random.key(7)

  def log_probs(key):
    network_key = None if key is None else jax.random.split(key)[0]
    outputs, _, _ = applied(program, state.params, {}, inputs, network_key)
    return losses.softmax_log_probs(outputs["logits"])

  ours = log_probs(None)
  if samples:
    mean = getattr(ensembles, config.evaluate.combine)
    ours = mean(jax.lax.map(log_probs, jax.random.split(key(), samples)))
    assert np.abs(ours - log_probs(None)).max() > 1e-2
  np.testing.assert_allclose(ours, program.predict_fn(state, inputs, key()), rtol=1e-6, atol=2e-6)

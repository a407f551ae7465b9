"""The rows of `toolbox_digits`, trained by `objective.compose` in a loop of one's own, equal the trainer's.

The loop has the network, Optax and functions of the library; from the trainer it takes the names of the keys.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.toolbox_digits import TOOLBOX, get_config
from jaxreg import adversarial, augment, averaging, constraints, losses, noise, objective, paths, penalties
from jaxreg.train import keys
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import chosen_all

STEPS = 3
# Their objective is that of the row `none`: they average, combine, or choose other examples.
ELSEWHERE = ("average.", "ensemble", "replicas", "evaluate.", "data.", "epochs", "eval_every")
ROWS = [
  name
  for name, fields in TOOLBOX.items()
  # The multiplier of a limit is no part of an objective.
  if name != "l2_limit" and (name == "none" or not all(field.startswith(ELSEWHERE) for field in fields))
]
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
  moved = adversarial.fgsm(lambda x: view.again(inputs=x, key=None).loss, view.batch["inputs"], **options)
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


def make_terms(config, step_keys, reference):
  """The row's terms; each draws from the key that it has in the trainer."""
  mask, terms = getattr(paths, config.regularizers.mask), {}
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
      options = {**each.options, **given(function, mask=getattr(paths, config.noise.mask))}
      first = lambda key, x, function=function, options=options: function(keys.numbered(key, 0), x, **options)
      terms[on] = objective.perturbation(first, on=on)
  for each in chosen_all(config, "regularizers"):
    options = {name: value for name, value in each.options.items() if name not in ("weight", "limit")}
    weight = each.options["weight"]
    if each.name in TERMS:
      if "clip" in options:
        options["clip"] = options["clip"] or None
      key = keys.named(step_keys.augmentation, each.name)
      function = lambda _, view, name=each.name, key=key, options=options: TERMS[name](key, view, **options)
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
    function = functools.partial(
      function, **each.options, mask=getattr(paths, config.optimizer.constraints.mask)
    )
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


def composed_step(config, program):
  """The start of the optimizer, and a user's own step, `-> (loss, (params, model_state, ...))`."""
  loss, optimizer = method_loss(config), make_optimizer(config, program.schedule)

  def step(params, model_state, opt_state, average, batch, number, root, reference):
    step_keys = keys.streams(keys.step(root, number))

    def loss_fn(params, batch, *, key):
      variables, train = {"params": params, **model_state}, key is not None
      rngs = {"dropout": key} if train else {}
      apply = functools.partial(
        program.model.apply, variables, batch["inputs"], train=train, rngs=rngs, mutable=[*model_state]
      )
      features, _ = apply(method=lambda model, x, train: model.backbone(x, train=train))
      outputs, new = apply()
      if "mixing" in batch:
        outputs = mixed_network(params, batch["inputs"], batch["mixing"])
      aux = {"outputs": outputs, "features": features, "model_state": new}
      return loss(outputs, batch["labels"]), aux

    regularized = objective.compose(loss_fn, make_terms(config, step_keys, reference), has_aux=True)
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
    average = averaging.ema_update(average, params, **config.average.ema.to_dict())
    return value, (params, {**model_state, **aux["model_state"]}, opt_state, average)

  return optimizer.init, jax.jit(step)


def make_batches(config, data):
  """Some labelled digits, and some without a label where the row has them."""
  images, labels = data.train.inputs, data.train.labels
  for number in range(STEPS):
    size = config.batch_size + config.data.unlabelled.batch_size
    index = np.random.default_rng(number).choice(len(images), size, replace=len(images) < size)
    known = np.where(np.arange(size) < config.batch_size, labels[index], -1).astype(np.int32)
    yield {"inputs": images[index], "labels": known, "weights": np.ones(size, np.float32)}


@pytest.mark.parametrize(
  "row", [pytest.param(row, marks=() if row in QUICK else pytest.mark.slow) for row in ROWS]
)
def test_a_row_of_the_toolbox_is_composed(row):
  config = get_config(row)
  if row == "distillation":
    config.teacher.workdir = "runs/none"
  data = load_data(config)
  program = build(config, data.describe(), teacher=teacher if row == "distillation" else None)
  state = jax.jit(program.init)(0)
  init, step = composed_step(config, program)
  train_step = jax.jit(program.train_step)
  reference, root = state.params, state.key
  ours = (state.params, state.model_state, init(state.params), averaging.ema_init(state.params))
  for number, batch in enumerate(make_batches(config, data)):
    state, metrics = train_step(state, batch)
    value, ours = step(*ours, batch, number, root, reference)
    total, count = metrics["loss"]
    np.testing.assert_allclose(value, total / count, rtol=1e-6)
  changed = [np.abs(new - old).max() for new, old in zip(*map(jax.tree.leaves, (state.params, reference)))]
  assert max(changed) > 1e-4
  for one, other in zip(*map(jax.tree.leaves, (ours[:2], (state.params, state.model_state))), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)

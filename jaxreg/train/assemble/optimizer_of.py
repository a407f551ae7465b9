"""The optimizer of a run: what `optimizer` in a configuration names, for the model at hand."""

import inspect

import optax

from jaxreg import models
from jaxreg.train.config.choices import Config, chosen
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.step import named
from jaxreg.train.step.chain import make_optimizer
from jaxreg.train.step.optimizer import step_name


def build_optimizer(
  config: Config, data: DataSpec, model: models.Classifier, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
  """The optimizer, alone or within a wrapper, with decay, clipping and constraints.

  Args:
    config: the configuration.
    data: as `Dataset.describe` gives it.
    model: the network, which some optimizers apply themselves.
    schedule: the learning rate by the step.
  """
  options = config.optimizer
  name, wrapper = step_name(options), None
  if name != options.name:
    wrapping = chosen(config, "optimizer")[1]
    wrapper = (options.name, {key: value for key, value in wrapping.items() if key != "inner"})
  step, step_options = chosen(config, "optimizer", name)
  constraints, takes_prox = options.constraints.to_dict(), "prox" in inspect.signature(step).parameters
  return make_optimizer(
    name,
    schedule,
    step_options,
    wrapper=wrapper,
    weight_decay=options.weight_decay.rate,
    decoupled=options.weight_decay.decoupled,
    mask=options.weight_decay.mask,
    clip_norm=options.clip_norm,
    constraints={} if takes_prox else named.make_constraints(constraints, schedule),
    network={
      "prox": named.make_prox(constraints),
      "apply_fn": lambda params, x: model.apply({"params": params}, x, train=False),
      "input_shape": data.input_shape,
      "num_examples": data.sizes["train"],
    },
  )

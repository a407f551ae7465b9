"""The optimizer of a run: what `optimizer` in a configuration names, for the model at hand."""

import optax

from jaxreg import models, paths
from jaxreg.train.config.choices import Config, chosen, chosen_all
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.step.chain import make_optimizer
from jaxreg.train.step.optimizer import step_name
from jaxreg.train.step.regularizers import make_constraints, make_prox


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
  step, wrapper = chosen(config, "optimizer", step_name(options)), chosen(config, "optimizer")
  named = chosen_all(config, "optimizer.constraints")
  mask = getattr(paths, options.constraints.mask)
  return make_optimizer(
    step,
    schedule,
    wrapper=wrapper.without("inner") if wrapper.kind == "wrapper" else None,
    weight_decay=options.weight_decay.rate,
    decoupled=options.weight_decay.decoupled,
    mask=options.weight_decay.mask,
    clip_norm=options.clip_norm,
    constraints={} if step.needs("prox") else make_constraints(named, mask, schedule),
    network={
      "prox": make_prox(named, mask),
      "apply_fn": lambda params, x: model.apply({"params": params}, x, train=False),
      "input_shape": data.input_shape,
      "num_examples": data.sizes["train"],
    },
  )

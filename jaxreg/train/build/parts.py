"""The parts of a program, each from its sections of a configuration and what the data are."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import optax

from jaxreg import models
from jaxreg.train.step import optimizer
from jaxreg.train.step import schedule
from jaxreg.train.step import named as toolbox
from jaxreg.train.config.choices import chosen
from jaxreg.train.config.fields import Config
from jaxreg.train.data.dataset import is_tokens
from jaxreg.train.step.methods import find_method
from jaxreg.train.step.network import make_backbone
from jaxreg.train.step.example_terms import TERMS, needs_labels
from jaxreg.typing import Batch, Key

Data = dict[str, Any]  # as `Dataset.describe` gives it


def method_options(config: Config) -> dict[str, dict[str, Any]]:
  """The options of the method's `head`, `loss` and `predict`."""
  method, options = chosen(config, "method")
  # What a prediction rule must have of the options, it has of the loss's.
  parameters = inspect.signature(method.predict).parameters.items()
  needed = [name for name, parameter in parameters if parameter.default is inspect.Parameter.empty]
  options["predict"] |= {name: options["loss"][name] for name in needed if name in options["loss"]}
  return options


def make_model(config: Config, data: Data, head_options: dict[str, Any]) -> models.Classifier:
  """The backbone with the method's head on it."""
  head = find_method(config.method.name).head(num_classes=data["num_classes"], **head_options)
  _, options = chosen(config, "model")
  return models.Classifier(make_backbone(config.model.name, options, data.get("model", {})), head)


def make_noises(config: Config, data: Data) -> dict[str, Any]:
  """Noise on inputs, parameters and labels."""
  if is_tokens(data["input_dtype"]) and "gaussian_noise" in config.noise.names:
    raise ValueError(
      f"noise.names: gaussian_noise is on inputs, and those of data.{config.data.name} are tokens"
    )
  return toolbox.make_noises(config.noise.to_dict())


def make_augmentations(
  config: Config, data: Data, on_labels: Sequence[Callable[..., Any]]
) -> list[Callable[[Key, Batch], Batch]]:
  """What is done to a batch, in this order; noise on its labels before what mixes them."""
  of_labels = [_on_labels(noise, data["num_classes"]) for noise in on_labels]
  return of_labels + [_augmentation(config, name, data) for name in config.augment.names]


def most_labels(config: Config) -> int:
  """How many classes the label of an example may have: each mixing of two examples doubles their number."""
  return toolbox.most_labels(config.augment.names)


def make_terms(config: Config, data: Data) -> dict[str, toolbox.Term]:
  """The regularizers that look at examples."""
  terms = toolbox.make_terms(config.regularizers.to_dict())
  if config.data.unlabelled.batch_size and all(term.needs_labels for term in terms.values()):
    raise ValueError(
      "data.unlabelled.batch_size: nothing looks at examples without labels; name one of "
      f"{', '.join(name for name, term in TERMS.items() if not needs_labels(term))} in regularizers.names, or give 0"
    )
  if terms and (is_tokens(data["input_dtype"]) or data.get("label_shape")):
    raise ValueError(f"regularizers.names: {', '.join(terms)} are for inputs that are no sequences of tokens")
  return terms


def make_schedule(config: Config, *, steps_per_epoch: int, num_steps: int) -> optax.Schedule:
  """The learning rate as a function of the step."""
  chosen = config.optimizer.schedule
  return schedule.make_schedule(
    chosen.name,
    config.optimizer.learning_rate,
    steps_per_epoch=steps_per_epoch,
    num_steps=num_steps,
    warmup_epochs=chosen.warmup_epochs,
    **chosen.get(chosen.name, {}),
  )


def make_optimizer(
  config: Config, data: Data, model: models.Classifier, rates: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
  """The optimizer, alone or within a wrapper, with decay, clipping and constraints."""
  name, wrapper = optimizer.step_name(config.optimizer), None
  if name != config.optimizer.name:
    _, wrapping = chosen(config, "optimizer")
    wrapper = (config.optimizer.name, {key: value for key, value in wrapping.items() if key != "inner"})
  decay = config.optimizer.weight_decay
  return optimizer.make_optimizer(
    name,
    rates,
    chosen(config, "optimizer", name)[1],
    wrapper=wrapper,
    weight_decay=decay.rate,
    decoupled=decay.decoupled,
    mask=decay.mask,
    clip_norm=config.optimizer.clip_norm,
    constraints=toolbox.make_constraints(config.optimizer.constraints.to_dict(), rates),
    network={
      "apply": lambda params, x: model.apply({"params": params}, x, train=False),
      "input_shape": data["input_shape"],
      "num_examples": data["sizes"]["train"],
    },
  )


def check_state(config: Config, data: Data, *, has_statistics: bool) -> None:
  """Checks what needs a network with or without statistics, as of BatchNorm, in its state."""
  if has_statistics and config.average.name in ("swa", "ema"):
    raise ValueError(
      "average.name: statistics, as of BatchNorm, are not those of averaged parameters; give none or "
      f"early_stopping, or average afterwards with jaxreg.averaging, got {config.average.name}"
    )
  if optimizer.step_name(config.optimizer) != "path_sgd":
    return
  if has_statistics or is_tokens(data["input_dtype"]):
    raise ValueError("optimizer.name: path_sgd is for networks of images or vectors without normalisation")
  if find_method(config.method.name).head not in (models.SoftmaxHead, models.AttentionHead):
    raise ValueError(
      f"optimizer.name: path_sgd is for heads that give logits by affine layers alone, which that of "
      f"method.name={config.method.name} does not"
    )


def _augmentation(config: Config, name: str, data: Data) -> Callable[..., Any]:
  """The named augmentation with its options, and with what the data say."""
  function, options = chosen(config, "augment", name)
  if "value_range" in inspect.signature(function).parameters:
    options["value_range"] = (0.0, data["scale"])
  if "num_classes" in inspect.signature(function).parameters:
    if config.data.unlabelled.batch_size:
      raise ValueError(f"augment.names: {name} mixes labels, and some examples have none; leave it out")
    options["num_classes"] = data["num_classes"]
  return functools.partial(function, **options)


def _on_labels(noise: Callable[..., Any], num_classes: int) -> Callable[..., Any]:
  """Label noise as an augmentation, before those that mix labels."""

  def augment(key: Key, batch: Batch) -> Batch:
    return {**batch, "labels": noise(key, batch["labels"], num_classes=num_classes)}

  return augment

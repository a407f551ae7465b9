"""The options of a choice: the parameters of its function that have plain defaults."""

import inspect
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict, config_dict

from jaxreg.train.step import named, optimizer
from jaxreg.train.step.methods import Method


def options(function: Callable[..., Any], skip: tuple[str, ...] = ()) -> Any:
  """The parameters of `function` that have plain defaults, as a sub-configuration."""
  fields: Any = ConfigDict()
  for name, parameter in inspect.signature(function).parameters.items():
    default = parameter.default
    if name in skip or default is inspect.Parameter.empty:
      continue
    if isinstance(default, bool | int | float | str) or type(default) is tuple:
      fields[name] = default
    elif default is None:
      fields[name] = config_dict.placeholder(float)
  return fields


def model_options(model: Callable[..., Any]) -> Any:
  """The options of a Linen module."""
  return options(model, skip=("parent", "name", "axis_name"))


def method_options(method: Method) -> Any:
  """The options of a method's head, loss and prediction rule."""
  return ConfigDict(
    {
      "head": options(method.head, skip=("parent", "name", "input_shape")),
      "loss": options(method.loss, skip=("posterior_logits",)),
      "predict": options(method.predict),
    }
  )


def augmentation_options(function: Callable[..., Any]) -> Any:
  """The options of an augmentation; the data give the others."""
  return options(function, skip=("num_classes", "value_range", "channel_axis"))


def leaf_options(function: Callable[..., Any]) -> Any:
  """The options of a function of arrays or of trees of parameters."""
  return options(function, skip=("axis", "step", "shared_axes", "num_classes", "mask", "reference"))


def regularizer_options(function: Callable[..., Any]) -> Any:
  """The weight and the options of a regularizer; a penalty may have a limit instead of a weight."""
  if named.is_penalty(function):
    return ConfigDict({"weight": 1e-4, "limit": 0.0, **leaf_options(function)})
  return ConfigDict({"weight": 1.0, **options(function)})


# Arguments that have a field outside the options, or that only a function or an array can fill.
GIVEN = (
  *(
    "learning_rate",
    "max_learning_rate",
    "scaling",
    "weight_decay",
    "weight_decay_rate",
    "key",
    "num_examples",
    "prox",
  ),
  *("mask", "weight_decay_mask", "trust_ratio_mask", "mu_dtype", "accumulator_dtype"),
)


def optimizer_options(function: Callable[..., Any]) -> Any:
  """The options of an optimizer, or of a wrapper with its `inner` optimizer."""
  fields = options(
    function, skip=(*GIVEN, *(("alpha",) if function is optimizer.STEPS["p_norm_sgd"] else ()))
  )
  if optimizer.is_wrapper(function):
    fields.inner = "sgd"
  return fields

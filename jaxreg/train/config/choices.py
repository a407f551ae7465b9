"""The configuration with all its fields, and the choices that it makes by name.

A name is a row of one of our tables, or `my_package.my_module:NAME`. The options of a choice stand in a group
of its name beside the choice, as `method.NAME.loss.epsilon`. Their defaults come from its signature.
"""

import copy
import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from jaxreg import models
from jaxreg.train.config.fields import FIELDS as TABLE
from jaxreg.train.config.fields import OPTION
from jaxreg.train.data import sources
from jaxreg.train.data.images import Decoding
from jaxreg.train.errors import RunError
from jaxreg.train.lookup import check_imported, is_yours, short
from jaxreg.train.step import averages, named, network, optimizer, tables
from jaxreg.train.step.methods import METHODS, Method, find_method

# A ConfigDict; no type checker can know its fields.
Config = Any

# Arguments that the data give, that have a field outside the options, or that only a function can fill.
SKIPPED = {
  "model": ("parent", "name", "axis_name"),
  "augment": ("num_classes", "value_range", "channel_axis"),
  "leaf": ("axis", "step", "shared_axes", "num_classes", "mask", "reference"),
  "optimizer": (
    *("learning_rate", "max_learning_rate", "scaling", "weight_decay", "weight_decay_rate", "key"),
    *("num_examples", "prox", "trained", "mask", "weight_decay_mask", "trust_ratio_mask", "mu_dtype"),
    "accumulator_dtype",
  ),
}


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


def of_method(method: Method) -> Any:
  """The options of a method's head, loss and prediction rule."""
  parts = {"head": ("parent", "name", "input_shape"), "loss": ("posterior_logits",), "predict": ()}
  return ConfigDict({part: options(getattr(method, part), skip) for part, skip in parts.items()})


def of_regularizer(function: Callable[..., Any]) -> Any:
  """The weight and the options of a regularizer; a penalty may have a limit instead of a weight."""
  if named.is_penalty(function):
    return ConfigDict({"weight": 1e-4, "limit": 0.0, **options(function, SKIPPED["leaf"])})
  return ConfigDict({"weight": 1.0, **options(function)})


def of_optimizer(function: Callable[..., Any]) -> Any:
  """The options of an optimizer, or of a wrapper with its `inner` optimizer."""
  own = ("weight",) if function is optimizer.STEPS["p_norm_sgd"] else ()
  fields = options(function, (*SKIPPED["optimizer"], *own))
  if optimizer.is_wrapper(function):
    fields.inner = "sgd"
  return fields


def skipping(kind: str) -> Callable[[Any], Any]:
  return lambda function: options(function, SKIPPED[kind])


@dataclasses.dataclass(frozen=True)
class Choice:
  """The alternatives of one group of the configuration.

  Attributes:
    table: our functions and classes by name.
    find: `name -> thing`, the function or class of a name, also for `module:NAME`.
    options: `thing -> options`, with their defaults.
    several: whether the group has a field `names`, and no field `name`.
  """

  table: Mapping[str, Any]
  find: Callable[[str], Any]
  options: Callable[[Any], Any]
  several: bool = False

  @property
  def field(self) -> str:
    return "names" if self.several else "name"


BY_NAME = {
  "data": Choice(sources.SOURCES, sources.find_source, options),
  "augment": Choice(tables.AUGMENTATIONS, named.find_augmentation, skipping("augment"), several=True),
  "model": Choice(network.BACKBONES, network.find_backbone, skipping("model")),
  "method": Choice(METHODS, find_method, of_method),
  "regularizers": Choice(tables.CHOSEN["regularizers"], named.find_regularizer, of_regularizer, several=True),
  "noise": Choice(tables.NOISES, named.find_noise, skipping("leaf"), several=True),
  "optimizer": Choice(optimizer.OPTIMIZERS, optimizer.find_optimizer, of_optimizer),
  "optimizer.constraints": Choice(tables.CONSTRAINTS, named.find_constraint, skipping("leaf"), several=True),
}
FIELDS = {f"{group}.{choice.field}": group for group, choice in BY_NAME.items()}
# Fields whose tables set other fields, as `{label: {field: value}}`.
ROWS = ("compare.rows", "compare.grid", "flatness.rows", "flatness.alignment.noises")


# The groups inside these groups that all choices share.
SHARED = {
  "data": ("subset", "flipped_labels", "unlabelled", "stream"),
  "optimizer": ("schedule", "constraints", "weight_decay"),
}


def base_config() -> Config:
  """Every field with its default; a config file changes the fields that differ."""
  config: Config = ConfigDict(
    convert_dict=False
  )  # a dict is a value: rows, whose labels and fields have dots
  for field, row in TABLE.items():
    if row.default is not OPTION:
      *parents, name = field.split(".")
      part = config
      for parent in parents:
        if parent not in part:
          part[parent] = ConfigDict(convert_dict=False)
        part = part[parent]
      part[name] = copy.deepcopy(row.default)
  for name in averages.AVERAGES[1:]:
    config.average[name] = options(getattr(averages, name))
  config.data.stream = options(Decoding)
  config.translate = options(models.beam_decode, skip=("begin", "end", "pad"))
  return add_options(config).lock()


def default_config(flat: Mapping[str, Any]) -> Config:
  """`base_config()` with the options of the choices in a flat configuration."""
  return add_options(base_config(), flat)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
  """Returns the fields by their dotted names: `{"optimizer.name": "adam", ...}`."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, type(config)):  # a dict in a configuration is a value, as `compare.rows`
      flat |= flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = list(value) if isinstance(value, tuple) else value
  return flat


def relevant(flat: Mapping[str, Any]) -> dict[str, Any]:
  """A flat configuration without the options that nothing reads, because their choice is not named."""
  return {field: value for field, value in flat.items() if chooser(field, flat) is None}


def chooser(field: str, flat: Mapping[str, Any]) -> str | None:
  """The field whose choice leaves this option unread; None if the option is read."""
  for group in (*BY_NAME, "optimizer.schedule", "average"):
    option, dot, _ = field.removeprefix(f"{group}.").partition(".")
    if not dot or not field.startswith(f"{group}.") or option in SHARED.get(group, ()):
      continue
    by = f"{group}.{BY_NAME[group].field if group in BY_NAME else 'name'}"
    named_there = flat.get(by, ())
    names = [short(each) for each in (named_there if isinstance(named_there, list) else [named_there])]
    if option not in [*names, *(short(str(flat.get(f"{group}.{name}.inner"))) for name in names)]:
      return by
  return None


def is_choice(field: str) -> bool:
  """Whether a field names a choice with options, itself or in its rows."""
  return field in FIELDS or field in ROWS or _is_inner(field)


def chosen(config: Any, group: str, name: str | None = None) -> tuple[Any, dict[str, Any]]:
  """The function or class that a group of the configuration names, and its options as keyword arguments.

  Args:
    config: a configuration.
    group: a key of `BY_NAME`.
    name: one of several names, or a wrapper's `inner`; by default the group's own `name`.
  """
  part = _part(config, group)
  which: str = part.name if name is None else name
  return BY_NAME[group].find(which), part[short(which)].to_dict()


def add_options(config: Any, flat: Mapping[str, Any] | None = None) -> Any:
  """Adds the group of options of every choice that has none in the configuration yet.

  A configuration has the options of our tables from the start. After any other choice, this adds its options:

    config.method.name = "my_package.my_module:POLY"
    add_options(config).method.POLY.loss.epsilon = 2.0

  Args:
    config: the configuration, which is changed.
    flat: the fields that choose, by their full names; by default the fields of `config` itself.

  Returns:
    `config`.

  Raises:
    RunError: if a name is wrong, or the place of its options is taken.
  """
  with config.unlocked():
    for group, choice in BY_NAME.items():
      for name, thing in choice.table.items():
        if name not in _part(config, group):
          _part(config, group)[name] = choice.options(thing)
    for field, group, name in named_in(flatten(config) if flat is None else flat):
      wanted = BY_NAME[group].options(_find(field, group, name))
      part, place = _part(config, group), short(name)
      if place in SHARED.get(group, ()) or not isinstance(part.get(place, wanted), ConfigDict):
        raise RunError(f"{field}: {name} has the name of the field {group}.{place}; rename it")
      if field in FIELDS and part.get("name", name) != name and short(part.name) == place:
        del part[place]  # the options of the choice that it replaces
      if flatten(part.get(place, wanted)).keys() != flatten(wanted).keys():
        raise RunError(
          f"{field}: {group}.{place} holds the options of something other than {name}; rename it"
        )
      if place not in part:
        part[place] = wanted
  return config


def check_choices(config: Any) -> None:
  """Checks that each choice exists, has options, and shares them with no other choice."""
  owners: dict[tuple[str, str], str] = {}
  for field, group, name in named_in(flatten(config)):
    _find(field, group, name)
    if short(name) not in _part(config, group):
      raise RunError(
        f"{field}: {name} has no options yet; call jaxreg.train.add_options(config) after naming it"
      )
    other = owners.setdefault((group, short(name)), name)
    if other != name:
      raise RunError(f"{field}: {other} and {name} would share {group}.{short(name)}; rename one of them")


def check_imports(flat: Mapping[str, Any]) -> None:
  """Checks that the names in a work directory's configuration need no import."""
  for field, _, name in named_in(flat):
    if field not in ROWS:
      check_imported(name, field)


def named_in(flat: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
  """The field, the group and the name of every choice in a flat configuration.

  Rows give only their names of the form `module:NAME`. Values of wrong types are left out.
  """
  for field, value in flat.items():
    if field in FIELDS or _is_inner(field):
      yield from ((field, FIELDS.get(field, "optimizer"), name) for name in _texts(value))
    elif field in ROWS and isinstance(value, dict):
      for key, of_row in value.items():
        found = named_in(of_row if isinstance(of_row, dict) else {key: of_row})
        yield from ((field, group, name) for _, group, name in found if is_yours(name))


def _texts(value: Any) -> Iterator[str]:
  """The texts in a value: itself, or those in a tuple of any depth."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, list | tuple):
    yield from itertools.chain.from_iterable(map(_texts, value))


def _is_inner(field: str) -> bool:
  return re.fullmatch(r"optimizer\.\w+\.inner", field) is not None


def _find(field: str, group: str, name: str) -> Any:
  if _is_inner(field):
    return optimizer.find_step(name, field)
  try:
    return BY_NAME[group].find(name)
  except RunError as error:
    raise RunError(f"{field}: {error}" if field in ROWS else str(error)) from error


def _part(config: Any, group: str) -> Any:
  return functools.reduce(lambda part, name: part[name], group.split("."), config)

"""A configuration as one flat dict, and the fields of it that a run reads."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxreg.train.lookup import short

# The groups with a field `name`, and the groups with `names`: nothing reads the options of other choices.
ONE_OF = ("data", "model", "method", "optimizer", "optimizer.schedule", "average")
SOME_OF = ("augment", "regularizers", "noise", "optimizer.constraints")
# The groups inside these groups that all choices share.
SHARED = {
  "data": ("subset", "flipped_labels", "unlabelled", "stream"),
  "optimizer": ("schedule", "constraints", "weight_decay"),
}


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
  """Returns the fields by their dotted names: `{"optimizer.name": "adam", ...}`."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict | dict):
      flat |= flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = list(value) if isinstance(value, tuple) else value
  return flat


def relevant(flat: Mapping[str, Any]) -> dict[str, Any]:
  """A flat configuration without the options that nothing reads, because their choice is not named."""
  return {field: value for field, value in flat.items() if chooser(field, flat) is None}


def chooser(field: str, flat: Mapping[str, Any]) -> str | None:
  """The field whose choice leaves this option unread; None if the option is read."""
  for group in ONE_OF:
    name = _option_of(field, group)
    if name is not None and name not in SHARED.get(group, ()):
      chosen = short(str(flat.get(f"{group}.name")))
      inner = short(str(flat.get(f"{group}.{chosen}.inner")))
      if name not in (chosen, inner):
        return f"{group}.name"
  for group in SOME_OF:
    name = _option_of(field, group)
    if name is not None and name not in {short(str(each)) for each in flat.get(f"{group}.names", ())}:
      return f"{group}.names"
  return None


def _option_of(field: str, group: str) -> str | None:
  """The `name` in `group.name.option`; None for a field of another form."""
  name, dot, _ = field.removeprefix(f"{group}.").partition(".")
  return name if dot and field.startswith(f"{group}.") else None

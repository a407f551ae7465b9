"""Which fields of a configuration its job reads."""

from collections.abc import Mapping
from typing import Any

from jaxreg.train.config.fields import Config, flatten, relevant
from jaxreg.train.config.rows import parse_fields, parse_rows

# Groups that only the job of that name reads, and fields that are read if another field is not empty.
BY_JOB = ("compare", "flatness", "translate")


IF_GIVEN = {
  "data.flipped_labels.seed": "data.flipped_labels.rate",
  "evaluate.alpha": "evaluate.measures",
  "mesh.min_size": "mesh.shard",
  "noise.mask": "noise.names",
  "optimizer.constraints.mask": "optimizer.constraints.names",
  "optimizer.weight_decay.decoupled": "optimizer.weight_decay.rate",
  "optimizer.weight_decay.mask": "optimizer.weight_decay.rate",
  "pretrained.checkpoint": "pretrained.workdir",
  "pretrained.replica": "pretrained.workdir",
  "regularizers.dual_learning_rate": "regularizers.names",
  "regularizers.mask": "regularizers.names",
  "teacher.checkpoint": "teacher.workdir",
  "teacher.replica": "teacher.workdir",
}


def fields_read(chosen: Config) -> list[str]:
  """The fields that the job of a configuration reads, also in its rows if it has rows."""
  flat = flatten(chosen)
  variants = [flat]
  if chosen.job == "compare":
    variants = [flat | point | row.fields for row in parse_rows(chosen) for point in row.grid or [{}]]
  elif chosen.job == "flatness" and chosen.flatness.rows:
    variants = [flat | row for row in parse_fields(chosen, chosen.flatness.rows, "flatness.rows").values()]
  read = {field for variant in variants for field in relevant(variant) if _is_read(field, variant)}
  return [field for field in flat if field in read]


def _is_read(field: str, flat: Mapping[str, Any]) -> bool:
  group = field.partition(".")[0]
  if group in BY_JOB and group != flat["job"]:
    return False
  if group == "evaluate" and flat["job"] in ("compare", "flatness", "train"):
    return field in ("evaluate.mc_samples", "evaluate.combine", "evaluate.mirror")
  if field.startswith("data.stream."):
    name = flat["data.name"]
    return name == "image_folder" or bool(flat.get(f"data.{name}.stream"))
  if group == "flatness" and field.count(".") == 2:
    return field.split(".")[1] in flat["flatness.analyses"]
  return field not in IF_GIVEN or bool(flat[IF_GIVEN[field]])

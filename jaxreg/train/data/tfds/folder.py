"""Finds the folder of a prepared set of TensorFlow Datasets and opens it; prepares a set that is missing."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from jaxreg._extras import install
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.files import parse_json


def default_data_dir() -> str:
  return os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"


def open_set(reference: str, root: Path, manual_dir: str) -> tuple[Any, Path]:
  """TFDS's reader of a data set, and its folder; a set that is not prepared is prepared first."""
  parsed = re.fullmatch(r"(\w+)(?:/([^:/]+))?(?::((?:\d+|\*)(?:\.(?:\d+|\*)){2}))?", reference)
  if not parsed:
    raise RunError(
      f"data.tfds.name: got {reference!r}; give name, name/configuration, or either with :1.2.3 for a version"
    )
  name, config, version = (part or "" for part in parsed.groups())
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise RunError(
      f"data.tfds: needs tensorflow-datasets ({error}); {install('train')}, "
      "or train on --config.data.name=digits, which needs none"
    ) from error
  folder = _find(root, name, config, version)
  if folder is None:
    from jaxreg.train.data.tfds import builders as tfds_builders

    tfds_builders.prepare(name, config, version, root, manual_dir)
    folder = _find(root, name, config, version)
  if folder is None:
    raise RunError(
      f"data.tfds.data_dir: {root / name} holds no prepared {reference}; remove it or what is in it"
    )
  try:
    _check_features(folder)
    return tensorflow_datasets.builder_from_directory(folder), folder
  except RunError:
    raise
  except Exception as error:  # its JSON files can be damaged in many ways
    raise RunError(f"data.tfds: {unreadable(folder, error)}") from error


def _check_features(folder: Path) -> None:
  """Refuses features that are not TFDS's own: to read one, TFDS would import the module that it names."""
  file = folder / "features.json"
  inside = [parse_json(file.read_text())] if file.is_file() else []
  while inside:
    part = inside.pop()
    inside += [value for value in (part.values() if isinstance(part, dict) else part) if _holds(value)]
    for field in ("type", "pythonClassName", "python_class_name") if isinstance(part, dict) else ():
      name = part.get(field)
      if isinstance(name, str) and not name.startswith("tensorflow_datasets.core.features."):
        raise RunError(
          f"data.tfds: {file} names a feature that is not TFDS's own, {name!r}: to read it would run other "
          "people's program; give another set"
        )


def _holds(value: Any) -> bool:
  return isinstance(value, dict | list)


def _find(root: Path, name: str, config: str, version: str) -> Path | None:
  """The folder of the newest prepared version that matches; TFDS's own search may download."""
  from tensorflow_datasets.core import Version

  default = root / name / ".config" / "metadata.json"
  if not config and default.is_file():
    with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged file counts as missing
      named = parse_json(default.read_text())["default_config_name"]
      config = named if re.fullmatch(r"[^/:]+", named) else ""
  prepared = (info.parent for info in (root / name / config).glob("*/dataset_info.json"))
  versions = {Version(folder.name): folder for folder in prepared if Version.is_valid(folder.name)}
  matching = [found for found in versions if not version or found.match(version)]
  return versions[max(matching)] if matching else None


def unreadable(folder: Path, error: Exception) -> str:
  return f"{folder} is damaged or incomplete ({one_line(error)}); remove that folder and prepare it again"

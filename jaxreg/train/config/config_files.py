"""Config files: programs that return a configuration, ours or a user's."""

import ast
import difflib
import importlib.util
import textwrap
import types
from pathlib import Path

from ml_collections import ConfigDict

from jaxreg._atomic_files import SCHEME
from jaxreg.train.config.choices import CHOICES, add_options, base_config, flatten
from jaxreg.train.config.fields import Config
from jaxreg.train.config.values import WIDTH, hint
from jaxreg.train.entries import parameters
from jaxreg.train.errors import RunError, one_line, shortened
from jaxreg.train.user_modules import look_here
from jaxreg.train.user_paths import local_path, split_variant

WRAPPER = textwrap.TextWrapper(
  WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
)


def load_file(path: str, configs: Path) -> tuple[Config, str]:
  """Runs the config file `FILE[:VARIANT]`; returns its configuration and its docstring."""
  name, colon, argument = split_variant(path)
  if name.startswith(SCHEME):
    raise RunError(f"--config: got {name!r}, but only files of this machine are run; copy the file here")
  places = [local_path(name, "--config")]
  if str(Path(name).parent) in (".", configs.name):  # one of ours, from any folder, also by its bare name
    places += [configs / Path(name).name, configs / f"{Path(name).name}.py"]
  file = next((place for place in places if place.is_file()), None)
  if file is None:
    raise _no_file(name, configs)
  if file.parent != configs:
    look_here()  # for the modules that it imports
  try:
    module = load_module(file)
    if colon and not parameters(module.get_config):
      raise RunError(f"takes no argument, got {argument!r}")
    config: Config = module.get_config(argument) if colon else module.get_config()
    if not isinstance(config, ConfigDict):
      got = "nothing" if config is None else f"a {type(config).__name__}"
      raise TypeError(f"get_config must return what base_config makes, got {got}")
    if CHOICES.keys() <= flatten(config).keys():
      add_options(config)
    config.lock()
  except RunError as error:
    raise RunError(f"--config {path}: {error}") from error
  except (Exception, SystemExit) as error:  # A config is a user's program: anything can be wrong with it.
    raise RunError(f"--config {path}: {one_line(error)}") from error
  _check_fields(path, config)
  return config, (module.__doc__ or "").strip()


def _no_file(name: str, configs: Path) -> RunError:
  known = {config.stem: f"'{configs.name}/{config.name}'" for config in _files(configs)}
  near = difflib.get_close_matches(Path(name).stem.lower(), known, n=3, cutoff=0.6)
  meant = f"did you mean {' or '.join(known[stem] for stem in near)}? " if near else ""
  return RunError(f"--config: there is no file {shortened(name, 200)!r}; {meant}--list shows the configs")


def _check_fields(path: str, config: Config) -> None:
  """Checks that a config has the fields of `base_config` with the options of its choices, and no others."""
  fields = flatten(config)
  known = flatten(add_options(base_config(), fields))
  for field in fields.keys() - known.keys():
    raise RunError(f"--config {path}: there is no field {field}{hint(field, known)}")
  for field in known.keys() - fields.keys():
    raise RunError(f"--config {path}: has no field {field}; begin with base_config() of jaxreg.train")


def _files(configs: Path) -> list[Path]:
  return sorted(file for file in configs.glob("*.py") if not file.name.startswith("_"))


def list_files(configs: Path) -> str:
  """Lists each config with the first line of its docstring and its variants."""
  lines = []
  for file in _files(configs):
    try:
      doc = ast.get_docstring(ast.parse(file.read_text())) or ""
    except (SyntaxError, ValueError):  # a config that is being written
      doc = ""
    variants = " ".join(f":{variant}" for variant in _variants(file))
    lines.append(f"{configs.name}/{file.name}")
    for text in (doc.partition("\n")[0], variants):
      lines += WRAPPER.wrap(text)
  return "\n".join(lines) + "\n"


def _variants(file: Path) -> tuple[str, ...]:
  """Returns the variants that a config file allows after the colon."""
  try:
    return tuple(map(str, getattr(load_module(file), "VARIANTS", ())))
  except (Exception, SystemExit):  # A config is a user's program: anything can be wrong with it.
    return ()


def load_module(file: Path) -> types.ModuleType:
  """Runs a config file, in a module of its own."""
  spec = importlib.util.spec_from_file_location("config", file)
  if spec is None or spec.loader is None:
    raise ValueError("it is not a Python file")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module

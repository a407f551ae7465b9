"""The command line: from flags to a checked configuration; each mistake is reported in one line."""

import ast
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import itertools
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags import tuple_parser

from jaxreg.train.build.saved import restore_config
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import FIELDS, add_options, is_choice
from jaxreg.train.config.describe import WIDTH, described, fields_read
from jaxreg.train.config.fields import Config, chooser, default_config, flatten
from jaxreg.train.devices.processes import PEER_TIMEOUT, START_TIMEOUT
from jaxreg.train.errors import RunError, one_line, unknown
from jaxreg.train.files import local_path
from jaxreg.train.lookup import look_here
from jaxreg.train.run.workdir import default_workdir

USAGE = """usage: python run.py [--config FILE.py[:VARIANT]] [--workdir DIR]
                     [--config.FIELD=VALUE ...]

  --config    the config file to run; default configs/dropmax_digits.py
  --workdir   the folder for checkpoints, metrics and figures, where a run also
              continues; default runs/<config>[-<hash of the overrides>]
  --coordinator HOST:PORT --num_processes N --process_id I
              start one of N processes that train together; each gets its own I,
              and all must see the --workdir;
              $JAX_COORDINATOR_ADDRESS, $JAX_NUM_PROCESSES and $JAX_PROCESS_ID
              do the same
  --distributed
              ask the environment for these three (TPU pod, SLURM, Open MPI,
              GKE); usually this is detected without the flag
  --peer_timeout SECONDS
              a process without a sign of life for this time counts as lost, and
              the others stop; default 100
  --start_timeout SECONDS
              the time within which all processes have to come; default 50
  --config.method.name=MODULE:NAME
              a method of yours: the object NAME of the Python module MODULE, as
              my_package.my_module:POLY; its options are --config.method.NAME.*.
              Name a model, an optimizer, data, regularizers, noise, constraints
              and augmentations of yours in the same way
  --list      show the configs with their variants
  --help      show this, and the fields that the job of the chosen config reads
  --helpfull  also show the fields of other methods, models, optimizers, jobs, ...

exit status: 0 done; 1 a mistake or a fault, told in one line; 143 stopped by
SIGTERM, or 130 by Ctrl-C, and saved: the same command continues. docs/faults.md
lists faults and their effects on a run
"""

HELP = ("--help", "-h", "--helpfull", "-help")

UNBROKEN: Any = {"break_on_hyphens": False, "break_long_words": False}

# The jobs of a single run, which reads only its own configuration's choices; rows of other jobs may choose
# differently.
ALONE = ("train", "evaluate", "translate")


@dataclasses.dataclass(frozen=True)
class Call:
  """The request of a command line; for `--help` and `--list`, the program only prints `text`.

  The last six fields are the arguments of `processes.start`.
  """

  config: Config | None = None
  workdir: Path = Path()
  text: str = ""
  coordinator: str | None = None
  num_processes: int | None = None
  process_id: int | None = None
  distributed: bool = False
  peer_timeout: int = PEER_TIMEOUT
  start_timeout: int = START_TIMEOUT


def parse(argv: list[str], configs: Path) -> Call:
  """Reads the arguments after the program's name; `configs` is the folder of the configs.

  An evaluation or translation without `--config` takes the configuration of the run in the work directory.

  Raises:
    RunError: for any mistake.
  """
  given, rest = _take_config(argv)
  if "--list" in rest:
    return Call(text=_list(configs))
  path = given or str(configs / "dropmax_digits.py")
  config, doc = _load(path, configs)
  add_options(config, _choices(rest))
  helps, rest = [each for each in rest if each in HELP], [each for each in rest if each not in HELP]
  _check_names(rest, config)
  rest = _last_tuples(rest, config)
  values = flags.FlagValues()
  flags.DEFINE_string("workdir", None, "", flag_values=values)
  flags.DEFINE_string("coordinator", None, "", flag_values=values)
  flags.DEFINE_integer("num_processes", None, "", flag_values=values)
  flags.DEFINE_integer("process_id", None, "", flag_values=values)
  flags.DEFINE_bool("distributed", False, "", flag_values=values)
  flags.DEFINE_integer("peer_timeout", PEER_TIMEOUT, "", flag_values=values)
  flags.DEFINE_integer("start_timeout", START_TIMEOUT, "", flag_values=values)
  try:
    defined = config_flags.DEFINE_config_dict(
      "config", config, flag_values=values, sys_argv=["run.py", *rest]
    )
    left = values(["run.py", *rest])[1:]
    config, overrides = defined.value, config_flags.get_override_values(values["config"])
  except (flags.Error, ValueError, TypeError, KeyError, AttributeError) as error:
    raise RunError(" ".join(str(error).split()) + _flag_meant(error, config)) from error
  if left:
    hint = f"; did you mean --config {left[0]}?" if ".py" in left[0] else "; flags begin with --"
    raise RunError(f"unexpected argument {left[0]!r}{hint}")
  if helps:
    fields = flatten(config)
    shown = fields if "--helpfull" in helps else fields_read(config)
    return Call(text=f"{USAGE}\n{path}\n{doc}\n\n{described(fields, shown)}\n")
  workdir = local_path(values.workdir, "--workdir") if values.workdir else default_workdir(path, overrides)
  if config.job in ("evaluate", "translate") and not given:
    config = restore_config(config, workdir, overrides)
  check(config)
  _check_read(overrides, config)
  return Call(
    config=config,
    workdir=workdir,
    coordinator=values.coordinator,
    num_processes=values.num_processes,
    process_id=values.process_id,
    distributed=values.distributed,
    peer_timeout=values.peer_timeout,
    start_timeout=values.start_timeout,
  )


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
  """Splits off `--config X` or `--config=X` at any position: the order of flags does not matter."""
  path, rest, arguments = None, [], iter(argv)
  for argument in arguments:
    name, equals, value = argument.partition("=")
    if name in ("--config", "-config"):
      path = value if equals else next(arguments, None)
      if not path or path.startswith("-"):
        raise RunError("--config: needs a file, as in --config configs/dropmax_digits.py")
    else:
      rest.append(argument)
  return path, rest


def _load(path: str, configs: Path) -> tuple[Config, str]:
  name, colon, argument = path.partition(":")
  places = [local_path(name, "--config")]
  if str(Path(name).parent) in (".", configs.name):  # one of ours, from any folder, also by its bare name
    places += [configs / Path(name).name, configs / f"{Path(name).name}.py"]
  file = next((place for place in places if place.is_file()), None)
  if file is None:
    raise unknown("--config", name, [f"{configs.name}/{config.name}" for config in _files(configs)])
  if file.parent != configs:
    look_here()  # for the modules that it imports
  try:
    module = _module(file)
    if colon and not inspect.signature(module.get_config).parameters:
      raise RunError(f"takes no argument, got {argument!r}")
    config = module.get_config(argument) if colon else module.get_config()
    if not isinstance(config, ConfigDict):
      got = "nothing" if config is None else f"a {type(config).__name__}"
      raise TypeError(f"get_config must return what base_config makes, got {got}")
    if FIELDS.keys() <= flatten(config).keys():
      add_options(config)
    config.lock()
  except RunError as error:
    raise RunError(f"--config {path}: {error}") from error
  except (Exception, SystemExit) as error:  # A config is a user's program: anything can be wrong with it.
    raise RunError(f"--config {path}: {one_line(error)}") from error
  _check_fields(path, config)
  return config, (module.__doc__ or "").strip()


def _check_fields(path: str, config: Config) -> None:
  """Checks that a config has the fields of `base_config` with the options of its choices, and no others."""
  given = flatten(config)
  known = flatten(default_config(given))
  for field in given.keys() - known.keys():
    raise RunError(f"--config {path}: there is no field {field}{_meant(field, known)}")
  for field in known.keys() - given.keys():
    raise RunError(f"--config {path}: has no field {field}; begin with base_config() of jaxreg.train")


def _choices(arguments: list[str]) -> dict[str, Any]:
  """The fields among the flags that choose something with options, before the options are known."""
  found: dict[str, Any] = {}
  left = iter(arguments)
  for argument in left:
    name, equals, value = argument.lstrip("-").partition("=")
    field = name.removeprefix("config.")
    if argument.startswith("-") and field != name and is_choice(field):
      value = value if equals else next(left, "")
      found[field] = value if field.endswith((".name", ".inner")) else _several(value)
  return found


def _several(text: str) -> tuple[Any, ...]:
  """The names in a tuple on the command line; `config_flags` reports text that is not a tuple."""
  try:
    return tuple_parser.TupleParser().parse(text)
  except (ValueError, TypeError):
    return ()


def _check_names(arguments: list[str], config: Config) -> None:
  """Checks that every `--config.FIELD` names a field, and not a group of fields."""
  known: dict[str, Any] = flatten(config)
  for argument in arguments:
    name = argument.lstrip("-").partition("=")[0]
    if not argument.startswith("-") or not name.startswith("config."):
      continue
    field = name.removeprefix("config.")
    if field in known:
      continue
    inside = [other for other in known if other.startswith(f"{field}.")]
    if inside:
      first = sorted(inside, key=lambda other: other.count("."))[:10]
      more = ", ..." if len(inside) > len(first) else ""
      raise RunError(f"--config.{field}: is a group of fields; set one of {', '.join(first)}{more}")
    raise RunError(f"--config.{field}: there is no such field{_meant(field, known)}; --helpfull lists all")


def _last_tuples(arguments: list[str], config: Config) -> list[str]:
  """The arguments with only the last value of each tuple: ml_collections would join several values.

  For other fields, the last value overrides by itself.
  """
  tuples = {f"config.{field}" for field, value in flatten(config).items() if isinstance(value, list)}
  last: dict[str, list[str]] = {}
  others, left = [], iter(arguments)
  for argument in left:
    name, equals, _ = argument.lstrip("-").partition("=")
    if argument.startswith("-") and name in tuples:
      last[name] = [argument] if equals else [argument, *itertools.islice(left, 1)]
    else:
      others.append(argument)
  return [argument for pair in last.values() for argument in pair] + others


def _check_read(overrides: Mapping[str, Any], config: Config) -> None:
  """Checks that the run reads each override; jobs with rows are left out, because a row may read it."""
  flat = flatten(config)
  for field in overrides if config.job in ALONE else ():
    if chosen := chooser(field, flat):
      value = functools.reduce(lambda part, name: part[name], chosen.split("."), config)
      raise RunError(
        f"--config.{field}: nothing reads it with {chosen}={value}; name it there, or leave it out"
      )


def _meant(field: str, known: Mapping[str, Any]) -> str:
  near = difflib.get_close_matches(field, known, n=3, cutoff=0.6)
  near += [other for other in known if other.split(".")[-1] == field.split(".")[-1] and other not in near]
  return f"; did you mean {' or '.join(near[:4])}?" if near else ""


def _flag_meant(error: Exception, config: Config) -> str:
  """A hint for a flag that is a field without its `config.`."""
  name = error.flagname if isinstance(error, flags.UnrecognizedFlagError) else ""
  return f"; did you mean --config.{name}?" if name in flatten(config) else ""


def _files(configs: Path) -> list[Path]:
  return sorted(file for file in configs.glob("*.py") if not file.name.startswith("_"))


def _list(configs: Path) -> str:
  """Each config with the first line of its docstring and its variants, within the width of a terminal."""
  lines = []
  for file in _files(configs):
    try:
      doc = ast.get_docstring(ast.parse(file.read_text())) or ""
    except (SyntaxError, ValueError):  # a config that is being written
      doc = ""
    variants = " ".join(f":{variant}" for variant in _variants(file))
    lines.append(f"{configs.name}/{file.name}")
    for text in (doc.partition("\n")[0], variants):
      lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4, **UNBROKEN)
  return "\n".join(lines) + "\n"


def _variants(file: Path) -> tuple[str, ...]:
  """The variants that may stand after the colon."""
  try:
    return tuple(map(str, getattr(_module(file), "VARIANTS", ())))
  except (Exception, SystemExit):  # A config is a user's program: anything can be wrong with it.
    return ()


def _module(file: Path) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location("config", file)
  if spec is None or spec.loader is None:
    raise ValueError("it is not a Python file")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module

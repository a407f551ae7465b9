"""The command line: from flags to a checked configuration; each mistake is reported in one line."""

import dataclasses
import difflib
import re
from pathlib import Path

from absl import flags
from etils import epath

import jaxreg
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.config_files import list_files, load_file
from jaxreg.train.config.fields import JOB_NAMES, Config
from jaxreg.train.config.flags import check_read, fields_read, override, take_fields
from jaxreg.train.config.values import help_lines
from jaxreg.train.devices.processes import PEER_TIMEOUT, START_TIMEOUT
from jaxreg.train.entries import Options
from jaxreg.train.errors import RunError, naming, program
from jaxreg.train.run.folder_name import default_workdir
from jaxreg.train.user_paths import user_path

USAGE = """usage: python run.py [JOB] [--config FILE.py[:VARIANT]] [--workdir DIR]
                     [--config.FIELD=VALUE ...]
where jaxreg is installed, `jaxreg` is the same as `python run.py`

  JOB         train, evaluate, predict, compare or report: the job, in place of
              the config's; or list, help, check-data, which reads all data
              of a run once and reports what would end it, compile, or merge
  predict RUN FILE --out OUT.csv [--conformal]
              write what the run in the folder RUN predicts for the examples of
              a CSV, Parquet or .npz file, or of a folder of images, with
              conformal sets or intervals; the same as --config.predict.*
  evaluate RUN, report RUN
              evaluate the run in the folder RUN, or make a report card of it;
              the same as --workdir RUN
  export RUN  write RUN/export: the prediction of the run as one function that
              needs JAX only, with its temperature and conformal sets inside
  merge RUN RUN ... --workdir OUT
              write a run whose weights are the mean of those of these runs, as
              far as it is no worse on the validation split
  --config    the config file to run; default configs/dropmax_digits.py
  --workdir   the folder of checkpoints, metrics and figures, also in a bucket:
              gs://BUCKET/FOLDER; a run continues there; default
              runs/<config>[-<hash of the overrides>]
  --coordinator HOST:PORT --num_processes N --process_id I
              start process I of N that train together; all must see the
              --workdir; $JAX_COORDINATOR_ADDRESS, $JAX_NUM_PROCESSES and
              $JAX_PROCESS_ID do the same
  --distributed
              read these three from the environment (TPU pod, SLURM, Open MPI,
              GKE), which is usually detected without the flag
  --peer_timeout SECONDS
              the time after which a silent process counts as lost and the
              others stop; default 100
  --start_timeout SECONDS
              the time within which all processes must join; default 45
  --against DIR [DIR ...], --minutes M
              for `report`, which makes a report card of a run: runs to compare
              with, and a time budget; the same as --config.report.*
  --topology KIND:SHAPE
              for `compile`, which compiles the step for devices that are not
              here, such as v5e:4x4, v6e:8x8 or gpu:8, and reports bytes,
              collectives and time; the same as --config.compile.topology
  --config.method.name=MODULE:NAME
              your own method: the object NAME of the Python module MODULE, as
              my_package.my_module:POLY; its options are --config.method.NAME.*.
              Your own model, optimizer, data, regularizers, noise, constraints
              and augmentations are named in the same way
  --list      show the configs with their variants
  --version   show the version
  --help      show this, and the fields that the job of the chosen config reads
  --helpfull  also show fields of other methods, models, optimizers, jobs, ...

exit status: 0 done; 1 a mistake or a fault, or a step that does not fit the
devices of `compile`, reported in one line; 143 stopped
by SIGTERM, or 130 by Ctrl-C, and saved: the same command continues.
docs/faults.md lists faults and their effects on a run
"""

SHORT_USAGE = """usage: jaxreg [JOB] [--config FILE.py[:VARIANT]] [--workdir DIR] [--config.FIELD=VALUE ...]

  jaxreg train               train DropMax on the digits of scikit-learn, in half a minute
  jaxreg train --config configs/dropmax_mnist.py:1k
  jaxreg report RUN          make a report card of the run in the folder RUN
  jaxreg compare --config configs/softmax_digits.py --config.compare.rows="('softmax', 'focal')"
  jaxreg --list              the configs
  jaxreg --help              all flags and fields
"""
ABBREVIATIONS = {"lr": "optimizer.learning_rate", "wd": "optimizer.weight_decay.rate", "bs": "batch_size"}
HELP = ("--help", "-h", "--helpfull", "-help")


@dataclasses.dataclass(frozen=True)
class Call:
  """The request of a command line; for `--help` and `--list`, the program only prints `text`."""

  config: Config | None = None
  workdir: epath.Path = dataclasses.field(default_factory=epath.Path)
  text: str = ""
  processes: Options = dataclasses.field(default_factory=dict)  # the arguments of `processes.start`


def parse(argv: list[str], configs: Path) -> Call:
  """Reads the arguments after the program's name; `configs` is the folder of the configs.

  An evaluation, a prediction or a report without `--config` takes the configuration of the run in the work
  directory, and a merge that of its first run.
  """
  if not argv and program() == "jaxreg":  # a command that somebody tries must not train in their folder
    return Call(text=SHORT_USAGE)
  job, rest = _take_job(argv)
  texts, rest = take_fields(rest)
  has_config, path = "" in texts, texts.pop("", str(configs / "dropmax_digits.py"))
  if not path:
    raise RunError("--config: needs a file, as in --config configs/dropmax_digits.py")
  if "--version" in rest:
    return Call(text=f"jaxreg {jaxreg.__version__}\n")
  if "--list" in rest:
    return Call(text=list_files(configs))
  config, doc = load_file(path, configs)
  if job not in (None, config.job):  # the config's own job is not an override
    texts["job"] = job
  overrides = override(config, texts)
  helps, rest = [each for each in rest if each in HELP], [each for each in rest if each not in HELP]
  values = flags.FlagValues()
  flags.DEFINE_string("workdir", None, "", flag_values=values)
  flags.DEFINE_string("coordinator", None, "", flag_values=values)
  flags.DEFINE_integer("num_processes", None, "", flag_values=values)
  flags.DEFINE_integer("process_id", None, "", flag_values=values)
  flags.DEFINE_bool("distributed", False, "", flag_values=values)
  flags.DEFINE_integer("peer_timeout", PEER_TIMEOUT, "", flag_values=values)
  flags.DEFINE_integer("start_timeout", START_TIMEOUT, "", flag_values=values)
  try:
    left = values(["run.py", *rest])[1:]
  except flags.Error as error:
    name = error.flagname if isinstance(error, flags.UnrecognizedFlagError) else ""
    raise RunError(
      " ".join(str(error).split()) + _hint(name, config, [*values, "config", "list", "help", "version"])
    ) from error
  if left:
    near = difflib.get_close_matches(left[0], ["check-data", *JOB_NAMES, "list", "help"], 1)
    hint = f"; did you mean {near[0]}, as the first word?" if near else "; flags begin with --"
    hint = f"; did you mean --config {left[0]}?" if ".py" in left[0] else hint
    raise RunError(f"unexpected argument {left[0]!r}{hint}")
  if helps:
    fields = flatten(config)
    shown = fields if "--helpfull" in helps else fields_read(config)
    return Call(text=f"{USAGE}\n{path}\n{doc}\n\n{help_lines(fields, shown)}\n")
  if config.job == "merge" and not (config.merge.runs and values.workdir):
    raise RunError("merge: needs runs and a folder, as in jaxreg merge RUN RUN --workdir OUT")
  workdir = user_path(values.workdir, "--workdir") if values.workdir else default_workdir(path, overrides)
  if config.job in ("evaluate", "predict", "export", "report", "merge") and not has_config:
    from jaxreg.train.finished.restore import restore_config  # its import takes seconds, and help needs none

    if config.job == "merge":
      with naming("merge.runs"):
        config = restore_config(config, user_path(config.merge.runs[0], "merge.runs"), overrides)
    else:
      config = restore_config(config, workdir, overrides)
  check(config)
  check_read(overrides, config)
  several = values.flag_values_dict()
  del several["workdir"]
  return Call(config, workdir, processes=several)


def _take_job(argv: list[str]) -> tuple[str | None, list[str]]:
  """Splits off the first argument if it is a job, also `check-data`; `list` and `help` become flags."""
  first, rest = (argv[0], argv[1:]) if argv else (None, [])
  first = "check_data" if first == "check-data" else first
  if first in ("list", "help"):
    return None, [f"--{first}", *rest]
  if first not in JOB_NAMES:
    return None, argv
  if first in ("evaluate", "export", "report") and rest and not re.match(r"-|.*\.py\b", rest[0]):
    rest = [f"--workdir={rest[0]}", *rest[1:]]
  if first == "report":
    rest = _report_fields(rest)
  if first == "predict":
    rest = _predict_fields(rest)
  if first == "merge":
    rest = _merge_fields(rest)
  if first == "compile":
    rest = [re.sub(r"^--topology\b", "--config.compile.topology", argument) for argument in rest]
  if twice := next((argument for argument in rest if argument.startswith("--config.job")), None):
    raise RunError(f"{twice}: the job is named already, {first}")
  return first, rest


def _predict_fields(arguments: list[str]) -> list[str]:
  """Turns the leading `RUN FILE`, `--out FILE` and `--conformal` into flags."""
  number = next((at for at, each in enumerate(arguments) if each.startswith("-")), len(arguments))
  places, rest = arguments[:number], arguments[number:]
  if len(places) not in (0, 2):
    got = " ".join(places)
    raise RunError(
      f"predict: needs a run and a file, as in jaxreg predict RUN FILE --out OUT.csv, got {got!r}"
    )
  flags = ["--config.predict.file=" + places[1], "--workdir=" + places[0]] if places else []
  for argument in rest:
    argument = re.sub(r"^--out\b", "--config.predict.out", argument)
    flags.append(re.sub(r"^--conformal$", "--config.predict.conformal=True", argument))
  return flags


def _merge_fields(arguments: list[str]) -> list[str]:
  """Turns the leading `RUN RUN ...` into a field."""
  number = next((at for at, each in enumerate(arguments) if each.startswith("-")), len(arguments))
  runs, rest = arguments[:number], arguments[number:]
  return ([f"--config.merge.runs={tuple(runs)!r}"] if runs else []) + rest


def _report_fields(arguments: list[str]) -> list[str]:
  """Turns `--minutes M` and all `--against DIR ...` into fields."""
  against: list[str] = []
  others: list[str] = []
  while arguments:
    argument, *arguments = arguments
    flag = re.fullmatch(r"--against(?:=(.*))?", argument, re.DOTALL)
    if not flag:
      others.append(re.sub(r"^--minutes\b", "--config.report.minutes", argument))
      continue
    folders = [flag[1]] if flag[1] else []
    while not flag[1] and arguments and not arguments[0].startswith("-"):
      folders.append(arguments.pop(0))
    if not folders:
      raise RunError("--against: needs the folder of a run, as in --against runs/dropmax_digits")
    against += folders
  return others + ([f"--config.report.against={tuple(against)!r}"] if against else [])


def _hint(name: str, config: Config, known: list[str]) -> str:
  """Suggests the field or the flag that the name of an unknown flag means."""
  fields = flatten(config)
  ending = [field for field in fields if field.endswith(f".{name}")]
  near = difflib.get_close_matches(name, known, 1)
  if name in fields:
    meant = f"config.{name}"
  elif name in ABBREVIATIONS:
    meant = f"config.{ABBREVIATIONS[name]}"
  elif len(ending) == 1:
    meant = f"config.{ending[0]}"
  else:
    meant = near[0] if near and name else ""
  return f"; did you mean --{meant}?" if meant else ""

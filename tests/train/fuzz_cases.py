"""Broken flags, configurations, data files and work directories, drawn by a seed: for `test_fuzz.py`.

A kind is a function `(random, folder) -> arguments` that may write into `folder`; `folder / "run"` is, for
those in `OF_RUNS`, a finished run of `runs.TINY`, to be changed. Every case is to be refused.
"""

import json
import shutil
import string
from collections.abc import Callable
from pathlib import Path

import image_files
import numpy as np
import runs
import toy_text

from jaxreg import train
from jaxreg.train.config.choices import chooser, flatten
from jaxreg.train.config.values import allowed_names
from jaxreg.train.registry import REGISTRY
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.sealed_tables import sealed

# Optimizers of Optax: their options are Optax's to check.
OF_OPTAX = {
  name for name, row in REGISTRY["optimizer"].items() if row.function.__module__.startswith("optax")
}

Random = np.random.Generator
Arguments = list[str]
KINDS: dict[str, Callable[[Random, Path], Arguments]] = {}
OF_RUNS: set[str] = set()

CONFIG = str(runs.ROOT / "configs" / "softmax_digits.py")
FIELDS = flatten(train.base_config())
STEP = 6 * runs.STEPS_PER_EPOCH


def kind(function):
  KINDS[function.__name__] = function
  return function


def kind_of_run(function):
  KINDS[function.__name__] = lambda random, folder: function(random, folder, folder / "run")
  OF_RUNS.add(function.__name__)
  return function


def pick(random: Random, options):
  options = list(options)
  return options[int(random.integers(len(options)))]


def misspelt(random: Random, name: str, known) -> str:
  """A name one or two slips away from `name`, and no other that is known."""
  known = {other.lower() for other in known}
  while True:
    at, letter = int(random.integers(len(name))), pick(random, string.ascii_lowercase)
    slip = pick(random, ("leave out", "put in", "replace", "double"))
    other = {
      "leave out": name[:at] + name[at + 1 :],
      "put in": name[:at] + letter + name[at:],
      "replace": name[:at] + letter + name[at + 1 :],
      "double": name[:at] + name[at] + name[at:],
    }[slip]
    if other and other.lower() not in known and not other.startswith((".", "-")) and ".." not in other:
      return other


def flag(field: str, value) -> str:
  return f"--config.{field}={value}"


def tiny(**fields) -> Arguments:
  """The flags of `runs.TINY`, with the default configuration of every other field."""
  return [flag(field, value) for field, value in {**runs.TINY, **fields}.items()]


def again(run: Path, *more: str) -> Arguments:
  """The command that made the run, once more."""
  return ["--config", write_config(run.parent / "again.py"), *tiny(), "--workdir", str(run), *more]


def evaluate(run: Path, *more: str) -> Arguments:
  return ["--config.job=evaluate", "--workdir", str(run), *more]


def write_config(file: Path) -> str:
  file.write_text("from jaxreg.train import base_config\n\n\ndef get_config():\n  return base_config()\n")
  return str(file)


# Flags.


@kind
def misspelt_fields(random, folder):
  return [flag(misspelt(random, pick(random, FIELDS), FIELDS), 1)]


@kind
def groups_instead_of_fields(random, folder):
  parts = pick(random, [field for field in FIELDS if "." in field]).split(".")
  return [flag(".".join(parts[: int(random.integers(1, len(parts)))]), pick(random, ("1", "sgd", "{}", "")))]


@kind
def wrong_types(random, folder):
  bad = {
    bool: ("maybe", "2", "None", "1.0", "[]"),
    int: ("ten", "1.5", "None", "[1]", "", "1e3", "True", "1_0.", "nan"),
    float: ("fast", "(1, 2)", "None", "", "1,5", "0.1.2", "[]"),
    list: ("wide", "(", "{", "1 +", "(1, 2"),
    type(None): ("fast", "(1,)", "1,5"),
  }
  # A word is a list of one name: those of jobs that are not asked for are not read.
  unread = lambda field: (
    type(FIELDS[field]) is list and field.split(".")[0] not in ("augment", "noise", "regularizers")
  )
  field = pick(random, [field for field, value in FIELDS.items() if type(value) in bad and not unread(field)])
  return [flag(field, pick(random, bad[type(FIELDS[field])]))]


FLAGS = {
  "coordinator": ("localhost", ":1234", "localhost:", "localhost:x", "localhost:-1", "localhost:99999", " "),
  "num_processes": ("0", "-3", "two", "1.5", ""),
  "process_id": ("2", "-1", "first", "7", ""),
  "peer_timeout": ("0", "-5", "soon"),
  "start_timeout": ("0", "-1", "soon"),
}


@kind
def unknown_flags(random, folder):
  name = pick(random, ("workdir", "distributed", *FLAGS))
  return [f"--{misspelt(random, name, ('workdir', 'config', 'list', 'help'))}=x"]


@kind
def arguments_that_are_no_flags(random, folder):
  word = pick(random, ("trian", "configs/softmax_digits.py", "epochs=3", "x", "-", "run.py", "digits", ""))
  place = int(random.integers(2))
  return [word, "--config.epochs=1"] if place else ["--config.epochs=1", word]


@kind
def flags_without_values(random, folder):
  names = ("--workdir", "--config.epochs", "--config.method.name", "--config", "--num_processes", "--config=")
  return ["--config.seed=1", pick(random, names)]


@kind
def coordinators(random, folder):
  """One flag that is wrong, or some of the three that have to be given together."""
  good = {"coordinator": "localhost:1234", "num_processes": "2", "process_id": "0"}
  wrong = pick(random, FLAGS)
  some = random.permutation(list(good))[: int(random.integers(1, 3))]
  given = pick(random, ({**good, wrong: pick(random, FLAGS[wrong])}, {name: good[name] for name in some}))
  return [f"--{name}={value}" for name, value in given.items()]


# Config files.


@kind
def config_files_that_are_none(random, folder):
  (folder / "text.txt").write_text("hello\n")
  (folder / "empty.py").write_text("")
  (folder / "bytes.py").write_bytes(random.bytes(64))
  (folder / "folder.py").mkdir()
  name = pick(random, ("text.txt", "empty.py", "bytes.py", "folder.py", ".", "missing.py", "configs/x.py"))
  return ["--config", f"{folder}/{name}" + pick(random, ("", ":", ":l2"))]


BODIES = (
  "def get_config(:",
  "def get_config():\nreturn 1",
  "import nothing_of_this_name",
  "from jaxreg.train import nothing_of_this_name",
  "x = 1",
  "get_config = 3",
  "def get_config(a, b): pass",
  "def get_config(): raise RuntimeError('first\\nsecond')",
  "def get_config(): raise RuntimeError",
  "def get_config(): return get_config()",
  "def get_config(): raise SystemExit('no')",
  "import sys\nsys.exit(0)",
  "exit()",
  "def get_config(): 1 / 0",
  "def get_config(): assert False",
  "def get_config(): return open('/nowhere/at/all')",
  "\tx = 1\n  y = 2",
  "x = '\u2028",
)


@kind
def config_files_that_fail(random, folder):
  (folder / "mine.py").write_text(pick(random, BODIES))
  return ["--config", f"{folder}/mine.py", *pick(random, ([], ["--config.epochs=1"], ["--help"]))]


@kind
def configs_of_another_shape(random, folder):
  field = pick(random, [field for field in FIELDS if not field.startswith("compare.")])
  new = misspelt(random, field.split(".")[-1], FIELDS)
  wrong = {bool: "'yes'", int: "'ten'", float: "'fast'", str: "3", list: "'wide'", type(None): "'x'"}
  change = pick(
    random,
    (
      *(f"config = {other}" for other in ("None", "3", "{}", "{'job': 'train'}", "ConfigDict()")),
      "config = ConfigDict({'job': 'train', 'epochs': 1})",
      f"config.unlock(); del config.{field}",
      f"config.unlock(); del config.{field.split('.')[0]}",
      f"config.{new} = 1",
      f"config.unlock(); config.{'.'.join([*field.split('.')[:-1], new])} = 1",
      f"config.{field} = {wrong[type(FIELDS[field])]}",
      f"config.unlock(); config.{field} = object()",
      "config.unlock(); config.optimizer = 'adam'",
      "config.unlock(); config.model.name = None",
      "config.unlock(); config.augment.names = 'flip'",
      "config.unlock(); config.epochs = ConfigDict({'a': 1})",
      "config.epochs = 0",
      "config.method.name = 'dropmx'",
    ),
  )
  (folder / "mine.py").write_text(
    "from ml_collections import ConfigDict\nfrom jaxreg.train import base_config\n\n\n"
    f"def get_config():\n  config = base_config()\n  {change}\n  return config\n"
  )
  return ["--config", f"{folder}/mine.py"]


@kind
def arguments_of_configs(random, folder):
  name = pick(
    random, ("toolbox_digits", "dropmax_mnist", "optimizers_digits", "softmax_digits", "flatness_fnn_mnist")
  )
  return ["--config", f"{runs.ROOT}/configs/{name}.py:{misspelt(random, 'something', ())}"]


# Names and numbers.


def reading(field: str) -> Arguments:
  """A config, and what has to be chosen for a run to read the field."""
  job = []
  if chosen := chooser(field, FIELDS):
    name = field.removeprefix(chosen.rpartition(".")[0]).split(".")[1]
    job.append(flag(chosen, f"('{name}',)" if chosen.endswith("names") else name))
  return ["--config", CONFIG, *job]


@kind
def unknown_names(random, folder):
  field = pick(
    random, [name for name, value in FIELDS.items() if isinstance(value, str) and allowed_names(name)]
  )
  names = allowed_names(field)
  return [*reading(field), flag(field, misspelt(random, pick(random, names), names))]


@kind
def unknown_names_in_lists(random, folder):
  known = {group: REGISTRY[group] for group in ("augment", "regularizers", "noise", "optimizer.constraints")}
  group = pick(random, known)
  good = pick(random, known[group])
  bad = pick(random, (misspelt(random, good, known[group]), "", "None"))
  value = pick(random, (f"('{bad}',)", f"('{good}', '{bad}')", "(1,)", "(None,)", "((),)"))
  return [flag(f"{group}.names", value)]


@kind
def numbers_out_of_range(random, folder):
  """What no number of a configuration may be; `docs/faults.md` has the ranges themselves."""
  bad = {int: (-(10**12),), float: ("nan", "inf", "-inf")}
  field = pick(random, [name for name, value in FIELDS.items() if type(value) in bad])
  return [*reading(field), flag(field, pick(random, bad[type(FIELDS[field])]))]


# Values that would mean nothing, for the fields of each name.
SENSELESS = {
  **dict.fromkeys(("weight", "std", "eps", "limit", "learning_rate", "temperature"), (-1.0,)),
  **dict.fromkeys(("rate", "dropout_rate", "validation_fraction", "decay", "smoothing"), (-0.1, 1.5)),
  **dict.fromkeys(("b1", "b2", "b3", "momentum"), (-0.1, 1.5)),
  **dict.fromkeys(("batch_size", "num_classes", "num_ops", "depth", "width"), (-1,)),
  "widths": ("(1000000000000,)", "(0,)", "(-1,)", "(1.5,)", "('a',)", "(None,)"),
  "dropout_rates": ("(0.1,)", "(0.1, 2.0)", "('a', 'b')"),
  "boundaries": ("(-1,)", "('a',)", "(nan,)"),
  "mean": ("(0.1, 0.2)", "('a',)", "(nan,)"),
  "std": (-1.0, "(0.0,)", "(-1.0,)"),
  "area": ("(0.5, 0.1)", "(-1.0, 0.1)", "(0.1,)", "('a', 'b')"),
  "operations": ("()", "('rotat',)", "(1,)"),
  "clip": ("(1.0,)", "(1.0, 0.0)", "('a', 'b')"),
  "pairs": ("()", "(('a', 'b'),)", "('a',)", "(1,)", "(('*kernel', '*bias'),)"),
  "class_counts": ("()", "(1, 2)", "('a',)", "(0, 1, 1, 1, 1, 1, 1, 1, 1, 1)", "(nan,)"),
}


@kind
def options_that_mean_nothing(random, folder):
  last_of = {
    name: name.rpartition(".")[2] for name in FIELDS if ".".join(name.split(".")[1:2]) not in OF_OPTAX
  }
  last = pick(random, [last for last in SENSELESS if last in last_of.values()])
  field = pick(random, [name for name in last_of if last_of[name] == last])
  return [*reading(field), flag(field, pick(random, SENSELESS[last]))]


# Data files.


def idx_set(folder: Path, zipped: bool = True) -> Arguments:
  for part, number in (("train", 40), ("t10k", 20)):
    images, labels = np.zeros((number, 16, 16), np.uint8), np.arange(number, dtype=np.uint8) % 4
    arrays = {f"{part}-images-idx3-ubyte": images, f"{part}-labels-idx1-ubyte": labels}
    image_files.write_idx(folder, arrays, zipped=zipped)
  fields = {"data.name": "idx", "data.idx.path": folder, "batch_size": 8}
  return [flag(field, value) for field, value in fields.items()]


def raw_idx_set(folder: Path) -> Arguments:
  return idx_set(folder, zipped=False)


def npz_set(folder: Path) -> Arguments:
  x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
  np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=-x, y_test=y)
  fields = {"data.name": "npz", "data.npz.path": folder / "mine.npz", "batch_size": 8}
  return [flag(field, value) for field, value in fields.items()]


def text_set(folder: Path) -> Arguments:
  fields = {**toy_text.TINY, "data.parallel_text.path": toy_text.write(folder)}
  return [flag(field, value) for field, value in fields.items()]


def spoil(random: Random, file: Path) -> None:
  """Makes of a file what no file of its kind can be."""
  content = file.read_bytes()
  file.unlink()
  how = pick(random, ("missing", "folder", "half", "empty", "text", "a pickle"))
  if how == "folder":
    file.mkdir()
  elif how != "missing":
    others = {"half": content[: len(content) // 2], "empty": b"", "text": b"no data\n"}
    file.write_bytes(others.get(how, b"\x80\x04K\x03."))


@kind
def damaged_data_files(random, folder):
  (folder / "set").mkdir()
  arguments = pick(random, (idx_set, raw_idx_set, npz_set, text_set))(folder / "set")
  spoil(random, pick(random, sorted((folder / "set").iterdir())))
  return ["--config", write_config(folder / "again.py"), *arguments]


@kind
def tfds_sets(random, folder):
  name = pick(random, ("nothing_of_this_name", "mnist/x", "mnist:9.9.9", "", "../x", "a b"))
  (folder / "mnist" / "3.0.1").mkdir(parents=True)
  (folder / "mnist" / "3.0.1" / "dataset_info.json").write_text(pick(random, ("", "{", "[]", "{}")))
  options = flag("data.tfds.name", name), flag("data.tfds.data_dir", folder)
  return ["--config", CONFIG, flag("data.name", "tfds"), *options]


@kind
def options_that_text_cannot_have(random, folder):
  transformer = "model.Transformer"
  options = (
    *(
      f"data.parallel_text.{size}={value}" for size in ("vocab_size", "source_length") for value in (-1, 0, 1)
    ),
    *("data.parallel_text.source=fr", "data.parallel_text.source=de", "data.parallel_text.path=/nowhere"),
    *("augment.names=('flip',)", "noise.names=('gaussian_noise',)", "regularizers.names=('fgsm',)"),
    *(
      "data.subset.per_class=1",
      "data.flipped_labels.rate=0.5",
      "model.name=LeNet",
      f"{transformer}.d_model=0",
    ),
    *("optimizer.name=path_sgd", f"{transformer}.num_heads=0"),
  )
  config = ["--config", write_config(folder / "again.py")]
  return [*config, *text_set(folder), f"--config.{pick(random, options)}"]


# Work directories.


def one_checkpoint(run: Path) -> Path:
  """Leaves the latest checkpoint only; its folder."""
  for step in good_steps(run):
    if step != STEP:
      shutil.rmtree(run / "checkpoints" / str(step))
      (run / "manifests" / f"{step}.json").unlink()
  return run / "checkpoints" / str(STEP)


def damage_file(random: Random, file: Path) -> None:
  how = pick(random, ("flipped", "cut", "missing", "longer", "folder"))
  content = file.read_bytes()
  if how == "flipped" and content:
    runs.flip(file, int(random.integers(len(content))), bit=int(random.integers(8)))
  elif how == "cut" and content:
    file.write_bytes(content[: int(random.integers(len(content)))])
  elif how == "longer" or (how in ("flipped", "cut") and not content):
    file.write_bytes(content + b"\0")
  else:
    file.unlink()
    if how == "folder":
      file.mkdir()


@kind_of_run
def damaged_checkpoints(random, folder, run):
  damage_file(random, pick(random, (f for f in sorted(one_checkpoint(run).rglob("*")) if f.is_file())))
  return pick(random, (evaluate(run), evaluate(run, "--config.evaluate.checkpoint=best")))


@kind_of_run
def damaged_manifests(random, folder, run):
  one_checkpoint(run)
  file = run / "manifests" / f"{STEP}.json"
  odd = json.dumps(sealed({"files": 3, "metrics": None})).encode()
  content = random.bytes(20), b"", b"{}", b"[]", b"3", b'{"files": 3, "metrics": null}', b"\xff\xfe", odd
  file.write_bytes(pick(random, content))
  if random.integers(4) == 0:
    file.unlink()
  return evaluate(run)


@kind_of_run
def damaged_files_of_the_run(random, folder, run):
  name = pick(random, ("config.json", "data.json", "results.json"))
  file = run / name
  content = file.read_bytes()
  whole = runs.table(file)
  how = pick(random, ("cut", "no table", "no text", "fields", "digit", "folder"))
  if how == "cut":
    file.write_bytes(content[: int(random.integers(len(content) - 2))])
  elif how == "no table":
    file.write_text(pick(random, ("[]", "3", "null", '"x"', "{]", "nan")))
  elif how == "digit":
    positions = [i for i, byte in enumerate(content) if byte in b"12345678"]
    runs.flip(file, pick(random, positions))
  elif how == "no text":
    file.write_bytes(b"\xff\xfe" + content)
  elif how == "folder":
    file.unlink()
    file.mkdir()
  elif name == "config.json":
    field = pick(
      random, [field for field, value in whole.items() if field.split(".")[0] in ("optimizer", "seed")]
    )
    whole[pick(random, (field, "nothing.of_this_name", "optimizer.x", "model"))] = pick(
      random, ({"a": 1}, "x", None, -5)
    )
    file.write_text(json.dumps(whole))
    return evaluate(run)
  else:
    # What is left is a table, but not the one that was written.
    file.write_text(json.dumps({name: None for name in whole} if name == "data.json" else {}))
  return again(run) if name == "results.json" or random.integers(2) else evaluate(run)


@kind
def wrong_work_directories(random, folder):
  (folder / "file").write_text("")
  (folder / "dangling").symlink_to(folder / "nowhere" / "at" / "all")
  (folder / "loop").symlink_to(folder / "loop")
  (folder / "other" / "checkpoints").mkdir(parents=True)
  (folder / "results" / "results.json").mkdir(parents=True)
  wheres = "file", "file/sub", "dangling", "loop", "x" * 300, "other", "results", "missing", "loop/x"
  where = pick(random, wheres)
  if where in ("missing", "dangling") or random.integers(3) == 0:
    return evaluate(folder / where)
  return ["--config", CONFIG, "--workdir", str(folder / where)]


OTHER_VALUES = {
  "seed": (1, 7),
  "batch_size": (16, 64),
  "eval_batch_size": (32, 128),
  "replicas": (2, 3),
  "precision": ("bfloat16",),
  "parallel": ("pmap",),
  "data.subset.limit": (64, 127),
  "data.flipped_labels.rate": (0.1, 0.5),
  "model.MLP.widths": ("(9,)", "(8, 8)"),
  "method.name": ("softmax", "focal"),
  "method.dropmax.loss.kl_weight": (0.5, 2.0),
  "optimizer.name": ("sgd", "rmsprop"),
  "optimizer.adam.b1": (0.8, 0.5),
  "optimizer.schedule.name": ("cosine",),
  "regularizers.names": ("('l2',)", "('r_drop',)"),
  "average.name": ("swa", "ema"),
  "checkpoint.keep": (3, 5),
  "epochs": (1, 3, 5),
}


@kind_of_run
def fields_changed_on_resume(random, folder, run):
  field = pick(random, OTHER_VALUES)
  value = flag(field, pick(random, OTHER_VALUES[field]))
  # A shorter run may be evaluated, and an evaluation may run otherwise.
  train_on = field in ("epochs", "eval_batch_size", "parallel") or random.integers(2)
  return again(run, value) if train_on else [*again(run, value), "--config.job=evaluate"]


@kind_of_run
def pretrained_backbones(random, folder, run):
  (folder / "file").write_text("")
  fields = {"pretrained.workdir": str(run)}
  damage = pick(random, ("another", "files", "checkpoint"))
  if damage == "another":
    other = {"model.MLP.widths": ("(9,)", "(8, 8)", "()")}
    other |= {"pretrained.checkpoint": ("newest", "24", "")}
    other |= {"pretrained.workdir": (str(folder / "nowhere"), str(folder / "file"))}
    field = pick(random, other)
    fields[field] = pick(random, other[field])
  elif damage == "files":
    (run / pick(random, ("data.json", "config.json"))).write_text(pick(random, ("", "{", "{}", "[]")))
  else:
    damage_file(random, pick(random, (f for f in sorted(one_checkpoint(run).rglob("*")) if f.is_file())))
  return ["--config", write_config(folder / "again.py"), *tiny(**fields), "--workdir", str(folder / "new")]

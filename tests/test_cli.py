"""Every mistake on the command line is one line that says what was given and what is allowed."""

import fnmatch
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxreg
from jaxreg import command, train
from jaxreg.train import cli
from jaxreg.train.config import values
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.config_files import load_module
from jaxreg.train.config.fields import JOB_NAMES, OPTIONS, row_of
from jaxreg.train.data import sources
from jaxreg.train.devices.sharding import make_mesh
from jaxreg.train.run import workdir as workdirs

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
DIGITS, SOFTMAX = f"{CONFIGS}/dropmax_digits.py", f"{CONFIGS}/softmax_digits.py"


@pytest.fixture
def run(monkeypatch, tmp_path, tmp_path_factory):
  """The program, in an empty working directory, where the default work directory would appear."""
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
  names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
  before = {name: getattr(jax.config, name) for name in names}
  yield command.run
  # `run` is for a program of its own, and points the cache of compiled programs at the user's folder.
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


@pytest.fixture
def calls(run, monkeypatch):
  """What would have been run: `(job, config, workdir)`, without running it."""
  made = []

  def job(name):
    def call(config, workdir):
      made.append((name, config, workdir))
      return {"step": 1}

    return call

  monkeypatch.setattr(command, "find_job", job)
  return made


def files(folder):
  return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def refuses(run, capsys, tmp_path):
  def check(arguments, *needles):
    before = files(tmp_path)
    status = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert status == 1
    assert out == ""
    started, line = re.fullmatch(r"(starting: \w+, in .*\n)?(.*\n)", err).groups()
    assert line.startswith("run.py: error: "), started
    assert "Traceback" not in err
    for needle in needles:
      assert needle in err
    assert files(tmp_path) == before, "something was written"
    return err

  return check


# The twelve mistakes, and more.


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("argument", "chosen"),
  [
    ("regularizers.l2.weight=100.0", "regularizers.names=()"),
    ("optimizer.sgd.momentum=0.5", "optimizer.name=adam"),
    ("model.LeNet.dropout_rate=0.5", "model.name=MLP"),
    ("optimizer.schedule.noam.d_model=9", "optimizer.schedule.name=cosine"),
    ("augment.pad_crop.padding=2", "augment.names=()"),
  ],
)
def test_what_nothing_reads(refuses, run, calls, argument, chosen):
  field = argument.partition("=")[0]
  refuses(
    [f"--config.{argument}"], f"--config.{field}: nothing reads it with {chosen}; name it there, or leave"
  )
  group, name, _ = field.rsplit(".", 2)
  several = "names" in chosen
  assert (
    run([f"--config.{argument}", f"--config.{group}.name{f's=({name!r},)' if several else f'={name}'}"]) == 0
  )


def test_rows_may_read_what_the_config_does_not():
  arguments = ["--config.job=compare", "--config.optimizer.sgd.momentum=0.5"]
  assert cli.parse(arguments, CONFIGS).config.optimizer.sgd.momentum == 0.5


@pytest.mark.thorough
def test_configs_from_another_folder_and_by_their_bare_names(run, calls, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  for name in ("configs/softmax_digits.py", "softmax_digits.py", "softmax_digits", "toolbox_digits:l1"):
    assert run(["--config", name]) == 0
  assert [workdir.name for _, _, workdir in calls] == [*["softmax_digits"] * 3, "toolbox_digits-l1"]


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ("toolbox_digits:drpout", "argument: got 'drpout'; did you mean 'dropout'? allowed are "),
    ("toolbox_digits:drpout", "did you mean 'dropout'?"),
    ("dropmax_digits:x", "--config dropmax_digits:x: takes no argument, got 'x'"),
    (f"{CONFIGS}/dropmax_mnist.py:2k", "dropmax_mnist.py:2k: argument must be 1k, 5k or 55k"),
  ],
)
def test_arguments_of_configs(refuses, config, message):
  refuses(["--config", config], message)


@pytest.mark.parametrize(
  ("flag", "meant"),
  [
    ("--lr=0.1", "config.optimizer.learning_rate"),
    ("--learning_rate=0.1", "config.optimizer.learning_rate"),
    ("--epochs=3", "config.epochs"),
    ("--configs=x.py", "config"),
    ("--workdirs=runs", "workdir"),
  ],
)
def test_a_flag_that_is_none_says_what_was_meant(refuses, flag, meant):
  refuses([flag], f"did you mean --{meant}?")


def test_the_bare_command_shows_a_short_help(run, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("sys.argv", ["/usr/bin/jaxreg"])
  assert run([]) == 0
  assert capsys.readouterr().out == cli.SHORT_USAGE
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("argument", "suggestion"),
  [
    ("--config.epoch=3", "did you mean epochs?"),
    ("--config.optimizer.learnin_rate=0.1", "did you mean optimizer.learning_rate"),
    ("--config.momentum=0.9", "optimizer.sgd.momentum"),
    ("--config.method.dropmax.loss.temprature=1", "did you mean method.dropmax.loss.temperature"),
    ("--config.xyzzy=1", "--helpfull lists all"),
  ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_unknown_field(refuses, argument, suggestion, apart):
  arguments = argument.split("=") if apart else [argument]
  refuses(arguments, f"{argument.split('=')[0]}: there is no such field", suggestion)


# Overrides, the last of them wrong, and a part of the message.
REFUSED = [
  # Names.
  ("job=trian", "did you mean 'train'?"),
  ("data.name=digit", "allowed are csv, diabetes, digits, "),
  ("model.name=LeNe", "did you mean 'LeNet'?"),
  ("method.name=dropmx", "did you mean 'dropmax'?"),
  ("optimizer.name=Adam", "did you mean 'adam'?"),
  ("optimizer.schedule.name=cosin", "allowed are constant, cosine, noam, step; did you mean 'cosine'?"),
  ("optimizer.weight_decay.mask=kernel_only", "did you mean 'kernels_only'?"),
  ("evaluate.checkpoint=newest", "allowed are best, latest"),
  ("evaluate.split=tests", "allowed are test, train, val; did you mean 'test'?"),
  ("checkpoint.best=val/eror", "did you mean 'val/error'?"),
  ("parallel=pmpa", "allowed are jit, pmap; did you mean 'pmap'?"),
  ("parallel=pmop", "allowed are jit, pmap; did you mean 'pmap'?"),
  ("precision=float16", "allowed are bfloat16, float32"),
  ("model.name=RNN model.RNN.weight_noise_kind=added", "allowed are additive, multiplicative"),
  ("noise.names=('weight_noise','weight_noise')", "must be named once"),
  *(
    (f"{field}=({name!r},{name!r})".replace(" ", ""), f"{field}: each must be named once")
    for field, name in (
      ("augment.names", "flip"),
      ("mesh.shard", "head"),
      ("regularizers.tying.pairs", ("a", "b")),
    )
  ),
  # Types.
  *((f"{field}=1.5", "int") for field in ("epochs", "replicas")),
  *((f"{field}=ten", "int") for field in ("epochs", "accumulate")),
  ("batch_size=True", "int"),
  *(
    (f"{field}=fast", "must be a number, got 'fast'")
    for field in ("data.resident_gib", "optimizer.learning_rate")
  ),
  ("optimizer.sgd.momentum=high", "must be a number"),
  ("optimizer.adam.nesterov=maybe", "must be True or False"),
  ("model.MLP.widths=wide", "widths"),
  ("model.MLP.widths=(8.5,)", "widths"),
  # Numbers; the page of the ranges is held against their table elsewhere.
  ("batch_size=0", "must be at least 1 and at most 1e9, got 0"),
  ("batch_size=2000", "must be at most the number of training examples, 1078, got 2000"),
  ("checkpoint.keep=1", "must be at least 2 and at most 1e9, got 1"),
  ("data.subset.num_train=-5", "data.subset.num_train: must be at least 0"),
  ("steps=3000000000000", "must be at least 0 and at most 1e9, got 3000000000000"),
  ("epochs=900000000", "at most 1e9 steps"),
  *((f"seed={seed}", f"got {seed}") for seed in (-1, 2**32, 2**63, 2**64, 10**30)),
  ("data.resident_gib=nan", "must be at least 0 and at most 1e9, got nan"),
  *(
    (f"optimizer.learning_rate={rate}", "must be above 0 and at most 1e30, got ")
    for rate in ("0", "-0.1", "nan", "inf", "1e-50")
  ),
  # A device rounds it to the open end.
  (
    "optimizer.name=adam optimizer.adam.b1=0.99999999999",
    "must be at least 0 and below 1, got 0.99999999999",
  ),
  *(
    (f"model.MLP.dropout_rate={rate}", "must be at least 0 and at most 1, got ")
    for rate in (1.5, -0.1, "nan")
  ),
  ("model.MLP.widths=(8,-3)", "must be at least 1 and at most 1e6, got (8, -3)"),
  ("model.MLP.widths=(8,1000000000000)", "must be at least 1 and at most 1e6, got (8, 1000000000000)"),
  ("model.MLP.dropout_rates=(0.5,)", "one rate for each of the 2 hidden layers"),
  ("model.MLP.dropout_rates=(0.5,1.5)", "at least 0 and at most 1, got (0.5, 1.5)"),
  ("method.dropmax.loss.temperature=0", "in (0, inf)"),
  ("method.dropmax.loss.kl_weight=nan", "must be at least 0 and at most 1e6, got nan"),
  ("method.name=arcface method.arcface.loss.margin=-1.0", "must be at least 0 and at most 3.15, got -1.0"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_values_that_mean_nothing(refuses, given, message):
  given = given.split()
  refuses([f"--config.{each}" for each in given], given[-1].partition("=")[0], message)


@pytest.mark.parametrize("name", ["rand_augment", "trivial_augment"])
def test_an_operation_that_is_named_twice_is_drawn_twice_as_often(run, calls, name):
  """As the functions say: a weighting, and no slip as in other fields."""
  given = [f"augment.names=({name!r},)", f"augment.{name}.operations=('rotate','rotate','identity')"]
  assert run([f"--config.{each}" for each in given]) == 0
  assert calls[0][1].augment[name].operations == ("rotate", "rotate", "identity")


@pytest.mark.parametrize(
  ("error", "reason"),
  [
    (RuntimeError("No backend:\nno library"), "No backend: no library"),
    (AssertionError(), "it is not installed"),
  ],
)
def test_a_platform_that_is_not_there(refuses, monkeypatch, error, reason):
  def missing():
    raise error

  monkeypatch.setenv("JAX_PLATFORMS", "cuda")
  for name in ("local_devices", "process_count", "process_index"):
    monkeypatch.setattr(jax, name, missing)
  refuses([], f"JAX_PLATFORMS=cuda: no device can be used ({reason})")


@pytest.mark.thorough
def test_a_run_needs_no_transfer_guard_of_the_environment(tmp_path):
  fields = ("model.name=MLP", "method.name=softmax", "epochs=1", "data.subset.limit=64", "log.trackers=()")
  process = subprocess.run(
    [
      sys.executable,
      ROOT / "run.py",
      *(f"--config.{field}" for field in fields),
      "--workdir",
      tmp_path / "run",
    ],
    cwd=tmp_path,
    env={**os.environ, "JAX_TRANSFER_GUARD": "disallow"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
  "setting",
  ["JAX_PLATFORMS=cuda", "JAX_PLATFORMS=cudda", "JAX_NUM_CPU_DEVICES=0", "JAX_NUM_CPU_DEVICES=two"],
)
def test_jax_cannot_be_set_up_as_the_environment_says(setting, tmp_path):
  name, _, value = setting.partition("=")
  process = subprocess.run(
    [sys.executable, ROOT / "run.py", "--workdir", tmp_path / "run"],
    cwd=tmp_path,
    env={**os.environ, name: value},
    capture_output=True,
    text=True,
    check=False,
  )
  said = process.stderr.partition("starting")[0]
  assert process.returncode == 1
  assert len(said.splitlines()) == 1, said
  assert said.startswith("run.py: error: ")
  assert name.lower() in said.lower()
  assert value in said


def test_a_work_directory_that_is_no_text(refuses):
  refuses(["--workdir", "a\udcff"], r"/a\udcff' is not UTF-8 text, and no checkpoint can be saved there")


def test_a_batch_that_the_devices_cannot_share(refuses):
  refuses(["--config.batch_size=20"], "batch_size: must be divisible by the number of devices, 8, got 20")
  refuses(
    ["--config.batch_size=32", "--config.accumulate=3"],
    "batch_size: must be divisible by the number of devices times accumulate, 8 * 3, got 32",
  )


def test_missing_idx_folder(refuses, tmp_path):
  refuses(["--config", f"{CONFIGS}/dropmax_mnist.py:1k"], "data/mnist has no train-images-idx3-ubyte[.gz]")


@pytest.fixture
def claimed(tmp_path):
  """A work directory of the default configuration."""
  config = cli.parse(["--config", DIGITS], CONFIGS).config
  workdirs.claim(tmp_path / "mine", flatten(config), sources.digits().describe(), 1600)
  (tmp_path / "mine" / "checkpoints" / "16").mkdir(parents=True)
  return tmp_path / "mine"


@pytest.mark.thorough
@pytest.mark.parametrize("job", ["train", "evaluate"])
def test_work_directory_of_another_configuration(refuses, claimed, job):
  refuses(
    ["--workdir", claimed, f"--config.job={job}", "--config.seed=3", "--config.model.MLP.widths=(8,)"],
    f"workdir: {claimed} belongs to another configuration",
    "seed was 0, is 3",
    "model.MLP.widths was [256, 256], is [8]",
    "give another",
  )


def test_work_directory_that_is_a_file(refuses, tmp_path):
  (tmp_path / "file").write_text("")
  refuses(["--workdir", tmp_path / "file"], f"--workdir: {tmp_path}/file is a file; give a folder")


def test_a_suggestion_is_not_hidden_by_a_list(refuses):
  err = refuses(["--config", "dropmax_digit"], "did you mean 'configs/dropmax_digits.py'")
  assert len(err) < 250
  err = refuses(["--config.optimizer.name=admw"], "allowed are ")
  assert err.index("did you mean 'adamw'?") < err.index("allowed are ")


def test_the_version(run, capsys):
  assert run(["--version"]) == 0
  assert capsys.readouterr().out == f"jaxreg {jaxreg.__version__}\n"


# Ways of writing.


NOTHING = "runs/dropmax_digits has no config.json: nothing was trained there"
WAYS = [
  ("configs/softmax_digits.py", "unexpected argument", "did you mean --config configs/softmax_digits.py?"),
  (SOFTMAX, f"unexpected argument {SOFTMAX!r}; did you mean --config {SOFTMAX}?"),
  ("digits", "unexpected argument 'digits'; flags begin with --"),
  ("--epochs=3", "Unknown command line flag 'epochs'; did you mean --config.epochs?"),
  ("--wrkdir=x", "wrkdir"),
  ("--workdir", "Missing value for flag --workdir"),
  ("--config.epochs", "Missing value for flag --config.epochs"),
  ("--config.optimizer=sgd", "--config.optimizer: is a group of fields; set one of ", "optimizer.name"),
  ("--config.method.dropmax=1", "is a group of fields; set one of ", "method.dropmax.loss.kl_weight"),
  *(
    (flags, "--config: needs a file, as in --config configs/dropmax_digits.py")
    for flags in ("--config", "--config=", "--config --workdir=x")
  ),
  *(
    (f"--config {name}", f"--config: there is no file '{name}'; did you mean 'configs/softmax_digits.py'")
    for name in ("nowhere/softmax_digits.py", "/nowhere/softmax_digits")
  ),
  (
    "--config configs/dropmx_digits.py",
    "--config: there is no file 'configs/dropmx_digits.py'; did you mean 'configs/dropmax_digits.py'",
    "? --list shows the configs",
  ),
  ("--config qqqq", "--config: there is no file 'qqqq'; --list shows the configs"),
  ("--workdir=gs://Bucket/run", "--workdir: must be gs://BUCKET/FOLDER"),
  ("--workdir s3://bucket/run", "s3"),
  ("--config=gs://bucket/config.py", "gs"),
  # What a terminal would act on is not printed.
  ("--config.data.name=npz --config.data.npz.path=a\x1b]0;b\x07\u202ec", "a\\x1b]0;b\\x07\\u202ec"),
  ("--config.job=evaluate", NOTHING),
  (f"--config.job=evaluate --config {DIGITS}", NOTHING),
  ("merge absent other --workdir out", "error: merge.runs: absent has no config.json"),
]


@pytest.mark.parametrize(("arguments", "messages"), [(first, rest) for first, *rest in WAYS])
def test_ways_of_writing_that_are_refused(refuses, arguments, messages):
  refuses(arguments.split(" "), *messages)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("def get_config(:", "invalid syntax"),
    ("import nothing_of_this_name", "nothing_of_this_name"),
    ("x = 1", "get_config"),
    ("def get_config(): raise RuntimeError('first\\nsecond')", "first second"),
  ],
)
def test_a_config_that_is_no_config(refuses, tmp_path, content, message):
  (tmp_path / "mine.py").write_text(content)
  sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
  try:
    refuses(["--config", tmp_path / "mine.py"], f"--config {tmp_path}/mine.py: ", message)
  finally:
    sys.dont_write_bytecode = before


@pytest.mark.parametrize(
  "arguments",
  [
    ["--config.epochs=1", "--config", SOFTMAX],
    ["--config.epochs=1", f"--config={SOFTMAX}"],
    ["--config", SOFTMAX, "--config.epochs=1"],
    ["--config.epochs", "1", "-config", SOFTMAX],
    ["--workdir=w", "--config.epochs=1", "--config", SOFTMAX],
    ["--config.epochs=5", "--config", SOFTMAX, "--workdir", "w", "--config.epochs=1"],
  ],
  ids=" ".join,
)
def test_the_order_of_flags_does_not_matter(run, calls, arguments):
  assert run(arguments) == 0
  ((job, config, workdir),) = calls
  assert (job, config.epochs, config.method.name) == ("train", 1, "softmax")
  if any("workdir" in argument for argument in arguments):
    assert workdir == Path("w")
  else:
    assert workdir.parent == Path("runs")


def test_overrides_have_the_type_of_the_field(run, calls):
  arguments = ["--config.model.MLP.widths=(8,)", "--config.optimizer.adam.b1=0.8"]
  arguments += ["--config.optimizer.adam.nesterov=true", "--config.optimizer.learning_rate=1"]
  assert run(arguments) == 0
  config = calls[0][1]
  assert config.model.MLP.widths == (8,)
  assert config.optimizer.adam.b1 == 0.8
  assert config.optimizer.adam.nesterov is True
  assert isinstance(config.optimizer.learning_rate, float)


@pytest.mark.parametrize(
  ("arguments", "widths"),
  [
    (["--config.model.MLP.widths=(8,)", "--config.model.MLP.widths=(4,2)"], (4, 2)),
    (["--config.model.MLP.widths", "(8,)", "--config.model.MLP.widths=16"], (16,)),
    (["--config.model.MLP.widths=(8,)", "-config.model.MLP.widths", "(5,)", "--config.seed=1"], (5,)),
  ],
)
def test_of_repeated_flags_the_last_one_holds(run, calls, arguments, widths):
  """ml_collections joins those of tuples."""
  assert run(["--config.epochs=2", *arguments, "--config.epochs=3"]) == 0
  config = calls[0][1]
  assert (config.model.MLP.widths, config.epochs) == (widths, 3)


@pytest.mark.parametrize("given", ["file://{}/a", "~/a"])
def test_a_work_directory_is_where_people_mean(run, calls, monkeypatch, tmp_path, given):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert run(["--workdir", given.format(tmp_path)]) == 0
  assert calls[0][2] == tmp_path / "a"


def test_a_config_may_be_a_url_of_this_machine_only(run, refuses, calls, tmp_path):
  refuses(
    ["--config", "gs://a/mine.py"],
    "--config: got 'gs://a/mine.py', but only files of this machine are run; copy the file here",
  )
  (tmp_path / "mine.py").write_text(
    "from jaxreg.train import base_config\n\n\ndef get_config(argument=''):\n  return base_config()\n"
  )
  for given, name in ((f"file://{tmp_path}/mine.py", "mine"), (f"file:{tmp_path}/mine.py:v", "mine-v")):
    assert run(["--config", given]) == 0
    assert calls[-1][2] == Path("runs") / name


@pytest.mark.thorough
@pytest.mark.parametrize("argument", ["../../outside", "/outside", "a/b", "..", "x" * 300, "a\x1b[2Jb"])
def test_an_argument_of_a_config_stays_in_runs(run, calls, tmp_path, argument):
  (tmp_path / "mine.py").write_text(
    "from jaxreg.train import base_config\n\n\ndef get_config(argument):\n  return base_config()\n"
  )
  assert run(["--config", f"mine.py:{argument}"]) == 0
  workdir = calls[0][2]
  assert workdir.parent == Path("runs")
  assert workdir.name.startswith("mine-")
  assert len(workdir.name) < 200
  assert workdir.name.isprintable()
  assert cli.parse(["--config", f"mine.py:{argument}_"], CONFIGS).workdir != workdir


WRONG_TYPES = {
  "config.batch_size = None": "batch_size: must be an integer, got None",
  "config.augment.names = None": "augment.names: must be a tuple of texts, got None",
  "config.model.name = None": "model.name: must be a text, got None",
  "with config.ignore_type():\n    config.seed = 1.5": "seed: must be an integer, got 1.5",
  "with config.ignore_type():\n    config.checkpoint.wait = 3": "wait: must be True or False, got 3",
}


@pytest.mark.parametrize("line", WRONG_TYPES)
def test_values_of_wrong_types_in_a_config_are_named(refuses, tmp_path, monkeypatch, line):
  monkeypatch.setattr("sys.dont_write_bytecode", True)  # of a module beside the config
  (tmp_path / "mine.py").write_text(
    f"from jaxreg.train import base_config\n\n\ndef get_config():\n  config = base_config()\n  {line}\n"
    "  return config\n"
  )
  refuses(["--config", "mine.py"], WRONG_TYPES[line])


def test_no_arguments_are_the_default_config(run, calls):
  assert run([]) == 0
  ((job, config, workdir),) = calls
  assert (job, workdir) == ("train", Path("runs/dropmax_digits"))
  assert flatten(config) == flatten(cli.parse(["--config", DIGITS], CONFIGS).config)
  assert (config.data.name, config.method.name) == ("digits", "dropmax")


# Help.


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpfull"])
def test_help_shows_what_the_job_reads(run, capsys, tmp_path, flag):
  assert run(["--config", SOFTMAX, flag]) == 0
  out, err = capsys.readouterr()
  assert err == ""
  fields = flatten(cli.parse(["--config", SOFTMAX], CONFIGS).config)
  for field, value in fields.items():
    shown = f"--config.{field}={value}\n" in out
    if flag == "--helpfull" or field.startswith(
      ("data.digits.", "model.MLP.", "method.softmax.", "checkpoint.")
    ):
      assert shown
    elif re.match(
      r"method\.dropmax|optimizer\.sgd|regularizers\.l2\.|model\.LeNet|augment\.flip|noise\.mask"
      r"|compare|data\.stream|pretrained\.replica|evaluate\.split",
      field,
    ):
      assert not shown
    elif field.partition(".")[2] in ("", "name", "names"):
      assert shown
  assert "--config.method.name=softmax\n" in out
  for flag in ("--config", "--workdir", "--list", "--help"):
    assert f"\n  {flag} " in out
  assert "The softmax baseline of `dropmax_digits`" in out
  assert "      Length of the run in passes over the training examples. In [1, 1e9].\n" in out
  assert re.search(r"How a step runs on several devices. jit \| pmap\.\n", out)
  assert re.search(
    r"MLP.input_dropout_rate=.*\n      Probability of dropping an input\. In \[0, 1\]\.\n", out
  )
  assert all(len(line) <= 80 for line in out[: out.index(SOFTMAX)].splitlines())
  assert all(len(line) <= 80 for line in out.splitlines() if line.startswith("      "))
  assert files(tmp_path) == []


def test_help_of_a_comparison_shows_what_its_rows_read(run, capsys):
  assert run(["--config", f"{CONFIGS}/compare_optimizers_mnist5k.py", "--help"]) == 0
  out = capsys.readouterr().out
  for field in ("compare.seeds", "optimizer.path_sgd.", "optimizer.trust_region.blocks", "data.idx.path"):
    assert f"--config.{field}" in out
  for field in ("optimizer.lars.", "method.dropmax.", "regularizers.l2."):
    assert f"--config.{field}" not in out


def test_every_field_has_a_description_and_each_description_a_field():
  fields = flatten(train.base_config())
  texts = {field: values.describe(field) for field in fields}
  assert [field for field, text in texts.items() if not text or text.startswith("As in ")] == []
  globs = " ".join(OPTIONS).split()
  assert [glob for glob in globs if not fnmatch.filter(fields, glob)] == []
  for field, given in fields.items():
    if names := values.names_of(values.kind_of(field, fields)):
      assert set(given if isinstance(given, list) else [given]) <= set(names), field


def numeric_fields():
  """The fields whose values are numbers, one or several, with their defaults."""
  fields = flatten(train.base_config())
  for field, default in fields.items():
    kind = values.kind_of(field, fields)
    if re.search("int|float", str(kind)) and "str" not in str(kind) and not values.names_of(kind):
      yield field, default, kind


@pytest.mark.parametrize(
  ("field", "default", "kind"), [pytest.param(*row, id=row[0]) for row in numeric_fields()]
)
def test_every_number_has_bounds(field, default, kind):
  """The default lies within them; numbers outside, infinite ones and NaN are refused in one line."""
  low, high = map(float, row_of(field).allowed[1:-1].split(", "))
  assert -1e6 <= low < high <= 1e30
  values.check_value(field, default, kind)
  for value in (low - 1, 2 * high + 1, float("inf"), -float("inf"), float("nan"), 1e300, 10**400):
    with pytest.raises(train.RunError, match=rf"^{re.escape(field)}: must be .*, got "):
      values.check_value(field, [value] if isinstance(default, list) else value, kind)


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
@pytest.mark.parametrize(
  "field", ["method.dropmax.loss.kl_weight", "regularizers.learned_dropout.length_scale", "optimizer.sam.rho"]
)
def test_a_strength_without_sense_is_refused(field, value):
  config = train.base_config()
  config.update_from_flattened_dict({field: value})
  with pytest.raises(train.RunError, match=rf"^{field}: must be .*, got {value}$"):
    train.check(config)


@pytest.mark.thorough
def test_list_shows_every_config_with_its_variants(run, capsys):
  assert run(["--list"]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert max(map(len, lines)) <= 80
  names = [path.name for path in sorted(CONFIGS.glob("*.py")) if not path.name.startswith("_")]
  starts = [number for number, line in enumerate(lines) if not line.startswith(" ")]
  assert [lines[start] for start in starts] == [f"configs/{name}" for name in names]
  parts = dict(zip(names, np.split(np.array(lines), starts[1:]), strict=True))
  assert all(len(part) > 1 for part in parts.values())
  for name, part in parts.items():
    module = load_module(CONFIGS / name)
    listed = [word[1:] for line in part[1:] for word in line.split() if word.startswith(":")]
    assert bool(listed) == bool(inspect.signature(module.get_config).parameters)
    for variant in listed[:: max(1, len(listed) // 3)]:
      assert module.get_config(variant).job in JOB_NAMES


@pytest.mark.thorough
def test_streams_that_are_closed_or_cannot_show_a_name(tmp_path):
  (tmp_path / "\xfc.py").write_text("from jaxreg.train import base_config as get_config\n")
  environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
  for streams, shown in (("", b"\\xfc.py"), (">&-", b""), ("<&- >&- 2>&-", b"")):
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, str(ROOT / "run.py")]
    command += ["--help", "--config", "\xfc.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


def test_list_goes_on_past_a_file_that_is_no_python(tmp_path):
  (tmp_path / "a.py").write_text("def (")
  (tmp_path / "b.py").write_text('"""Of b."""')
  (tmp_path / "c.py").write_bytes(b"\xff")
  lines = cli.parse(["--list"], tmp_path).text.split()
  assert [line.rpartition("/")[2] for line in lines] == ["a.py", "b.py", "Of", "b.", "c.py"]


# The work directory.


def default_workdir(*arguments):
  return cli.parse([str(argument) for argument in arguments], CONFIGS).workdir


@pytest.mark.thorough
def test_the_default_work_directory_is_named_after_the_config():
  assert default_workdir() == Path("runs/dropmax_digits")
  assert default_workdir("--config", SOFTMAX) == Path("runs/softmax_digits")
  assert default_workdir("--config", f"{CONFIGS}/dropmax_mnist.py:5k") == Path("runs/dropmax_mnist-5k")
  assert default_workdir("--workdir", "here", "--config.seed=1") == Path("here")
  assert default_workdir("--config.job=compare", "--config.compare.seeds=3") == Path(
    "runs/dropmax_digits-compare"
  )


@pytest.mark.thorough
def test_another_override_is_another_work_directory():
  named = [
    default_workdir(*arguments)
    for arguments in (
      [],
      ["--config.seed=1"],
      ["--config.seed=2"],
      ["--config.epochs=1"],
      ["--config.seed=1", "--config.epochs=1"],
      ["--config.seed=1", "--config", SOFTMAX],
    )
  ]
  assert len(set(named)) == len(named)
  assert all(path.name.startswith("dropmax_digits-") for path in named[1:5])
  assert named[5].name.startswith("softmax_digits-")
  # The hash is of the fields, not of how they are written.
  assert default_workdir("--config.epochs=1", "--config.seed=1") == named[4]
  assert default_workdir("--config.epochs", "1", "--config.seed", "1") == named[4]


def test_the_job_does_not_change_the_work_directory(monkeypatch):
  monkeypatch.setattr("jaxreg.train.finished.restore.restore_config", lambda config, *_: config)
  of_job = ["--config.job=evaluate", "--config.evaluate.split=val", "--config.evaluate.checkpoint=best"]
  assert default_workdir(*of_job) == default_workdir()
  assert default_workdir(*of_job, "--config.seed=1") == default_workdir("--config.seed=1")


@pytest.mark.parametrize("job", ["evaluate", "report", "export"])
def test_a_job_takes_the_run_as_its_first_argument(job, monkeypatch):
  monkeypatch.setattr("jaxreg.train.finished.restore.restore_config", lambda config, *_: config)
  call = cli.parse([job, "runs/mine", "--config.evaluate.alpha=0.2"], CONFIGS)
  assert (call.config.job, str(call.workdir)) == (job, "runs/mine")
  with pytest.raises(train.RunError, match=r"did you mean --config configs/softmax_digits\.py\?"):
    cli.parse([job, "configs/softmax_digits.py"], CONFIGS)


@pytest.mark.thorough
def test_an_evaluation_finds_what_was_trained_with_the_same_fields(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("jaxreg.train.finished.restore.restore_config", lambda config, *_: config)
  data = ["--config.data.name=npz", "--config.data.npz.path=here.npz"]
  trained = default_workdir(*data)
  trained.mkdir(parents=True)
  (trained / "config.json").touch()
  for asked in ([], ["--config.evaluate.mc_samples=3"], ["--config.eval_batch_size=7"]):
    assert default_workdir("--config.job=evaluate", *data, *asked) == trained
    assert default_workdir("--config.job=evaluate", *data[:1], *asked) != trained
  # Of a run that was made without saying where the data are, the place may be given now.
  for said in (data[:1], data):
    elsewhere = default_workdir("--config.job=evaluate", "--config.seed=1", *said)
    assert elsewhere == default_workdir("--config.seed=1", *data[:1])


def test_interruptions_are_one_line_with_the_status_of_the_signal(run, capsys, monkeypatch):
  for error, status, message in (
    (train.Interrupted(15, 7), 143, "stopped at step 7 and saved"),
    (train.Interrupted(2, 8), 130, "stopped at step 8 and saved"),
  ):

    def job(*_, error=error):
      raise error

    monkeypatch.setattr(command, "find_job", lambda _, job=job: job)
    assert run([]) == status
    out, err = capsys.readouterr()
    assert out == ""
    first, *others = err.splitlines()
    assert first.startswith("starting: train")
    assert len(others) == 1
    assert others[0].startswith(f"run.py: {message}")
    assert "the same command continues" in err


def test_onednn_is_requested_where_the_configuration_says_so(run, calls, monkeypatch):
  asked = []
  monkeypatch.setattr(command, "request_onednn", lambda: asked.append(len(calls)))
  assert run(["--config", DIGITS]) == 0
  assert not asked
  assert run(["--config", DIGITS, "--config.onednn=True"]) == 0
  assert asked == [1]  # before the job


def test_writers_of_a_failed_save_say_nothing_and_all_else_is_told(capsys):
  """They come one by one, each with a traceback of its own, before the line that tells of the save."""
  command._report_uncaught(RuntimeError, RuntimeError("Event loop is closed"), None)
  assert capsys.readouterr().err == ""
  command._report_uncaught(RuntimeError, RuntimeError("Event loop is stopped before Future completed."), None)
  assert "Event loop is stopped" in capsys.readouterr().err


def test_a_whole_run_and_its_evaluation(run, capsys, monkeypatch, tmp_path):
  """In this process, with little to compile. An evaluation writes to the user's cache, not to the run."""
  monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])
  arguments = ["--config.epochs=1", "--config", SOFTMAX, "--config.model.MLP.widths=(8,)"]
  arguments += ["--config.data.subset.limit=64"]
  assert run(arguments) == 0
  out = capsys.readouterr().out.splitlines()
  (workdir,) = (tmp_path / "runs").iterdir()
  assert workdir.name.startswith("softmax_digits-")
  results = json.loads((workdir / "results.json").read_text())
  assert out[0] == "softmax, checkpoint of step 1"
  assert any(line.startswith(f"test  error {results['test/error']:.2%}") for line in out)
  times = lambda: {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
  before = times()
  cache = tmp_path / "cache"
  monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
  jax.config.update("jax_compilation_cache_dir", None)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  compilation_cache.reset_cache()
  assert run([*arguments, "--config.job=evaluate", "--config.evaluate.split=val"]) == 0
  assert times() == before
  assert list((cache / "jaxreg" / "compiled").glob(f"jax-{jax.__version__}-*/*-cache"))
  out = capsys.readouterr().out.splitlines()
  assert out[0] == "softmax, checkpoint of step 1"
  assert out[1].startswith(f"val   error {results['val/error']:.2%}   NLL {results['val/nll']:.4f}")
  assert make_mesh().size == 8

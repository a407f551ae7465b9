"""Things from a module of one's own: named by flags, a config, rows and a work directory."""

import json
import re
import shlex
import sys
import traceback
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxreg import train
from jaxreg.command import run as main
from jaxreg.train import cli
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import chosen
from jaxreg.train.config.rows import compared_rows
from jaxreg.train.jobs.compare import row_config
from jaxreg.train.registry import REGISTRY
from jaxreg.train.run.trackers import find_trackers

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
SOFTMAX = ["--config", f"{CONFIGS}/softmax_digits.py"]
MODULE = '''
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxreg import models
from jaxreg.train import Dataset, Method, Split

def poly(logits, labels, *, epsilon: float = 1.0):
  """Poly-1.

  Args:
    logits: floating.
    labels: integer.
    epsilon: how much the first coefficient is raised.
  """
  nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return nll + epsilon * (1 - jnp.exp(-nll))

def _terms(*, labels, epsilon: float = 1.0, **outputs):
  return {"poly": poly(labels=labels, epsilon=epsilon, **outputs)}

POLY = Method(models.SoftmaxHead, _terms, lambda *, logits: jax.nn.log_softmax(logits), terms=("poly",))

def log_l1(params, *, scale: float = 1.0, mask=None):
  del mask
  return scale * sum(jnp.log1p(x * x).sum() for x in jax.tree.leaves(params))

def activity(key, view, *, power: float = 2.0):
  del key
  return (jnp.abs(view.aux.features) ** power).sum(-1)

class Tiny(nn.Module):
  """One layer.

  Attributes:
    width: its units.
  """
  width: int = 4

  @nn.compact
  def __call__(self, x, *, train):
    return nn.tanh(nn.Dense(self.width)(x.reshape(len(x), -1)))

def descent(learning_rate, *, momentum: float = 0.5):
  return optax.sgd(learning_rate, momentum)

def halved(inner, *, factor: float = 0.5):
  return optax.chain(inner, optax.scale(factor))

def shrink(params, *, factor: float = 0.99):
  return jax.tree.map(lambda x: factor * x, params)

def spread(key, x, *, std: float = 0.1):
  return x if key is None else x + std * jax.random.normal(key, x.shape)

def dim(key, batch, *, factor: float = 0.5):
  return {**batch, "inputs": batch["inputs"] * factor}

def blobs(number: int = 64, *, seed: int = 0) -> Dataset:
  def split(generator):
    labels = np.arange(number) % 3
    return Split(generator.normal(labels[:, None], 1, (number, 5)).astype(np.float32), labels)
  return Dataset(*map(split, np.random.default_rng(seed).spawn(3)), num_classes=3)

def missing() -> Dataset:
  raise ValueError("the table\\nhas no column y")

def untold() -> Dataset:
  raise KeyError("y")

def nothing() -> Dataset:
  blobs()

def bare() -> Dataset:
  return Dataset((1, 2), (3, 4), (5, 6), num_classes=2)

def misspelt(key, batch):
  return {**batch, "inputs": batch["imputs"]}

def asserted(logits, labels):
  assert logits.shape[-1] == 2, "two classes only"
  return poly(logits, labels)

def unsigned(number: int = 64):
  return blobs(number)

def focal(logits, labels):
  return poly(logits, labels)

def name(logits, labels):
  return poly(logits, labels)

NUMBER = 3
'''
# Each part with its option, which changes what the run does.
PARTS = {
  "data": ("data.name=theirs:blobs", "data.blobs.number=96"),
  "model": ("model.name=theirs:Tiny", "model.Tiny.width=6"),
  "method": ("method.name=theirs:POLY", "method.POLY.loss.epsilon=2.0"),
  "regularizers": (
    "regularizers.names=('theirs:log_l1','theirs:activity')",
    "regularizers.log_l1.scale=2.0",
  ),
  "optimizer": ("optimizer.name=theirs:halved", "optimizer.halved.factor=0.25"),
  "inner": ("optimizer.halved.inner=theirs:descent", "optimizer.descent.momentum=0.25"),
  "constraint": ("optimizer.constraints.names=theirs:shrink", "optimizer.constraints.shrink.factor=0.5"),
  "noise": ("noise.names=theirs:spread", "noise.spread.std=0.2"),
  "augment": ("augment.names=('theirs:dim',)", "augment.dim.factor=0.25"),
}
TINY = ["batch_size=32", "steps=2", "eval_batch_size=96"]


def flags(*fields):
  return [f"--config.{field}" for field in fields]


ALL = flags(*TINY, *(field for pair in PARTS.values() for field in pair))


@pytest.fixture
def theirs(monkeypatch, tmp_path):
  """A folder with the module, where the program is started."""
  (tmp_path / "theirs.py").write_text(MODULE)
  (tmp_path / "broken.py").write_text("import not_installed\n")
  (tmp_path / "faulty.py").write_text("1 / 0\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
  yield tmp_path
  sys.modules.pop("theirs", None)


@pytest.fixture
def run(theirs, monkeypatch):
  monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])
  return main


@pytest.mark.thorough
def test_a_run_of_them_all_its_evaluation_and_its_predictions(run, theirs, capsys):
  here = ["--workdir", "here"]
  assert run([*ALL, *here]) == 0, capsys.readouterr().err
  results, saved = (
    json.loads((theirs / "here" / f"{name}.json").read_text()) for name in ("results", "config")
  )
  for _, option in PARTS.values():
    field, _, value = option.partition("=")
    assert str(saved[field]) == value
  records = [json.loads(line) for line in (theirs / "here" / "metrics.jsonl").read_text().splitlines()]
  assert {"train/poly", "train/log_l1", "train/activity"} <= {name for record in records for name in record}

  run([*ALL, *here, "--config.steps=3"])
  assert "continuing under the new schedule: steps was 2, is 3" in capsys.readouterr().err
  results = json.loads((theirs / "here" / "results.json").read_text())
  assert results["step"] == 3

  assert run([*flags("job=evaluate"), *here]) == 0
  assert f"test  error {results['test/error']:.2%}" in capsys.readouterr().out
  test = sys.modules["theirs"].blobs(96).test
  wrong = np.asarray(train.load("here")(test.inputs)).argmax(-1) != test.labels
  assert wrong.mean() == pytest.approx(results["test/error"])

  del sys.modules["theirs"]  # as in another process
  assert run([*flags("job=evaluate"), *here]) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert "is theirs:dim, and no module is imported because a work directory names it" in line
  with pytest.raises(train.RunError, match="import theirs first"):
    train.load("here")
  assert cli.parse([*flags("job=evaluate", PARTS["method"][0]), *here], CONFIGS).config.model.Tiny.width == 6


def test_options_reach_what_is_built(theirs):
  config = cli.parse(ALL, CONFIGS).config
  for group, wanted in (("method", None), ("optimizer", {"factor": 0.25, "inner": "theirs:descent"})):
    found = chosen(config, group)
    assert found.entry.function is getattr(sys.modules["theirs"], config[group].name.partition(":")[2])
    assert found.options == (
      wanted or {"head": {"initializer": "glorot"}, "loss": {"epsilon": 2.0}, "predict": {}}
    )
  assert chosen(config, "optimizer", "theirs:descent").options == {"momentum": 0.25}
  assert chosen(config, "augment", "theirs:dim").options == {"factor": 0.25}
  assert chosen(config, "regularizers", "theirs:log_l1").options == {
    "weight": 1e-4,
    "limit": 0.0,
    "scale": 2.0,
  }


@pytest.mark.thorough
def test_a_loss_alone_is_a_method(theirs):
  config = cli.parse(
    [*SOFTMAX, *flags("method.name=theirs:poly", "method.poly.loss.epsilon=3")], CONFIGS
  ).config
  found = chosen(config, "method")
  method, options = found.entry.function, found.options
  logits = jax.numpy.zeros((2, 4))
  values = method.loss(logits=logits, labels=np.array([0, 3]), **options["loss"])
  np.testing.assert_allclose(values, np.log(4) + 3 * 0.75, rtol=1e-6)
  np.testing.assert_allclose(method.predict(logits=logits), -np.log(4), rtol=1e-6)
  assert (method.terms, method.draws) == (("poly",), ())


def test_help_is_of_what_the_flags_choose(theirs):
  text = cli.parse(
    ["--help", *SOFTMAX, *flags("method.name=theirs:poly", "model.name=theirs:Tiny")], CONFIGS
  ).text
  for shown in (
    "--config.method.name=theirs:poly\n",
    "--config.method.poly.loss.epsilon=1.0\n      How much the first coefficient is raised.\n",
    "--config.model.Tiny.width=4\n      Its units. In [1, 1e6].\n",
    "MODULE:NAME",
  ):
    assert shown in text
  assert "method.softmax" not in text
  assert "model.MLP" not in text
  text = cli.parse([*SOFTMAX, *flags("method.name=focal"), "--help"], CONFIGS).text
  assert "--config.method.focal.loss.gamma=2.0\n" in text
  assert "--config.method.softmax" not in text


def test_a_config_may_name_them_and_set_their_options(theirs):
  (theirs / "mine.py").write_text(
    "import theirs\nfrom jaxreg.train import add_options, base_config\n\n\n"
    "def get_config():\n  config = base_config()\n"
    '  config.method.name = f"{theirs.__name__}:POLY"\n  add_options(config).method.POLY.loss.epsilon = 4.0\n'
    "  return config\n"
  )
  config = cli.parse(["--config", "mine.py", *flags("model.name=LeNet")], CONFIGS).config
  assert config.method.POLY.loss.epsilon == 4.0
  config = cli.parse(["--config", "mine.py", *flags("method.POLY.loss.epsilon=5")], CONFIGS).config
  assert config.method.POLY.loss.epsilon == 5.0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_config_may_add_a_row(theirs, monkeypatch, when):
  monkeypatch.setitem(REGISTRY["method"], "mine", None)  # removes it after the test
  del REGISTRY["method"]["mine"]
  row = "REGISTRY['method']['mine'] = Entry(on_logits(losses.focal, 'mine'), 'method')\n"
  made = "config = base_config()\n"
  (theirs / "mine.py").write_text(
    "from jaxreg import losses\nfrom jaxreg.train import base_config\n"
    "from jaxreg.train.entries import Entry\nfrom jaxreg.train.registry import REGISTRY\n"
    "from jaxreg.train.methods.softmax import on_logits\n\n\ndef get_config():\n"
    f"  {row if when == 'before' else made}  {made if when == 'before' else row}"
    "  config.method.name = 'mine'\n  return config\n"
  )
  config = cli.parse(["--config", "mine.py", *flags("method.mine.loss.gamma=0.5")], CONFIGS).config
  method = chosen(config, "method")
  assert method.entry.function.terms == ("mine",)
  assert method.options["loss"] == {"gamma": 0.5}


def test_rows_of_a_comparison(theirs):
  rows = ("softmax", "theirs:poly", "strong: method.name=theirs:POLY method.POLY.loss.epsilon=9")
  grid = ("optimizer.learning_rate=0.1,0.2", "strong: model.name=MLP,theirs:Tiny")
  arguments = flags("job=compare", f"compare.rows={rows}", f"compare.grid={grid}")
  config = cli.parse(arguments, CONFIGS).config
  plain, poly, strong = compared_rows(config)
  assert (plain.label, poly.label, poly.fields) == ("softmax", "poly", {"method.name": "theirs:poly"})
  assert [len(row.grid) for row in (plain, poly, strong)] == [2, 2, 4]
  cell = row_config(config, strong, strong.grid[-1], seeds=1)
  train.check(cell)
  assert (cell.method.POLY.loss.epsilon, cell.model.name) == (9.0, "theirs:Tiny")


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (["method.name=theirs:POLI"], "method.name: the module theirs has no POLI; did you mean POLY?"),
    (["method.name=their:POLY"], "method.name: there is no module their, neither installed nor in "),
    (["method.name=theirs.sub:POLY"], "method.name: there is no module theirs.sub, neither"),
    (
      ["method.name=broken:POLY"],
      "method.name: the module broken needs not_installed, which is not installed",
    ),
    (["model.name=faulty:Tiny"], "model.name: the module faulty cannot be imported (ZeroDivisionError: "),
    (["method.name=theirs:"], "method.name: got 'theirs:'; give MODULE:NAME"),
    (["method.name=a:b:c"], "method.name: got 'a:b:c'; give MODULE:NAME"),
    (["method.name=theirs:NUMBER"], "theirs:NUMBER must be a jaxreg.train.Method, or a loss"),
    (["method.name=theirs:Tiny"], "or (outputs, targets, ...), got the class Tiny"),
    (
      ["model.name=theirs:poly"],
      "must be a class of Linen, NNX or Equinox modules, or a jaxreg.train.Backbone, got a function of (",
    ),
    (
      ["data.name=theirs:unsigned"],
      "must be a function that says `-> jaxreg.train.Dataset`, got a function of",
    ),
    (["data.name=timeit:timeit"], "must be a function that says `-> jaxreg.train.Dataset`"),
    (["optimizer.name=theirs:dim"], "must be a function of (inner, ...) or a function of learning_rate"),
    (
      ["optimizer.sam.inner=theirs:halved"],
      "optimizer.sam.inner: theirs:halved must be a function of learning",
    ),
    (
      ["regularizers.names=theirs:dim"],
      "must be a function of (params, ...) or a function of (key, view, ...), got",
    ),
    (["noise.names=theirs:dim"], "noise.names: theirs:dim must be a function of (key, x, ...)"),
    (["augment.names=theirs:spread"], "augment.names: theirs:spread must be a function of (key, batch, ...)"),
    (
      ["optimizer.constraints.names=theirs:dim"],
      "must be a function of (params, step, ...) or a function of (params, ...), got",
    ),
    (["method.name=theirs:focal"], "theirs:focal has the name of one of jaxreg's own"),
    (["method.name=theirs:name"], "theirs:name has the name of the field method.name; rename it"),
    (["method.name=theirs:POLY", "method.POLY.loss.epsilom=1"], "did you mean method.POLY.loss.epsilon"),
    (["compare.rows=('theirs:POLI',)"], "compare.rows: method.name: the module theirs has no POLI"),
    (["method.name=nobody"], "method.name: got 'nobody', allowed are active_passive, "),
    (["method.name=nobody"], "student_t_nll or MODULE:NAME"),
  ],
)
def test_mistakes_are_one_line(run, theirs, capsys, fields, message):
  assert run(flags(*fields)) == 1
  out, err = capsys.readouterr()
  assert (out, err.count("\n"), err[:15]) == ("", 1, "run.py: error: ")
  assert message in err
  assert not (theirs / "runs").exists()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (["data.name=theirs:missing"], "data.name: theirs:missing: ValueError: the table has no column y"),
    (["data.name=theirs:untold"], "data.name: theirs:untold: KeyError: 'y'"),
    (
      ["data.name=theirs:nothing"],
      "data.name: theirs:nothing: TypeError: must return a jaxreg.train.Dataset, got a NoneType",
    ),
    (["data.name=theirs:bare"], "data.name: theirs:bare: AttributeError: 'tuple' object has no attribute"),
    (["data.name=theirs:missing", "job=check_data"], "theirs:missing: ValueError: the table has no column y"),
    (
      ["data.name=theirs:missing", "job=compare", "compare.rows=('softmax',)"],
      "compare, row 'softmax': data.name: theirs:missing: ValueError: the table has no column y",
    ),
    (["augment.names=theirs:misspelt"], "config: KeyError: 'imputs' (with "),
    (["method.name=theirs:asserted"], "config: AssertionError: two classes only (with "),
  ],
)
def test_errors_of_ones_own_functions_are_one_line(run, theirs, capsys, fields, message):
  """The traceback is that of the error's cause, for who calls from Python."""
  assert run(flags(*fields)) == 1
  *_, line = (out_err := capsys.readouterr()).err.splitlines()
  assert message in line
  assert (out_err.out, "Traceback" in out_err.err) == ("", False)


def test_a_source_s_error_is_the_cause_of_the_one_line(theirs):
  config = cli.parse(flags("data.name=theirs:missing"), CONFIGS).config
  with pytest.raises(train.RunError) as raised:
    load_data(config)
  cause = raised.value.__cause__
  assert isinstance(cause, ValueError)
  assert traceback.extract_tb(cause.__traceback__)[-1].name == "missing"


def test_two_of_one_name_are_refused(theirs):
  (theirs / "others.py").write_text(
    "from theirs import POLY, poly as other\n\n\n"
    "def poly(logits, labels, *, epsilon: float = 7.0):\n  return other(logits, labels, epsilon=epsilon)\n"
  )
  rows = ("one: method.name=theirs:POLY", "two: method.name=others:POLY")
  with pytest.raises(train.RunError, match=r"theirs:POLY and others:POLY would share method\.POLY"):
    cli.parse(flags("job=compare", f"compare.rows={rows}"), CONFIGS)
  (theirs / "mine.py").write_text(
    "from jaxreg.train import add_options, base_config\n\n\ndef get_config():\n  config = base_config()\n"
    "  config.method.name = 'theirs:poly'\n  return add_options(config)\n"
  )
  config = cli.parse(["--config", "mine.py", *flags("method.name=others:poly")], CONFIGS).config
  assert config.method.poly.loss.epsilon == 7.0  # not that of the one it replaces
  sys.modules.pop("others")


def test_a_choice_without_its_options_is_told(theirs):
  config = train.base_config()
  config.method.name = "theirs:POLY"
  with pytest.raises(train.RunError, match=r"call jaxreg\.train\.add_options\(config\)"):
    train.check(config)
  train.check(train.add_options(config))


@pytest.mark.thorough
def test_the_page_shows_what_runs(theirs):
  """Its module trains abstractly under each of its commands, and its config is one."""
  page = (ROOT / "docs/your_own.md").read_text()
  module, config = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
  (theirs / "my_things.py").write_text(module)
  (theirs / "mine.py").write_text(config)
  commands = re.findall(r"^python run\.py (.*)$", page, re.MULTILINE)
  assert len(commands) > 4
  for command in [*commands, "--config mine.py"]:
    call = cli.parse(shlex.split(command), CONFIGS)
    if call.config is None:
      assert "--config.method.squared.loss.scale=1.0\n      Factor of the loss." in call.text
    elif call.config.job == "train":
      config = call.config
      find_trackers(config.log.trackers)
      config.method.name = config.method.name.replace("dropmax", "softmax")  # which is sooner traced
      config.model.MLP.widths = (8,)
      build(config, load_data(config).describe())
  assert call.config.method.squared.loss.scale == 2.0
  sys.modules.pop("my_things")

"""Every config describes a step that can be traced, on data of the right shape."""

import ast
import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import flatness, train
from jaxreg.train import METHODS, cli, setup
from jaxreg.train.rows import make_cell, parse_fields

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.py") if not path.name.startswith("_"))
MNIST_SIZES = {"1k": (1000, 1000), "5k": (5000, 5000), "55k": (55000, 5000)}
ARGUMENTS = {
  "dropmax_mnist.py": [f"{size}{rest}" for size in MNIST_SIZES for rest in ("", "-appendix")],
  "dropmax_figures.py": [None, "digits", "mnist1k"],
  "compare_dropmax_mnist1k_variations.py": ["background", "rotation"],
  "compare_group_softmax_subsets.py": ["classes2", "images300"],
  "flatness_fnn_mnist.py": [None, "profile"],
  "flatness_resnet20_cifar100.py": [None, "small"],
  "flatness_transformer_multi30k.py": [None, "small"],
  "flatness_vgg9_cifar10.py": [None, "minibatch"],
  "compare_toolbox_mnist1k.py": [None, "flipped"],
  "optimizers_digits.py": [None, "exact_adam", "normalized_leaves", "sgld"],
  "toolbox_digits.py": [None, "max_norm", "weight_noise", "rnn_weight_noise"],
  "compare_group_softmax.py": ["digits", "mnist1k", "mnist5k", "cifar10"],
}
CHOICES = [
  f"{name}:{argument}" if argument else name for name in FILES for argument in ARGUMENTS.get(name, [None])
]


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  """The batch of 100 of the released code cannot be shared by the tests' eight devices."""
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  monkeypatch.syspath_prepend(str(ROOT))


def describe(config, choice):
  """What the data of a config looks like; nothing but the digits is read."""
  if config.data.name == "digits":
    return setup.load_data(config).describe()
  if config.data.name == "tfds":
    # The CIFAR sets: 50000 images, of which a part is held out.
    options = config.data.tfds
    left = 50000 - options.num_train if options.num_train else 50000
    held_out = 0 if options.val else round(left * options.validation_fraction)
    return {
      "num_classes": {"cifar10": 10, "cifar100": 100}[config.data.tfds.name],
      "input_shape": [32, 32, 3],
      "input_dtype": "uint8",
      "scale": 255.0,
      "sizes": {
        "train": options.num_train or 50000 - held_out,
        "val": 10000 if options.val else held_out,
        "test": 10000,
      },
    }
  if config.data.name == "image_folder":
    size = config.data.stream.size
    return {
      "num_classes": 100,
      "input_shape": [size, size, 3],
      "input_dtype": "uint8",
      "scale": 255.0,
      "sizes": {"train": 9000, "val": 1000, "test": 2000},
    }
  if config.data.name == "parallel_text":
    options = config.data.parallel_text
    return {
      "label_shape": [options.target_length],
      "model": {"vocab_size": options.vocab_size, "source_length": options.source_length},
      "num_classes": options.vocab_size,
      "input_shape": [options.source_length + options.target_length],
      "input_dtype": "int32",
      "scale": 1.0,
      "sizes": {"train": options.num_examples, "val": 1014, "test": 1000},
    }
  assert config.data.name == "idx"
  subset = config.data.subset
  if subset.per_class:
    return {
      "num_classes": subset.num_classes,
      "input_shape": [28, 28, 1],
      "input_dtype": "uint8",
      "scale": 255.0,
      "sizes": {"train": subset.num_classes * subset.per_class, "val": 1000, "test": 2000},
    }
  if choice.startswith("flatness_"):
    number = config.data.idx.num_train or 55000
    sizes = {"train": number, "val": 5000, "test": 10000}
    return {
      "num_classes": 10,
      "input_shape": [28, 28, 1],
      "input_dtype": "uint8",
      "scale": 255.0,
      "sizes": sizes,
    }
  sizes = MNIST_SIZES[re.search(r"mnist(\d+k)", choice.replace(".py:", "")).group(1)]
  expected = 2 * config.data.idx.per_class * 10 or 60000
  assert sum(sizes) == expected
  return {
    "num_classes": 10,
    "input_shape": [28, 28, 1],
    "input_dtype": "uint8",
    "scale": 255.0,
    "sizes": {"train": sizes[0], "val": sizes[1], "test": 10000},
  }


def test_there_are_configs():
  assert {"dropmax_digits.py", "dropmax_mnist.py", "softmax_digits.py"} <= set(FILES)
  assert len(CHOICES) >= 8


@pytest.mark.parametrize(
  ("choice", "override"),
  [(choice, None) for choice in CHOICES] + [(choice, "softmax") for choice in CHOICES if "dropmax" in choice],
)
def test_the_full_step_can_be_built(choice, override):
  arguments = ["--config", f"{CONFIGS}/{choice}"]
  arguments += [f"--config.method.name={override}"] if override else []
  config = cli.parse(arguments, CONFIGS).config
  assert override in (None, config.method.name)
  # The method comes first in the name of the file; of the transformer, whose dropout is what it is for and no
  # method, the model; of an analysis, the analysis.
  first = "transformer" if config.model.name == "Transformer" else config.method.name
  first = "flatness" if config.job == "flatness" else first
  first = next((name for name in ("toolbox", "optimizers", "image_folder") if name in choice), first)
  assert override or choice.removeprefix("compare_").startswith(first)
  data = describe(config, choice)
  program = setup.build(config, data)
  state = program.abstract
  of = lambda *shape, dtype="float32": jax.ShapeDtypeStruct((config.batch_size, *shape), dtype)
  inputs = of(*data["input_shape"], dtype=data["input_dtype"])
  shape = data.get("label_shape", ())
  batch = {"inputs": inputs, "labels": of(*shape, dtype=jnp.int32), "weights": of(*shape)}
  after, metrics = jax.eval_shape(program.train_step, state, batch)
  shapes = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
  assert shapes(after) == shapes(state)
  assert {"loss", "accuracy", "grad_norm", "learning_rate", *METHODS[config.method.name].terms} <= set(
    metrics
  )
  assert len(jax.tree.leaves(after.params)) >= 5
  evaluated = jax.eval_shape(program.eval_step, state, batch, 0)
  assert {"error", "nll", "brier", "ece"} == set(evaluated)
  assert program.steps_per_epoch == data["sizes"]["train"] // config.batch_size
  assert program.num_steps == config.epochs * program.steps_per_epoch > 0


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice.startswith("flatness_")])
def test_the_rows_of_an_analysis_can_be_built(choice):
  config = cli.parse(["--config", f"{CONFIGS}/{choice}"], CONFIGS).config
  cells = parse_fields(config, config.flatness.rows, "flatness.rows")
  assert len(cells) >= 2
  for label, fields in cells.items():
    cell = make_cell(config, label, fields, seeds=1)
    train.check(cell)
    program = setup.build(cell, describe(cell, choice))
    assert flatness.subset(program_params(program), tuple(cell.flatness.where)).flat.size


def program_params(program):
  """Of the right shapes."""
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.abstract.params)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_softmax_override_changes_the_method_only(choice):
  plain = train.flatten(cli.parse(["--config", f"{CONFIGS}/{choice}"], CONFIGS).config)
  override = ["--config", f"{CONFIGS}/{choice}", "--config.method.name=softmax"]
  softmax = train.flatten(cli.parse(override, CONFIGS).config)
  changed = {field for field in plain if plain[field] != softmax[field]}
  assert changed == (set() if plain["method.name"] == "softmax" else {"method.name"})


def test_the_baseline_differs_from_dropmax_in_the_method_only():
  dropmax, softmax = (
    train.flatten(cli.parse(["--config", f"{CONFIGS}/{name}_digits.py"], CONFIGS).config)
    for name in ("dropmax", "softmax")
  )
  assert {field for field in dropmax if dropmax[field] != softmax[field]} == {"method.name"}


@pytest.mark.parametrize("name", FILES)
def test_the_docstring_says_source_and_command(name):
  text = (CONFIGS / name).read_text()
  doc = ast.get_docstring(ast.parse(text))
  assert doc
  assert doc.splitlines()[0].endswith((".", ":"))
  (command,) = re.findall(r"^Command: (python run\.py.*)$", doc, re.MULTILINE)
  if name != "dropmax_digits.py":  # the default needs no --config
    assert f"--config configs/{name}" in command
  assert re.search(r"^Source: \S+", doc, re.MULTILINE)


@pytest.mark.parametrize("name", FILES)
def test_the_command_of_the_docstring_can_be_read(name, monkeypatch):
  monkeypatch.chdir(ROOT)
  doc = ast.get_docstring(ast.parse((CONFIGS / name).read_text()))
  (command,) = re.findall(r"^Command: python run\.py ?(.*)$", doc, re.MULTILINE)
  config = cli.parse(command.split(), CONFIGS).config
  spec = importlib.util.spec_from_file_location("config", CONFIGS / name)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  assert config.method.name == module.get_config().method.name


def test_the_schedule_of_the_released_code():
  """Adam at 1e-3, 1e-4 and 1e-5, switched at the thirds; decay of all but the branches; batches of 100."""
  config = cli.parse(["--config", f"{CONFIGS}/dropmax_mnist.py"], CONFIGS).config
  assert config == cli.parse(["--config", f"{CONFIGS}/dropmax_mnist.py:1k"], CONFIGS).config
  assert (config.model.name, config.batch_size, config.epochs) == ("LeNet", 100, 200)
  assert config.data.idx.per_class == 100
  decay = config.optimizer.weight_decay
  assert (decay.rate, decay.decoupled, decay.mask) == (1e-4, False, "no_branches")
  from jaxreg.train.optimizer import make_schedule

  schedule = make_schedule(
    config.optimizer.schedule.name,
    config.optimizer.learning_rate,
    steps_per_epoch=10,
    num_steps=2000,
    **config.optimizer.schedule.step,
  )
  rates = [float(schedule(step)) for step in (0, 666, 667, 1332, 1333, 1999)]
  assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5], rel=1e-6)


def test_the_appendix():
  for size, epochs in {"1k": 2000, "5k": 500, "55k": 100}.items():
    config = cli.parse(["--config", f"{CONFIGS}/dropmax_mnist.py:{size}-appendix"], CONFIGS).config
    assert (config.model.name, config.batch_size, config.epochs) == ("TutorialCNN", 50, epochs)
    assert (config.optimizer.name, config.optimizer.learning_rate) == ("adam", 1e-4)
    assert config.optimizer.schedule.name == "constant"

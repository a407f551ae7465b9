"""Every config describes a step that can be traced, on data of the right shape."""

import ast
import dataclasses
import functools
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.toolbox_digits import TOOLBOX
from jaxreg import flatness, train
from jaxreg.train import cli
from jaxreg.train.assemble import compatibility as checks
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.fields import FIELDS
from jaxreg.train.config.rows import compared_rows
from jaxreg.train.data import sources
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.data.images import Decoding
from jaxreg.train.registry import REGISTRY
from papers.flatness._analyses import ANALYSES
from papers.flatness._settings import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.py") if not path.name.startswith("_"))
CHANGING = ("data.",)  # groups whose fields leave in other changes
MNIST_SIZES = {"1k": (1000, 1000), "5k": (5000, 5000), "55k": (55000, 5000)}
ARGUMENTS = {
  "dropmax_mnist.py": [f"{size}{rest}" for size in MNIST_SIZES for rest in ("", "-appendix")],
  "compare_dropmax_cifar10.py": [None, "small", "remedies"],
  "compare_dropmax_mnist1k.py": [None, "appendix"],
  "compare_fast_cifar10.py": [None, "small"],
  "compare_dropmax_mnist5k.py": [None, "appendix"],
  "compare_dropmax_mnist1k_variations.py": ["background", "rotation"],
  "compare_group_softmax_subsets.py": ["classes2", "images300"],
  "finetune_mnist.py": [None, "pretrain"],
  "flatness_fnn_mnist.py": [None, "profile"],
  "flatness_resnet20_cifar100.py": [None, "cifar10"],
  "flatness_transformer_multi30k.py": [None, "small"],
  "compare_toolbox_mnist1k.py": [None, "epochs", "flipped", "decay", "stopping", "optimizers"],
  "optimizers_digits.py": [None, "exact_adam", "normalized_leaves", "sam", "sgld"],
  "toolbox_digits.py": [None, "max_norm", "weight_noise", "rnn_weight_noise"],
  "compare_group_softmax.py": ["digits", "mnist1k", "mnist5k", "cifar10"],
  "group_softmax_imagenet.py": [None, "classes100", "images100", "all-he"],
  "group_softmax_food101.py": ["scratch", "finetuned"],
  "vit_cifar10.py": [None, "small"],
}
# The sets of photographs: classes, images for training and for testing. TFDS says how many, and the sources
# of the last two; 60 of each class of Caltech-256 are for training, 50 of each of AWA 2 for testing.
PHOTOGRAPHS = {
  "imagenet2012": (1000, 1_281_167, 50_000),
  "food101": (101, 75_750, 25_250),
  "sun397/standard-part1-120k": (397, 19_850, 19_850),
  "caltech_birds2011": (200, 5_994, 5_794),
  "group_softmax_caltech256.py": (256, 60 * 256, 30_607 - 827 - 60 * 256),
  "dropmax_awa2.py": (50, 37_322 - 50 * 50, 50 * 50),
}
CHOICES = [
  f"{name}:{argument}" if argument else name for name in FILES for argument in ARGUMENTS.get(name, [None])
]
# One variant of each file is in the default set.
FIRST = {next(choice for choice in CHOICES if choice.startswith(name)) for name in FILES}
# Tracing the rest in the default set too would repeat layers and losses of these.
TRACED_FIRST = (
  *("autoencoder_digits.py", "dropmax_cifar10.py", "dropmax_digits.py", "image_folder.py"),
  *(
    "dropmax_mnist.py:1k",
    "fast_cifar10.py",
    "group_softmax_digits.py",
    "multitask_digits.py",
  ),
  *("optimizers_digits.py", "softmax_digits.py", "softmax_fixmatch_mnist.py", "toolbox_digits.py"),
  "transformer_multi30k.py",
)


# Programs that were traced. Configs that differ in numbers only share one.
TRACED = set()
SHAPING = ("data.name", "model.", "method.", "optimizer.", "regularizers.", "noise.", "augment.", "average.")
# Deep networks repeat their blocks.
SHALLOW = {"ResNet": {"depth": 18}, "CifarResNet": {"depth": 8}, "Transformer": {"num_layers": 1}}


@functools.cache
def parse(choice):
  """The configuration of a file and its variant: not to be changed."""
  return cli.parse(["--config", f"{CONFIGS}/{choice}"], CONFIGS).config


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  """The batch of 100 of the released code cannot be shared by the tests' eight devices."""
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  monkeypatch.syspath_prepend(str(ROOT))


def images(num_classes, shape, *sizes):
  named = dict(zip(("train", "val", "test"), sizes, strict=True))
  return DataSpec(tuple(shape), "uint8", num_classes, named, scale=255.0)


def describe(config, choice):
  """What the data of a config looks like; nothing is read but what scikit-learn has."""
  data, subset = config.data, config.data.subset
  of = data.tfds.name if data.name == "tfds" else choice
  if data.name in ("digits", "diabetes"):
    return load_data(config).describe()
  if choice.startswith("regression_uci"):
    sizes = dict(zip(("train", "val", "test"), (364, 91, 51), strict=True))
    return dataclasses.replace(sources.diabetes().describe(), input_shape=(13,), sizes=sizes)
  if of in PHOTOGRAPHS:
    classes, *sizes = PHOTOGRAPHS[of]
    if subset.num_classes:
      sizes = [size * subset.num_classes // classes for size in sizes]
    classes = subset.num_classes or classes
    return images(classes, (224, 224, 3), subset.per_class * classes or sizes[0], sizes[1], sizes[1])
  if data.name == "tfds":  # the CIFAR sets: 50000 images; a part is held out
    held_out = 0 if data.tfds.val else round((50000 - subset.num_train) * data.validation_fraction)
    sizes = subset.num_train or 50000 - held_out, held_out or 10000, 10000
    return images({"cifar10": 10, "cifar100": 100}[of], (32, 32, 3), *sizes)
  if data.name == "image_folder":
    return images(100, (data.stream.size, data.stream.size, 3), 9000, 1000, 2000)
  if data.name == "parallel_text":
    options = data.parallel_text
    lengths = options.source_length, options.target_length
    return dataclasses.replace(
      images(options.vocab_size, [sum(lengths)], subset.num_train, 1014, 1000),
      label_shape=(lengths[1],),
      input_dtype="int32",
      scale=1.0,
      model={"vocab_size": options.vocab_size, "source_length": lengths[0]},
    )
  assert data.name == "idx"
  mnist = functools.partial(images, 10, (28, 28, 1))
  if subset.per_class and subset.drawn:
    found = mnist(subset.num_classes * subset.per_class, 1000, 2000)
    unlabelled = 50000 * bool(data.unlabelled.batch_size)
    return dataclasses.replace(
      found, num_classes=subset.num_classes, sizes={**found.sizes, "unlabelled": unlabelled}
    )
  if choice.startswith("flatness_"):
    return mnist(subset.num_train or 55000, 5000, 10000)
  if choice.startswith("finetune_"):
    return mnist(10 * subset.per_class, 10 * subset.per_class, 10000)
  sizes = MNIST_SIZES[re.search(r"mnist(\d+k)", choice.replace(".py:", "")).group(1)]
  assert sum(sizes) == (2 * subset.per_class * 10 or 60000)
  return mnist(*sizes, 10000)


def thorough_but(few, choices=CHOICES):
  return [pytest.param(each, marks=() if each in few else pytest.mark.thorough) for each in choices]


@pytest.mark.parametrize("choice", thorough_but(FIRST))
def test_a_config_fits_its_data(choice):
  config = parse(choice)
  # The name of the file begins with the method, a transformer's with its model, a paper's with its subject.
  first = config.model.name.lower() if config.model.name in ("Transformer", "ViT") else config.method.name
  first = next(
    (
      name
      for name in (
        *("toolbox", "optimizers", "image_folder", "fast", "finetune_", "regression", "flatness"),
        *("multilabel", "wrong_labels"),
      )
      if name in choice
    ),
    first,
  )
  assert choice.removeprefix("compare_").startswith(first)
  data = describe(config, choice)
  checks.check_data(config, data)
  length = checks.length(config, data.sizes)
  assert length["steps_per_epoch"] == data.sizes["train"] // config.batch_size
  assert length["num_steps"] == config.epochs * length["steps_per_epoch"] > 0


@pytest.mark.parametrize("choice", thorough_but(TRACED_FIRST))
def test_the_full_step_can_be_built(choice):
  config = parse(choice).copy_and_resolve_references()
  trace(config, describe(config, choice))


@pytest.mark.thorough
@pytest.mark.parametrize("choice", [choice for choice in CHOICES if "dropmax" in choice])
def test_the_full_step_of_the_baseline_can_be_built(choice):
  config = parse(choice).copy_and_resolve_references()
  plain = flatten(config)
  config.method.name = "softmax"
  changed = {field for field, value in flatten(config).items() if value != plain[field]}
  assert changed == {"method.name"}
  train.check(config)
  trace(config, describe(config, choice))


def trace(config, data):
  """Traces the program with few blocks, unless the same program was traced before."""
  if config.model.name in SHALLOW:
    config.model[config.model.name].update(SHALLOW[config.model.name])
  fields = {field: code(value) for field, value in flatten(config).items() if field.startswith(SHAPING)}
  if str(fields) not in TRACED:
    TRACED.add(str(fields))
    check_program(config, data)


def code(value):
  """What of a field's value can choose code: words, and whether a number is 0."""
  values = value if isinstance(value, list) else [value]
  return [each if isinstance(each, str) else bool(each) for each in values]


def check_program(config, data):
  program = build(config, data)
  state = program.abstract
  of = lambda *shape, dtype="float32": jax.ShapeDtypeStruct((config.batch_size, *shape), dtype)
  inputs = of(*data.input_shape, dtype=data.input_dtype)
  shape = data.label_shape
  labels = of(*shape, dtype="float32" if data.has_numbers else "int32")
  batch = {"inputs": inputs, "labels": labels, "weights": of(*shape)}
  after, metrics = jax.eval_shape(program.train_step, state, batch)
  shapes = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
  assert shapes(after) == shapes(state)
  assert {
    "loss",
    "mae" if data.has_numbers else "accuracy",
    "grad_norm",
    "learning_rate",
    *REGISTRY["method"][config.method.name].function.terms,
  } <= set(metrics)
  assert len(jax.tree.leaves(after.params)) >= 5
  evaluated = jax.eval_shape(program.eval_step, state, batch, 0)
  if config.method.name == "gaussian_nll":
    expected = {"rmse", "mae", "nlpd", "coverage", "width"}
  else:
    expected = {"rmse", "mae"} if data.has_numbers else {"error", "nll", "brier", "ece"}
  assert set(evaluated) == expected


@pytest.mark.thorough
def test_the_full_step_of_a_deep_network():
  """As it is: the others have fewer blocks."""
  config, data = of_photographs("group_softmax_imagenet")
  check_program(config.copy_and_resolve_references(), data)


def shared_toolbox():
  """The entries of the toolbox that fit any network; a group, such as all penalties, is one entry."""
  groups = {}
  for name, fields in TOOLBOX.items():
    # Fields of another network, or of data that the batch of this test has not; means without BatchNorm.
    if name not in ("power_ema", "swa", "swag") and not re.search(
      r"model\.|data\.|teacher\.|layers|pairs", str(fields)
    ):
      names = next((field for field in fields if field.endswith(".names")), "")
      group = groups.setdefault(names or name, {})
      found = (*group.get(names, ()), *fields.get(names, ()))
      group |= {**fields, **({names: tuple(dict.fromkeys(found))} if names else {})}
  return groups


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "fields"), shared_toolbox().items())
def test_the_toolbox_runs_on_the_fast_recipe(name, fields):
  config = parse("fast_cifar10.py").copy_and_resolve_references()
  config.model.Airbench.widths = (2, 2, 2)
  config.update_from_flattened_dict(fields)
  train.check(config)
  check_program(config, describe(config, "fast_cifar10.py"))


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("name", "variant"), [(name, each) for name, all_ in SETTINGS.items() for each in all_]
)
def test_the_networks_of_the_flatness_paper_can_be_built(name, variant):
  setting = SETTINGS[name][variant]
  for row in setting.rows.values():
    assert set(row.analyses) <= ANALYSES.keys()
    config = parse(setting.config).copy_and_resolve_references()
    config.update_from_flattened_dict(dict(row.fields))
    train.check(config)
    # Networks of one size differ in the training; `check` reads those fields.
    network = str((setting.config, setting.mask))
    if network not in TRACED:
      TRACED.add(network)
      params = build(config, describe(config, setting.config)).abstract.params
      zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
      assert flatness.subset(zeros, setting.mask).flat.size


def test_the_baseline_differs_from_dropmax_in_the_method_only():
  dropmax, softmax = (flatten(parse(f"{name}_digits.py")) for name in ("dropmax", "softmax"))
  assert {field for field in dropmax if dropmax[field] != softmax[field]} == {"method.name"}


@pytest.mark.parametrize("name", FILES)
def test_the_docstring_says_source_and_a_command_that_can_be_read(name, monkeypatch):
  monkeypatch.chdir(ROOT)
  doc = ast.get_docstring(ast.parse((CONFIGS / name).read_text()))
  assert re.search(r"^Source: \S+", doc, re.MULTILINE)
  (command,) = re.findall(r"^Command: python run\.py ?(.*)$", doc, re.MULTILINE)
  if name != "dropmax_digits.py":  # the default needs no --config
    assert f"--config configs/{name}" in command
  assert cli.parse(command.split(), CONFIGS).config.method.name == parse(name).method.name


def test_the_schedule_of_the_released_code():
  """Adam at 1e-3, 1e-4 and 1e-5, switched at the thirds; decay of all but the branches; batches of 100."""
  config = parse("dropmax_mnist.py")
  assert config == parse("dropmax_mnist.py:1k")
  assert (config.model.name, config.batch_size, config.epochs) == ("LeNet", 100, 200)
  assert (config.data.subset.per_class, config.data.subset.drawn) == (100, False)
  decay = config.optimizer.weight_decay
  assert (decay.rate, decay.kind, decay.mask) == (1e-4, "coupled", "no_branches")
  schedule = config.optimizer.schedule
  assert (schedule.name, schedule.step.relative, schedule.step.factor) == ("step", True, 0.1)
  assert schedule.step.boundaries == pytest.approx((1 / 3, 2 / 3))
  assert config.optimizer.learning_rate == 1e-3


def test_the_appendix():
  for size, epochs in {"1k": 2000, "5k": 500, "55k": 100}.items():
    config = parse(f"dropmax_mnist.py:{size}-appendix")
    assert (config.model.name, config.batch_size, config.epochs) == ("TutorialCNN", 50, epochs)
    assert (config.optimizer.name, config.optimizer.learning_rate) == ("adam", 1e-4)
    assert config.optimizer.schedule.name == "constant"
    decay = config.optimizer.weight_decay
    assert (decay.rate, decay.kind, decay.mask) == (1e-4, "coupled", "no_branches")


@pytest.mark.parametrize("choice", ["mnist1k.py:appendix", "mnist5k.py:appendix"])
def test_the_search_of_the_appendix(choice):
  """Its weight decay is searched in {0, 1e-5, 1e-4, 1e-3}, for both methods, on the validation split."""
  config = parse(f"compare_dropmax_{choice}")
  assert (config.job, config.checkpoint.best) == ("compare", "auto")
  assert config.compare.seeds >= 3
  assert {"softmax", "dropmax"} <= set(config.compare.rows)
  rates = {0.0, 1e-5, 1e-4, 1e-3}
  for row in compared_rows(config):
    assert {setting["optimizer.weight_decay.rate"] for setting in row.grid} == rates


# Data set, argument: classes, thousands of training images, the epochs where the rate drops, all epochs.
TABLE_B1 = {
  ("imagenet", None): (1000, 1281, (30, 60, 90), 120),
  ("food101", "scratch"): (101, 75, (60, 120, 150), 180),
  ("caltech256", None): (256, 15, (120, 240, 270), 300),
  ("sun397", None): (397, 19, (120, 240, 270), 300),
  ("imagenet", "classes100"): (100, 127, (60, 120, 150), 180),
  ("imagenet", "classes200"): (200, 258, (60, 120, 150), 180),
  ("imagenet", "classes500"): (500, 639, (30, 60, 90), 120),
  ("imagenet", "images100"): (1000, 100, (90, 180, 210), 240),
  ("imagenet", "images200"): (1000, 200, (90, 180, 210), 240),
  ("imagenet", "images500"): (1000, 500, (60, 120, 150), 180),
  ("food101", "finetuned"): (101, 75, (30, 60, 90), 120),
}


def of_photographs(name, argument=None):
  choice = f"{name}.py" + (f":{argument}" if argument else "")
  config = parse(choice)
  return config, describe(config, choice)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "argument"), TABLE_B1)
def test_the_set_ups_of_group_softmax(name, argument):
  """Kobayashi, 2021, supplement, B.1."""
  config, data = of_photographs(f"group_softmax_{name}", argument)
  classes, thousands, drops, epochs = TABLE_B1[name, argument]
  assert data.num_classes == classes
  # Which classes the paper drew is not known, and not all have as many images.
  assert abs(data.sizes["train"] // 1000 - thousands) <= (3 if (argument or "").startswith("cl") else 0)
  schedule = config.optimizer.schedule
  assert (schedule.name, schedule.step.boundaries, schedule.step.factor) == ("step", drops, 0.1)
  assert (config.batch_size, config.epochs) == (256, epochs)
  rate = 0.0045 if argument == "finetuned" else 0.1
  decay = config.optimizer.weight_decay.rate
  found = (config.optimizer.name, config.optimizer.learning_rate, config.optimizer.sgd.momentum, decay)
  assert found == ("sgd", rate, 0.9, 1e-4)
  assert config.pretrained.workdir == ("runs/softmax_imagenet" if argument == "finetuned" else "")
  # The paper's advice on the types.
  loss = config.method.group_softmax.loss
  assert loss.kind == ("II" if thousands < 500 else "I")
  scale = config.method.group_softmax.predict.logit_scale
  assert scale == (1 / loss.num_groups if loss.kind == "II" else 1)
  if name == "imagenet":
    group, softmax = (flatten(c) for c in (config, of_photographs("softmax_imagenet", argument)[0]))
    differ = {field for field in group if group[field] != softmax[field]}
    assert differ == {"method.name"}


# Config: model, batch, epochs, learning rate, the epochs where it drops, weight decay.
APPENDIX_C = {
  "dropmax_cifar10": ("CifarResNet", 128, 200, 0.1, (80, 120, 160), 1e-4),
  "dropmax_cifar100": ("CifarResNet", 128, 200, 0.1, (80, 120, 160), 1e-4),
  "dropmax_awa2": ("ResNet", 125, 300, 1e-2, (150, 250), 1e-4),
  "dropmax_cub200": ("ResNet", 125, 400, 1e-2, (200, 300), 1e-3),
}


@pytest.mark.parametrize("name", APPENDIX_C)
def test_the_set_ups_of_dropmax(name):
  """Lee et al., 2018, appendix C, every number; and what we add to it."""
  config = parse(f"{name}.py")
  chosen, decay = config.optimizer, config.optimizer.weight_decay
  step, rates = chosen.schedule.step, (chosen.learning_rate, chosen.schedule.step.boundaries)
  assert (config.model.name, config.batch_size, config.epochs, *rates, decay.rate) == APPENDIX_C[name]
  assert (chosen.name, chosen.sgd.momentum, chosen.sgd.nesterov) == ("sgd", 0.9, False)
  assert (chosen.schedule.name, step.factor, step.relative) == ("step", 0.1, False)
  assert (chosen.schedule.warmup_epochs, config.steps, config.method.name) == (0, 0, "dropmax")
  # By the released code: coupled, and on everything but the mask branches.
  assert (decay.mask, decay.kind) == ("no_branches", "coupled")
  # A depth of 32 and ResNet-18: ours, and its authors' word.
  assert config.model[config.model.name].depth == (18 if config.model.name == "ResNet" else 32)
  assert chosen.clip_norm == (
    1.0 if chosen.learning_rate == 0.1 else 0
  )  # ours, where the first steps are large
  loss = config.method.dropmax.loss
  weights = (loss.kl_weight, loss.entropy_weight, loss.auxiliary_weight)
  assert (loss.temperature, loss.num_samples, *weights) == (0.1, 1, 1, 1, 1)
  # The sum is the source's; ours is the mean, where 200 classes would drown the likelihood.
  assert loss.class_reduction == ("mean" if name == "dropmax_cub200" else "sum")


@pytest.mark.parametrize(
  ("name", "argument"), [*TABLE_B1, ("softmax", None), ("awa2", None), ("cub200", None)]
)
def test_photographs_are_preprocessed_as_usual_and_none_is_held_out(name, argument):
  method = {"softmax": "softmax_imagenet", "awa2": "dropmax_awa2", "cub200": "dropmax_cub200"}
  config, _ = of_photographs(method.get(name, f"group_softmax_{name}"), argument)
  stream = config.data.stream
  assert (stream.size, Decoding(**stream).resize) == (224, 256)
  assert config.augment.mean == (0.485, 0.456, 0.406)
  assert config.augment.std == (0.229, 0.224, 0.225)
  assert config.model.ResNet.stem == "imagenet"
  source = config.data[config.data.name]
  assert source.train == "train"
  assert source.val == source.test != "train"
  assert config.evaluate.checkpoint == "latest"


def test_the_preprocessing_that_the_supplement_cites():
  """He et al., 2016, section 3.4: the shorter side from 256 to 480, crops of 224, flips, colour noise."""
  plain, he = (of_photographs("group_softmax_imagenet", argument)[0] for argument in (None, "all-he"))
  assert (he.data.stream.sides, he.data.stream.size) == ((256, 480), 224)
  assert (he.augment.names, he.augment.lighting.std) == (("lighting",), 0.1)
  plain, he = flatten(plain), flatten(he)
  assert {field for field in plain if plain[field] != he[field]} == {"data.stream.sides", "augment.names"}


def test_every_field_is_set_by_a_config_or_named_on_a_page():
  pages = [
    *CONFIGS.glob("*.py"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("papers/*/README.md"),
    ROOT / "README.md",
  ]
  text = "\n".join(page.read_text() for page in pages).replace("config.", " ")
  named = {field for field in FIELDS if re.search(rf"(?<![\w.]){re.escape(field)}(?![\w])", text)}
  assert {field for field in FIELDS.keys() - named if not field.startswith(CHANGING)} == set()

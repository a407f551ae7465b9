"""The set-ups of the papers run as their commands say, on tiny sets of the same names, splits and classes."""

import functools
import io

import jax
import numpy as np
import pytest
import runs
import tensorflow_datasets as tfds
from PIL import Image

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.run.metrics_file import read_records

CONFIGS = runs.ROOT / "configs"
TEXT, BOX = tfds.features.Text, tfds.features.BBoxFeature
MASK = functools.partial(tfds.features.Image, shape=(None, None, 1))
BIRDS = {"image/filename": TEXT, "label_name": TEXT, "bbox": BOX, "segmentation_mask": MASK}
# By the name in TFDS: classes, the split for testing, and what there is beside image and label.
SETS = {
  "imagenet2012": (1000, "validation", {"file_name": TEXT}),
  "food101": (101, "validation", {}),
  "sun397/standard-part1-120k": (397, "test", {"file_name": TEXT}),
  "caltech_birds2011": (200, "test", BIRDS),
}
TINY = {
  **{"batch_size": 8, "steps": 2, "eval_batch_size": 200, "log_every": 1},
  **{"data.stream.size": 32, "model.ResNet.width": 2},
}
# Of the config with its argument: the classes it must find. The fewer images a class are fewer still here.
CHOICES = {
  "dropmax_cub200.py": 200,
  "group_softmax_food101.py:scratch": 101,
  "group_softmax_sun397.py": 397,
  "softmax_imagenet.py": 1000,
  "group_softmax_imagenet.py": 1000,
  **{f"group_softmax_imagenet.py:classes{number}": number for number in (100, 200, 500)},
  **{f"group_softmax_imagenet.py:images{number}": 1000 for number in (100, 200, 500)},
}
FOLDERS = {"dropmax_awa2.py": (50, {"test": 1}), "group_softmax_caltech256.py": (256, {"train": 2})}
OFTEN = ("dropmax_cub200.py",)
DEEP = ("group_softmax_imagenet.py:classes100",)  # with ResNet-50, the others with ResNet-18: it is compiling

pytestmark = pytest.mark.usefixtures("no_figures", "one_device")


@pytest.fixture
def one_device(monkeypatch):
  """Compiling these networks for eight takes longer."""
  monkeypatch.setattr(jax, "device_count", lambda: 1)


def picture(number, mode="RGB", kind="JPEG"):
  """One of a few images of unequal sizes, encoded."""
  shape = (30 + number % 5, 44 - number % 3, *((3,) if mode == "RGB" else ()))
  pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
  Image.fromarray(pixels).save(stream := io.BytesIO(), kind)
  return stream.getvalue()


def example(label, features):
  """A record of a set: its image and label, and something for each other feature."""
  made = {
    TEXT: "a name",
    MASK: io.BytesIO(picture(label % 7, "L", "PNG")),
    BOX: tfds.features.BBox(ymin=0.1, xmin=0.1, ymax=0.9, xmax=0.9),
  }
  more = {name: made[kind] for name, kind in features.items()}
  return {"image": io.BytesIO(picture(label % 7)), "label": label, **more}


def prepare(root, reference):
  """A set of that name as TFDS would write it: of each class two examples for training, one for testing."""
  num_classes, test, features = SETS[reference]
  name, _, configuration = reference.partition("/")
  version = tfds.core.Version("1.0.0")

  class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = version
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=configuration, version=version)] if configuration else []

    def _info(self):
      known = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=num_classes)}
      more = {feature: kind() for feature, kind in features.items()}
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({**known, **more}))

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples(2), test: self._generate_examples(1)}

    def _generate_examples(self, number):
      for i in range(number * num_classes):
        yield i, example(i % num_classes, features)

  Tiny.name = name
  Tiny(data_dir=root).download_and_prepare(
    file_format="array_record", download_config=tfds.download.DownloadConfig(try_download_gcs=False)
  )


@pytest.fixture(scope="module")
def tfds_root(tmp_path_factory):
  """Prepares a set when it is first asked for."""
  root = tmp_path_factory.mktemp("tfds")

  @functools.cache
  def prepared(reference):
    prepare(root, reference)
    return root

  return prepared


def archive(folder, classes):
  """A folder of three images a class, as Caltech-256 and AWA 2 come."""
  for label, name in enumerate(classes):
    (folder / name).mkdir(parents=True)
    for i in range(3):
      (folder / name / f"{name}_{i}.jpg").write_bytes(picture((label + i) % 7))
  return folder


def launch(choice, workdir, fields):
  """Trains as the command line would; what the run says of its data."""
  fields = {**TINY, "model.ResNet.depth": 50 if choice in DEEP else 18, **fields}
  arguments = [f"--config.{name}={value}" for name, value in fields.items()]
  call = cli.parse(["--config", f"{CONFIGS}/{choice}", "--workdir", str(workdir), *arguments], CONFIGS)
  results = train.train(call.config, call.workdir)
  losses = [record["train/loss"] for record in read_records(workdir) if "train/loss" in record]
  assert len(losses) == 2
  assert np.isfinite(losses).all()
  assert 0 <= results["test/error"] <= 1
  data = runs.table(workdir / "data.json")
  assert (data["input_shape"], data["input_dtype"], data["scale"]) == ([32, 32, 3], "uint8", 255.0)
  return data


def sizes(classes, per_class=2):
  return {"train": per_class * classes, "val": classes, "test": classes}


@pytest.mark.parametrize(
  "choice", [pytest.param(c, marks=pytest.mark.thorough if c in OFTEN else pytest.mark.slow) for c in CHOICES]
)
def test_a_set_of_tfds(choice, tfds_root, tmp_path):
  options = cli.parse(["--config", f"{CONFIGS}/{choice}"], CONFIGS).config.data
  fields = {"data.tfds.data_dir": tfds_root(options.tfds.name)}
  if options.subset.per_class:
    fields["data.subset.per_class"] = 1
  data = launch(choice, tmp_path / "run", fields)
  assert data["num_classes"] == CHOICES[choice]
  assert data["sizes"] == sizes(CHOICES[choice], 1 if options.subset.per_class else 2)


@pytest.mark.slow
@pytest.mark.parametrize("choice", FOLDERS)
def test_a_folder_of_images(choice, tmp_path):
  classes, number = FOLDERS[choice]
  names = [f"{label:03}.class" for label in range(classes)]
  source = archive(tmp_path / "archive", [*names, "257.clutter"])
  options = {"path": source, "skip": "('257.clutter',)", **number}
  fields = {f"data.drawn_split.{name}": value for name, value in options.items()}
  fields["data.name"] = "examples.image_lists:drawn_split"
  if "train" in number:
    fields["data.subset.per_class"] = number["train"]
  data = launch(choice, tmp_path / "run", fields)
  assert data["num_classes"] == classes
  assert data["sizes"] == sizes(classes)


@pytest.mark.slow
def test_fine_tuning_on_food_101_starts_from_the_run_on_imagenet(tfds_root, tmp_path):
  launch("softmax_imagenet.py", tmp_path / "imagenet", {"data.tfds.data_dir": tfds_root("imagenet2012")})
  fields = {
    "data.tfds.data_dir": tfds_root("food101"),
    "pretrained.workdir": tmp_path / "imagenet",
    "optimizer.learning_rate": 1e-30,
    "seed": 5,
  }
  data = launch("group_softmax_food101.py:finetuned", tmp_path / "food", fields)
  assert (data["num_classes"], data["sizes"]) == (101, sizes(101))
  before, after = (runs.final_state(tmp_path / name)["params"] for name in ("imagenet", "food"))
  same = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-20)
  jax.tree.map(same, before["backbone"], after["backbone"])
  assert after["head"]["classifier"]["kernel"].shape[-1] == 101

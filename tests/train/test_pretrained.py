"""Fine-tuning: the backbone of another run, a new head, a schedule of its own."""

import functools
import json

import jax
import numpy as np
import pytest
import runs
from safetensors.numpy import save_file
from torch_resnets import random_tensors, shapes

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.devices.sharding import make_mesh
from jaxreg.train.finished import reuse
from jaxreg.train.finished.restore import restore_run
from jaxreg.train.jobs import train as training
from jaxreg.train.run import initial_state

pytestmark = pytest.mark.thorough

FIELDS = {"method.name": "group_softmax", "epochs": 1}


def backbones(state):
  return jax.device_get(state["params"]["backbone"])


@pytest.mark.parametrize(
  ("checkpoint", "replicas"), [("best", 1), pytest.param("latest", 2, marks=pytest.mark.slow)]
)
def test_it_starts_from_the_backbone_and_a_new_head(finished_run, tmp_path, checkpoint, replicas, light_runs):
  # At a learning rate next to 0, what was started from is what is saved.
  fields = {
    **FIELDS,
    "pretrained.workdir": str(finished_run),
    "pretrained.checkpoint": checkpoint,
    "optimizer.learning_rate": 1e-30,
    "replicas": replicas,
    "seed": 5,
  }
  workdir = tmp_path / "run"
  train.train(runs.make_config(fields), workdir)
  _, source, _ = restore_run(finished_run, checkpoint, 0)
  after = runs.final_state(workdir)
  for ours, theirs in zip(
    jax.tree.leaves(backbones(after)), jax.tree.leaves(source.params["backbone"]), strict=True
  ):
    assert ours.shape == (replicas, *theirs.shape)
    for replica in ours:
      np.testing.assert_allclose(replica, theirs, rtol=1e-6, atol=1e-20)
  fresh = tmp_path / "fresh"
  train.train(runs.make_config({**fields, "pretrained.workdir": ""}), fresh)
  random = runs.final_state(fresh)
  same = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-20)
  jax.tree.map(same, after["params"]["head"], random["params"]["head"])
  leaves = zip(jax.tree.leaves(backbones(after)), jax.tree.leaves(backbones(random)))
  assert any((ours != theirs).any() for ours, theirs in leaves)


@pytest.mark.slow
def test_resuming_does_not_start_from_it_again(finished_run, tmp_path, light_runs):
  """The other run may even be gone by then."""
  fields = {**FIELDS, "epochs": 2, "pretrained.workdir": str(finished_run)}
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  train.train(runs.make_config(fields), whole)
  train.train(runs.make_config({**fields, "epochs": 1}), parts)
  missing = pytest.MonkeyPatch()
  with missing.context() as patched:
    patched.setattr(training, "load_pretrained", lambda *_, **__: pytest.fail("it was loaded again"))
    train.train(runs.make_config(fields), parts)
  for ours, theirs in zip(
    *(jax.tree.leaves(runs.final_state(w)["params"]) for w in (whole, parts)), strict=True
  ):
    np.testing.assert_array_equal(ours, theirs)


def test_averages_of_batch_norm_come_too():
  """The part of the model's state that is the backbone's; the head's, if it has one, stays new."""
  fields = {"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "data.subset.limit": 32}
  config = runs.make_config(fields)
  program = build(config, load_data(config).describe())
  zeros = lambda tree: jax.tree.map(lambda x: np.zeros((1, *x.shape), x.dtype), tree)
  ones = lambda tree: jax.tree.map(lambda x: np.ones(x.shape, x.dtype), tree)
  state = program.abstract
  backbone = initial_state.parts_of(state.variables, "backbone")
  assert jax.tree.leaves(backbone["model_state"])
  started = initial_state.with_pretrained(
    program,
    state.replace(params=zeros(state.params), model_state=zeros(state.model_state)),
    ones(backbone),
    make_mesh(),
  )
  assert all((x == 1).all() for x in jax.tree.leaves(started.params["backbone"]))
  assert all((x == 0).all() for x in jax.tree.leaves(started.params["head"]))
  assert all((x == 1).all() for x in jax.tree.leaves(started.model_state))


RESNET = {
  "model.name": "ResNet",
  "model.ResNet.depth": 18,
  "model.ResNet.width": 2,
  "model.ResNet.stem": "imagenet",
  "method.name": "softmax",
  "regularizers.names": ("l2_sp",),
  "data.subset.limit": 64,
}


@pytest.fixture(scope="module")
def torch_file(tmp_path_factory):
  file = tmp_path_factory.mktemp("torch") / "resnet18.safetensors"
  save_file(random_tensors(shapes(18, 2, 10, colours=1)), file)
  return file


@functools.cache
def resnet_program(**fields):
  config = runs.make_config({**RESNET, **fields})
  return build(config, load_data(config).describe())


def load(program, file):
  return reuse.load_pretrained(program, workdir="", file=str(file), checkpoint="best")


@pytest.mark.parametrize("classes", [10, 5])
def test_a_file_gives_the_backbone_and_a_head_of_as_many_classes(torch_file, classes):
  tensors = random_tensors(shapes(18, 2, 10, colours=1))
  program = resnet_program(**{"data.subset.num_classes": classes % 10})
  zeros = lambda tree: jax.tree.map(lambda x: np.zeros((1, *x.shape), x.dtype), tree)
  state = program.abstract.replace(
    params=zeros(program.abstract.params), model_state=zeros(program.abstract.model_state)
  )
  state = initial_state.with_pretrained(program, state, load(program, torch_file), make_mesh())
  kernel = state.params["backbone"]["stage1_block0"]["Conv_2"]["kernel"]  # the shortcut's
  same = np.testing.assert_array_equal
  same(kernel[0], tensors["layer2.0.downsample.0.weight"].transpose(2, 3, 1, 0))
  variance = state.model_state["backbone"]["batch_stats"]["BatchNorm_0"]["var"]
  same(variance[0], tensors["bn1.running_var"])
  head, reference = (
    tree["head"]["classifier"]["kernel"] for tree in (state.params, state.extras["reference"])
  )
  same(head[0], tensors["fc.weight"].T if classes == 10 else np.zeros((16, 5)))
  same(reference, head)
  same(state.extras["reference"]["backbone"]["stage1_block0"]["Conv_2"]["kernel"], kernel)


def test_a_file_of_half_precision_or_without_a_head(torch_file, tmp_path):
  tensors = random_tensors(shapes(18, 2, 10, colours=1))
  save_file({k: v.astype(np.float16) for k, v in tensors.items() if "fc" not in k}, tmp_path / "half")
  loaded = load(resnet_program(), tmp_path / "half")
  assert loaded["params"].keys() == {"backbone"}
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_a_run_from_a_file_says_that_its_head_is_new(torch_file, tmp_path, capsys):
  fields = {**RESNET, "epochs": 1, "data.subset.num_classes": 5, "pretrained.file": str(torch_file)}
  train.train(runs.make_config(fields), tmp_path / "run")
  assert f"pretrained.file: {torch_file} has no head that fits these classes" in capsys.readouterr().err


def write_bad(file, kind):
  tensors = random_tensors(shapes(18, 2, 10, colours=1))
  if kind == "missing":
    del tensors["layer4.1.bn2.running_mean"]
  elif kind == "shape":
    tensors["layer3.0.conv1.weight"] = np.zeros((8, 4, 3, 5), np.float32)
  elif kind == "layout":
    tensors["layer1.0.se.fc1.weight"] = np.zeros(3, np.float32)
  elif kind == "deeper":
    tensors = random_tensors(shapes(34, 2, 10, colours=1))
  save_file(tensors, file)
  if kind in ("cut", "pickle"):
    file.write_bytes(file.read_bytes()[:-5] if kind == "cut" else b"PK" * 100)
  elif kind == "nothing":
    file.unlink()
  elif kind == "folder":
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
  ("kind", "message"),
  [
    ("missing", r"backbone/batch_stats/stage3_block1/BatchNorm_1/mean is missing, here \(16,\); give model"),
    ("shape", r"stage2_block0/Conv_0/kernel is \(3, 5, 4, 8\), here \(3, 3, 4, 8\); give model"),
    ("layout", r"cannot be read \(tensors must be named .*, got 'layer1\.0\.se\.fc1\.weight'\)$"),
    ("deeper", r"stage0_block2/BatchNorm_0/mean is \(2,\), here missing; give model"),
    ("cut", r"is not safetensors \(.*\); write it by safetensors\.torch\.save_file$"),
    ("pickle", r"is not safetensors \(.*\); write it by safetensors\.torch\.save_file$"),
    ("nothing", r"cannot be read \(No such file.*\)$"),
    ("folder", r"cannot be read \(.*\)$"),
  ],
)
def test_a_file_that_does_not_fit_is_told_in_one_line(tmp_path, kind, message):
  write_bad(tmp_path / "file", kind)
  with pytest.raises(train.RunError, match=rf"^pretrained\.file: [^\n]*{message}") as told:
    load(resnet_program(), tmp_path / "file")
  assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4"])
def test_tensors_of_narrow_floats_are_told_in_one_line(tmp_path, kind):
  """The format's own bytes: the header's length, the header, and the data."""
  size = 2 - (kind == "F4")
  header = json.dumps({"conv1.weight": {"dtype": kind, "shape": [2], "data_offsets": [0, size]}})
  content = len(header).to_bytes(8, "little") + header.encode() + bytes(size)
  (tmp_path / "file").write_bytes(content)
  with pytest.raises(train.RunError, match=r"^pretrained\.file: [^\n]*file (has tensors of a type|is not)"):
    load(resnet_program(), tmp_path / "file")


def test_a_file_and_a_run_at_once_are_refused(finished_run, torch_file):
  fields = {"pretrained.workdir": str(finished_run), "pretrained.file": str(torch_file)}
  with pytest.raises(train.RunError, match=r"^pretrained\.file: must be empty with pretrained\.workdir, got"):
    runs.make_config(fields)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"model.MLP.widths": (9,)},
      r"pretrained.workdir: the backbone of .* is different: its params/backbone",
    ),
    ({"pretrained.workdir": "nowhere"}, r"^pretrained\.workdir: nowhere has no config\.json"),
  ],
)
def test_mistakes_are_told_before_the_work_directory_is_touched(finished_run, tmp_path, fields, message):
  config = runs.make_config({**FIELDS, "pretrained.workdir": str(finished_run), **fields})
  with pytest.raises(train.RunError, match=message):
    train.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()

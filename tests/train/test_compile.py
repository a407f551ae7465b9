"""`job = compile`: bytes, operations, collectives and time of a step for devices that are not here."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import pytest
import runs

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.devices.collectives import ACROSS, collectives
from jaxreg.train.devices.topology import CHIPS, GIB, parse_topology
from jaxreg.train.jobs import compile as job

# A while loop of 12 turns as the compiler of CPUs writes it, one as libtpu does, and operations outside.
TEXT = """
%body.1 (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %reduce = f32[8,2]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
}
%cond.1 (p: (s32[], f32[8])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %c), direction=LT
}
%body.2 (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = (bf16[8,4]{1,0:T(8,128)}, f32[2]{0}) all-reduce(%x), replica_groups=mesh['data'=4,'model'=2] {'data'}
}
%cond.2 (p: (s32[], f32[8])) -> pred[] {
  %constant.7 = s32[]{:T(128)} constant(3)
  ROOT %lt.2 = pred[]{:T(512)} compare(%get-tuple-element.3, %constant.7), direction=LT, metadata={}
}
%never (p: f32[8]) -> f32[8] {
  %unused = f32[100]{0} all-reduce(%x), replica_groups=[1,8]<=[8]
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %w.1 = (s32[]) while(%t), condition=%cond.1, body=%body.1, backend_config={"known_trip_count":{"n":"12"}}
  %w.2 = (s32[]) while(%t), condition=%cond.2, body=%body.2
  %ag = (f32[2,3]{1,0}, f32[16,3]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3,4,5,6,7}}
  %alone = f32[5]{0} all-reduce(%x), replica_groups={{0},{1}}
  %bn = f32[6]{0} all-reduce(%x), replica_groups=[1,8]<=[8], metadata={op_name="jit/BatchNorm_0/sum"}
  %s = (f32[4,8]{1,0}, u32[]{:S(2)}, token[]) send(%b), attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
}
"""


def test_the_collectives_of_a_text():
  found = {(one.kind, one.purpose): one for one in collectives(TEXT, 8)}
  facts = {
    name: (one.times, one.nbytes, one.group, one.sent)
    for name, one in found.items()
    if name != ("all-reduce", "arrays")
  }
  assert facts == {
    ("all-gather", "arrays"): (1, 192, 8, 192 * 7 / 8),
    ("all-reduce", "batch_norm"): (1, 24, 8, 24 * 2 * 7 / 8),
    (ACROSS, "arrays"): (1, 128, 8, 128),
  }
  first, second = (one for one in collectives(TEXT, 8) if (one.kind, one.purpose) == ("all-reduce", "arrays"))
  assert (first.times, first.nbytes, first.group, first.sent) == (12, 64, 4, 12 * 64 * 2 * 3 / 4)
  assert (second.times, second.nbytes, second.group, second.sent) == (3, 72, 4, 3 * 72 * 2 * 3 / 4)


WIDTH, EXAMPLES = 24, 128
SMALL = {
  "batch_size": 32,
  "model.MLP.widths": (WIDTH,),
  "method.name": "softmax",
  "optimizer.name": "sgd",
  "optimizer.sgd.momentum": 0.9,
}
DATA = DataSpec((8, 8, 1), "uint8", 10, {"train": EXAMPLES}, scale=255.0)
NUMBER = 64 * WIDTH + WIDTH + WIDTH * 10 + 10


def measured(chip=CHIPS["v5e"], resident=True, **fields):
  config = runs.make_config(
    {**SMALL, **{name.replace("_dot_", "."): value for name, value in fields.items()}}
  )
  return job.compile_step(config, DATA, jax.devices(), chip, resident=resident)


def test_bytes_and_operations_are_those_by_hand():
  results = measured()
  held = results["bytes"]
  assert results["num_parameters"] == NUMBER
  assert held["parameters"] == 4 * NUMBER
  assert held["optimizer"] == 4 * NUMBER + 4  # its momentum, and the number of its steps
  assert held["data"] == EXAMPLES * 64 + EXAMPLES * 4 + 4 * 4  # images, labels, four indices
  assert held["total"] == sum(value for name, value in held.items() if name != "total")
  # A product forward, and backward one for the weights, and one for the inputs of the second layer.
  products = 2 * 32 * (2 * 64 * WIDTH + 3 * WIDTH * 10) / 8
  assert products < results["flops"] < 1.5 * products
  assert results["model_flops"] == results["flops"]
  # Gradients are summed, of as many bytes as the parameters.
  summed = sum(row["bytes"] for row in results["collectives"].values())
  assert 4 * NUMBER <= summed < 4 * NUMBER + 200
  assert results["sent"]["within"] == pytest.approx(summed * 2 * 7 / 8)
  assert results["fits"]


@pytest.mark.thorough
def test_parameters_that_are_split_take_less():
  split = measured(mesh_dot_shard=("fsdp",), mesh_dot_min_size=1)["bytes"]
  kernels = 64 * WIDTH + WIDTH * 10 + WIDTH  # all but the ten biases, which 8 does not divide
  assert split["parameters"] == split["optimizer"] - 4 == 4 * (kernels / 8 + 10)
  assert measured(resident=False)["bytes"]["data"] == 4 * (64 + 4)


def test_the_time_is_between_everything_at_once_and_one_after_another():
  chip = dataclasses.replace(CHIPS["v5e"], bandwidth=1e9, link=1e6, network=1e3)
  sent = {"within": 2e6, "across": 5.0}
  low, high = job.step_seconds(chip, "bfloat16", 197e12 * 0.3, 4e8, sent, 16)
  assert (low, high) == (pytest.approx(2.005), pytest.approx(0.3 / 0.25 + 0.4 + 2.005))
  best, usual = job.step_seconds(CHIPS["h100"], "float32", 989.45e12, 0, {"within": 0, "across": 0}, 8)
  assert (best, usual) == (pytest.approx(2 / 0.6), pytest.approx(2 / 0.25))
  # Beyond a node, the network carries what the links carry within.
  near, far = (CHIPS["h100"].send_seconds(1e9, 0, devices) for devices in (8, 16))
  assert far / near == pytest.approx(9)


def run_job(monkeypatch, *flags, memory=None):
  """Runs the job on the tests' own devices, of which there are eight."""
  if memory is not None:
    monkeypatch.setitem(CHIPS, "gpu", dataclasses.replace(CHIPS["gpu"], memory=memory))
  fields = [f"--config.{name}={value}" for name, value in SMALL.items()]
  config = parse("--topology", "gpu:8", *fields, *flags)
  return job.compile(config, Path()), config


def test_a_step_that_does_not_fit_is_an_error_after_its_report(monkeypatch, capsys):
  with pytest.raises(
    train.RunError, match=r"does not fit gpu:8, 0.01 MiB a device .*; try accumulate, remat"
  ):
    run_job(monkeypatch, memory=1e4)
  assert "| parameters | 0.01 MiB |" in capsys.readouterr().out


def test_the_report(monkeypatch):
  from jaxreg.train.summary import summary

  lines = summary(*run_job(monkeypatch), Path())
  assert "gpu:8: 8 devices (NVIDIA H100 80GB HBM3), batch of 32, 0.00 M parameters" in lines
  assert "predicted: " in lines
  assert "an estimate for GPUs" in lines


def parse(*flags):
  call = cli.parse(["compile", *flags], runs.ROOT / "configs")
  assert call.config
  return call.config


def test_data_that_are_not_here_are_described(monkeypatch):
  flags = ["--config.compile.input_shape=(6,6,3)", "--config.compile.num_classes=7"]
  flags += ["--config.compile.num_examples=500", "--config.data.name=tfds"]
  config = parse("--topology", "gpu:8", *flags)
  data, resident = job.describe_data(config)
  assert (data.input_shape, data.num_classes, dict(data.sizes), resident) == (
    (6, 6, 3),
    7,
    {"train": 500},
    True,
  )
  assert not job.describe_data(parse(*flags, "--config.data.tfds.stream=True"))[1]
  monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  config = cli.parse(["compile", "--config.data.name=idx"], runs.ROOT / "configs").config
  with pytest.raises(
    train.RunError, match=r"; to compile without the data, give --config.compile.input_shape"
  ):
    job.describe_data(parse("--config.data.name=idx"))


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "compile.topology: must be a kind of chip and the shape of a slice, .*got ''"),
    ("v5e", "got 'v5e'"),
    ("v5e:0x4", "got 'v5e:0x4'"),
    ("v5:4x4", "compile.topology: got 'v5', allowed are .*v5e.*did you mean"),
  ],
)
def test_what_is_no_topology(text, message):
  with pytest.raises(train.RunError, match=message):
    parse_topology(text)


def test_topologies():
  slice_of = parse_topology("v5e:4x4", 2)
  assert (slice_of.size, slice_of.slices, slice_of.is_tpu, slice_of.chip.peak) == (16, 2, True, 197e12)
  assert not parse_topology("h200:8").is_tpu
  assert CHIPS["v6e"].memory == 31.25 * GIB


@pytest.mark.slow
def test_the_command_for_two_nodes_of_gpus(tmp_path):
  flags = ["--config.mesh.slices=2", "--config.batch_size=64", "--config.mesh.shard=('fsdp',)"]
  status, out, err = runs.run(["compile", "--topology", "gpu:4", *flags], tmp_path)
  assert status == 0, err
  assert "2 slices of gpu:4: 8 devices" in out


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_command_for_tpus(tmp_path):
  flags = ["--config.mesh.slices=2", "--config.batch_size=64"]
  status, out, err = runs.run(["compile", "--topology", "v5e:2x2", *flags], tmp_path)
  assert status == 0, err
  assert "2 slices of v5e:2x2: 8 devices (TPU v5 lite)" in out

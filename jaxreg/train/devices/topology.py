"""Devices that are not here: their speeds, and stand-ins for which a step can be compiled."""

import dataclasses
import math
import os
import re
from typing import Any

import jax

from jaxreg.train.devices.flops import peak_flops
from jaxreg.train.errors import RunError, first_line, unknown

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published numbers of an accelerator.

  Attributes:
    device_kind: its name in JAX, under which `flops.PEAKS` has its peak.
    memory: bytes that a program may use.
    bandwidth: bytes per second between the chip and its memory.
    link: bytes per second that a chip sends to its neighbours, one way.
    network: the same between slices or nodes, for each chip.
    node: the number of chips that such links join; 0: all of a slice.
  """

  device_kind: str
  memory: float
  bandwidth: float
  link: float
  network: float
  node: int = 0

  @property
  def peak(self) -> float:
    """The peak of the matrix units in FLOP/s, in bfloat16."""
    return peak_flops(self.device_kind)

  def send_seconds(self, within: float, across: float, devices: int) -> float:
    """Computes the time to send these bytes within a slice and between slices."""
    far = self.node and devices > self.node
    return within / (self.network if far else self.link) + across / self.network


# Of a GPU's memory, JAX takes three quarters unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
CHIPS = {
  # docs.cloud.google.com/tpu/docs: 16 GB; 400 GB/s both ways; 6.4 Tb/s between slices for 256 chips
  "v5e": Chip("TPU v5 lite", 15.75 * GIB, 819e9, 200e9, 3.1e9),
  # the same: 32 GB; 800 GB/s both ways; 25.6 Tb/s for 256 chips
  "v6e": Chip("TPU v6 lite", 31.25 * GIB, 1638e9, 400e9, 12.5e9),
  # NVIDIA's datasheets: NVLink of 900 GB/s both ways within 8, then a network card of 400 Gb/s each
  "h100": Chip("NVIDIA H100 80GB HBM3", 0.75 * 80e9, 3350e9, 450e9, 50e9, node=8),
  "h200": Chip("NVIDIA H200", 0.75 * 141e9, 4800e9, 450e9, 50e9, node=8),
}
CHIPS["gpu"] = CHIPS["h100"]


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice of TPUs, such as `v5e:4x4`, or a node of GPUs, such as `gpu:8`, and their number.

  For TPUs, libtpu compiles. For GPUs, the compiler of CPUs does, for devices in their number: bytes of
  arguments, operations and collectives follow from shapes, and bytes of activations are an estimate.
  """

  name: str
  chip: Chip
  size: int  # of one slice
  slices: int = 1

  @property
  def is_tpu(self) -> bool:
    return self.chip.device_kind.startswith("TPU")

  def prepare(self) -> None:
    """Chooses the backend; must come before the first use of a device."""
    # This machine may have libtpu and no TPU, for which JAX would look for minutes.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    # libtpu's lock keeps processes from sharing a TPU. Compiling uses none, and another process may, too.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    jax.config.update("jax_platforms", "cpu")
    # A program for other devices cannot be read back.
    jax.config.update("jax_enable_compilation_cache", False)
    if not self.is_tpu:
      jax.config.update("jax_num_cpu_devices", self.size * self.slices)

  def devices(self) -> list[Any]:
    """Returns devices that a program can be compiled for, and not run on."""
    if not self.is_tpu:
      return jax.devices()[: self.size * self.slices]
    from jax.experimental import topologies

    options = {"num_slices": self.slices} if self.slices > 1 else {}
    try:
      description = topologies.get_topology_desc(self.name, "tpu", **options)
    except Exception as error:  # of any type: the plugin is missing, or it refuses the shape
      raise RunError(
        f"compile.topology: {self.name} cannot be compiled for ({first_line(error)}); the compiler is in "
        "libtpu: pip install libtpu"
      ) from error
    return list(description.devices)


def parse_topology(text: str, slices: int = 1) -> Topology:
  """Reads a topology: `v5e:4x4` or `gpu:8`."""
  match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", text)
  if not match or not all(map(int, match[2].split("x"))):
    raise RunError(
      "compile.topology: must be a kind of chip and the shape of a slice, as in --topology v5e:4x4 or "
      f"--topology gpu:8, got {text!r}"
    )
  if match[1] not in CHIPS:
    raise unknown("compile.topology", match[1], CHIPS)
  return Topology(text, CHIPS[match[1]], math.prod(map(int, match[2].split("x"))), slices)

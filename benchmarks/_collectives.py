"""What a compiled program sends between devices, read out of its text, and how long a ring takes for it."""

import dataclasses
import math
import re

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8}

# "%all-reduce.1 = (f32[8]{0}, f32[]) all-reduce(...), replica_groups=[1,8]<=[8], metadata={op_name="..."}"
_LINE = re.compile(rf"= (?P<shape>\(.*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})")


@dataclasses.dataclass(frozen=True)
class Collective:
  """One operation between devices.

  Attributes:
    kind: one of `KINDS`.
    shapes: of the arrays that it gives; a compiler may make one operation of many.
    nbytes: of what it gives, on one device.
    group: so many devices take part.
    op_name: where in the program it comes from, if that is known.
  """

  kind: str
  shapes: tuple[tuple[int, ...], ...]
  nbytes: int
  group: int
  op_name: str

  @property
  def purpose(self) -> str:
    """`arrays` if there is one of two dimensions or more, in data parallel the gradients of kernels and what
    was joined to them; else `batch_norm`, moments and their gradients, or `small`, such as losses."""
    if max(map(len, self.shapes)) > 1:
      return "arrays"
    return "batch_norm" if "BatchNorm" in self.op_name else "small"

  @property
  def sent(self) -> float:
    """Bytes that a device sends in a ring of its group."""
    n = self.group
    factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1.0, "collective-permute": 1.0}
    return self.nbytes * factors.get(self.kind, (n - 1) / n)


def collectives(text: str, devices: int) -> list[Collective]:
  """Those of `compiled.as_text()`; of asynchronous ones the start counts."""
  found = []
  for line in text.splitlines():
    match = _LINE.search(line)
    if match is None:
      continue
    arrays = [
      (tuple(int(n) for n in dims.split(",") if n), BYTES[dtype])
      for dtype, dims in _ARRAY.findall(match["shape"])
    ]
    if match["start"] and match["kind"] != "all-reduce":
      arrays = arrays[len(arrays) // 2 :]  # its operands come first
    groups = _GROUPS.search(line)
    members = devices if groups is None else int(groups[1] or len(groups[2].split(",")))
    name = re.search(r'op_name="([^"]*)"', line)
    found.append(
      Collective(
        match["kind"],
        tuple(shape for shape, _ in arrays),
        sum(math.prod(shape) * width for shape, width in arrays),
        members,
        name[1] if name else "",
      )
    )
  return [one for one in found if one.group > 1]


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published speeds of an accelerator.

  Attributes:
    flops: peak of its matrix units in bfloat16, dense.
    link: bytes per second that a chip sends to its neighbours, one way.
    node: so many chips are so joined, 0 for all.
    network: the same between nodes.
  """

  flops: float
  link: float
  node: int = 0
  network: float = 0.0

  def efficiencies(self, flops: float, sent: float, devices: int, utilization: float) -> tuple[float, float]:
    """Of weak scaling: the time on one device over that on so many.

    Args:
      flops: of a step on each device.
      sent: bytes that each device sends in a step.
      devices: how many.
      utilization: the share of the peak that the computation reaches.

    Returns:
      With nothing sent while it computes, and with as much as possible.
    """
    compute = flops / (self.flops * utilization)
    across = self.node and devices > self.node
    send = sent / (self.network if across else self.link)
    return compute / (compute + send), compute / max(compute, send)

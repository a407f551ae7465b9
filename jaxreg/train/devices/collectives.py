"""The collectives of a compiled program, read out of its text."""

import collections
import dataclasses
import math
import re

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
ACROSS = "across slices"  # what TPUs send over the network between slices
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8}

# "%all-reduce.1 = (f32[8]{0}, f32[]) all-reduce(...), replica_groups=[1,8]<=[8], metadata={op_name="..."}"
_LINE = re.compile(rf"= (?P<shape>\(.*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(")
_SEND = re.compile(r"= \((?P<shape>[^{(]*).*? send\(.*_xla_megascale_transfer_type=")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[(?P<sizes>.*?)\] \{(?P<axes>.*?)\}")  # libtpu's
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_CALLED = re.compile(r"\b(body|calls|to_apply|branch_computations)=\{?((?:%?[\w.-]+(?:, )?)+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r" while\(.*condition=%?([\w.-]+)")
_CONSTANT = re.compile(r"%([\w.-]+) = s32\[\][^ ]* constant\((\d+)\)")
_COMPARE = re.compile(r"ROOT .* compare\(.*%([\w.-]+)\), direction=LT")


@dataclasses.dataclass(frozen=True)
class Collective:
  """One operation between devices.

  Attributes:
    kind: one of `KINDS`, or `ACROSS`.
    shapes: the shapes of the arrays that it returns; a compiler may join many arrays in one operation.
    nbytes: the bytes that it returns on one device.
    group: the number of devices that take part.
    op_name: where in the program it comes from, if that is known.
    times: how often a step makes it; more than once inside a loop.
  """

  kind: str
  shapes: tuple[tuple[int, ...], ...]
  nbytes: int
  group: int
  op_name: str
  times: int = 1

  @property
  def purpose(self) -> str:
    """The purpose: `arrays` with an array of two dimensions or more, else `batch_norm` or `small`.

    In data parallel, the arrays are the gradients of kernels and what was joined to them. `batch_norm` has
    moments and their gradients, and `small` has numbers such as losses.
    """
    if max(map(len, self.shapes), default=0) > 1:
      return "arrays"
    return "batch_norm" if "BatchNorm" in self.op_name else "small"

  @property
  def sent(self) -> float:
    """The bytes that a device sends for it in a step, in a ring of its group."""
    n = self.group
    factors = {
      "all-reduce": 2 * (n - 1) / n,
      "reduce-scatter": n - 1.0,
      "collective-permute": 1.0,
      ACROSS: 1.0,
    }
    return self.times * self.nbytes * factors.get(self.kind, (n - 1) / n)


def collectives(text: str, devices: int) -> list[Collective]:
  """Returns the collectives of `compiled.as_text()`; an asynchronous one counts where it starts."""
  bodies = _computations(text)
  times = _times(bodies)
  collected = [
    dataclasses.replace(one, times=times[name])
    for name, lines in bodies.items()
    for line in lines
    if times[name] and (one := _collective(line, devices))
  ]
  return [one for one in collected if one.group > 1]


def _collective(line: str, devices: int) -> Collective | None:
  match, sends = _LINE.search(line), _SEND.search(line)
  if match is None and sends is None:
    return None
  kind, shape = (match["kind"], match["shape"]) if match else (ACROSS, sends["shape"] if sends else "")
  arrays = [
    (tuple(int(n) for n in dims.split(",") if n), BYTES.get(dtype, 4))
    for dtype, dims in _ARRAY.findall(shape)
  ]
  if match and match["start"] and kind != "all-reduce":
    arrays = arrays[len(arrays) // 2 :]  # its operands come first
  name = re.search(r'op_name="([^"]*)"', line)
  nbytes = sum(math.prod(shape) * width for shape, width in arrays)
  return Collective(
    kind, tuple(shape for shape, _ in arrays), nbytes, _members(line, devices), name[1] if name else ""
  )


def _members(line: str, devices: int) -> int:
  """Returns how many devices take part."""
  if groups := _MESH_GROUPS.search(line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", groups["sizes"]))
    return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", groups["axes"]))
  groups = _GROUPS.search(line)
  return devices if groups is None else int(groups[1] or len(groups[2].split(",")))


def _computations(text: str) -> dict[str, list[str]]:
  """Returns the lines of each computation; the one where the program starts is called ENTRY."""
  lines: list[str] = []
  bodies = {"ENTRY": lines}
  for line in text.splitlines():
    if head := _COMPUTATION.match(line):
      lines = bodies.setdefault("ENTRY" if head["entry"] else head["name"], [])
    else:
      lines.append(line)
  return bodies


def _trips(line: str, bodies: dict[str, list[str]]) -> int:
  """Returns how often a loop runs: as the compiler says, or up to a constant, else 1."""
  if known := _TRIPS.search(line):
    return int(known[1])
  condition = _CONDITION.search(line)
  lines = bodies.get(condition[1], []) if condition else []
  matches = filter(None, map(_CONSTANT.search, lines))
  constants = {match[1]: match[2] for match in matches}
  limits = [constants.get(match[1]) for match in filter(None, map(_COMPARE.search, lines))]
  return int(limits[0] or 1) if limits else 1


def _times(bodies: dict[str, list[str]]) -> dict[str, int]:
  """Returns how often a step runs each computation; a loop of unknown length counts once."""
  callers: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
  for name, lines in bodies.items():
    for line in lines:
      for how, called in _CALLED.findall(line):
        for each in re.findall(r"[\w.-]+", called):
          callers[each].append((name, _trips(line, bodies) if how == "body" else 1))
  times: dict[str, int] = {"ENTRY": 1}

  def count(name: str) -> int:
    if name not in times:
      times[name] = sum(number * count(caller) for caller, number in callers[name])
    return times[name]

  for name in bodies:
    count(name)
  return times

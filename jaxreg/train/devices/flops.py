"""The floating-point operations of a step, and the peak of the devices that make it."""
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

import fnmatch
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

# The dense bfloat16 peak of one JAX device in TFLOP/s, by globs of `jax.Device.device_kind`; the first match
# counts. From the vendors' pages; a device of TPU v2, v3 and 7x is one of a chip's two cores.
PEAKS: dict[str, float] = {
  "TPU v2": 22.5,
  "TPU v3": 61.5,
  "TPU v4": 275.0,
  "TPU v5 lite": 197.0,
  "TPU v5e": 197.0,
  "TPU v5*": 459.0,
  "TPU v6*": 918.0,
  "TPU7x": 1153.5,
  "*V100*": 125.0,
  "*A100*": 312.0,
  "*H100 PCIe*": 756.5,
  "*H100 NVL*": 835.5,
  "*H100*": 989.5,
  "*H200 NVL*": 835.5,
  "*H200*": 989.5,
  "*GH200*": 989.5,
  "*B200*": 2250.0,
  "* L4": 121.0,
  "* L40S": 362.0,
  "* T4": 65.0,
}


def peak_flops(device_kind: str) -> float:
  """Returns the peak of a device in FLOP/s; 0 if the table does not have it."""
  kinds = (peak for glob, peak in PEAKS.items() if fnmatch.fnmatchcase(device_kind, glob))
  return 1e12 * next(kinds, 0.0)


def count_flops(function: Callable[..., Any], *arguments: Any) -> float:
  """Counts the operations of a call, of arrays or their shapes and dtypes, on all devices together.

  XLA's analysis counts a loop's body once. Here the body of each `lax.scan` counts as often as it runs, and
  the body of a `while_loop` once, because its number of iterations depends on values. The program is analysed
  before its optimisation: afterwards, products of matrices on a GPU are calls whose operations XLA cannot
  count. What `jax.checkpoint` computes again counts again.
  """
  program = jax.make_jaxpr(function)(*arguments)
  # JAX leaves out what no result needs, such as a loop of a forward pass, before XLA counts.
  needed, used = dce_jaxpr(program.jaxpr, True)
  del used  # what goes in
  return _count(core.ClosedJaxpr(needed, program.consts))


def _count(program: core.ClosedJaxpr) -> float:
  return _once(program) + _further(program)


def _once(program: core.ClosedJaxpr) -> float:
  """Returns XLA's count, in which every loop's body counts once."""
  like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
  analysis = jax.jit(core.jaxpr_as_fun(program)).lower(*like).cost_analysis() or {}
  return float(analysis.get("flops", 0.0))


def _further(program: core.ClosedJaxpr) -> float:
  """Returns what the loops of a program compute in addition to XLA's count."""
  total = 0.0
  for equation in program.eqns:
    inner = [_closed(jaxpr) for jaxpr in core.jaxprs_in_params(equation.params)]
    if equation.primitive.name == "scan":
      length, unroll = equation.params["length"], equation.params["unroll"]
      # XLA's program has copies of the body: the copies of one iteration, and the rest.
      copies = length if unroll >= length else unroll + length % unroll
      (body,) = inner
      total += length * _count(body) - copies * _once(body)
    elif equation.primitive.name == "cond":
      total += max(map(_further, inner))
    else:
      total += sum(map(_further, inner))
  return total


def _closed(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> core.ClosedJaxpr:
  return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())

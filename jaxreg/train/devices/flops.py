"""The floating-point operations of a step, and the peak of the devices that make it."""
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

import fnmatch
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

# The dense bfloat16 peak of one JAX device in TFLOP/s, by globs of `jax.Device.device_kind`; the first match
# counts. The field `log.peak_teraflops` is for others: their figures were not confirmed, or they have no
# bfloat16 units (V100, T4).
PEAKS: dict[str, float] = {
  # docs.cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e and tpu7x: "Peak compute per chip (bf16)". A device
  # of TPU v3 and TPU7x is one of a chip's two cores.
  "TPU v3": 123.0 / 2,
  "TPU v4": 275.0,
  "TPU v5 lite": 197.0,
  "TPU v5e": 197.0,
  "TPU v5": 459.0,
  "TPU v5p": 459.0,
  "TPU v6*": 918.0,
  "TPU7x": 2307.0 / 2,
  # NVIDIA A100 data sheet, 1758950-r4: "BFLOAT16 Tensor Core"; SXM and PCIe have the same.
  "NVIDIA A100*": 312.0,
  # NVIDIA H100, H200 and L4 data sheets, whose figures are for sparse matrices; the L40S's for dense ones.
  "NVIDIA H100 PCIe": 1513.0 / 2,
  "NVIDIA H100 80GB HBM3": 1978.9 / 2,
  "NVIDIA H200": 1978.9 / 2,
  "NVIDIA L4": 242.0 / 2,
  "NVIDIA L40S": 362.05,
  # NVIDIA Blackwell data sheet, HGX B200: 4.5 PFLOPS with sparsity.
  "NVIDIA B200": 2250.0,
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

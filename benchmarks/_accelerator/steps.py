"""Training steps in three precisions: examples a second, and the share of a matrix product's speed.

`highest` and `default` are JAX's precisions of float32 products; the default is TF32 on newer GPUs, and
products of bfloat16 on TPUs. The peak is a large matrix product in the same precision. XLA's
cost analysis counts the operations of a step before and after it compiles the step, and the greater number is
taken: a compiled call into a library may count as no operation.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _accelerator import AHEAD
from _report import Report, spread
from _steps import Steps, made_up, made_up_pairs
from _steps_jax import FIELDS
from accelerator import in_a_line

from jaxreg.train.data.dataset import Dataset

# Name, precision of products, precision of the network, dtype of the product that is the peak.
PRECISIONS = (
  ("float32, highest", "highest", "float32", jnp.float32),
  ("float32, default", "default", "float32", jnp.float32),
  ("bfloat16", "default", "bfloat16", jnp.bfloat16),
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A network and its data; an example counts as `tokens` examples."""

  dataset: Callable[[], Dataset]
  batch_size: int
  fields: dict[str, Any]
  tokens: int = 1


def images(name: str) -> Case:
  shape, batch_size, fields = FIELDS[name]
  return Case(lambda: made_up(shape), batch_size, {"method.name": "softmax", **fields})


TRANSFORMER = {
  "model.name": "Transformer",
  "model.Transformer.dropout_rate": 0.1,
  "method.name": "label_smoothing",
}
RESNET = {"model.name": "ResNet", "model.ResNet.stem": "imagenet", "method.name": "softmax"}
CASES = {
  "MLP, batch 128": images("MLP"),
  "LeNet, batch 50": images("LeNet"),
  "ResNet-20, batch 128": images("ResNet-20"),
  "ResNet-50 at 224, batch 128": Case(
    lambda: made_up((224, 224, 3), 512, num_classes=1000),
    128,
    {
      **RESNET,
      "model.ResNet.depth": 50,
      "augment.names": ("flip",),
    },
  ),
  "transformer, batch 128, target tokens": Case(lambda: made_up_pairs(40, 4000), 128, TRANSFORMER, tokens=40),
}
TOYS = {
  "ResNet, toy": Case(
    lambda: made_up((8, 8, 3), 16),
    8,
    {"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "model.CifarResNet.width": 2},
  ),
  "transformer, toy": Case(
    lambda: made_up_pairs(4, 20, 16),
    8,
    {
      **TRANSFORMER,
      "model.Transformer.d_model": 8,
      "model.Transformer.d_ff": 8,
      "model.Transformer.num_layers": 1,
    },
    tokens=4,
  ),
}


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  cases, size, seconds = (TOYS, 256, 0.05) if quick else (CASES, 8192, 0.4)
  # Toys leave out one: compiling takes them the longest.
  rounds, precisions = (2, PRECISIONS[::2]) if quick else (rounds, PRECISIONS)
  columns = "ms a step", "examples (tokens) a second", "TFLOP a second", "share of the peak"
  report.table("steps", "network", "precision", *columns)
  peaks = {}
  for name, product, _, dtype in precisions:
    with jax.default_matmul_precision(product):
      peaks[name] = peak(size, dtype, rounds)
    report.row(
      f"matrix product of {size}", name, "", "", f"{peaks[name] / 1e12:.3g}", "", numbers=peaks[name]
    )
  for case, described in cases.items():
    for name, product, precision, _ in precisions:
      try:
        with jax.default_matmul_precision(product):
          times, flops = timed(described, precision, rounds, seconds)
      except Exception as error:
        report.row(case, name, f"failed: {in_a_line(error)}", "", "", "")
        continue
      reached = [max(flops.values()) / value for value in times]
      report.row(
        case,
        name,
        spread([1000 * value for value in times], ".3g"),
        spread([described.batch_size * described.tokens / value for value in times], ".0f"),
        spread([value / 1e12 for value in reached], ".3g"),
        spread([value / peaks[name] for value in reached], ".1%"),
        numbers={"seconds": times, "flops": flops},
      )


def timed(case: Case, precision: str, rounds: int, seconds: float) -> tuple[list[float], dict[str, float]]:
  """The seconds of a step in each round, and its operations."""
  steps = Steps(case.dataset(), case.batch_size, {**case.fields, "precision": precision}, ahead=AHEAD)
  programs = dict(zip(("lowered", "compiled"), steps.compiled(), strict=True))
  flops = {name: float((program.cost_analysis() or {}).get("flops", 0)) for name, program in programs.items()}
  steps(1)
  number = max(1, round(seconds / steps(2)))
  return [steps(number) for _ in range(rounds)], flops


def peak(size: int, dtype: Any, rounds: int) -> float:
  """Operations a second of products of `[size, size]` matrices in a row, at best."""
  repeats = 10
  keys = jax.random.split(jax.random.key(0))
  # Products with this matrix keep the size of the entries.
  matrix = (jax.random.normal(keys[0], (size, size)) / size**0.5).astype(dtype)

  @jax.jit
  def products(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, repeats, lambda _, x: x @ matrix, x)

  x = jax.block_until_ready(products(jax.random.normal(keys[1], (size, size), dtype)))
  best = float("inf")
  for _ in range(rounds):
    began = time.perf_counter()
    x = jax.block_until_ready(products(x))
    best = min(best, time.perf_counter() - began)
  return 2 * size**3 * repeats / best

"""Time and memory of the group softmax's forms beside the plain softmax head, timed alternately.

    python benchmarks/group_softmax.py [--groups 2,4,8,16,32,64] [--rounds 7]

A batch of 256, 2048 features, 1000 classes, float32 unless `--dtype bfloat16`; value and gradients of
features, kernel and bias. The head is one matrix product and Optax's cross-entropy. `temporary` is what the
compiled program needs beside its arguments and results, `kept` what the forward pass leaves to the backward
pass beyond what the caller has anyway.
"""

import functools
import statistics
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from _report import Report, flags, milliseconds, ratios, short, spread
from _steps import alternate

from jaxreg import losses
from jaxreg._group_scores import discriminative_scores, groups_and_order
from jaxreg.losses import _group_softmax_forms as parts_of
from jaxreg.losses._group_softmax import _form

BATCH, FEATURES, CLASSES = 256, 2048, 1000
FORMS = ("auto", "dense", "scan", "gather")


def softmax_head(features, kernel, bias, labels):
  logits = (features @ kernel + bias[None]).astype(jnp.float32)
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def compiled(loss, arguments):
  mean = lambda *arrays: loss(*arrays).mean()
  return jax.jit(jax.value_and_grad(mean, (0, 1, 2))).lower(*arguments).compile()


def kept(loss, arguments):
  """Bytes of the residuals that are not the arguments themselves."""
  pull = lambda *arrays: jax.vjp(lambda *f: loss(*f, arrays[-1]), *arrays[:-1])[1]
  size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
  return max(size(jax.eval_shape(pull, *arguments)) - size(arguments), 0)


def main() -> None:
  parser = flags(__doc__, rounds=7)
  parser.add_argument("--groups", default="2,4,8,16,32,64")
  parser.add_argument("--forms", default=",".join(FORMS))
  parser.add_argument("--kind", default="I")
  parser.add_argument("--dtype", default="float32")
  options = parser.parse_args()
  if options.quick:
    options.rounds, options.groups = 2, "2,8"
  report = Report(options.json)
  measure(
    report,
    [int(number) for number in options.groups.split(",")],
    options.forms.split(","),
    kind=options.kind,
    dtype=options.dtype,
    rounds=options.rounds,
  )
  measure_parts(report, [8] if options.quick else [8, 64], rounds=options.rounds)
  report.close()


def measure_parts(report: Report, groups: Sequence[int], *, rounds: int, seconds: float = 0.2) -> None:
  """What `gather` is made of, each part alone, over the whole batch at once."""
  x, kernel, bias, labels = make_arguments((BATCH, FEATURES, CLASSES), "float32")
  report.table("group_softmax_parts", "part of `gather`", *(f"{number} groups" for number in groups))
  rows: dict[str, list[str]] = {}
  for number in groups:
    scores = functools.partial(discriminative_scores, num_groups=number)
    sorts = functools.partial(_sorted, scores, number)
    (of, order), sizes = jax.jit(sorts)(x, kernel, bias, labels), (FEATURES // number,) * number
    logits = jnp.zeros((BATCH, number, CLASSES))
    repeated = jnp.broadcast_to(labels[:, None], logits.shape[:-1])
    passes = {
      "the groups: scores and a sort": (sorts, (x, kernel, bias, labels)),
      "the sums of kernel rows": (
        functools.partial(parts_of._gathered_logits, sizes=sizes),
        (x, kernel, bias, order),
      ),
      "the softmaxes and their residuals": (
        lambda z, y: (losses.softmax_cross_entropy(z, y), parts_of._residual(z, y)),
        (logits, repeated),
      ),
      "the gradient of the features": (parts_of._gathered_products, (logits, kernel, of)),
      "the gradient of the kernel": (parts_of._add_outer, (kernel, x, logits, of)),
      "instead: both gradients in one pass": (_both_gradients, (kernel, x, logits, of)),
      "instead: sums of rows in bfloat16": (
        functools.partial(_sums_of_narrow_rows, sizes=sizes),
        (x, kernel.astype(jnp.bfloat16), bias, order),
      ),
      "instead: sums as products with 0 and 1, 256 features at a time": (
        functools.partial(_sums_by_products, num_groups=number),
        (x, kernel, of),
      ),
    }
    runs = {name: timed(jax.jit(f).lower(*a).compile(), a) for name, (f, a) in passes.items()}
    head = timed(compiled(softmax_head, (x, kernel, bias, labels)), (x, kernel, bias, labels))
    times = alternate({"softmax": head, **runs}, rounds=rounds, seconds=seconds)
    for name in passes:
      rows.setdefault(name, []).append(spread(ratios(times[name], times["softmax"])))
  for name, cells in rows.items():
    report.row(name, *cells)


def _sorted(scores, number, *head):
  return groups_and_order(scores(*head), number)


def _both_gradients(kernel, x, residual, groups, block=64):
  """Reads each row of residuals once for the gradients of features and kernel, some features at a time."""
  pad = -kernel.shape[1] % parts_of.LANES
  kernel, residual = jnp.pad(kernel, ((0, 0), (0, pad))), jnp.pad(residual, ((0, 0), (0, 0), (0, pad)))

  def features(part):
    kernel, x, groups = part

    def example(total, part):
      x, residual, groups = part
      rows = residual[groups]
      lanes = (kernel * rows).reshape(block, -1, parts_of.LANES).sum(axis=1)
      return total + x[:, None] * rows, lanes.sum(axis=1)

    return jax.lax.scan(example, jnp.zeros_like(kernel), (x, residual, groups))

  split = lambda a: a.reshape(len(a), -1, block).swapaxes(0, 1)
  return jax.lax.map(features, (kernel.reshape(-1, block, kernel.shape[1]), split(x), split(groups)))


def _sums_of_narrow_rows(x, kernel, bias, order, sizes):
  """Adds rows of a bfloat16 kernel in float32, `UNROLL` at a time; the groups have equal sizes."""
  order = order.reshape(len(x), len(sizes), -1)
  values = jnp.take_along_axis(x[:, None], order, axis=2)

  def members(number, logits):
    at = lambda a, k: jax.lax.dynamic_index_in_dim(a, number * parts_of.UNROLL + k, axis=2, keepdims=False)
    rows = lambda k: kernel[at(order, k)].astype(jnp.float32)
    return logits + sum(at(values, k)[..., None] * rows(k) for k in range(parts_of.UNROLL))

  start = jnp.zeros((len(x), len(sizes), kernel.shape[1])) + bias
  return jax.lax.fori_loop(0, sizes[0] // parts_of.UNROLL, members, start)


def _sums_by_products(x, kernel, groups, num_groups, block=256, rows=32):
  """Multiplies the features of each group, others are 0, by blocks of the kernel that fit a cache."""
  numbers = jnp.arange(num_groups, dtype=groups.dtype)[None, :, None]

  def examples(part):
    def features(total, part):
      x, groups, kernel = part
      masked = jnp.where(groups[:, None] == numbers, x[:, None], 0)
      return total + masked.reshape(-1, block) @ kernel, None

    split = lambda a: a.reshape(rows, -1, block).swapaxes(0, 1)
    start = jnp.zeros((rows * num_groups, kernel.shape[1]))
    return jax.lax.scan(features, start, (*map(split, part), kernel.reshape(-1, block, kernel.shape[1])))[0]

  split = lambda a: a.reshape(-1, rows, a.shape[1])
  return jax.lax.map(examples, (split(x), split(groups)))


def make_arguments(sizes: tuple[int, int, int], dtype: str) -> tuple[jax.Array, ...]:
  """Features, kernel, bias and labels for a batch, features and classes of these `sizes`."""
  batch, features, classes = sizes
  keys = jax.random.split(jax.random.key(0), 3)
  return (
    jax.random.normal(keys[0], (batch, features), dtype),
    jax.random.normal(keys[1], (features, classes), dtype) / 50,
    jnp.zeros(classes, dtype),
    jax.random.randint(keys[2], (batch,), 0, classes),
  )


def measure(
  report: Report,
  groups: Sequence[int],
  forms: Sequence[str] = FORMS,
  *,
  sizes: tuple[int, int, int] = (BATCH, FEATURES, CLASSES),
  kind: str = "I",
  dtype: str = "float32",
  rounds: int,
  seconds: float = 0.2,
) -> None:
  """A row for each number of groups and form; `sizes` are batch, features and classes."""
  batch, features, classes = sizes
  arguments = make_arguments(sizes, dtype)
  columns = "time of a softmax head's", "temporary, MiB", "kept, MB", "`auto` takes"
  report.table("group_softmax", "groups", "form", "ms", *columns)
  head = compiled(softmax_head, arguments)
  for number in groups:
    losses_of = {
      form: functools.partial(losses.group_softmax, num_groups=number, kind=kind, form=form) for form in forms
    }
    programs = {form: compiled(loss, arguments) for form, loss in losses_of.items()}
    runs = {form: timed(program, arguments) for form, program in programs.items()}
    times = alternate({"softmax": timed(head, arguments), **runs}, rounds=rounds, seconds=seconds)
    for form, program in programs.items():
      temporary = program.memory_analysis().temp_size_in_bytes / 2**20
      report.row(
        number,
        form,
        short(statistics.median(milliseconds(times[form])), ".0f"),
        spread(ratios(times[form], times["softmax"])),
        f"{temporary:.0f}",
        f"{kept(losses_of[form], arguments) / 1e6:.1f}",
        _form("auto", batch, number, features, classes).__name__ if form == "auto" else "",
        numbers=times[form],
      )


def timed(program, arguments):
  """`run(n)`, which calls the program `n` times and returns the seconds of one."""

  def run(number: int) -> float:
    began = time.perf_counter()
    for _ in range(number):
      jax.block_until_ready(program(*arguments))
    return (time.perf_counter() - began) / number

  return run


if __name__ == "__main__":
  main()

"""Checks of anybody's loss: what jaxreg's own losses must pass, as a table.

A loss is `([key,] predictions, labels, *, ...) -> [...]`, with one value for each label, in this or the other
order of predictions and labels. The command prints a table; in tests of your own, call `check`:

    python -m jaxreg.conformance my_module:my_loss [--targets classes]

The tests of jaxreg use the same checks.
"""

import argparse
import dataclasses
import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = ["check"]

SIZES = {"B": (8,), "K": (5,), "F": (4,), "M": (16,)}
# The second shape has two leading axes: `[...]` in a docstring means any number of them.
SHAPES = (SIZES, {**SIZES, "B": (2, 8), "K": (3,)})


class Result(NamedTuple):
  """One line of the table."""

  name: str
  passes: bool | None
  what: str


@dataclasses.dataclass(frozen=True)
class Input:
  """An array argument.

  `kind` is key, real, log_prob, label, soft (labels that are probabilities), weight, positive or unit;
  `dims` are letters of `SIZES`.
  """

  kind: str
  dims: str = ""
  # Whether the function promises to reject another dtype or shape by the argument's name.
  checked: bool = True
  # Whether derivatives by it are left out.
  fixed: bool = False

  @property
  def batched(self) -> bool:
    return self.dims[:1] in ("B", "M") or self.kind == "key"

  @property
  def floating(self) -> bool:
    return self.kind not in ("key", "label")

  def shape(self, sizes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return sum((sizes[letter] for letter in self.dims), ())


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
  """A function, its arguments by kind and size, and what is known about what it returns."""

  function: Any
  inputs: Mapping[str, Any]  # name -> Input, or a dict of them
  oracle: Callable[[Any], Any] | None = None
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # "wide" (at least float32), "same" (the dtype of the input), "bool", "index" or "int32"
  output: str = "wide"
  mask: bool = False  # masks are the same bit for bit however they are computed
  # Inputs that are scanned or indexed along the leading axis, which is no batch.
  whole: ClassVar[tuple[str, ...]] = ()
  own_rule: ClassVar[bool] = False  # whether its derivative is written by hand

  @property
  def keyed(self) -> bool:
    return "key" in self.inputs

  @property
  def smooth(self) -> bool:
    return self.output not in ("bool", "index", "int32")

  @property
  def of_whole_batch(self) -> bool:
    """A random loss draws for the whole batch."""
    return self.keyed

  def __call__(self, inputs: Mapping[str, Any]) -> Any:
    return self.function(**inputs, **self.options)


# Making inputs.


def value(spec: Input, raw: Any, classes: int, dtype: Any) -> np.ndarray:
  raw = np.asarray(raw, np.float64)
  match spec.kind:
    case "label":
      return (np.abs(raw) * 7).astype(np.int32) % classes
    case "log_prob":
      raw = raw - raw.max(-1, keepdims=True)
      return (raw - np.log(np.exp(raw).sum(-1, keepdims=True))).astype(dtype)
    case "soft":
      shares = np.where((raw == 0).all(-1, keepdims=True), 1, np.abs(raw))
      return (shares / shares.sum(-1, keepdims=True)).astype(dtype)
    case "weight":
      return np.maximum(raw, 0).astype(dtype)
    case "positive":
      return (np.abs(raw) + 0.1).astype(dtype)
    case "unit":
      return np.clip(raw + 0.5, 0, 1).astype(dtype)
    case _:
      return raw.astype(dtype)


def build(case: Case, raw: Callable[[Input, tuple[int, ...]], Any], sizes: Mapping, seed: int, dtype: Any):
  def leaf(spec: Input):
    if spec.kind == "key":
      return jax.random.key(seed)
    return jnp.asarray(value(spec, raw(spec, spec.shape(sizes)), sizes["K"][0], dtype))

  return jax.tree.map(leaf, dict(case.inputs))


def make(case: Case, seed: int = 0, *, sizes: Mapping = SIZES, dtype: Any = np.float32) -> dict[str, Any]:
  """Random inputs of a fixed seed, with a fresh key."""
  rng = np.random.default_rng(seed)
  return build(case, lambda spec, shape: rng.normal(size=shape) * 2, sizes, seed, dtype)


def extreme(case: Case, seed: int) -> dict[str, Any]:
  rng = np.random.default_rng(seed)
  return build(case, lambda spec, shape: rng.choice([-1e4, 0.0, 1e4], shape), SIZES, seed, np.float32)


def several(case: Case, n: int) -> list[dict[str, Any]]:
  """Draws `n` inputs: new values for batched arguments, the same for the others."""
  shared = make(case, 0)
  pick = lambda spec, own, other: own if spec.batched else other
  return [jax.tree.map(pick, dict(case.inputs), make(case, i), shared) for i in range(n)]


def stack(case: Case, inputs: list[dict[str, Any]]) -> dict[str, Any]:
  def join(spec, *xs):
    if not spec.batched:
      return xs[0]
    # The key checker takes stacking keys for their use.
    return jax.random.clone(jnp.stack(xs)) if spec.kind == "key" else jnp.stack(xs)

  return jax.tree.map(join, dict(case.inputs), *inputs)


def cast(dtype: Any) -> Callable:
  return lambda spec, x: x.astype(dtype) if spec.floating else x


def again(spec: Input, x: Any) -> Any:
  """The same input for a second call: a key may be used once."""
  return jax.random.clone(x) if spec.kind == "key" else x


def split_floats(case: Case, inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """The inputs by which one differentiates, and the others."""
  leaf = {name: jax.tree.leaves(spec)[0] for name, spec in case.inputs.items()}
  by = {name for name, spec in leaf.items() if spec.floating and not spec.fixed}
  return (
    {name: x for name, x in inputs.items() if name in by},
    {name: x for name, x in inputs.items() if name not in by},
  )


def inside(spec: Input, x: Any) -> Any:
  """Moves inputs away from kinks, such as the edge of a mask."""
  return {"weight": lambda: x + 0.1, "unit": lambda: 0.1 + 0.8 * x}.get(spec.kind, lambda: x)()


# Calling, and comparing.


@functools.cache
def jitted(case: Case) -> Callable:
  return jax.jit(case)


@functools.cache
def with_vjp(case: Case) -> Callable:
  """`(floats, others, cotangent) -> outputs, vjp`, compiled once for values and gradients both."""

  def run(floats, others, cotangent):
    outputs, pull = jax.vjp(lambda floats: case({**floats, **others}), floats)
    return outputs, pull(cotangent)[0]

  return jax.jit(run)


@functools.cache
def cotangent(case: Case, fill: Callable, dtype: Any) -> Any:
  return jax.tree.map(lambda x: fill(x.shape, x.dtype), jax.eval_shape(case, make(case, dtype=dtype)))


def values(case: Case, inputs: dict[str, Any], dtype: Any = np.float32) -> Any:
  """Its outputs, by the program that also gives its gradients, unless those have a rule of their own."""
  if not case.smooth or case.own_rule:
    return jitted(case)(inputs)
  return with_vjp(case)(*split_floats(case, inputs), cotangent(case, np.zeros, dtype))[0]


def on_host(tree: Any) -> Any:
  return jax.tree.map(np.asarray, tree)


def assert_close(got: Any, want: Any, *, rtol: float, atol: float, what: str = "values") -> None:
  assert jax.tree.structure(got) == jax.tree.structure(want), f"{jax.tree.structure(got)} came back"
  assert jax.tree.leaves(want), "nothing to compare"
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    x, y = (np.asarray(jnp.asarray(z, jnp.float32) if z.dtype.itemsize == 2 else z) for z in (x, y))
    assert x.shape == y.shape, f"the shape is {x.shape} instead of {y.shape}"
    wrong = (
      ~np.isclose(x, y, rtol, atol, equal_nan=True) if rtol or atol else (x != y) & ((x == x) | (y == y))
    )
    if wrong.any():
      at = tuple(np.argwhere(wrong)[0])
      raise AssertionError(f"{wrong.sum()} of {wrong.size} {what} differ: {x[at]} instead of {y[at]}")


def assert_same(case: Case, got: Any, want: Any) -> None:
  """Bit for bit for masks; within 1e-6 of the largest where sums may be taken in another order."""
  largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
  rtol, atol = (0, 0) if case.mask else (1e-6, 1e-6 * max(largest, 1))
  assert_close(got, want, rtol=rtol, atol=atol)


def assert_finite(what: str, tree: Any) -> None:
  wrong = sum(int((~np.isfinite(x)).sum()) for x in jax.tree.leaves(tree))
  assert not wrong, f"{wrong} of {sum(x.size for x in jax.tree.leaves(tree))} {what} are not finite"


# The checks.


def check_values(case: Case) -> None:
  """One finite value for each label, with one leading axis and with two."""
  for sizes in SHAPES:
    outputs, batch = jax.jit(case)(make(case, sizes=sizes)), sizes["B"]
    for x in jax.tree.leaves(outputs):
      assert x.shape[: len(batch)] == batch, f"{x.shape} came back for labels of a batch {batch}"
    assert_finite("values", outputs)


def check_limits(case: Case) -> None:
  """An answer that is surely right costs less than one that is surely wrong, and both are finite."""
  (predictions, _), (labels, spec) = ((n, s) for n, s in case.inputs.items() if n != "key")
  inputs = make(case)
  y = inputs[labels]
  one_hot = lambda index: jax.nn.one_hot(index, SIZES["K"][0])
  match spec.kind:
    case "label":
      sure, wrong = 20 * one_hot(y), -20 * one_hot(y)
    case "soft":
      y = one_hot(y.argmax(-1))
      sure, wrong = 20 * y, -20 * y
    case "unit":
      y = jnp.round(y)
      sure, wrong = 40 * y - 20, 20 - 40 * y
    case _:
      sure, wrong = y, y + 20
  call = lambda x: jitted(case)({**make(case), predictions: x, labels: y})
  low, high = call(sure), call(wrong)
  assert_finite("values", (low, high))
  assert (low < high).all(), f"right costs {float(low.ravel()[0]):.3g}, wrong {float(high.ravel()[0]):.3g}"


def check_finite(case: Case) -> None:
  """Values and gradients are finite at -1e4, 0 and 1e4, in float32."""
  ones = cotangent(case, np.ones, np.float32)
  for seed in range(3):
    outputs, gradient = with_vjp(case)(*split_floats(case, extreme(case, seed)), ones)
    assert_finite("values", outputs)
    assert_finite("derivatives", gradient)


def check_gradients(case: Case) -> None:
  """Gradients are those of finite differences, in float64, at random points."""
  with jax.enable_x64(True):
    inputs = jax.tree.map(inside, dict(case.inputs), make(case, 2, dtype=np.float64))
    floats, others = split_floats(case, inputs)
    zero = cotangent(case, np.zeros, np.float64)
    fresh = lambda: {name: jax.random.clone(x) if name == "key" else x for name, x in others.items()}
    run = lambda floats, cotangent: with_vjp(case)(floats, fresh(), cotangent)
    outputs = lambda floats: run(floats, zero)[0]
    value_and_pull = lambda floats: (outputs(floats), lambda cotangent: (run(floats, cotangent)[1],))
    try:
      jax.test_util.check_vjp(outputs, value_and_pull, (floats,), atol=1e-6, rtol=1e-6, eps=1e-5)
    except AssertionError as error:
      raise AssertionError("finite differences in float64 differ by more than 1e-6") from error


def check_dtypes(case: Case) -> None:
  """Losses, logs, masks and sums widen to float32; noise and layers keep the dtype; float64 stays."""
  for dtype in ("bfloat16", "float16", "float32", "float64"):
    with jax.enable_x64(dtype == "float64"):
      inputs = jax.tree.map(cast(dtype), dict(case.inputs), make(case))
      found = {str(x.dtype) for x in jax.tree.leaves(jax.eval_shape(case, inputs))}
    wide = "float64" if dtype == "float64" else "float32"
    want = {"wide": wide, "same": dtype, "bool": "bool", "index": "uint8", "int32": "int32"}[case.output]
    assert found == {want}, f"{dtype} gives {', '.join(sorted(found))} instead of {want}"


def check_bfloat16_values(case: Case) -> None:
  """A bfloat16 input gives what its value in float32 gives, up to the rounding of a bfloat16 result."""
  specs = dict(case.inputs)
  narrow = jax.tree.map(cast(jnp.bfloat16), specs, make(case))
  wide = jax.tree.map(again, specs, jax.tree.map(cast(jnp.float32), specs, narrow))
  # An 8-bit result may be off by three roundings; a layer also rounds its products.
  tolerance = 2**-6 if case.output == "same" else 1e-6
  assert_close(case(narrow), case(wide), rtol=tolerance, atol=tolerance, what="values of bfloat16")


def check_keys(case: Case) -> None:
  """A key decides everything: the same gives the same, another gives something else."""
  once, same, other = (values(case, {**make(case), "key": jax.random.key(seed)}) for seed in (0, 0, 1))
  assert_close(once, same, rtol=0, atol=0)
  differ = [(a != b).any() for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(other))]
  assert any(differ), "another key gives the same"


def check_vmap(case: Case) -> None:
  """`jit(vmap(f))` gives what `f` gives, example by example."""
  axes = (jax.tree.map(lambda spec: 0 if spec.batched else None, dict(case.inputs)),)
  got = jax.jit(jax.vmap(case, in_axes=axes))(stack(case, several(case, 3)))
  want = [jitted(case)(inputs) for inputs in several(case, 3)]
  assert_same(case, got, jax.tree.map(lambda *xs: jnp.stack(xs), *want))


def parts(case: Case, split: Any, whole: Any) -> dict[str, Any]:
  """`split` for each leaf of the inputs that is split over devices, and `whole` for the others."""

  def choose(name: str, spec: Input) -> Any:
    return split if spec.batched and spec.kind != "key" and name not in case.whole else whole

  return {name: jax.tree.map(functools.partial(choose, name), specs) for name, specs in case.inputs.items()}


def placed(case: Case, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """Inputs, with the batch split over the first axis of the mesh."""
  by_data, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
  return jax.tree.map(jax.device_put, make(case), parts(case, by_data, everywhere))


def check_sharded(case: Case, unsplit: bool = False) -> None:
  """A batch over eight devices gives what it gives on one."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  unsplit |= all(spec.kind == "key" for spec in jax.tree.leaves(dict(case.inputs)))
  got = jax.jit(case, out_shardings=NamedSharding(mesh, PartitionSpec("data")) if unsplit else None)(
    placed(case, mesh)
  )
  assert all(len(x.sharding.device_set) == 8 for x in jax.tree.leaves(got)), "the result left its devices"
  assert_same(case, on_host(got), on_host(jitted(case)(make(case))))


def explicit_mesh() -> jax.sharding.Mesh:
  return jax.make_mesh(
    (2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4]
  )


def check_explicit_axes(case: Case) -> None:
  """Compiled and eager calls on explicit axes give the same, split as the inputs are."""
  want = on_host(values(case, make(case)) if case.oracle else jitted(case)(make(case)))
  leaves = jax.tree.leaves(parts(case, True, False))
  sizes = {len(x) for x, split in zip(jax.tree.leaves(make(case)), leaves) if split}
  with jax.set_mesh(mesh := explicit_mesh()):
    for call in (jitted(case), case):
      got = call(placed(case, mesh))
      assert_same(case, on_host(got), want)
      for x in jax.tree.leaves(got):
        split = not x.ndim or len(x) not in sizes or x.sharding.spec[0] == "data"
        assert split, f"the result is split as {x.sharding.spec}"


def check_where(case: Case) -> None:
  """`where`: value and derivatives are those of a call on the examples that count; elsewhere all are 0."""
  rng, specs, inputs = np.random.default_rng(4), dict(case.inputs), make(case, 4, sizes=SHAPES[1])
  shape = jax.tree.leaves(jax.eval_shape(case, inputs))[0].shape
  some = np.arange(np.prod(shape)).reshape(shape) % 3 != 1
  masks = np.stack([some, np.zeros(shape, bool), np.ones(shape, bool)])
  own = lambda spec: spec.batched and spec.kind != "key"
  whole = case.of_whole_batch

  def broken(spec, x):
    if not own(spec):
      return again(spec, x)
    nonsense = [np.nan, np.inf, -np.inf, 3e38] if spec.floating else [-1, -100, 1000]
    keep = some.reshape(*shape, *[1] * (x.ndim - some.ndim))
    return np.where(keep, x, rng.choice(nonsense, x.shape)).astype(x.dtype)

  def derivatives(inputs, direction, where=None):
    masked = dataclasses.replace(case, options={**case.options, "where": where})
    floats, others = split_floats(case, inputs)
    fresh = lambda: {name: again(specs[name], x) for name, x in others.items()}
    outputs = lambda floats: masked({**floats, **fresh()})
    pick = lambda x: x[some] if whole and where is None else x
    total = lambda floats: sum(pick(x).sum() for x in jax.tree.leaves(outputs(floats)))
    along = lambda floats: jax.tree.reduce(
      jnp.add, jax.tree.map(lambda g, v: (g * v).sum(), jax.grad(total)(floats), direction)
    )
    return outputs(floats), jax.grad(total)(floats), jax.grad(along)(floats)

  direction = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), split_floats(case, inputs)[0])
  spoilt = jax.tree.map(broken, specs, inputs)
  every = jax.jit(jax.vmap(derivatives, in_axes=(None, None, 0)))(spoilt, direction, masks)
  eager = dataclasses.replace(case, options={**case.options, "where": some})
  zero = "what does not count has a value or a derivative other than 0"
  for x, of_call in zip(*map(jax.tree.leaves, (every[0], eager(jax.tree.map(broken, specs, inputs))))):
    assert not any(map(np.any, (x[0][~some], x[1], of_call[~some]))), zero
  rows = lambda spec, x: again(spec, x) if whole or not own(spec) else x[some]
  of_floats = lambda tree: {name: x for name, x in tree.items() if name in direction}
  want = jax.jit(derivatives)(
    jax.tree.map(rows, specs, inputs), jax.tree.map(rows, of_floats(specs), direction)
  )
  for got, of_rows in zip(every[1:], want[1:]):
    for spec, x, y in zip(*map(jax.tree.leaves, (of_floats(specs), got, of_rows))):
      x, none = x[:2]
      if own(spec):
        assert not any(map(np.any, (x[~some], none))), zero
        x, y = x[some], y[some] if whole else y
      assert_close(x, y, rtol=1e-6, atol=1e-6 * max(float(np.abs(y).max()), 1))
  for x, y in zip(jax.tree.leaves(every[0]), jax.tree.leaves(want[0])):
    assert_close(x[0][some], y[some] if whole else y, rtol=1e-6, atol=1e-6)


# Anybody's function.

# The kinds of predictions and labels. Nobody asks for a derivative by labels.
TARGETS = {
  "classes": (Input("real", "BK"), Input("label", "B")),
  "probabilities": (Input("real", "BK"), Input("soft", "BK", fixed=True)),
  "binary": (Input("real", "BK"), Input("unit", "BK", fixed=True)),
  "numbers": (Input("real", "BK"), Input("real", "BK", fixed=True)),
}
KEYS, LABELS = ("key", "rng", "prng_key"), ("labels", "label", "targets", "target", "y_true", "y")
CHECKS: dict[str, tuple[Callable[[Case], None], ...]] = {
  "values": (check_values,),
  "limits": (check_limits,),
  "extremes": (check_finite,),
  "gradients": (check_gradients,),
  "dtypes": (check_dtypes, check_bfloat16_values),
  "keys": (check_keys,),
  "vmap": (check_vmap,),
  "sharding": (check_sharded,),
  "explicit axes": (check_explicit_axes,),
  "where": (check_where,),
}


def _case(function: Callable, targets: str) -> Case:
  if targets not in TARGETS:
    raise ValueError(f"targets must be {', '.join(TARGETS)}, got {targets!r}")
  # Optax's `targets=None` are labels, too.
  needed = [
    p.name
    for p in inspect.signature(function).parameters.values()
    if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and (p.default is p.empty or p.name in LABELS)
  ]
  keyed = needed[:1] if needed[:1] and needed[0] in KEYS else []
  arrays = needed[len(keyed) :]
  if len(arrays) != 2:
    raise ValueError(
      f"function must take ([key,] predictions, labels), and options with defaults; got ({', '.join(needed)})"
    )
  order = ["labels", "predictions"] if arrays[0] in LABELS else ["predictions", "labels"]
  order = ["key"] * len(keyed) + order
  inputs = dict(zip(("predictions", "labels"), TARGETS[targets])) | {
    name: Input("key") for name in order[:-2]
  }
  call = lambda **named: function(
    *(named[name] for name in order), **{name: x for name, x in named.items() if name not in order}
  )
  case = Case(call, inputs)
  narrow = jax.eval_shape(case, jax.tree.map(cast(jnp.bfloat16), inputs, make(case)))
  same = {str(x.dtype) for x in jax.tree.leaves(narrow)} == {"bfloat16"}
  return dataclasses.replace(case, output="same" if same else "wide")


def check(function: Callable, *, targets: str = "classes") -> tuple[Result, ...]:
  """Runs each check on a loss.

  In a test: `assert all(result.passes is not False for result in conformance.check(my_loss))`. For `sharding`
  and `explicit axes` call `jax.config.update("jax_num_cpu_devices", 8)` first, or have eight devices.

  Args:
    function: `([key,] predictions, labels, *, ...) -> [...]`, or labels first if the argument is called so
      (`labels`, `targets`, `y_true`). A result of the dtype of bfloat16 predictions is accepted as well as
      float32. An argument `where` is checked, too.
    targets: what the labels are: "classes" (integers `[batch]`), "probabilities" `[batch, classes]`, "binary"
      (from 0 to 1, `[batch, labels]`) or "numbers" `[batch, outputs]`.

  Returns:
    For each check a NamedTuple of its `name`, of `passes`, which is None if the check does not apply, and of
    `what`: why, or what failed.
  """
  case = _case(function, targets)
  has = inspect.signature(function).parameters
  lacks = {
    "keys": "" if case.keyed else "draws nothing",
    "where": "" if "where" in has else "has no such argument",
    "sharding": "" if jax.device_count() == 8 else f"needs 8 devices, here are {jax.device_count()}",
    "explicit axes": "" if jax.device_count() >= 4 else f"needs 4 devices, here are {jax.device_count()}",
  }
  return tuple(
    Result(name, None, why) if (why := lacks.get(name)) else _result(name, checks, case)
    for name, checks in CHECKS.items()
  )


def _result(name: str, checks: Sequence[Callable[[Case], None]], case: Case) -> Result:
  try:
    for each in checks:
      each(case)
  except Exception as error:  # of the function as well: it has to bear the call
    said = " ".join(str(error).split())
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return Result(name, False, f"{kind}{said}")
  return Result(name, True, (checks[0].__doc__ or "").removesuffix("."))


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints the table of a loss; the status is 1 if a check fails."""
  parser = argparse.ArgumentParser(prog="python -m jaxreg.conformance", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument("function", help="MODULE:NAME")
  parser.add_argument("--targets", choices=TARGETS, default="classes", help="what the labels are")
  given = parser.parse_args(arguments)
  module, colon, name = given.function.partition(":")
  if not (module and colon and name):
    parser.error(f"function must be MODULE:NAME, got {given.function!r}")
  try:
    results = check(operator.attrgetter(name)(importlib.import_module(module)), targets=given.targets)
  except (ImportError, AttributeError, TypeError, ValueError) as error:
    parser.error(f"{given.function}: {error}")
  for result in results:
    said = {True: "passes", False: "FAILS", None: "-"}[result.passes]
    print(f"{result.name:<14}{said:<8}{result.what[:200]}")
  return int(any(result.passes is False for result in results))


if __name__ == "__main__":
  jax.config.update("jax_num_cpu_devices", 8)
  sys.exit(main())

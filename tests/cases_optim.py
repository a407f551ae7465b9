"""The contract of `jaxreg.optim`: float64 NumPy over 50 random steps, the wrappers of Optax and of JAX."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import relu_nets as nets
from contract import jit
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg import optim

SHAPES = {"Dense_0": {"kernel": (4, 2), "bias": (2,)}, "Dense_1": {"kernel": (2, 2), "bias": (2,)}}
SIZE = 16
RATE = 0.1
_rng = np.random.default_rng(9)
_square = _rng.normal(size=(SIZE, SIZE)) / 4 + np.eye(SIZE)
METRIC = _square @ _square.T


def is_shape(x):
  return isinstance(x, tuple)


def draw(rng, dtype=np.float64):
  """A tree of the parameters' shapes."""
  return jax.tree.map(lambda shape: rng.normal(size=shape).astype(dtype), SHAPES, is_leaf=is_shape)


def flat(tree):
  return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def unflat(vector):
  leaves, tree = jax.tree.flatten(SHAPES, is_leaf=is_shape)
  ends = np.cumsum([np.prod(shape) for shape in leaves])[:-1]
  return jax.tree.unflatten(tree, [x.reshape(s) for x, s in zip(np.split(vector, ends), leaves)])


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
  """A transform by its factory.

  `oracle(memory, g, w, t)` gives the t-th update of float64 trees; `extra` is what `update` takes beside.
  """

  name: str
  options: Mapping[str, Any]
  oracle: Callable[..., Any]
  static: tuple[str, ...] = ()  # functions, which `inject_hyperparams` must not take for schedules
  args: tuple[Any, ...] = (RATE,)
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  label: str = ""
  masked: bool = True  # whether it works on a part of the tree

  def make(self):
    return getattr(optim, self.name)(*self.args, **self.options)

  def __str__(self):
    return self.name + (f":{self.label}" if self.label else "")


def leafwise(function):
  return lambda memory, g, w, t: jax.tree.map(function, g)


def _adaptive(b1, b2, debias=True, anneal=False):
  """Averages by their weights, not by a recursion."""

  def mean(values, decay):
    age = np.arange(len(values))[::-1]
    weights = decay**age * (1.0 if debias else 1 - decay)
    weights = weights / weights.sum() if debias else weights
    return np.tensordot(weights, np.stack(values), 1)

  def oracle(memory, g, w, t):
    history = memory.setdefault("history", [])
    history.append(flat(g))
    top = history[-1] if b1 is None else mean(history, b1)
    scale = RATE / np.sqrt(t) if anneal else RATE
    return unflat(-scale * top / np.sqrt(mean([x**2 for x in history], b2)))

  return oracle


def _blocks(memory, g, w, t):
  """Of the incoming weights of a unit, with averages of both."""
  m = memory.setdefault("m", jax.tree.map(np.zeros_like, g))
  v = memory.setdefault("v", jax.tree.map(lambda x: 0.0, g))
  sums = lambda x: (x**2).sum(0, keepdims=True)
  memory["m"] = m = jax.tree.map(lambda m, x: 0.5 * m + 0.5 * x, m, g)
  memory["v"] = v = jax.tree.map(lambda v, x: 0.8 * v + 0.2 * sums(x), v, g)
  corrected = lambda m, v: m / (1 - 0.5**t) / np.sqrt(v / (1 - 0.8**t))
  return jax.tree.map(lambda m, v: -RATE * corrected(m, v), m, v)


def _whole(memory, g, w, t):
  return unflat(-RATE * flat(g) / np.linalg.norm(flat(g)))


def _path(memory, g, w, t):
  kappa, _ = nets.enumerate_kappa(w, nets.mlp_paths(w), 2.0)
  return jax.tree.map(lambda g, k: -RATE * g / k, g, kappa)


def _sinh(memory, g, w, t):
  y = jax.tree.map(np.arcsinh, w)
  return jax.tree.map(lambda g, w, y: np.sinh(y - RATE * np.cosh(y) * g) - w, g, w, y)


def _sam(memory, g, w, t):
  return unflat(-RATE * 2 * (flat(w) + 0.3 * flat(g) / np.linalg.norm(flat(g))))


def _asam(memory, g, w, t):
  size = lambda path, w: np.abs(w) + 0.1 if "kernel" in str(path) else np.ones_like(w)
  sizes = flat(jax.tree_util.tree_map_with_path(size, w))
  scaled = sizes * flat(g)
  return unflat(-RATE * 2 * (flat(w) + 0.3 * sizes * scaled / np.linalg.norm(scaled)))


def _gsam(memory, g, w, t):
  g, second = flat(g), 2 * (flat(w) + 0.3 * flat(g) / np.linalg.norm(flat(g)))
  return unflat(-RATE * (second - 0.4 * (g - (g @ second) / (second @ second) * second)))


FALLING = lambda t: RATE / (1 + t)  # a schedule of the learning rate, from its peak


def _decay(kind, rate, blocks="leaf"):
  """Of kernels around descent at the falling rate, entry by entry or block by block."""
  length = lambda x: np.sqrt((x**2).sum(axis=0 if blocks == "unit" else None, keepdims=True))

  def oracle(memory, g, w, t):
    eta, lam = RATE / t, rate(t - 1) if callable(rate) else rate
    start = memory.setdefault("start", w)

    def leaf(path, g, w, start):
      if "bias" in str(path):
        return -eta * g
      if kind == "fixed_norm":
        radius = length(start)
        moved = w - eta * lam * radius * g / length(g)
        return radius * moved / length(moved) - w
      agrees = np.sign(g) * np.sign(w) >= 0
      by = {
        **{"coupled": eta * lam, "decoupled": eta * lam, "independent": lam},
        **{"cautious": eta * lam * agrees, "corrected": eta**2 / RATE * lam},
      }
      return -eta * g - by[kind] * w

    return jax.tree_util.tree_map_with_path(leaf, g, w, start)

  return oracle


def _decay_row(kind, rate=0.5, label="", **options):
  return Row(
    "decay",
    {"rate": rate, "kind": kind, **options},
    _decay(kind, rate, options.get("blocks", "leaf")),
    args=(optax.sgd(FALLING), FALLING),
    static=("inner", "learning_rate", "rate") if callable(rate) else ("inner", "learning_rate"),
    label=label or kind,
  )


CASES = (
  _decay_row("coupled"),
  _decay_row("decoupled", rate=lambda t: 0.5 + 0.25 * t, label="decoupled, a schedule"),
  _decay_row("independent", rate=0.01),
  _decay_row("cautious"),
  _decay_row("corrected", peak=RATE),
  _decay_row("fixed_norm"),
  _decay_row("fixed_norm", blocks="unit", label="fixed norm by unit"),
  Row("exact_adagrad", {}, _adaptive(None, 1.0, anneal=True)),
  Row("adaptive", {"b2": 0.9}, _adaptive(None, 0.9), label="RMSProp"),
  Row("adaptive", {"b2": 0.9, "debias": False}, _adaptive(None, 0.9, False), label="RMSProp, recursion"),
  Row("exact_adam", {"b1": 0.9, "b2": 0.99}, _adaptive(0.9, 0.99)),
  Row("exact_adam", {"b1": 0.9, "b2": 0.99, "debias": False}, _adaptive(0.9, 0.99, False), label="recursion"),
  Row("adaptive", {"b1": 1.0, "b2": 1.0}, _adaptive(1.0, 1.0), label="flat means"),
  Row("trust_region", {}, _whole),
  Row(
    "trust_region", {"blocks": "leaf"}, leafwise(lambda g: -RATE * g / np.sqrt((g**2).sum())), label="leaf"
  ),
  Row("trust_region", {"blocks": "element"}, leafwise(lambda g: -RATE * np.sign(g)), label="element"),
  Row(
    "trust_region",
    {"blocks": "unit", "numerator_decay": 0.5, "denominator_decay": 0.8},
    _blocks,
    label="unit",
  ),
  Row("p_norm_sgd", {"p": 3.0}, leafwise(lambda g: -RATE * np.sign(g) * np.sqrt(np.abs(g)))),
  Row(
    "mahalanobis",
    {"dense": METRIC},
    lambda memory, g, w, t: unflat(-RATE * np.linalg.solve(METRIC, flat(g))),
    static=("dense",),
    label="dense",
    masked=False,
  ),
  Row("mahalanobis", {"diagonal": 4.0}, leafwise(lambda g: -RATE / 4 * g), label="diagonal"),
  Row(
    "mahalanobis",
    {"solve": lambda g, w: jax.tree.map(lambda g, w: g / (1 + w**2), g, w)},
    lambda memory, g, w, t: jax.tree.map(lambda g, w: -RATE * g / (1 + w**2), g, w),
    static=("solve",),
    label="solve",
  ),
  Row(
    "reparameterize",
    {},
    lambda memory, g, w, t: unflat(-RATE * METRIC @ flat(g)),
    args=(optax.sgd(RATE), _square),
    static=("inner", "forward"),
    label="matrix",
    masked=False,
  ),
  Row(
    "reparameterize",
    {},
    _sinh,
    args=(
      optax.sgd(RATE),
      functools.partial(jax.tree.map, jnp.sinh),
      functools.partial(jax.tree.map, jnp.arcsinh),
    ),
    static=("inner", "forward", "inverse"),
    label="sinh",
  ),
  Row(
    "path_sgd",
    {"apply_fn": nets.mlp, "input_shape": (4,)},
    _path,
    static=("apply_fn", "input_shape"),
    masked=False,
  ),
  Row(
    "sgld", {"key": jax.random.key(0), "temperature": 0.0}, leafwise(lambda g: -RATE / 2 * g), static=("key",)
  ),
  Row(
    "gradient_noise",
    {"key": jax.random.key(0), "variance": 0.0},
    leafwise(lambda g: g),
    args=(),
    static=("key",),
  ),
  Row(
    "sam",
    {"rho": 0.3},
    _sam,
    args=(optax.sgd(RATE),),
    static=("inner",),
    extra={"grad_fn": lambda w: jax.tree.map(lambda w: 2 * w, w)},
  ),
  Row(
    "asam",
    {"rho": 0.3, "eps": 0.1},
    _asam,
    args=(optax.sgd(RATE),),
    static=("inner",),
    extra={"grad_fn": lambda w: jax.tree.map(lambda w: 2 * w, w)},
  ),
  Row(
    "layer_decay",
    {"layers": ("*", "Dense_1/*"), "decay": 0.5},
    lambda memory, g, w, t: {
      "Dense_0": jax.tree.map(lambda g: -RATE / 2 * g, g["Dense_0"]),
      "Dense_1": jax.tree.map(lambda g: -RATE * g, g["Dense_1"]),
    },
    args=(optax.sgd(RATE),),
    static=("inner", "layers"),
  ),
  Row(
    "gsam",
    {"rho": 0.3, "weight": 0.4},
    _gsam,
    args=(optax.sgd(RATE),),
    static=("inner",),
    extra={"grad_fn": lambda w: jax.tree.map(lambda w: 2 * w, w)},
  ),
)
SECOND = ("sam", "asam", "gsam")  # with a gradient at a second point


def check_fifty_steps(row):
  with jax.enable_x64(True):
    rng = np.random.default_rng(0)
    tx, w, memory = row.make(), draw(rng), {}
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    state, update = tx.init(w), jit(lambda g, state, w: tx.update(g, state, w, **row.extra))
    for t in range(1, 51):
      g = draw(rng)
      want = row.oracle(memory, g, w, t)
      got, state = update(g, state, w)
      assert_close(got, want, rtol=1e-10, atol=1e-13)
      w = jax.tree.map(lambda w, g: w + 0.05 * np.sign(g), w, g)  # not too far, for sinh


def assert_close(got, want, rtol=2e-5, atol=1e-6):
  chex.assert_trees_all_close(got, want, rtol=rtol, atol=atol)


def one(seed, dtype=np.float32):
  """A gradient and parameters."""
  rng = np.random.default_rng(seed)
  return draw(rng, dtype), draw(rng, dtype)


def two_steps(row, tx):
  """Of gradients and parameters to the second step's updates."""

  def run(g, w):
    _, state = tx.update(g, tx.init(w), w, **row.extra)
    return tx.update(g, state, w, **row.extra)[0]

  return run


def check_jit_vmap_pmap_and_sharding(row):
  run = two_steps(row, row.make())
  examples = [one(seed) for seed in range(2)]
  want = [run(g, w) for g, w in examples]
  assert_close(jit(run)(*examples[0]), want[0])
  stacked = jax.tree.map(lambda *x: np.stack(x), *examples)
  together = jax.tree.map(lambda *x: np.stack(x), *want)
  assert_close(jit(jax.vmap(run))(*stacked), together)
  assert_close(jax.pmap(run, devices=jax.devices()[:2])(*stacked), together)
  mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
  place = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("model")))
  assert_close(jit(run)(*jax.tree.map(place, examples[0])), want[0])


def check_explicit_axes(row):
  """Kernels split over explicit axes, compiled and eagerly: the same updates, split alike."""
  run = two_steps(row, row.make())
  want = jit(run)(*one(0))
  mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
  spec = lambda x: PartitionSpec("model", None) if x.ndim == 2 else PartitionSpec()
  placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec(x))), one(0))
  with jax.set_mesh(mesh):
    for call in (jit(run), run):
      got = call(*placed)
      assert all(x.sharding.spec == spec(x) for x in jax.tree.leaves(got) if x.ndim == 2)
      assert_close(jax.tree.map(np.asarray, got), want)


def check_mixed_dtypes(row):
  tx = row.make()
  g, w = one(0)
  cast = lambda tree: {
    name: {"kernel": jnp.asarray(x["kernel"], jnp.bfloat16), "bias": jnp.asarray(x["bias"])}
    for name, x in tree.items()
  }
  g, w = cast(g), cast(w)
  state = tx.init(w)
  updates, new = jit(lambda g, state, w: tx.update(g, state, w, **row.extra))(g, state, w)
  jax.tree.map(lambda u, x: None if u.dtype == x.dtype else pytest.fail(f"{u.dtype}, {x.dtype}"), updates, g)
  # The state keeps its types, so that steps can be scanned, and no average is in bfloat16.
  types = lambda state: jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), state)
  assert types(state) == types(new)
  if row.name not in SECOND:
    assert jnp.bfloat16 not in {x.dtype for x in jax.tree.leaves(new)}
  full = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (g, w))
  want, _ = tx.update(full[0], tx.init(full[1]), full[1], **row.extra)
  assert_close(updates, want, rtol=2e-2, atol=2e-2)


def check_zero_gradients(row):
  """Nothing becomes NaN, then or later; at 0 all stand still but what looks at another gradient."""
  tx = row.make()
  g, w = one(1)
  nothing = jax.tree.map(np.zeros_like, g)
  update = jit(lambda g, state, w: tx.update(g, state, w, **row.extra))
  state = tx.init(w)
  for _ in range(3):
    updates, state = update(nothing, state, w)
    for x in jax.tree.leaves(updates):
      assert np.isfinite(x).all()
      assert row.name in (*SECOND, "decay") or (x == 0).all()
  for x in jax.tree.leaves(update(g, state, w)[0]):
    assert np.isfinite(x).all()
    assert (x != 0).any()
  dead = jax.tree.map(np.zeros_like, w)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(update(g, tx.init(dead), dead)[0]))


# A matrix has the size of what is selected, and path_sgd has a mask of its own.
def check_masks(row):
  g, w = one(2)
  mask = {name: {"kernel": True, "bias": False} for name in SHAPES}
  tx = optax.masked(row.make(), mask)
  if row.name in SECOND:  # a leaf that is not selected is not in grad_fn's trees either
    kept = lambda w: jax.tree.map(lambda x: 2 * x, w)
    extra = {"grad_fn": kept}
  else:
    extra = row.extra
  updates, _ = jit(lambda g, w: tx.update(g, tx.init(w), w, **extra))(g, w)
  kernels = lambda tree: {name: {"kernel": x["kernel"]} for name, x in tree.items()}
  alone = row.make()
  want, _ = alone.update(kernels(g), alone.init(kernels(w)), kernels(w), **extra)
  for name in SHAPES:
    np.testing.assert_array_equal(updates[name]["bias"], g[name]["bias"])
    np.testing.assert_allclose(updates[name]["kernel"], want[name]["kernel"], rtol=2e-5, atol=1e-6)


def check_injected_hyperparameters(row):
  g, w = one(3)
  factory = optax.inject_hyperparams(getattr(optim, row.name), static_args=row.static)
  tx = factory(*row.args, **row.options)
  state = tx.init(w)
  update = jit(lambda g, state, w: tx.update(g, state, w, **row.extra))
  updates, state = update(g, state, w)
  alone = row.make()
  want, _ = alone.update(g, alone.init(w), w, **row.extra)
  assert_close(updates, want)
  if "learning_rate" in state.hyperparams:
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    assert all((x == 0).all() for x in jax.tree.leaves(update(g, state, w)[0]))
  if row.args == (RATE,):
    # A schedule in the place of a number.
    falling = getattr(optim, row.name)(lambda t: RATE / (t + 1), **row.options)
    first, second = falling.init(w), None
    got, second = falling.update(g, first, w)
    assert_close(got, want)
    later = alone.update(g, alone.update(g, alone.init(w), w)[1], w)[0]
    assert_close(falling.update(g, second, w)[0], jax.tree.map(lambda x: x / 2, later))


def check_accumulated_gradients(row):
  (g, w), (h, _) = one(4), one(5)
  if row.name in SECOND:  # each part has its own second gradient, and plain descent takes their mean
    inner = optax.MultiSteps(*row.args, every_k_schedule=2).gradient_transformation()
    tx = getattr(optim, row.name)(inner, **row.options)
    _, state = tx.update(g, tx.init(w), w, **row.extra)
    want = jax.tree.map(lambda a, b: (a + b) / 2, *(row.oracle({}, each, w, 1) for each in (g, h)))
    assert_close(tx.update(h, state, w, **row.extra)[0], want)
    return
  tx, alone = optax.MultiSteps(row.make(), every_k_schedule=2), row.make()
  update = jit(lambda g, state, w: tx.update(g, state, w, **row.extra))
  nothing, state = update(g, tx.init(w), w)
  assert all((x == 0).all() for x in jax.tree.leaves(nothing))
  mean = jax.tree.map(lambda a, b: (a + b) / 2, g, h)
  want, _ = alone.update(mean, alone.init(w), w, **row.extra)
  assert_close(update(h, state, w)[0], want)


def check_chains_and_unknown_extra_arguments(row):
  """Others' extra arguments pass by."""
  g, w = one(6)
  tx = optax.chain(optax.clip_by_global_norm(1e6), row.make(), optax.scale(2.0))
  if row.label == "solve":
    return  # whose function sees them
  updates, _ = tx.update(g, tx.init(w), w, value=jnp.ones(()), **row.extra)
  alone = row.make()
  want, _ = alone.update(g, alone.init(w), w, **row.extra)
  assert_close(updates, jax.tree.map(lambda x: 2 * x, want))

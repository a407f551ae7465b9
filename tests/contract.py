"""Cases of the functional core, and the checks that every public function gets.

A `Case` names a function, its arguments by kind and size, and a float64 NumPy oracle. `cases_*.py` hold the
cases of the other folders. `test_contract.py` is the one runner of all.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import chex
import hypothesis
import hypothesis.extra.numpy
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import oracles
import pytest
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from jaxreg import conformance, losses
from jaxreg._group_scores import discriminative_scores, fixed_scores
from jaxreg.calibration import Bins
from jaxreg.conformance import (
  SHAPES,
  SIZES,
  Input,
  assert_close,
  assert_same,
  build,
  cotangent,
  explicit_mesh,
  extreme,
  inside,
  jitted,
  make,
  on_host,
  parts,
  placed,
  split_floats,
  value,
  values,
  with_vjp,
)
from jaxreg.train.registry import REGISTRY

# As `conftest.py` has it compile, almost without optimising.
jit = jax.jit
RULES = "_group_scores"
# The losses that take probabilities for labels, too, as the trainer's table says; the others name integers.
SOFT = frozenset(
  f"losses.{name}"
  for row, method in ((row, entry.function) for row, entry in REGISTRY["method"].items())
  for name in (row, method.loss.__name__)
  if method.soft_labels and name in losses.__all__
)
# At larger logits than these the rounding of products, of probabilities times differences, or of the phase of
# a sine, is larger than the Hessian.
ROUNDED = {
  **dict.fromkeys(("losses.group_softmax", "losses.r_drop"), 50.0),
  **dict.fromkeys(("penalties.gradient_penalty", "penalties.jacobian_penalty"), 50.0),
  f"{RULES}.posterior_scores": 2.0,
}
# Those whose derivative is written by hand.
OWN_RULES = (
  *("losses.bi_tempered", "losses.group_softmax", "noise.shake_shake", "noise.shake_drop"),
  "reparam.spectral_norm",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Case(conformance.Case):
  """A case of the package's checks whose function has a name: "losses.focal"."""

  label: str = ""
  gradient: bool = True  # whether all that it returns has the gradient of its value
  # What it gives without a key, where that is not the first of its other arguments as it came.
  without_key: Callable[[SimpleNamespace], Any] | None = None
  # The largest absolute error in float32 beside the relative 1e-5. A relaxed mask divides a logit of up to
  # 60, rounded to 4e-6, by 0.1: 4e-5, twice.
  atol: float = 1e-5
  # Arrays that the call scans or indexes along the leading axis, which is no batch.
  whole: ClassVar = ("iterates", "metrics")

  def __str__(self) -> str:
    return self.function + (f":{self.label}" if self.label else "")

  @property
  def own_rule(self) -> bool:
    return self.function in OWN_RULES

  def __call__(self, inputs: Mapping[str, Any]) -> Any:
    module, _, name = self.function.rpartition(".")
    function = getattr(importlib.import_module(f"jaxreg.{module}"), name)
    return function(**inputs, **self.options)


def logistic(a, samples=1):
  """The noise that a relaxed mask is documented to draw: `[samples, ..., classes]` at once."""
  return oracles.f64(jax.random.logistic(a.key, (samples, *a.posterior_logits.shape), a.dtype))


def _terms_oracle(a, **options):
  return oracles.dropmax_terms(
    a.logits, a.retain_logits, a.residual_logits, a.labels, logistic(a, **options), a.posterior_logits
  )


def _diagnostics_oracle(a):
  return oracles.dropmax_diagnostics(
    a.logits, a.retain_logits, a.residual_logits, a.labels, logistic(a, 3), a.posterior_logits
  )


def _heads_oracle(a):
  heads = {"logits": a.classifier, "retain_logits": a.prior, "residual_logits": a.residual}
  return {name: a.features @ head["kernel"] + head["bias"] for name, head in heads.items()}


def _hard_mask_oracle(a, samples=3):
  shape = (samples, *a.retain_logits.shape)
  return np.asarray(jax.random.uniform(a.key, shape, a.dtype)) < oracles.sigmoid(a.retain_logits)


def _monte_carlo_oracle(a):
  probs = oracles.masked_softmax(a.logits, _hard_mask_oracle(a))
  return np.log(probs.mean(0))


def _dropout_oracle(a):
  return np.asarray(jax.random.bernoulli(a.key, np.float32(0.75), a.x.shape)) * a.x / 0.75


def _subset_oracle(a, correction=0.0):
  noise = jax.random.uniform(a.key, a.logits.shape, np.float32)
  return oracles.subset_cross_entropy(
    a.logits, a.labels, oracles.sampled_classes(noise, a.labels, 0.4), correction
  )


def _class_mask_oracle(a, classes=5):
  kept = np.asarray(jax.random.bernoulli(a.key, 1 - np.float32(0.6), (*a.labels.shape, classes)))
  return kept | (oracles.one_hot(a.labels, classes) > 0)


def _random_dropmax_oracle(a):
  mask = _class_mask_oracle(a, a.logits.shape[-1])
  return oracles.subset_cross_entropy(a.logits, a.labels, mask + (1 - mask) * oracles.EPS)


def _attention_oracle(a):
  probs = oracles.masked_softmax(a.logits, oracles.sigmoid(a.retain_logits))
  return -np.log((probs * oracles.one_hot(a.labels, probs.shape[-1])).sum(-1))


def _deterministic_oracle(a):
  gate, not_gate = oracles.sigmoid(a.retain_logits), oracles.sigmoid(-a.retain_logits)
  target = oracles.one_hot(a.labels, gate.shape[-1])
  auxiliary = -(target * np.log(gate) + (1 - target) * np.log(not_gate)).sum(-1)
  return {"nll": _attention_oracle(a), "auxiliary": 0.5 * auxiliary}


def _qp_oracle(a):
  noise = oracles.f64(jax.random.logistic(a.key, (3, *a.logits.shape), a.dtype))
  zeros = np.zeros_like(a.logits)
  terms = oracles.dropmax_terms(
    a.logits, a.retain_logits, zeros, a.labels, noise, posterior_logits=a.retain_logits
  )
  return {"nll": terms["nll"], "kl": terms["kl"], "neg_entropy": 0.1 * terms["neg_entropy"]}


def _rival_oracle(a):
  others = oracles.posterior_others(a.features, a.kernel, a.bias, a.labels)
  rival = oracles.one_hot(others.argmax(-1), others.shape[-1])
  return oracles.scores(a.features, a.kernel, a.labels, rival)


def _paper_scores(a):
  uniform = oracles.uniform_others(a.labels, a.kernel.shape[1])
  return oracles.scores(a.features, a.kernel, a.labels, uniform)


def _interleaved_oracle(a, num_groups=3):
  # From the function's own scores, which `discriminative_scores` is here for: ranks hang on their rounding.
  arrays = (np.asarray(x, a.dtype) for x in (a.features, a.kernel, a.bias))
  rank = oracles.feature_groups(discriminative_scores(*arrays, a.labels), (1,) * a.features.shape[-1])
  return (rank - a.features.shape[-1]) % num_groups


def _fixed_groups(a):
  return np.broadcast_to([0, 1, 2, 2], a.features.shape)


def _group_softmax_oracle(a, power=3):
  return oracles.group_softmax(a.features, a.kernel, a.bias, a.labels, _fixed_groups(a), power)


SCORES, LABELS, WEIGHTS, KEY = Input("real", "BK"), Input("label", "B"), Input("weight", "B"), Input("key")
LOG_PROBS = Input("log_prob", "BK")
HEAD = {"kernel": Input("real", "FK", checked=False), "bias": Input("real", "K", checked=False)}
LABELLED = {"logits": SCORES, "labels": LABELS}
GATED = {"logits": SCORES, "retain_logits": SCORES, "labels": LABELS}
# With the posterior given nothing is stopped, so that finite differences apply; test_dropmax has the rest.
DROPMAX = {
  "key": KEY,
  "logits": SCORES,
  "retain_logits": SCORES,
  "residual_logits": SCORES,
  "labels": LABELS,
  "posterior_logits": SCORES,
}
AFFINE = {
  "features": Input("real", "BF"),
  "kernel": Input("real", "FK"),
  "bias": Input("real", "K"),
  "labels": LABELS,
}
# Groups that do not hang on the values: where they do, the loss jumps. test_group_softmax has those.
GROUPS = {"num_groups": 3, "grouping": fixed_scores}
PREDICTED = {"log_probs": LOG_PROBS, "labels": LABELS, "weights": WEIGHTS}
BINS = Bins(*[Input("positive", "M", checked=False)] * 3)

same = functools.partial(Case, output="same")
CASES = (
  Case("losses.softmax_cross_entropy", LABELLED, lambda a: oracles.cross_entropy(a.logits, a.labels)),
  Case("losses.softmax_log_probs", {"logits": SCORES}, lambda a: np.log(oracles.softmax(a.logits))),
  Case(
    "losses.softmax_log_probs",
    {"logits": SCORES},
    lambda a: np.log(oracles.softmax(a.logits / 4)),
    {"logit_scale": 0.25},
    label="scaled",
  ),
  Case("losses.label_smoothing", LABELLED, lambda a: oracles.smoothed_cross_entropy(a.logits, a.labels, 0.1)),
  Case(
    "losses.label_smoothing",
    LABELLED,
    lambda a: oracles.smoothed_cross_entropy(a.logits, a.labels, 0.3, "others"),
    {"smoothing": 0.3, "over": "others"},
    label="others",
  ),
  Case("losses.dropmax", DROPMAX, lambda a: sum(_terms_oracle(a).values()), atol=1e-4),
  Case("losses.dropmax_terms", DROPMAX, lambda a: _terms_oracle(a, samples=3), {"num_samples": 3}, atol=1e-4),
  Case("losses.dropmax_diagnostics", DROPMAX, _diagnostics_oracle, {"num_samples": 3}, atol=1e-4),
  Case(
    "losses.dropmax_log_probs",
    {"logits": SCORES, "retain_logits": SCORES},
    lambda a: np.log(oracles.masked_softmax(a.logits, oracles.sigmoid(a.retain_logits))),
  ),
  Case(
    "losses.dropmax_log_probs",
    {"key": KEY, "logits": SCORES, "retain_logits": SCORES},
    _monte_carlo_oracle,
    {"num_samples": 3},
    label="sampled",
  ),
  Case(
    "losses.dropmax_heads",
    {"features": Input("real", "BF"), "classifier": HEAD, "prior": HEAD, "residual": HEAD},
    _heads_oracle,
    output="same",
    atol=1e-3,  # products of up to 900, summed, in float32
  ),
  Case("losses.sparsemax", LABELLED, lambda a: oracles.sparsemax(a.logits, a.labels), atol=1e-4),
  Case(
    "losses.sparsemax_log_probs",
    {"logits": SCORES},
    lambda a: np.log((oracles.sparsemax_probs(a.logits) + 0.01) / (1 + 0.01 * a.logits.shape[-1])),
    {"eps": 0.01},
  ),
  Case("losses.sampled_softmax", {"key": KEY, **LABELLED}, _subset_oracle),
  *(
    Case(
      "losses.group_softmax",
      AFFINE,
      _group_softmax_oracle,
      {**GROUPS, "form": form},
      label=f"I-{form}",
      atol=1e-3,  # products of up to 900, summed, in float32
    )
    for form in ("dense", "scan")
  ),
  Case(
    "losses.group_softmax",
    AFFINE,
    lambda a: _group_softmax_oracle(a, 1),
    {**GROUPS, "kind": "II", "form": "gather"},
    label="II-gather",
    atol=1e-3,
  ),
  Case(
    "losses.group_softmax",
    AFFINE,
    lambda a: (_group_softmax_oracle(a), a.features @ a.kernel + a.bias),
    {**GROUPS, "with_logits": True},
    label="logits",
    gradient=False,
    atol=1e-3,
  ),
  Case(
    f"{RULES}.feature_groups",
    {"scores": SCORES},
    lambda a: oracles.feature_groups(
      np.where(np.abs(a.scores) < np.finfo(np.float32).tiny, 0, a.scores),
      {5: (1, 2, 2), 3: (1, 1, 1)}[a.scores.shape[-1]],
    ),
    {"num_groups": 3},
    output="index",
    mask=True,
  ),
  Case(f"{RULES}.discriminative_scores", AFFINE, _paper_scores, atol=1e-3),
  Case(
    f"{RULES}.posterior_scores",
    AFFINE,
    lambda a: oracles.scores(
      a.features,
      a.kernel,
      a.labels,
      oracles.posterior_others(a.features, a.kernel, a.bias, a.labels),
    ),
    atol=1e-1,  # logits of up to 3600, rounded to 2e-4, times 900
  ),
  Case(f"{RULES}.rival_scores", AFFINE, _rival_oracle, atol=1e-3),
  Case(
    f"{RULES}.interleaved_scores",
    AFFINE,
    _interleaved_oracle,
    {"num_groups": 3},
    mask=True,
  ),
  Case(
    f"{RULES}.fixed_scores",
    AFFINE,
    lambda a: np.broadcast_to(np.arange(a.features.shape[-1]), a.features.shape),
    mask=True,
  ),
  Case(
    f"{RULES}.random_scores",
    {"key": KEY, **AFFINE},
    lambda a: np.asarray(jax.random.uniform(a.key, a.features.shape, np.float32)),
    mask=True,
  ),
  Case(
    "losses.sampled_softmax",
    {"key": KEY, **LABELLED},
    # Of five classes two, of three one: both half of the others.
    lambda a: _subset_oracle(a, np.log(0.5)),
    {"correct_proposal": True},
    label="corrected",
  ),
  Case("losses.random_dropmax", {"key": KEY, **LABELLED}, _random_dropmax_oracle),
  Case("losses.deterministic_attention", GATED, _attention_oracle),
  Case(
    "losses.deterministic_dropmax",
    GATED,
    lambda a: sum(_deterministic_oracle(a).values()),
    {"auxiliary_weight": 0.5},
    atol=1e-4,
  ),
  Case(
    "losses.dropmax_qp",
    {"key": KEY, **GATED},
    lambda a: sum(_qp_oracle(a).values()),
    {"num_samples": 3, "entropy_weight": 0.1},
    atol=1e-4,
  ),
  same("noise.dropout", {"key": KEY, "x": SCORES}, _dropout_oracle, {"rate": 0.25}, mask=True),
  Case("calibration.nll", PREDICTED, lambda a: oracles.nll(a.log_probs, a.labels, a.weights)),
  Case("calibration.brier", PREDICTED, lambda a: oracles.brier(a.log_probs, a.labels, a.weights)),
  Case(
    "calibration.ece_bins",
    PREDICTED,
    # 7 bins: none of their edges is 1/2, 1/3, 1/4 or 1/5, where rounding would choose the bin.
    lambda a: oracles.ece_bins(a.log_probs, a.labels, a.weights, 7),
    {"num_bins": 7},
  ),
  # Its input is what `ece_bins` returned, already wide.
  Case("calibration.ece", {"bins": BINS}, lambda a: oracles.ece(a.bins)),
)


def strategy(case: Case, sizes: Mapping) -> st.SearchStrategy:
  # XLA may take subnormal numbers for 0.
  values = st.floats(-30, 30, width=32, allow_subnormal=False)
  arrays = lambda spec: hypothesis.extra.numpy.arrays(np.float32, spec.shape(sizes), elements=values)
  specs, _ = jax.tree.flatten(dict(case.inputs))
  return st.tuples(*(st.integers(0, 2**31 - 1) if s.kind == "key" else arrays(s) for s in specs))


def _against_oracle(case: Case, inputs: dict[str, Any], got: Any, *, dtype: Any, rtol: float, atol: float):
  def plain(spec, x):
    if spec.kind == "key":
      return jax.random.clone(x)
    return np.asarray(x, np.float64 if spec.floating else None)

  arrays = jax.tree.map(plain, dict(case.inputs), inputs)
  want = case.oracle(SimpleNamespace(**arrays, dtype=dtype))
  assert_close(got, want, rtol=rtol, atol=atol)


# The checks.


def check_oracle(case: Case, sizes: Mapping = SIZES) -> None:
  """Hypothesis over values, at one shape, in float32."""
  specs, tree = jax.tree.flatten(dict(case.inputs))
  function = functools.partial(values, case) if sizes == SIZES else jitted(case)

  @hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
  @hypothesis.given(strategy(case, sizes))
  def run(raws):
    def leaf(spec, raw):
      if spec.kind == "key":
        return jax.random.key(raw)
      return value(spec, raw, sizes["K"][0], np.float32)

    inputs = jax.tree.unflatten(tree, [leaf(spec, raw) for spec, raw in zip(specs, raws)])
    keys = {name: jax.random.clone(x) for name, x in inputs.items() if name == "key"}
    got = function({**inputs, **keys})
    _against_oracle(case, inputs, got, dtype=np.float32, rtol=1e-5, atol=case.atol)

  run()


def check_oracle_of_two_axes(case: Case) -> None:
  check_oracle(case, SHAPES[1])


def check_sharded(case: Case) -> None:
  # No value of the inputs is in what these scores are.
  conformance.check_sharded(case, unsplit=case.function == f"{RULES}.fixed_scores")


def check_explicit_gradients(case: Case) -> None:
  """The gradient of the sum of all outputs, on explicit axes."""

  def total(floats, others):
    return sum(x.sum() for x in jax.tree.leaves(case({**floats, **others})))

  gradient = jit(jax.grad(total))
  want = gradient(*split_floats(case, make(case)))
  with jax.set_mesh(mesh := explicit_mesh()):
    got = gradient(*split_floats(case, placed(case, mesh)))
  largest = max((float(jnp.abs(x).max()) for x in jax.tree.leaves(want)), default=0)
  chex.assert_trees_all_close(on_host(got), on_host(want), rtol=1e-5, atol=1e-5 * max(largest, 1))


def check_explicit_axes_without_a_mesh(case: Case) -> None:
  """Without `jax.set_mesh` eager and compiled calls give the same, and in it calls on captured arrays."""
  mesh = explicit_mesh()
  choose = lambda split, x, on_mesh: on_mesh if split else x
  inputs = lambda: jax.tree.map(choose, parts(case, True, False), make(case), placed(case, mesh))
  want = on_host(jitted(case)(make(case)))
  for call in (case, jitted(case)):
    assert_same(case, on_host(call(inputs())), want)
  captured = inputs()
  with jax.set_mesh(mesh):
    assert_same(case, on_host(jax.jit(lambda: case(captured))()), want)


def check_manual_axes(case: Case) -> None:
  """In `shard_map`, with its check of what varies, each device gives what its part of the batch gives."""
  mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
  stacked = lambda inputs: jax.tree.map(lambda x: x[None], case(inputs))
  specs = parts(case, PartitionSpec("data"), PartitionSpec())
  got = jit(jax.shard_map(stacked, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec("data")))(
    placed(case, mesh)
  )
  half = lambda x, part: x[part * len(x) // 2 : (part + 1) * len(x) // 2]
  cut = lambda part: jax.tree.map(
    lambda x, split: half(x, part) if split else x, make(case), parts(case, True, False)
  )
  halves = [jit(stacked)(cut(part)) for part in range(2)]
  assert_same(case, on_host(got), jax.tree.map(lambda *x: np.concatenate(x), *halves))


def check_no_key(case: Case) -> None:
  """Without a key nothing is drawn: what comes back is the input, or what `without_key` says.

  Options are checked as with a key.
  """
  inputs = {**make(case), "key": None}
  first = next(name for name in case.inputs if name != "key")
  if case.without_key is None:
    chex.assert_trees_all_equal(case(inputs), inputs[first])
  else:
    want = case.without_key(SimpleNamespace(**jax.tree.map(oracles.f64, {**inputs, "key": 0})))
    assert_close(case(inputs), want, rtol=1e-5, atol=case.atol)
  for name in {"rate", "std", "temperature"} & set(case.options):
    with pytest.raises(ValueError, match=name):
      dataclasses.replace(case, options={**case.options, name: -0.5})(inputs)


def check_rejections(case: Case) -> None:
  """Another dtype or shape is refused with the argument's name."""
  refused = 0
  first = next(iter(name for name in case.inputs if name != "key"), None)
  for name, spec in case.inputs.items():
    if not isinstance(spec, Input) or not spec.checked:
      continue
    given, classes = make(case)[name], np.eye(SIZES["K"][0])
    given = given if spec.kind == "key" else np.asarray(given)  # whose slices need no compilation
    attempts: list[tuple[type[Exception], Any]] = []
    if spec.kind == "key":
      attempts += [(TypeError, 0), (TypeError, np.zeros(2, np.uint32))]
      attempts += [(ValueError, jax.random.split(jax.random.key(0), 2))]
    elif spec.kind == "label":
      attempts += [(TypeError, given.astype(np.float32)), (TypeError, given > 0)]
      if case.function not in SOFT:
        attempts += [(TypeError, classes[given])]
      if name != first:
        attempts += [(ValueError, classes[given].astype(int))]
    elif spec.kind == "soft":
      attempts += [(ValueError, given.astype(int)), (TypeError, given > 0)]
      attempts += [(TypeError, given[:, 0]), (ValueError, -given)]
    elif spec.kind in ("real", "log_prob"):
      attempts += [(TypeError, np.zeros(given.shape, np.int32)), (TypeError, given > 0)]
      attempts += [(TypeError, given.astype(np.complex64))]
    if spec.kind != "key" and name != first:
      attempts += [(ValueError, given[1:]), (ValueError, given[None])]
    for error, given in attempts:
      with pytest.raises(error, match=rf"\b{name}\b"):
        case({**make(case), name: given})
      refused += 1
  assert refused or not any(isinstance(s, Input) and s.checked for s in case.inputs.values())


def check_float64(case: Case) -> None:
  """To ten digits where x64 is on: nothing on the way is computed in float32."""
  with jax.enable_x64(True):
    got = values(case, make(case, 1, dtype=np.float64), np.float64)
    assert all(x.dtype in (np.float64, bool, np.uint8) for x in jax.tree.leaves(got))
    _against_oracle(case, make(case, 1, dtype=np.float64), got, dtype=np.float64, rtol=1e-10, atol=1e-10)


@functools.cache
def _curved(case: Case) -> Callable:
  """`(floats, others, direction) -> Hessian times direction`, of the sum of all outputs."""

  def run(floats, others, direction):
    total = lambda floats: sum(x.sum() for x in jax.tree.leaves(case({**floats, **others})))
    if case.options.get("form") in ("scan", "gather"):  # these have no forward mode
      slope = lambda floats: jax.tree.reduce(
        jnp.add, jax.tree.map(lambda g, v: (g * v).sum(), jax.grad(total)(floats), direction)
      )
      return jax.grad(slope)(floats)
    return jax.jvp(jax.grad(total), (floats,), (direction,))[1]

  return jit(run)


def _second_difference(case: Case, inputs: dict[str, Any], direction: dict[str, Any]) -> float:
  """Of the sum of the oracle along a direction, with the noise of float32."""

  def total(step):
    arrays = {name: jax.tree.map(oracles.f64, x) for name, x in inputs.items() if name != "key"}
    for name, x in split_floats(case, inputs)[1].items():
      arrays[name] = jax.random.clone(x) if name == "key" else np.asarray(x)
    for name, along in direction.items():
      arrays[name] = jax.tree.map(lambda x, v: x + step * v, arrays[name], along)
    outputs = case.oracle(SimpleNamespace(**arrays, dtype=np.float32))
    return sum(np.sum(x) for x in jax.tree.leaves(outputs))

  return (total(1e-3) - 2 * total(0.0) + total(-1e-3)) / 1e-6


def check_second_derivatives(case: Case) -> None:
  """The Hessian is finite at logits of up to 1e4, equal to float64's, and that of the oracle."""
  rng = np.random.default_rng(3)
  product = "kernel" in case.inputs  # of two arrays, which makes the logits
  for scale in (2.0, 50.0, 1e4):
    exact = not case.keyed and scale <= ROUNDED.get(case.function, scale)
    _check_curvature(case, rng, scale**0.5 if product else scale, exact)
  floats, others = split_floats(case, extreme(case, 0))
  ones = jax.tree.map(np.ones_like, floats)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(_curved(case)(floats, others, ones)))


def _check_curvature(case: Case, rng: np.random.Generator, scale: float, exact: bool) -> None:
  specs, draw = dict(case.inputs), lambda spec, shape: rng.normal(size=shape) * scale
  inputs = build(case, draw, SIZES, 3, np.float32)
  near = scale <= 2
  inputs = jax.tree.map(inside, specs, inputs) if near else inputs
  floats, others = split_floats(case, inputs)

  def along(spec: Input, x: Any) -> np.ndarray:
    v = rng.normal(size=x.shape)
    # Soft labels keep their sum.
    return np.asarray(v - v.mean(-1, keepdims=True) if spec.kind == "soft" else v, np.float32)

  direction = jax.tree.map(along, {name: specs[name] for name in floats}, floats)
  again = lambda: {name: jax.random.clone(x) if name == "key" else x for name, x in others.items()}
  got = _curved(case)(floats, again(), direction)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(got)), scale
  if exact:  # noise of float64 is another draw
    with jax.enable_x64(True):
      wide = jax.tree.map(oracles.f64, (floats, direction))
      want = _curved(case)(wide[0], again(), wide[1])
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(want))
    assert_close(got, jax.tree.map(np.asarray, want), rtol=1e-3, atol=1e-5 + 1e-3 * largest)
  if near and case.gradient:
    terms = jax.tree.map(lambda h, v: (oracles.f64(h) * v).sum(), got, direction)
    want = _second_difference(case, inputs, jax.tree.map(oracles.f64, direction))
    np.testing.assert_allclose(sum(jax.tree.leaves(terms)), want, rtol=1e-3, atol=1e-3)


def check_zero(case: Case) -> None:
  """At parameters of 0 values and gradients are finite, and a constraint keeps the 0."""
  zeros = jax.tree.map(jnp.zeros_like, make(case))
  ones = cotangent(case, np.ones, np.float32)
  outputs, gradient = with_vjp(case)(*split_floats(case, zeros), ones)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((outputs, gradient)))
  if case.function.startswith("constraints."):
    assert all((x == 0).all() for x in jax.tree.leaves(outputs))


def compilations(call):
  """How many programs a call compiles."""
  found = []
  listen = lambda event, duration, **_: found.append(event)
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    jax.block_until_ready(call())
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  return found.count("/jax/core/compile/backend_compile_duration")

"""Adds regularizers to a loss function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batch, check_floating, check_key, check_loss, check_loss_fn, one_line, unpack
from jaxreg._keys import named
from jaxreg._leaves import rebuilt, wide
from jaxreg._sharding import partitioned
from jaxreg._sums import weighted
from jaxreg._where import check_weights, check_where, zero_elsewhere
from jaxreg.objective._report import Report, make_report
from jaxreg.objective._terms import Penalty, Perturbation, Term, at_step, bound
from jaxreg.objective._view import Pass, View
from jaxreg.typing import Array, Batch, Key, Metrics, Params

PER_BATCH, PER_PASS = ("batch", "labels"), ("params", "inputs")  # perturbed once, or in every forward pass


class _Values(NamedTuple):
  """The terms of a forward pass's loss by name, and its auxiliary value."""

  data: dict[str, Array]
  aux: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Composed:
  """A loss function with regularizers, `(params, batch, *, key=None, step=None)`, and its `report`."""

  loss_fn: Callable[..., Any]
  terms: Mapping[str, Term]
  has_aux: bool = False
  with_metrics: bool = False
  weights_fn: Callable[[Batch], Array] | None = None

  def __call__(
    self, params: Params, batch: Batch, *, key: Key | None = None, step: ArrayLike | None = None
  ) -> Any:
    weights, batch = self._weighted(self._perturbed(batch, key, step))
    data, aux = self._forward(params, batch, weights, key, step=step)
    metrics = self._metrics(data, aux, params, batch, weights, key, step)
    total, count = metrics["loss"]
    loss = total / jnp.where(count > 0, count, 1)
    metrics = jax.lax.stop_gradient(metrics)
    if not self.with_metrics:
      return (loss, aux) if self.has_aux else loss
    return loss, (aux, metrics) if self.has_aux else metrics

  def report(
    self, params: Params, batch: Batch, *, key: Key | None = None, step: ArrayLike | None = None
  ) -> Report:
    r"""Measures the value of every term, and the norm and direction of its gradient.

    .. math:: \cos_t = \frac{\langle \nabla L_t, \nabla L_{\text{data}} \rangle}
      {\|\nabla L_t\| \, \|\nabla L_{\text{data}}\|}

    A term with a negative cosine works against the loss of the data. The report costs one forward pass, and a
    backward pass for each term. `"data"` is the loss with all perturbations. The row of a perturbation is the
    difference of `"data"` with and without it, which costs one more forward and backward pass. `"loss"`
    is the sum of `"data"`, the penalties and the example terms.

    Args:
      params: any pytree.
      batch: as in a call, like `key` and `step`.
      key: the key of the step.
      step: the number of the step.

    Returns:
      A named tuple of dicts by term, which prints as a table: `value`, and the `norm` and `cosine` of the
      value's gradient. The cosine is 0 if either gradient is 0.
    """

    def contributions(objective: Composed, params: Params) -> dict[str, Array]:
      own = None if key is None else jax.random.clone(key)
      weights, perturbed = objective._weighted(objective._perturbed(batch, own, step))
      data, aux = objective._forward(params, perturbed, weights, own, step=step)
      metrics = objective._metrics(data, aux, params, perturbed, weights, own, step)
      means = {name: total / jnp.where(count > 0, count, 1) for name, (total, count) in metrics.items()}
      return {**means, "data": functools.reduce(jnp.add, (means[name] for name in data))}

    def without(name: str) -> Composed:
      return dataclasses.replace(
        self, terms={other: term for other, term in self.terms.items() if other != name}
      )

    perturbations = [name for name, term in self.terms.items() if isinstance(term, Perturbation)]
    return make_report(
      functools.partial(contributions, self),
      {name: functools.partial(contributions, without(name)) for name in perturbations},
      params,
    )

  def _metrics(
    self,
    data: dict[str, Array],
    aux: Any,
    params: Params,
    batch: Batch,
    weights: Array | None,
    key: Key | None,
    step: ArrayLike | None,
  ) -> Metrics:
    """Returns the sum and count of every term, and of their total, `loss`."""
    count = _count(data, weights)
    metrics = {name: _entry(value, weights, count, name) for name, value in data.items()}

    def again(params: Params, batch: Batch, key: Key | None) -> Pass:
      data, aux = self._forward(params, batch, weights, key, step=step, further=True)
      return Pass(_sum(data), aux)

    view = View(params, batch, key, step, weights, _sum(data), aux, again, batch)
    counted_alone: Metrics = {}
    for name, term in self.terms.items():
      if isinstance(term, Perturbation):
        continue
      if name in metrics or name in ("loss", "data"):
        raise ValueError(f"the name of a term must not be loss, data or the loss's own, got {name!r}")
      weight, function = at_step(term.weight, step, f"weight of {name}"), bound(term, step, name)
      if isinstance(term, Penalty):
        value, term_weights = check_floating(function(params), f"the penalty {name}", shape=()), weights
      else:
        term_weights = weights if term.weights_fn is None else check_weights(term.weights_fn(batch))
        own = dataclasses.replace(view, batch=_with_labels(batch, term_weights))
        value = check_floating(function(None if key is None else named(key, name), own), f"the term {name}")
      value = jnp.multiply(weight, wide(value))
      metrics[name] = _entry(value, term_weights, count, name)
      if term_weights is not None and term_weights is not weights and value.ndim:
        counted_alone[name] = weighted(value, term_weights)
    total = sum((total for total, _ in metrics.values()), start=jnp.zeros_like(count))
    return {**metrics, **counted_alone, "loss": (total, count)}

  def _perturbed(self, batch: Batch, key: Key | None, step: ArrayLike | None) -> Batch:
    """Applies the perturbations that are drawn once per batch."""
    if key is None:
      return batch
    if not all(isinstance(term, Penalty) for term in self.terms.values()):
      check_key(key)
    for name, term in self._perturbations(*PER_BATCH):
      own, function = named(key, name), bound(term, step, name)
      if term.on == "batch":
        batch = function(own, batch)
      else:
        check_batch(batch, "labels")
        batch = {**batch, "labels": function(own, batch["labels"])}
    return batch

  def _perturbations(self, *on: str) -> list[tuple[str, Perturbation]]:
    terms = self.terms.items()
    return [(name, term) for name, term in terms if isinstance(term, Perturbation) and term.on in on]

  def _weighted(self, batch: Batch) -> tuple[Array | None, Batch]:
    """Returns the examples' weights, and the batch, without NaN in examples that do not count."""
    if self.weights_fn is not None:
      weights = check_weights(self.weights_fn(batch))
      return weights, _finite(batch, weights)
    if not isinstance(batch, Mapping):
      return None, batch
    weights, where = batch.get("weights"), batch.get("where")
    if weights is not None:
      weights = check_floating(weights, "weights")
    if where is not None:
      where = check_where(where, jnp.shape(where if weights is None else weights))
      weights = jnp.asarray(where, jnp.float32) if weights is None else zero_elsewhere(where, weights)
    return check_weights(weights), batch if weights is None else _finite(batch, weights)

  def _forward(
    self,
    params: Params,
    batch: Batch,
    weights: Array | None,
    key: Key | None,
    *,
    step: ArrayLike | None,
    further: bool = False,
  ) -> _Values:
    """Runs one forward pass, with the perturbations of its key; `further`: not the loss's own pass."""
    batch = _with_labels(batch, weights)
    options: dict[str, Any] = {}
    calls: dict[str, int] = {}  # of `perturb`, by the name of the activation
    if _takes_perturb(self.loss_fn):
      options["perturb"] = functools.partial(self._perturb, key, step, calls)
    if key is not None:
      for name, term in self._perturbations(*PER_PASS):
        own, function = named(key, name), bound(term, step, name)
        if term.on == "params":
          params, further = function(own, params), True  # a copy, as for a further pass
        else:
          check_batch(batch, "inputs")
          batch = {**batch, "inputs": function(own, batch["inputs"])}
    before = jax.tree.leaves(params)
    value = self.loss_fn(params, rebuilt(batch), key=key, **options)
    if further and any(old is not new for old, new in zip(before, jax.tree.leaves(params), strict=True)):
      raise ValueError(
        "loss_fn must not change params in place with noise on the params or with further passes, as a whole "
        "Flax NNX module does; split the module, put its statistics into the batch, and use the key for noise"
      )
    for name, term in self.terms.items():
      if isinstance(term, Perturbation) and term.on not in (*PER_BATCH, *PER_PASS, *calls):
        raise ValueError(
          f"on must be batch, labels, params, inputs or a name that loss_fn gives its argument perturb, "
          f"{', '.join(calls) or 'none'}, got {term.on!r} for {name}"
        )
    return _values(value, self.has_aux)

  def _perturb(self, key: Key | None, step: ArrayLike | None, calls: dict[str, int], on: str, x: Any) -> Any:
    """Perturbs the activation `x` of a pass; each call that the pass traces has its own draw."""
    number = calls[on] = calls.get(on, -1) + 1
    if key is not None:
      for name, term in self._perturbations(on):
        x = bound(term, step, name)(jax.random.fold_in(named(key, name), number), x)
    return x


def compose(
  loss_fn: Callable[..., Any],
  terms: Mapping[str, Term],
  *,
  has_aux: bool = False,
  with_metrics: bool = False,
  weights_fn: Callable[[Batch], Array] | None = None,
) -> Composed:
  r"""Adds penalties, example terms and perturbations to a loss function.

  .. math:: L(\theta) = \frac{\sum_i w_i \ell_i(\theta)}{\sum_i w_i} + \sum_t \alpha_t L_t(\theta)

  `penalty`, `example_term` and `perturbation` make the terms. A term's key is the key of the call with the
  term's name folded in, and `loss_fn` gets the key itself, so adding a term changes no other draw. The loss
  and all example terms share one forward pass.

  The weights of the examples are `batch["weights"]` `[batch]`, at least 0. An example whose `batch["where"]`
  `[batch]` is false has weight 0. Without both, all examples have the same weight. An example of weight 0
  needs no label, and its inputs may be NaN: `loss_fn` sees 0 for its label, and for NaN, infinity and numbers
  whose squares overflow in its entries. Tokens must be in range everywhere, since a token without weight may
  be context, or read by a term with weights of its own. Weights and `where` may have the shape of the loss
  instead, as `[batch, length]` for tokens. An entry whose leading axis is as long as the batch is one of
  examples; constants, such as a mask of classes, belong to `loss_fn`. Entries have no names in a batch that
  is no mapping, such as a tuple with `weights_fn`: there, a label without weight counts as 0 if it is
  negative and has the shape of the weights, and must be in range otherwise.

  On several devices, average the gradients: a sum would count a penalty once per device. If the devices'
  weights differ, weight the average by the counts in the metrics. With `pmap`, and in `jax.shard_map` with
  `check_vma=False`, that is `jax.lax.pmean(jax.grad(composed)(params, batch), "data")`. `shard_map` as it is
  by default sums the gradients of shared parameters itself: there, differentiate the mean over the devices,
  `jax.grad(lambda params: jax.lax.pmean(composed(params, batch), "data"))`. A term with a `weights_fn` of its
  own has its own sum and count in the metrics. Where these are not in proportion to the counts of the loss,
  `compose` it apart, and weight its gradients by its counts.

  Args:
    loss_fn: `(params, batch, *, key) -> loss`. The loss is a scalar, or one value per example, `[batch]`, or
      per token, `[batch, length]`, whose weighted mean counts, or a dict of these, such as
      `losses.dropmax_terms` returns. It gets the argument `perturb` if it has one. `key=None` means no noise.
    terms: terms by name.
    has_aux: whether `loss_fn` returns `(loss, aux)`, as for `jax.grad`; the result then does too. Terms can
      read `aux`, which may hold outputs, activations or the model state.
    with_metrics: whether to return metrics with the loss: each term's contribution to the loss by name, as a
      sum and a count that add up over batches and devices. The total is `"loss"`. The value of `loss_fn` is
      `"data"`, or has its own names. With `has_aux` the result is `(loss, (aux, metrics))`.
    weights_fn: `batch -> [batch]`, the weights of the examples, which replaces `batch["weights"]`.

  Returns:
    A function `(params, batch, *, key=None, step=None)` with the method `report`. Its value is float32 or
    wider. Schedules need `step`.

  Raises:
    ValueError: in a call, for a schedule without `step`, or if `loss_fn` changes `params` in place where a
      perturbation copies them or a further pass would change them again.

  Example:
    >>> from jaxreg import objective, penalties
    >>> loss_fn = lambda params, batch, *, key: (params["kernel"] * batch).sum()
    >>> ridge = compose(loss_fn, {"l2": objective.penalty(penalties.l2, weight=0.1)})
    >>> ridge({"kernel": jnp.array([2.0])}, jnp.array([1.0]))
    Array(2.2, dtype=float32)
    >>> print(ridge.report({"kernel": jnp.array([2.0])}, jnp.array([-1.0])))
    term        value  gradient  cosine
    data      -2.0000    1.0000    1.00
    l2         0.2000    0.2000   -1.00
    loss      -1.8000    0.8000    1.00

    A weight may be traced, so `jax.vmap` sweeps over weights in one program:

    >>> def loss_at(weight):
    ...   terms = {"l2": objective.penalty(penalties.l2, weight=weight)}
    ...   return compose(loss_fn, terms)({"kernel": jnp.array([2.0])}, jnp.array([1.0]))
    >>> jax.vmap(loss_at)(jnp.array([0.0, 0.1, 1.0]))
    Array([2. , 2.2, 4. ], dtype=float32)
  """
  check_loss_fn(loss_fn, also=("perturb",) if callable(loss_fn) and _takes_perturb(loss_fn) else ())
  for name, term in terms.items():
    if not isinstance(term, Term):
      raise TypeError(
        f"terms must be made by penalty, example_term or perturbation, got {one_line(term)} for {name}"
      )
  return Composed(loss_fn, dict(terms), has_aux, with_metrics, weights_fn)


def _finite(batch: Batch, weights: Array) -> Batch:
  """Returns the batch with 0 for what would make gradients NaN where the weight is 0: 0 times NaN is NaN."""

  def finite(x: Any) -> Any:
    counts = _counts(weights, jnp.shape(x))
    if counts is None or not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
      return x
    # Other numbers stay: a term with weights of its own or BatchNorm may read the example.
    # A statistic as long as the batch is not split as the weights are.
    return partitioned(
      lambda x, counts: jnp.where(jnp.isfinite(jnp.square(jnp.abs(wide(x)))), x, zero_elsewhere(counts, x)),
      jnp.asarray(x),
      counts,
    )

  if not isinstance(batch, Mapping):
    return jax.tree.map(finite, batch)
  rest = {name: x for name, x in batch.items() if name not in ("weights", "where")}
  return {**batch, **jax.tree.map(finite, rest)}


def _counts(weights: Array, shape: tuple[int, ...]) -> Array | None:
  """Returns which entries count of an array that starts with the axes of `weights`, or the first of them."""
  axes = min(len(shape), weights.ndim)
  if not axes or shape[:axes] != weights.shape[:axes]:
    return None
  return (weights != 0).any(axis=tuple(range(axes, weights.ndim)))


def _with_labels(batch: Batch, weights: Array | None) -> Batch:
  """Returns the batch with labels of 0 where the weight is 0: a label of -1 or NaN makes gradients NaN."""
  if weights is None:
    return batch

  def harmless(labels: Any) -> Any:
    counts = _counts(weights, jnp.shape(labels))
    if counts is None:
      return labels
    return partitioned(lambda labels, counts: zero_elsewhere(counts, labels), labels, counts)

  def unnamed(x: Any) -> Any:
    if jnp.shape(x) != weights.shape or not jnp.issubdtype(jnp.result_type(x), jnp.signedinteger):
      return x
    # It may be a token: without weight that is context, but not negative.
    return partitioned(lambda x, counts: zero_elsewhere(counts | (x >= 0), x), x, weights != 0)

  if not isinstance(batch, Mapping):
    return jax.tree.map(unnamed, batch)
  return {**batch, "labels": jax.tree.map(harmless, batch["labels"])} if "labels" in batch else batch


def _entry(value: Array, weights: Array | None, count: Array, name: str) -> tuple[Array, Array]:
  """Computes a term's sum and count: the mean over its own examples times the objective's count."""
  if not value.ndim:
    return value * count, count
  weights = jnp.ones_like(value) if weights is None else weights
  if value.shape[: weights.ndim] != weights.shape:
    raise ValueError(
      f"{name} must be a scalar or start with the shape of weights, {weights.shape}, got {value.shape}"
    )
  total, number = weighted(value, weights)
  return total * (count / jnp.where(number > 0, number, 1)), count


def _count(data: Mapping[str, Array], weights: Array | None) -> Array:
  first = next((value for value in data.values() if value.ndim), None)
  if weights is None:
    return jnp.ones((), jnp.float32) if first is None else jnp.ones_like(first).sum()
  if first is None or first.shape[: weights.ndim] != weights.shape:
    return weights.sum()
  return weighted(first, weights)[1]


def _sum(data: Mapping[str, Array]) -> Array:
  most = max(value.ndim for value in data.values())
  # An example's value counts for each of its tokens; plain broadcasting would match the last axes.
  return functools.reduce(jnp.add, (jnp.expand_dims(v, tuple(range(v.ndim, most))) for v in data.values()))


def _values(value: Any, has_aux: bool) -> _Values:
  """Names the terms of a loss, casts them to at least float32, and splits off the auxiliary value."""
  value, aux = unpack(value, has_aux)
  data = dict(value) if isinstance(value, Mapping) else {"data": value}
  data = {name: wide(check_loss(each, "a scalar or [batch]")) for name, each in data.items()}
  if not data or "loss" in data:
    raise ValueError(f"loss_fn must return one or more terms, none of them called loss, got {one_line(data)}")
  return _Values(data, aux)


def _takes_perturb(loss_fn: Callable[..., Any]) -> bool:
  try:
    return "perturb" in inspect.signature(loss_fn).parameters
  except ValueError:  # some built-in functions have no signature
    return False

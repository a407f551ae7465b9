"""The terms of an objective."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from jax.typing import ArrayLike

from jaxreg._checks import check_function, check_option
from jaxreg.typing import Array, Batch

Schedule = Callable[[Any], ArrayLike]
Weight = ArrayLike | Schedule


@dataclasses.dataclass(frozen=True, eq=False)
class Penalty:
  """The term `weight * function(params, **options)`; `penalty` makes it."""

  function: Callable[..., Array]
  weight: Weight
  options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleTerm:
  """The mean of `weight * function(key, view, **options)`; `example_term` makes it."""

  function: Callable[..., Array]
  weight: Weight
  weights_fn: Callable[[Batch], Array] | None
  options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Perturbation:
  """Replaces `x`, which `on` names, by `function(key, x, **options)`; `perturbation` makes it."""

  function: Callable[..., Any]
  on: str
  options: Mapping[str, Any]


Term = Penalty | ExampleTerm | Perturbation


def penalty(function: Callable[..., Array], *, weight: Weight, **options: Any) -> Penalty:
  r"""Makes a term of a penalty of the parameters, :math:`\alpha\,\Omega(\theta)`.

  Args:
    function: `(params, **options) -> scalar`, such as a function of `jaxreg.penalties`.
    weight: at least 0: a number, a traced array, or a schedule `step -> weight`.
    **options: options of the function, by name; a callable one is a schedule, except `mask`.

  Returns:
    A term for `compose`.

  Example:
    >>> from jaxreg import penalties
    >>> term = penalty(penalties.elastic_net, weight=1e-4, ratio=0.5)
  """
  _check_weight(weight)
  check_function(functools.partial(function, **options), "a penalty", "params -> scalar", takes=1)
  return Penalty(function, weight, options)


def example_term(
  function: Callable[..., Array],
  *,
  weight: Weight,
  weights_fn: Callable[[Batch], Array] | None = None,
  **options: Any,
) -> ExampleTerm:
  r"""Makes a term of a further loss on the examples, :math:`\alpha \sum_i w_i \ell_i / \sum_i w_i`.

  Args:
    function: `(key, view, **options) -> [batch]`, in the shape of the loss, so `[batch, length]` for tokens,
      or `-> scalar` if the term is not a mean over examples. The `View` has the batch, the outputs of the
      loss's forward pass, and `again` for further passes.
    weight: at least 0: a number, a traced array, or a schedule `step -> weight`.
    weights_fn: `batch -> [batch]`, the weights of the term's examples; default: the objective's weights. See
      `compose` on gradients of several parts.
    **options: options of the function, by name; a callable one is a schedule, except `mask`.

  Returns:
    A term for `compose`.

  Example:
    An activity penalty, R-Drop and PGD; `view.aux` is the auxiliary value of `loss_fn`. The paper's R-Drop
    also averages the loss of the labels over both passes; here it is that of the first one:

    >>> from jaxreg import adversarial, losses, penalties
    >>> sparse = example_term(lambda key, view: penalties.l1_activity(view.aux["hidden"]), weight=1e-3)
    >>> r_drop = example_term(
    ...   lambda key, view: losses.r_drop(view.aux["logits"], view.again(key=key).aux["logits"]), weight=1.0
    ... )
    >>> def pgd(key, view, *, eps):
    ...   moved = adversarial.pgd(key, view.loss_of_inputs, view.batch["inputs"], eps=eps, num_steps=3)
    ...   return view.loss_of_inputs(moved)
    >>> attack = example_term(pgd, weight=0.5, eps=0.1)
  """
  _check_weight(weight)
  check_function(functools.partial(function, **options), "an example term", "(key, view) -> [batch]", takes=2)
  return ExampleTerm(function, weight, weights_fn, options)


def perturbation(function: Callable[..., Any], *, on: str, **options: Any) -> Perturbation:
  """Makes a term of noise or a mix of examples, which the loss and all example terms see.

  Args:
    function: `(key, x, **options) -> x`, such as a function of `jaxreg.noise` or `jaxreg.augment`.
    on: names `x`. `"batch"` and `"labels"`, `batch["labels"]`, are perturbed once. `"params"` and
      `"inputs"`, `batch["inputs"]`, are perturbed in every forward pass with the key of the pass. Any other
      name is an activation's: `loss_fn` then has an argument `perturb` and calls `h = perturb(name, h)`
      on the whole batch. A call inside `jax.vmap` or `jax.lax.scan` is traced once, so all examples or layers
      would have the same draw.
    **options: options of the function, by name; a callable one is a schedule, except `mask`.

  Returns:
    A term for `compose`. Without a key, nothing is perturbed.

  Example:
    >>> from jaxreg import augment, noise
    >>> fading = optax.linear_schedule(0.1, 0.0, transition_steps=100)
    >>> terms = {
    ...   "mixup": perturbation(augment.mixup, on="batch", num_classes=10, alpha=0.2),
    ...   "label_noise": perturbation(noise.label_noise, on="labels", num_classes=10, rate=0.1),
    ...   "weight_noise": perturbation(noise.weight_noise, on="params", std=fading),
    ...   "dropout": perturbation(noise.dropout, on="hidden", rate=0.5),
    ... }
  """
  if not isinstance(on, str):
    raise TypeError(f"on must be batch, labels, params, inputs or the name of an activation, got {on!r}")
  check_function(functools.partial(function, **options), "a perturbation", "(key, x) -> x", takes=2)
  return Perturbation(function, on, options)


def at_step(value: Any, step: ArrayLike | None, name: str) -> Any:
  """Evaluates a weight or an option at a step."""
  if not callable(value):
    return value
  if step is None:
    raise ValueError(f"step must be given: {name} is a schedule")
  return value(step)


def bound(term: Term, step: ArrayLike | None, name: str) -> Callable[..., Any]:
  """Binds a term's function to the values of its options at a step."""
  options = {
    option: value if option == "mask" else at_step(value, step, f"{option} of {name}")
    for option, value in term.options.items()
  }
  return functools.partial(term.function, **options)


def _check_weight(weight: Weight) -> None:
  if not callable(weight):
    check_option(weight, "weight", (), low=0)

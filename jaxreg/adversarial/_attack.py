"""An ensemble of attacks without options to tune, which an example must resist one after another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._by_chunks import by_chunks
from jaxreg._checks import check_batched, check_choice, check_count, check_key, check_labels
from jaxreg._errors import ArgumentError
from jaxreg._leaves import wide
from jaxreg._loops import in_one_program
from jaxreg._sharding import entries
from jaxreg.adversarial._apgd import apgd, cross_entropy, like, targeted_dlr
from jaxreg.adversarial._common import Bounds, check_clip, per_example, perturbed
from jaxreg.adversarial._square import square
from jaxreg.typing import Array, Key

METHODS = "apgd_ce", "apgd_dlr", "square"


def attack(
  key: Key,
  logits_fn: Callable[[Array], Array],
  x: ArrayLike,
  labels: ArrayLike,
  *,
  eps: ArrayLike,
  methods: Collection[str] = METHODS,
  norm: Literal["linf", "l2"] = "linf",
  num_steps: int = 100,
  num_targets: int = 9,
  num_queries: int = 5000,
  clip: Bounds = None,
  chunk_size: int | None = None,
) -> Array:
  r"""Moves inputs within a ball to points that the model classifies wrongly, where it finds such points.

  An input that several different attacks cannot move to a wrong answer may be robust. The ensemble is
  AutoAttack without FAB. A method attacks the examples that all methods before it failed to move:

  - `apgd_ce` raises the cross-entropy by Auto-PGD: gradient ascent with momentum. It starts with steps of `2
    eps`, and halves them at checkpoints if the loss rose too rarely;
  - `apgd_dlr` raises the targeted difference-of-logits ratio, once for each of the `num_targets` most
    probable wrong classes. Its gradient does not vanish where the model is too confident:

    .. math:: -\frac{z_y - z_t}{z_{\pi_1} - (z_{\pi_3} + z_{\pi_4}) / 2}

  - `square` needs no gradients: it changes random squares of an image as long as the margin
    :math:`z_y - \max_{k \ne y} z_k` falls.

  Every method stops once it has moved all its examples. So inputs far from robust cost little. A later eager
  call compiles nothing if only the values of arrays or numbers change.

  Args:
    key: for the random starts and squares. Another `chunk_size` draws other numbers.
    logits_fn: `x -> [batch, classes]`, logits or log-probabilities in which examples do not depend on each
      other; it closes over parameters and the key of its noise.
    x: `[batch, ...]`, floating, inside `clip`, if that is given; `[batch, height, width, channels]` for
      `square`.
    labels: `[batch]`, integer.
    eps: radius of the ball, a scalar or `[batch]`, at least 0, in units of `x`.
    methods: some of `apgd_ce`, `apgd_dlr`, which needs at least 4 classes, and `square`, in any order.
    norm: `linf` or `l2`, over all axes of an example.
    num_steps: gradient steps of each run of Auto-PGD; static.
    num_targets: runs of `apgd_dlr`, at most one for each wrong class; static.
    num_queries: calls of the model by `square`; static.
    clip: the least and largest value that an input may have.
    chunk_size: examples attacked at a time; by default all.

  Returns:
    `[batch, ...]` of the dtype of `x`: a point of the ball with a wrong answer, or `x` itself if its answer
    is wrong already or all methods fail.

  Example:
    >>> logits_fn = lambda x: x @ jnp.array([[1.0, -1.0, 0.0, 0.0], [1.0, 1.0, -1.0, 0.0]])
    >>> x, labels = jnp.array([[0.3, 0.4], [3.0, 0.4]]), jnp.array([0, 0])
    >>> moved = attack(jax.random.key(0), logits_fn, x, labels, eps=0.5, methods=("apgd_ce", "apgd_dlr"))
    >>> logits_fn(moved).argmax(-1) == labels  # the second example is robust
    Array([False,  True], dtype=bool)

  References:
    Croce and Hein, `Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free
    Attacks`, 2020.
    Andriushchenko, Croce, Flammarion and Hein, `Square Attack: a Query-efficient Black-box Adversarial Attack
    via Random Search`, 2020.
  """
  key, x = check_key(key), check_batched(x, "x")
  check_clip(clip, x)
  radius = jnp.broadcast_to(per_example(eps, "eps", x).reshape(-1), x.shape[:1])
  check_choice(norm, "norm", ("linf", "l2"))
  for name, count in (("num_steps", num_steps), ("num_targets", num_targets), ("num_queries", num_queries)):
    check_count(count, name)
  if chunk_size is not None:
    check_count(chunk_size, "chunk_size")
  outputs: Any = jax.eval_shape(logits_fn, x)
  shape = outputs.shape
  if len(shape) != 2 or shape[0] != x.shape[0]:
    raise ArgumentError("logits_fn", f"must give [batch, classes] for a batch of {x.shape[0]}, got {shape}")
  _check_methods(methods, x, shape[1])
  truth = check_labels(labels, outputs, "the values of logits_fn")
  fixed = jax.lax.stop_gradient(x)

  def on_chunk(number: Any, part: tuple[Array, ...], shared: tuple[Key, Bounds]) -> tuple[Array, Array]:
    key, clip = shared
    return _resisting(
      jax.random.fold_in(key, number),
      logits_fn,
      *part,
      methods=methods,
      norm=norm,
      num_steps=num_steps,
      num_targets=min(num_targets, shape[1] - 1),
      num_queries=num_queries,
      clip=clip,
    )

  def on_all(data: tuple[Array, ...], shared: tuple[Key, Bounds]) -> tuple[Array, Array]:
    if chunk_size is None or chunk_size >= x.shape[0]:
      return on_chunk(0, data, shared)
    return by_chunks(on_chunk, data, shared, chunk_size)

  delta, success = in_one_program(on_all, (fixed, truth, radius), (key, clip))
  return jnp.where(like(success, x), perturbed(x, jax.lax.stop_gradient(delta), clip), x)


def _check_methods(methods: Collection[str], x: Array, classes: int) -> None:
  if isinstance(methods, str) or not methods:
    raise ArgumentError("methods", f"must be a collection of names of {', '.join(METHODS)}, got {methods!r}")
  for name in methods:
    check_choice(name, "methods", METHODS)
  if "apgd_dlr" in methods and classes < 4:
    raise ArgumentError(
      "methods", f"must not have apgd_dlr, whose loss needs 4 classes, got {classes} classes"
    )
  if "square" in methods and x.ndim != 4:
    problem = f"must not have square unless x is [batch, height, width, channels], got x {x.shape}"
    raise ArgumentError("methods", problem)


def _resisting(
  key: Key,
  logits_fn: Callable[[Array], Array],
  x: Array,
  labels: Array,
  radius: Array,
  *,
  methods: Collection[str],
  norm: Literal["linf", "l2"],
  num_steps: int,
  num_targets: int,
  num_queries: int,
  clip: Bounds,
) -> tuple[Array, Array]:
  """Returns a perturbation for each example, and whether an attack found it."""
  radius = like(radius, x)
  keys: dict[str, Key] = dict(zip(METHODS, jax.random.split(key, len(METHODS)), strict=True))
  clean = jax.lax.stop_gradient(wide(logits_fn(x)))
  # A class with the least logit stays last among the wrong ones; the label itself comes after all of them.
  others = jnp.where(labels[:, None] == jnp.arange(clean.shape[1])[None], -jnp.inf, clean)
  targets = jax.lax.top_k(others, num_targets)[1]
  delta, done = jnp.zeros_like(wide(x)), clean.argmax(axis=-1) != labels
  success = jnp.zeros_like(done)

  def values(loss: Callable[..., Array], *arguments: Array) -> Callable[[Array], tuple[Array, Array]]:
    def at(x: Array) -> tuple[Array, Array]:
      logits = wide(logits_fn(x))
      return loss(logits, labels, *arguments), logits.argmax(axis=-1) != labels

    return at

  ball = {"radius": radius, "norm": norm, "clip": clip}

  def run(name: str, number: Any, done: Array) -> tuple[Array, Array]:
    draw = jax.random.fold_in(keys[name], number)
    if name == "square":
      options = {**ball, "num_queries": num_queries, "done": done}
      return square(draw, values(negative_margin), x, **options)
    target = () if name == "apgd_ce" else (jnp.take(targets, number, axis=1),)
    loss = values(cross_entropy if name == "apgd_ce" else targeted_dlr, *target)
    return apgd(draw, loss, x, **ball, num_steps=num_steps, done=done)

  def attempt(name: str, number: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
    delta, success = state
    moved, wrong = run(name, number, done | success)
    better = wrong & ~done & ~success
    return jnp.where(like(better, x), moved, delta), success | better

  state = delta, success
  for name in dict.fromkeys(methods):
    runs = num_targets if name == "apgd_dlr" else 1
    state = jax.lax.fori_loop(0, runs, functools.partial(attempt, name), state)
  return state


def negative_margin(logits: Array, labels: Array) -> Array:
  """Returns how far the best wrong class lies above the label, `[batch]`."""
  others = jnp.where(labels[:, None] == jnp.arange(logits.shape[1])[None], -jnp.inf, logits)
  return others.max(axis=-1) - entries(logits, labels)[:, 0]

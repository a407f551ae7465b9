"""Should DropMax learn its target's `q(z_t = 1)` instead of fixing it at 1? Appendix A, by enumeration.

The appendix says that `q_t < 1` "causes severe learning instability since reverting `z_t` back to 1 requires
huge gradients". The enumeration shows:

- With the other factors fixed, the exact objective is convex in `q_t`, with one optimum. Its gradient in the
  logit is `sigma'(a) (a - a*)`. This is large in the middle (`a*/4`, up to 12 nats), but no step passes the
  optimum at rates up to 4. It is small exactly where the loss is highest, at `q_t -> 0`: a plateau, then a
  leap. That is slow, not unstable.
- The optimum is 1 up to `eps` only if another class is kept with some probability. If all others are dropped,
  as on memorised data, it is `p(z_t = 1 | x, y, others dropped)`, hardly above `rho_t` on a confident
  example.
- So with all factors learned there can be two optima. From a low `q_t` the other classes are dropped before
  `q_t` recovers, and then it never reaches 1: with `o = (3, 0, 0, 0, 0, 0)` at the equilibrium's `rho`, this
  ends a nat short of the best. With `q_t = 1` fixed, every start tried ended at the best.
- One sampled mask is noisy: its likelihood term has a standard deviation of some `46 sqrt(q_t (1 - q_t))`
  nats, 4.6 at `q_t = 0.99` (`nll_std` of `dropmax_mean_field`).
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_range, check_wide
from jaxreg._labels import is_target_of
from jaxreg.typing import Array
from papers.dropmax._masks import check_scores, finite, fix_target, mask_log_probs, mask_nll
from papers.dropmax._posterior import dropmax_mean_field


def dropmax_optimal_target_logit(
  logits: ArrayLike, retain_logits: ArrayLike, posterior_logits: ArrayLike, labels: ArrayLike
) -> Array:
  r"""Computes the logit of the best `q(z_t = 1)` beside the other factors of a factorised posterior.

  .. math:: a^* = \operatorname{logit} \rho_t + \mathbb{E}_{q_{\setminus t}}
    \bigl[-\log p(y \mid x, z_t = 0, z_{\setminus t}) + \log p(y \mid x, z_t = 1, z_{\setminus t})\bigr]

  If the other classes are kept with some probability, this logit is some 46 times that probability, and
  DropMax's `q_t = 1` is right. If they are dropped, it falls to little above `logit rho_t`.

  Args:
    logits, retain_logits, labels: as in `dropmax_mean_field`.
    posterior_logits: logits of `g`, same shape; the target's entry is ignored.

  Returns:
    `[...]`, float32 or wider.

  Raises:
    TypeError, ValueError: as `dropmax_mean_field`.

  Example:
    >>> o, rho, label = jnp.zeros(10), jnp.zeros(10), jnp.array(0)
    >>> for other in (0.0, -10.0):
    ...   print(dropmax_optimal_target_logit(o, rho, jnp.full(10, other), label).round(1))
    45.7
    2.3

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix A, which lets it be infinite.
  """
  logits, prior, labels = check_scores(logits, retain_logits, labels)
  q_logits = finite(check_wide(posterior_logits, "posterior_logits", shape=logits.shape))
  log_others = mask_log_probs(fix_target(q_logits, labels, "kept"))
  is_target = is_target_of(labels, logits)
  # For each mask that keeps the target: the likelihood of the same mask without the target's bit.
  bit = 1 << labels[..., None]
  nll = mask_nll(logits, labels)
  number = jnp.arange(nll.shape[-1])[(None,) * labels.ndim]
  dropped = jnp.take_along_axis(nll, number & ~bit, axis=-1)
  gain = (jnp.exp(log_others) * (dropped - nll)).sum(axis=-1)
  return jnp.where(is_target, prior, 0).sum(axis=-1) + gain


def dropmax_learn_posterior(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  posterior_logits: ArrayLike,
  labels: ArrayLike,
  *,
  learn: Literal["target", "others", "all"] = "all",
  learning_rate: ArrayLike = 1.0,
  num_steps: int = 100,
) -> dict[str, Array]:
  r"""Runs gradient descent on a factorised posterior's logits in the exact objective.

  .. math:: a \leftarrow a - \eta \frac{\partial}{\partial a} \mathrm{KL}(q_a \,\|\, p(z \mid x, y))

  Args:
    logits: `o`, `[..., classes]`, floating, at most 16 classes.
    retain_logits: logits of the prior `rho`, same shape.
    posterior_logits: start, same shape.
    labels: `[...]`, integer.
    learn: `"target"` moves only the target's logit; `"others"` fixes it at infinity and moves the others, as
      DropMax does; `"all"` moves both.
    learning_rate: `eta`.
    num_steps: number of steps.

  Returns:
    From before the first step to after the last: `posterior_logits` and `gradient`,
    `[num_steps + 1, ..., classes]`, and `gap`, `[num_steps + 1, ...]`, in nats.

  Raises:
    TypeError: if the logits are not floating or `labels` not integer.
    ValueError: if shapes differ, there are more than 16 classes, or an option is out of range.

  Example:
    >>> from papers.dropmax import dropmax_equilibrium
    >>> o, start = jnp.array([3.0, 0, 0, 0, 0, 0]), jnp.array([-7.0, 0, 0, 0, 0, 0])
    >>> rho, label = dropmax_equilibrium(jnp.full(6, -jnp.inf), jnp.array(0)), jnp.array(0)
    >>> for learn in ("all", "others"):
    ...   print(dropmax_learn_posterior(o, rho, start, label, learn=learn, num_steps=500)["gap"][-1].round(2))
    1.04
    0.07

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix A.
  """
  logits, prior, labels = check_scores(logits, retain_logits, labels)
  first = finite(check_wide(posterior_logits, "posterior_logits", shape=logits.shape))
  if learn not in ("target", "others", "all"):
    raise ValueError(f"learn must be 'target', 'others' or 'all', got {learn!r}")
  check_range(learning_rate, "learning_rate", low=0)
  check_count(num_steps, "num_steps")
  is_target = is_target_of(labels, logits)
  moves = {"target": is_target, "others": ~is_target, "all": jnp.full_like(is_target, True)}[learn]
  if learn == "others":
    first = fix_target(first, labels, "kept")

  def gap(q):
    each = dropmax_mean_field(logits, prior, q, labels)["gap"]
    return each.sum(), each

  def step(q, _):
    slope, each = jax.grad(gap, has_aux=True)(q)
    slope = jnp.where(moves, slope, 0)
    after = (q - learning_rate * slope).astype(q.dtype)
    return after, {"posterior_logits": q, "gradient": slope, "gap": each}

  return jax.lax.scan(step, first, length=num_steps + 1)[1]

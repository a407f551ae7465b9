"""Knowledge distillation: a student learns a trained teacher's probabilities of all classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option, per_class
from jaxreg._divergence import kl_divergence
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where()
def distillation(
  logits: ArrayLike,
  teacher_logits: ArrayLike,
  *,
  temperature: ArrayLike = 4.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the divergence of a student from its teacher at a temperature, times the temperature squared.

  .. math:: \ell = T^2 \, \mathrm{KL}(p \| q), \qquad
    p = \operatorname{softmax}(v / T), \quad q = \operatorname{softmax}(z / T)

  The gradient in `z` is `T (q - p)`. Without the factor it would fall as `1 / T**2`, and the balance with
  the loss on the labels would depend on the temperature. At high temperatures the term is half the variance
  over the classes of `z - v`. The paper's objective mixes the term with the labels' loss:
  `(1 - a) * softmax_cross_entropy(logits, labels) + a * distillation(logits, teacher_logits)`. At
  temperature 1 the term is `softmax_cross_entropy` for the soft labels `p` minus their entropy.

  Args:
    logits: the student's logits `z`, `[..., classes]`, floating; log-probabilities work too.
    teacher_logits: the teacher's logits `v`, same shape; the teacher gets no gradient.
    temperature: `T` in (0, 1e18], a scalar or `[...]`; the paper uses 1 to 20, lower ones for small students.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> distillation(jnp.zeros((1, 2)), jnp.array([[2 * jnp.log(3.0), 0.0]]), temperature=2.0).round(4)
    Array([0.5232], dtype=float32)

  References:
    Hinton, Vinyals and Dean, `Distilling the Knowledge in a Neural Network`, 2015, section 2.
  """
  logits = check_logits(logits, "logits")
  teacher = jax.lax.stop_gradient(check_logits(teacher_logits, "teacher_logits", shape=logits.shape))
  check_option(temperature, "temperature", logits.shape[:-1], low=0, high=1e18, open_low=True)
  t = per_class(temperature, logits.dtype)
  return jnp.asarray(temperature, logits.dtype) ** 2 * kl_divergence(teacher, logits, t)

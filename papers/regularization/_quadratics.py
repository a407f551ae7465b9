"""The lectures' figures that need no training: the data by closed forms, two weights each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks._records import Found
from papers import regularization
from papers.regularization import plots


def penalties(found: Found) -> Figure:
  """L2 shrinks both weights, L1 sets the one of little curvature to zero."""
  curvatures, w_star, alpha = jnp.array([1.0, 5.0]), jnp.array([1.0, 1.5]), 1.2
  strengths = jnp.linspace(0, alpha, 61)
  l2 = jax.vmap(lambda a: regularization.l2_solution(jnp.diag(curvatures), w_star, alpha=a))(strengths)
  l1 = jax.vmap(lambda a: regularization.l1_solution(w_star, curvatures, alpha=a))(strengths)
  for name, path in (("L2", l2), ("L1", l1)):
    for number, weight in enumerate(path[-1], start=1):
      found.add(name, f"weight {number}", weight)
  panels: Any = {f"L2, alpha = {alpha}": (2, l2), f"L1, alpha = {alpha}": (1, l1)}
  title = "A quadratic loss of two weights with curvatures 1 and 5"
  return plots.penalty_contours(jnp.diag(curvatures), w_star, panels, title=title)


def early_stopping(found: Found) -> Figure:
  """Stopping after tau steps beside the penalty 1 / (tau epsilon)."""
  learning_rate, w_star = 0.02, jnp.array([2.0, 1.2])
  eigvals, vectors = jnp.array([0.3, 3.0]), _rotation(-0.25)
  hessian = _matrix(eigvals, vectors)
  steps = jnp.unique(jnp.geomspace(1, 3000, 120).round())
  alphas = jax.vmap(lambda t: regularization.early_stopping_alpha(learning_rate=learning_rate, steps=t))(
    steps
  )
  reached = jax.vmap(lambda t: regularization.gd_filter(eigvals, learning_rate=learning_rate, steps=t))(steps)
  descent = (reached * (vectors.T @ w_star)[None]) @ vectors.T
  ridge = jax.vmap(lambda a: regularization.l2_solution(hessian, w_star, alpha=a))(alphas)
  apart = np.linalg.norm(descent - ridge, axis=-1)
  nearest = np.linalg.norm(descent[:, None] - ridge[None], axis=-1).min(axis=1)
  length = float(jnp.linalg.norm(w_star))
  found.add("paths", "length of w*", length)
  found.add("paths", "largest distance of matched points", apart.max())
  found.add("paths", "largest distance of descent from the path of the penalties", nearest.max(), 3)
  ratios, long = jnp.geomspace(0.01, 100, 200), 200
  alpha = regularization.early_stopping_alpha(learning_rate=learning_rate, steps=long)
  # Only where descent converges: epsilon lambda below 2.
  kept = {
    f"gradient descent, {long} steps": regularization.gd_filter(
      ratios * alpha, learning_rate=learning_rate, steps=long
    ),
    "L2 penalty": regularization.l2_shrinkage(ratios * alpha, alpha=alpha),
  }
  stopped, penalised = kept.values()
  for at in (0.01, 0.1, 1.0, 10.0):
    place = int(jnp.argmin(jnp.abs(jnp.log(ratios / at))))
    found.add("stopping", f"kept at {at:g} penalties", stopped[place], 4)
    found.add("L2", f"kept at {at:g} penalties", penalised[place], 4)
  gap = stopped - penalised
  found.add("stopping less L2", "largest gap", gap.max(), 3)
  found.add("stopping less L2", "penalties at the largest gap", ratios[gap.argmax()], 1)
  title = f"A quadratic loss of two weights with curvatures 0.3 and 3, learning rate {learning_rate:g}"
  return plots.stopping_path(hessian, w_star, descent, ridge, ratios, kept, title=title)


def ellipses(found: Found) -> Figure:
  """Component i of the minimum is multiplied by lambda_i / (lambda_i + alpha)."""
  eigvals, vectors = jnp.array([0.5, 4.0]), _rotation(0.5)
  hessian = _matrix(eigvals, vectors)
  angle = jnp.linspace(0, 2 * jnp.pi, 241)
  circle = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
  panels = {}
  for alpha in (0.1, 1.0, 4.0):
    after = jax.vmap(lambda w, a=alpha: regularization.l2_solution(hessian, w, alpha=a))(circle)
    factors = regularization.l2_shrinkage(eigvals, alpha=alpha)
    free = regularization.effective_dof(eigvals, alpha=alpha)
    for eigval, factor in zip(eigvals, factors):
      found.add(f"penalty {alpha:g}", f"share at eigenvalue {eigval:g}", factor)
    found.add(f"penalty {alpha:g}", "degrees of freedom", free)
    panels[f"alpha = {alpha:g}\n{free:.2f} degrees of freedom"] = (after, factors)
  title = "A quadratic loss of two weights with curvatures 0.5 and 4, its minimum on the unit circle"
  return plots.ellipses(circle, vectors, panels, title=title)


def _rotation(angle: float) -> jax.Array:
  """Eigenvectors as columns."""
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  return jnp.array([[cos, -sin], [sin, cos]])


def _matrix(eigvals: jax.Array, vectors: jax.Array) -> jax.Array:
  return (vectors * eigvals[None]) @ vectors.T

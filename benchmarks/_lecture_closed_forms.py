"""The lectures' figures that need no training: the data by closed forms, two weights each."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxreg import plots, theory


def penalties() -> Figure:
  """L2 shrinks both weights, L1 sets the one of little curvature to zero."""
  curvatures, w_star, alpha = jnp.array([1.0, 5.0]), jnp.array([1.0, 1.5]), 1.2
  strengths = jnp.linspace(0, alpha, 61)
  l2 = jax.vmap(lambda a: theory.l2_solution(jnp.diag(curvatures), w_star, alpha=a))(strengths)
  l1 = jax.vmap(lambda a: theory.l1_solution(w_star, curvatures, alpha=a))(strengths)
  print(f"curvatures {curvatures}, w* {w_star}, alpha {alpha}: L2 {l2[-1]}, L1 {l1[-1]}")
  panels = {f"L2, alpha = {alpha}": (2, l2), f"L1, alpha = {alpha}": (1, l1)}
  return plots.penalty_contours(jnp.diag(curvatures), w_star, panels)


def early_stopping() -> Figure:
  """Stopping after tau steps beside the penalty 1 / (tau epsilon)."""
  learning_rate, w_star = 0.02, jnp.array([2.0, 1.2])
  eigvals, vectors = jnp.array([0.3, 3.0]), _rotation(-0.25)
  hessian = _matrix(eigvals, vectors)
  steps = jnp.unique(jnp.geomspace(1, 3000, 120).round())
  alphas = jax.vmap(lambda t: theory.early_stopping_alpha(learning_rate=learning_rate, steps=t))(steps)
  reached = jax.vmap(lambda t: theory.gd_filter(eigvals, learning_rate=learning_rate, steps=t))(steps)
  descent = (reached * (vectors.T @ w_star)[None]) @ vectors.T
  ridge = jax.vmap(lambda a: theory.l2_solution(hessian, w_star, alpha=a))(alphas)
  apart = np.linalg.norm(descent - ridge, axis=-1)
  nearest = np.linalg.norm(descent[:, None] - ridge[None], axis=-1).min(axis=1)
  length = float(jnp.linalg.norm(w_star))
  print(
    f"|w*| {length:.3f}; matched points at most {apart.max():.3f} apart, and the path of descent at most "
    f"{nearest.max():.3f} from the path of the penalties"
  )
  ratios, long = jnp.geomspace(0.01, 100, 200), 200
  alpha = theory.early_stopping_alpha(learning_rate=learning_rate, steps=long)
  # Only where descent converges: epsilon lambda below 2.
  kept = {
    f"gradient descent, {long} steps": theory.gd_filter(
      ratios * alpha, learning_rate=learning_rate, steps=long
    ),
    "L2 penalty": theory.l2_shrinkage(ratios * alpha, alpha=alpha),
  }
  stopped, penalised = kept.values()
  for at in (0.01, 0.1, 1.0, 10.0):
    place = int(jnp.argmin(jnp.abs(jnp.log(ratios / at))))
    print(f"lambda / alpha {ratios[place]:.3f}: {stopped[place]:.4f} stopped, {penalised[place]:.4f} with L2")
  gap = stopped - penalised
  print(f"largest gap {gap.max():.3f}, at lambda / alpha {ratios[gap.argmax()]:.2f}")
  return plots.stopping_path(hessian, w_star, descent, ridge, ratios, kept)


def ellipses() -> Figure:
  """Component i of the minimum is multiplied by lambda_i / (lambda_i + alpha)."""
  eigvals, vectors = jnp.array([0.5, 4.0]), _rotation(0.5)
  hessian = _matrix(eigvals, vectors)
  angle = jnp.linspace(0, 2 * jnp.pi, 241)
  circle = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
  panels = {}
  for alpha in (0.1, 1.0, 4.0):
    after = jax.vmap(lambda w, a=alpha: theory.l2_solution(hessian, w, alpha=a))(circle)
    factors = theory.l2_shrinkage(eigvals, alpha=alpha)
    lengths = jnp.linalg.norm(after, axis=-1)
    free = theory.effective_dof(eigvals, alpha=alpha)
    print(
      f"alpha {alpha}: factors {factors}, half-axes of the ellipse {lengths.min():.4f} and "
      f"{lengths.max():.4f}, {free:.2f} of 2 degrees of freedom"
    )
    panels[f"alpha = {alpha:g}: {free:.2f} degrees of freedom"] = (after, factors)
  return plots.ellipses(circle, vectors, panels)


def _rotation(angle: float) -> jax.Array:
  """Eigenvectors as columns."""
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  return jnp.array([[cos, -sin], [sin, cos]])


def _matrix(eigvals: jax.Array, vectors: jax.Array) -> jax.Array:
  return (vectors * eigvals[None]) @ vectors.T

"""The geometry of SGD: steps in different norms and coordinates, stationary points, widths."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks._records import Found
from jaxreg import optim
from papers.adaptive_sgd import plots
from papers.adaptive_sgd._hessian_index import hessian_index


def update(tx: optax.GradientTransformation, gradient: Any) -> np.ndarray:
  return np.asarray(tx.update(gradient, tx.init(gradient), gradient)[0])


def balls(gradient: np.ndarray, metric: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """The edge of each unit ball and the step of length 1 in it."""
  angles = np.linspace(0, 2 * np.pi, 721)
  circle = np.stack([np.cos(angles), np.sin(angles)], 1)
  found = {}
  p_norm = lambda p: lambda v: (np.abs(v) ** p).sum(-1) ** (1 / p)
  ends = {
    "1-norm": (p_norm(1.0), optim.trust_region(1.0, norm="l1")),
    "1.5-norm": (p_norm(1.5), optim.p_norm_sgd(1.0, p=1.5)),
    "2-norm": (p_norm(2.0), optim.p_norm_sgd(1.0, p=2.0)),
    "4-norm": (p_norm(4.0), optim.p_norm_sgd(1.0, p=4.0)),
    "largest entry": (lambda v: np.abs(v).max(-1), optim.trust_region(1.0, norm="linf")),
    "Mahalanobis": (
      lambda v: np.sqrt(np.einsum("...i,ij,...j->...", v, metric, v)),
      optim.mahalanobis(1.0, dense=metric),
    ),
  }
  for name, (norm, tx) in ends.items():
    step = update(tx, gradient)
    found[name] = circle / norm(circle)[:, None], step / norm(step)
  return found


def coordinates(hessian: np.ndarray, a: np.ndarray, start: np.ndarray, rate: float, steps: int) -> dict:
  """Paths of gradient descent in x and in y, each in both coordinates."""

  def descend(tx: optax.GradientTransformation) -> np.ndarray:
    x, path = jnp.asarray(start), [start]
    state = tx.init(x)
    for _ in range(steps):
      updates, state = tx.update(hessian @ x, state, x)
      x = optax.apply_updates(x, updates)
      path.append(np.asarray(x))
    return np.stack(path)

  sgd = optax.sgd(rate)
  in_x = {"descent in x": descend(sgd), "descent in y": descend(optim.reparameterize(sgd, a))}
  return {"x": in_x, "y": {name: np.linalg.solve(a, path.T).T for name, path in in_x.items()}}


def tanh_net(flat: jax.Array, x: jax.Array, hidden: int) -> jax.Array:
  """Inputs to one output through one hidden layer; all parameters in one vector."""
  n = x.shape[1]
  first, bias, last = jnp.split(flat, [n * hidden, (n + 1) * hidden])
  return jnp.tanh(x @ first.reshape(n, hidden) + bias[None]) @ last


def stationary(seed: int, *, starts: int, hidden: int, iterations: int) -> tuple[np.ndarray, np.ndarray]:
  """Losses and indices of stationary points, by damped Newton steps on the squared gradient.

  The starts have losses of every size: some are random, others have descended for a while, a few for long.
  """
  rng = np.random.default_rng(seed)
  x, y = jnp.asarray(rng.normal(size=(40, 4))), jnp.asarray(rng.normal(size=40))
  loss = lambda w: 0.5 * jnp.mean(jnp.square(tanh_net(w, x, hidden) - y)) + 5e-4 * jnp.sum(w**2)
  gradient, hessian = jax.grad(loss), jax.hessian(loss)

  def find(w: jax.Array, descents: jax.Array) -> tuple[jax.Array, ...]:
    w = jax.lax.fori_loop(0, 4000, lambda i, w: jnp.where(i < descents, w - 0.3 * gradient(w), w), w)

    def step(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
      # Levenberg and Marquardt's damping: less of it after a step that made the gradient smaller.
      w, damping = carry
      g, h = gradient(w), hessian(w)
      new = w - jnp.linalg.solve(h @ h + damping * jnp.eye(w.size), h @ g)
      better = jnp.sum(gradient(new) ** 2) < jnp.sum(g**2)
      return jnp.where(better, new, w), jnp.clip(damping * jnp.where(better, 0.3, 4.0), 1e-14, 1e4)

    w, _ = jax.lax.fori_loop(0, iterations, step, (w, jnp.asarray(1e-2)))
    index = hessian_index(lambda w, batch, *, key: loss(w), w, None, tol=1e-7)  # pyright: ignore
    return loss(w), index.negative, jnp.linalg.norm(gradient(w))

  size = 6 * hidden
  w = jnp.asarray(rng.normal(size=(starts, size)) * np.exp(rng.uniform(-2, 0.7, (starts, 1))))
  descents = jnp.asarray(np.round(4000 * rng.uniform(size=starts) ** 3), jnp.int32)
  losses, indices, gradients = (np.asarray(v) for v in jax.jit(jax.vmap(find))(w, descents))
  found = gradients < 1e-8
  return losses[found], indices[found]


def small_index_fit(
  losses: np.ndarray, indices: np.ndarray, power: float, *, most: float
) -> tuple[float, float, float]:
  """The `a`, the `c` and the root mean square error of `index = a (loss / c - 1)^power` above the loss `c`.

  Least squares over the points with an index of at most `most`: `c` from a grid, `a` in closed form.
  """
  small = indices <= most
  x, y = losses[small], indices[small]
  best = (0.0, 0.0, np.inf)
  for c in np.linspace(x.min(), np.quantile(x, 0.9), 400):
    basis = np.maximum(x / c - 1, 0) ** power
    a = float(basis @ y / max(basis @ basis, 1e-300))
    error = float(np.sqrt(np.mean((a * basis - y) ** 2)))
    best = min(best, (a, float(c), error), key=lambda found: found[2])
  return best


def widths(seed: int, *, sizes: tuple[int, ...], trials: int, steps: int) -> tuple[dict, dict]:
  """Training losses and errors at the end of many trials, by the width of the hidden layer."""
  rng = np.random.default_rng(seed)
  turn = np.linspace(0.2, 1, 60)[:, None]
  arm = turn * np.concatenate([np.cos(10 * turn), np.sin(10 * turn)], 1)
  x = jnp.asarray(np.concatenate([arm, -arm]) + 0.02 * rng.normal(size=(120, 2)), jnp.float32) * 2
  y = jnp.asarray(np.repeat([1.0, -1.0], 60), jnp.float32)
  losses, errors = {}, {}
  for hidden in sizes:
    outputs = lambda w, hidden=hidden: w[-1] + tanh_net(w[:-1], x, hidden)
    loss = lambda w, outputs=outputs: jnp.mean(jax.nn.softplus(-y * outputs(w)))
    tx = optim.exact_adam(optax.cosine_decay_schedule(0.05, steps), b2=0.99)

    def train(w: Any, loss=loss, outputs=outputs, tx=tx) -> tuple[jax.Array, jax.Array]:
      def step(carry, _):
        w, state = carry
        updates, state = tx.update(jax.grad(loss)(w), state, w)
        return (optax.apply_updates(w, updates), state), None

      (w, _), _ = jax.lax.scan(step, (w, tx.init(w)), length=steps)
      return loss(w), jnp.mean(y * outputs(w) <= 0)

    starts = jnp.asarray(rng.normal(size=(trials, 4 * hidden + 1)), jnp.float32)
    label = f"{hidden} unit" + "s" * (hidden > 1)
    losses[label], errors[label] = (np.asarray(v) for v in jax.jit(jax.vmap(train))(starts))
  return losses, errors


def draw_balls(found: Found):
  del found
  gradient = np.array([-1.0, -0.45])
  metric = np.array([[2.2, -1.1], [-1.1, 1.2]])
  return plots.unit_balls(
    balls(gradient, metric), gradient, title="Steepest descent in different norms, gradient (-1, -0.45)"
  )


def draw_coordinates(found: Found):
  del found
  hessian = np.array([[1.0, 0.6], [0.6, 0.5]])
  values, vectors = np.linalg.eigh(hessian)
  a = vectors / values**0.4 @ vectors.T  # nearly round
  paths = coordinates(hessian, a, np.array([-1.8, 1.7]), 0.6, 25)
  planes = {}
  for name, of, reach in (("x", hessian, 2.4), ("y", a.T @ hessian @ a, 1.3)):
    axis = np.linspace(-reach, reach, 121)
    points = np.stack(np.meshgrid(axis, axis), -1)
    values = 0.5 * np.einsum("...i,ij,...j->...", points, of, points)
    title = "f(x)" if name == "x" else "g(y) = f(Ay)"
    planes[title] = axis, axis, values, paths[name]
  labels = {"f(x)": ("x₁", "x₂"), "g(y) = f(Ay)": ("y₁", "y₂")}
  return plots.descent_paths(
    planes,
    labels=labels,
    title="25 steps of gradient descent on a quadratic of two weights, before and after x = Ay",
  )


def draw_index(found: Found):
  with jax.enable_x64(True):
    losses, indices = stationary(0, starts=800, hidden=4, iterations=300)
  found.add("stationary points", "number", losses.size, 0)
  found.add("stationary points", "correlation", np.corrcoef(losses, indices)[0, 1])
  fits = {}
  for power, name in ((1.5, "3/2"), (1.0, "1")):
    a, c, error = small_index_fit(losses, indices, power, most=0.15)
    for quantity, value, digits in (("a", a, 3), ("c", c, 3), ("root mean square error", error, 4)):
      found.add(f"power {name}", quantity, value, digits)
    at = np.linspace(losses.min(), losses[indices <= 0.15].max(), 200)
    fits[f"power {name}, fitted up to 0.15"] = at, a * np.maximum(at / c - 1, 0) ** power
  return plots.stationary_points(
    losses,
    indices,
    fits=fits,
    title=f"{losses.size} stationary points of a 4-4-1 network on 40 random examples",
  )


def draw_widths(found: Found):
  losses, errors = widths(0, sizes=(2, 4, 6, 8, 12, 32), trials=200, steps=1500)
  for label in losses:
    found.add(label, "training loss", losses[label], 5)
    found.add(label, "trials without an error, %", 100 * np.mean(errors[label] == 0), 0)
  return plots.final_losses(
    losses, errors, title="Networks 2-N-1 on two spirals of 120 points, 200 trials of each width"
  )

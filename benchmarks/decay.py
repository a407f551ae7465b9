"""The norm of a scale-invariant kernel under each kind of weight decay, beside the closed forms.

    python benchmarks/decay.py

A kernel of 400 weights takes steps of length 1 times the learning rate along random gradients of a function
that does not depend on its norm. The learning rate falls to a tenth after the first quarter. It writes the
record `decay`, which `python -m benchmarks --render` draws. A minute on 2 cores.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from _records import Found  # noqa: E402

from jaxreg import optim  # noqa: E402

SIZE, STEPS, FALLS, EVERY = 400, 4000, 1000, 20
PEAK, RATE, GRADIENT = 0.1, 0.5, 3.0


def learning_rate(step):
  return jnp.where(step < FALLS, PEAK, PEAK / 10)


def predicted(kind: str, eta: float) -> float:
  """The closed form of the fixed point for steps of length `eta`, as in `docs/guides/decay.md`."""
  if kind == "fixed_norm":
    return 1.0
  if kind == "coupled":
    return (eta * GRADIENT / (2 * RATE)) ** (1 / 3)
  if kind == "cautious":
    entry = 2 / np.pi  # E|w| E|u| of normal entries with standard deviation 1
    return eta * (entry + np.sqrt(entry**2 + 4 * (1 / (eta * RATE) - 0.5))) / (2 - eta * RATE)
  shrink = {"decoupled": eta * RATE, "independent": PEAK * RATE, "corrected": eta**2 / PEAK * RATE}[kind]
  return eta / np.sqrt(shrink * (2 - shrink))


def norms(kind: str) -> np.ndarray:
  """The norms after each step, from a kernel of norm 1."""
  rate = {"independent": PEAK * RATE, "fixed_norm": 1.0}.get(kind, RATE)
  step_by = optim.trust_region(learning_rate, blocks="leaf")
  tx = optim.decay(step_by, learning_rate, rate=rate, kind=kind, peak=PEAK)

  def step(carry, key):
    params, state = carry
    w = params["kernel"]
    across = jax.random.normal(key, (SIZE,))
    across = across - (across @ w) * w / (w @ w)
    gradient = GRADIENT / jnp.linalg.norm(w) * across / jnp.linalg.norm(across)
    updates, state = tx.update({"kernel": gradient}, state, params)
    params = optax.apply_updates(params, updates)
    return (params, state), jnp.linalg.norm(params["kernel"])

  w = jax.random.normal(jax.random.key(0), (SIZE,))
  params = {"kernel": w / jnp.linalg.norm(w)}
  keys = jax.random.split(jax.random.key(1), STEPS)
  return np.asarray(jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), keys))(params)[1])


def main() -> None:
  found = Found()
  for kind in ("coupled", "decoupled", "independent", "cautious", "corrected", "fixed_norm"):
    values = norms(kind)
    for name, eta, end in (("peak", PEAK, FALLS), ("a tenth", PEAK / 10, STEPS)):
      found.add(kind, f"norm at {name}", values[end - 100 : end].mean(), 3)
      found.add(kind, f"closed form at {name}", predicted(kind, eta), 3)
    found.rows[kind]["norms"] = np.float64(values[::EVERY]).round(5).tolist()
  found.write("decay", "python benchmarks/decay.py")


if __name__ == "__main__":
  main()

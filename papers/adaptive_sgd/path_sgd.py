"""What Path-SGD adds to a step of SGD: its time over SGD's, timed alternately in one process.

    python -m papers.adaptive_sgd.path_sgd [--rounds 15]

Gradient of the softmax loss and update, MLP 784-1024-1024-10; of the whole step, and of the update alone. The
metric costs one pass at a batch of 1 and one look at each weight, so that its share falls with the batch.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks._steps import alternate, median_and_quartiles
from jaxreg import optim

WIDTHS = (784, 1024, 1024, 10)
BATCHES = (32, 128, 512)


def make_params() -> dict[str, dict[str, jax.Array]]:
  rng = np.random.default_rng(0)
  return {
    f"Dense_{i}": {
      "kernel": jnp.asarray(rng.normal(size=(n, m)) * np.sqrt(2 / n), jnp.float32),
      "bias": jnp.zeros(m),
    }
    for i, (n, m) in enumerate(itertools.pairwise(WIDTHS))
  }


def apply(params: dict, x: jax.Array) -> jax.Array:
  for i in range(len(params)):
    x = x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"]
    x = jax.nn.relu(x) if i < len(params) - 1 else x
  return x


def make_steps(tx: optax.GradientTransformation, batch_size: int) -> Callable[[int], float]:
  """`run(n)`, which trains `n` steps and returns the seconds of one; the first call compiles."""
  rng = np.random.default_rng(1)
  x = jnp.asarray(rng.random((batch_size, WIDTHS[0])), jnp.float32)
  labels = jnp.asarray(rng.integers(0, WIDTHS[-1], batch_size))
  loss = lambda params: optax.softmax_cross_entropy_with_integer_labels(apply(params, x), labels).mean()

  def step(params, state):
    value, grads = jax.value_and_grad(loss)(params)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  compiled = jax.jit(step, donate_argnums=(0, 1))
  params = make_params()
  state = tx.init(params)

  def run(number: int) -> float:
    nonlocal params, state
    began = time.perf_counter()
    for _ in range(number):
      params, state, value = compiled(params, state)
      value.block_until_ready()
    jax.block_until_ready(params)
    return (time.perf_counter() - began) / number

  return run


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--rounds", type=int, default=15)
  rounds = parser.parse_args().rounds
  if rounds < 2:
    parser.error(f"--rounds: must be at least 2, got {rounds}")
  results = {}
  print("| batch | SGD, ms | Path-SGD, ms | ratio (median, quartiles) |\n|---|---|---|---|")
  for batch_size in BATCHES:
    # The same small steps, so that both stay where gradients are ordinary.
    runs = {
      "SGD": make_steps(optax.sgd(1e-6), batch_size),
      "Path-SGD": make_steps(optim.path_sgd(1e-6, apply_fn=apply, input_shape=(WIDTHS[0],)), batch_size),
    }
    times = alternate(runs, rounds=rounds, seconds=0.5)
    ratios = [path / sgd for sgd, path in zip(*times.values(), strict=True)]
    medians = {name: 1e3 * median_and_quartiles(values)[0] for name, values in times.items()}
    ratio, low, high = median_and_quartiles(ratios)
    print(
      f"| {batch_size} | {medians['SGD']:.1f} | {medians['Path-SGD']:.1f} "
      f"| {ratio:.3f} ({low:.3f} to {high:.3f}) |",
      flush=True,
    )
    results[batch_size] = {"ms": medians, "ratios": ratios}
  print(json.dumps(results))


if __name__ == "__main__":
  main()

"""Shared by the figures of trained networks: data, networks as plain arrays, Adam on several seeds."""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks._records import Found
from jaxreg import losses, noise
from jaxreg.train import RunError
from jaxreg.train.data import sources
from jaxreg.train.data.subsets import Subset
from jaxreg.train.errors import ArgumentError
from papers._command import one_line_errors

Layers = dict[str, dict[str, jax.Array]]
LossFn = Callable[..., jax.Array]
OUT = Path(__file__).resolve().parent.parent / "docs/figures"


@one_line_errors()
def draw(doc: str | None, source: str, figures: dict[str, Callable], on_mnist: dict[str, Callable]) -> None:
  """Draws the figure that the command line names, or all, and writes the numbers found on the way.

  A function of `figures` is `(Found) -> Figure`, one of `on_mnist` is `(Found, folder) -> Figure`.
  """
  parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
  parser.add_argument("name", choices=[*figures, *on_mnist, "all"])
  parser.add_argument("--data", default="data/mnist", help="folder of the four idx files of MNIST")
  parser.add_argument("--out", type=Path, default=OUT)
  arguments = parser.parse_args()
  arguments.out.mkdir(parents=True, exist_ok=True)
  for name in [*figures, *on_mnist] if arguments.name == "all" else [arguments.name]:
    began, cpu = time.perf_counter(), time.process_time()
    print(f"{name}:", flush=True)
    found, command = Found(), f"python -m papers.{source}.figures {name}"
    figure = figures[name](found) if name in figures else on_mnist[name](found, arguments.data)
    if found.rows:
      found.write(f"{source}_{name}", command + " --data DIR" * (name in on_mnist))
    file = arguments.out / f"{source}_{name}.png"
    figure.savefig(file, dpi=100)
    spent = f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of processors"
    print(f"{file} ({spent})", flush=True)


def mnist(folder: str, *, num_train: int = 0) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
  """Training and test images as `[n, 784]` in [0, 1], with their labels."""
  try:
    data = sources.idx(path=folder, subset=Subset(num_train=num_train))
  except ArgumentError as error:
    raise RunError(f"--data: {error.problem}") from error
  return _examples(data.train), _examples(data.test)


def _examples(split: Any) -> dict[str, jax.Array]:
  images = split.inputs.reshape(len(split), -1).astype(np.float32) / 255
  return {"inputs": jnp.asarray(images), "labels": jnp.asarray(split.labels)}


def digits() -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
  """Training and validation images as `[n, 64]` in [0, 1]."""
  data = sources.digits()
  scaled = lambda one: {**one, "inputs": one["inputs"] * 255 / data.scale}
  return scaled(_examples(data.train)), scaled(_examples(data.val))


def init(key: jax.Array, sizes: tuple[int, ...], *, gain: float = 2.0, bias: float = 0.0) -> Layers:
  """Layers of these widths, by He's initialisation; `gain` is 1 for layers without a rectifier."""
  layers = {}
  for number, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
    key, subkey = jax.random.split(key)
    kernel = jax.random.normal(subkey, (fan_in, fan_out)) * np.sqrt(gain / fan_in)
    layers[f"Dense_{number}"] = {"kernel": kernel, "bias": jnp.full(fan_out, bias)}
  return layers


def dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
  return x @ layer["kernel"] + layer["bias"][None]


def train(
  loss_fn: LossFn,
  params: Any,
  examples: dict[str, jax.Array],
  *,
  key: jax.Array,
  steps: int,
  chunk: int,
  batch_size: int = 100,
  learning_rate: float = 1e-3,
  name: str,
) -> Iterator[tuple[int, Any]]:
  """Yields the number of steps and the parameters `[runs, ...]` after every `chunk` steps.

  Each run draws batches and noise of its own; the learning rate falls to 0 along a cosine.
  """
  optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
  runs = len(jax.tree.leaves(params)[0])
  size = len(jax.tree.leaves(examples)[0])

  def step(state: Any, keys: jax.Array) -> tuple[Any, jax.Array]:
    params, moments = state
    drawn, noise = jax.random.split(keys)
    index = jax.random.randint(drawn, (batch_size,), 0, size)
    batch = jax.tree.map(lambda x: x[index], examples)
    loss, gradients = jax.value_and_grad(loss_fn)(params, batch, key=noise)
    updates, moments = optimizer.update(gradients, moments)
    return (optax.apply_updates(params, updates), moments), loss

  @jax.jit
  def some(state: Any, keys: jax.Array) -> tuple[Any, jax.Array]:
    of_one = lambda state, key: jax.lax.scan(step, state, jax.random.split(key, chunk))
    state, losses = jax.vmap(of_one)(state, keys)
    return state, losses.mean(axis=1)

  state = params, jax.vmap(optimizer.init)(params)
  for done in range(chunk, steps + 1, chunk):
    key, subkey = jax.random.split(key)
    state, losses = some(state, jax.random.split(subkey, runs))
    if done % (max(1, steps // chunk // 4) * chunk) == 0:
      print(f"  {name}, step {done} of {steps}: loss {losses.mean():.4f}", flush=True)
    yield done, state[0]


def last(trained: Iterator[tuple[int, Any]]) -> Any:
  """The parameters after all steps."""
  *_, (_, params) = trained
  return params


def run(params: Any, number: int) -> Any:
  """One of the runs' parameters."""
  return jax.tree.map(lambda x: x[number], params)


def logits_fn(params: Layers, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
  hidden = jax.nn.relu(dense(params["Dense_0"], x))
  return dense(params["Dense_1"], hidden if key is None else noise.dropout(key, hidden, rate=0.5))


def nll(params: Layers, batch: dict[str, jax.Array], *, key: jax.Array | None = None) -> jax.Array:
  return losses.softmax_cross_entropy(logits_fn(params, batch["inputs"], key), batch["labels"]).mean()


def plain(params: Layers, batch: dict[str, jax.Array], *, key: jax.Array) -> jax.Array:
  del key
  return nll(params, batch)

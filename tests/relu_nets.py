"""Small ReLU networks without a framework, and their paths, one by one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np


def mlp_params(rng, sizes, *, biases=True, dtype=np.float64):
  params = {}
  for i, (n, m) in enumerate(itertools.pairwise(sizes)):
    params[f"Dense_{i}"] = {"kernel": jnp.asarray(rng.normal(size=(n, m)) / np.sqrt(n), dtype)}
    if biases:
      params[f"Dense_{i}"]["bias"] = jnp.asarray(rng.normal(size=m) / 2, dtype)
  return params


def mlp(params, x):
  for i in range(len(params)):
    x = x @ params[f"Dense_{i}"]["kernel"]
    if "bias" in params[f"Dense_{i}"]:
      x = x + params[f"Dense_{i}"]["bias"][None]
    x = jax.nn.relu(x) if i < len(params) - 1 else x
  return x


def residual(params, x):
  """A block in the middle, which an edge of weight 1 passes by."""
  x = jax.nn.relu(x @ params["in"]["kernel"] + params["in"]["bias"][None])
  inside = jax.nn.relu(x @ params["a"]["kernel"] + params["a"]["bias"][None])
  x = x + inside @ params["b"]["kernel"] + params["b"]["bias"][None]
  return jax.nn.relu(x) @ params["out"]["kernel"] + params["out"]["bias"][None]


def residual_params(rng, sizes=(3, 3, 2, 2)):
  n, h, k, m = sizes
  shapes = {"in": (n, h), "a": (h, k), "b": (k, h), "out": (h, m)}
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), np.float64)
  return {name: {"kernel": draw(*shape), "bias": draw(shape[1])} for name, shape in shapes.items()}


def mlp_paths(params):
  """Every path: a list of edges `(layer, "kernel", (i, j))`, or of a bias and what follows it."""
  layers = [np.asarray(params[f"Dense_{i}"]["kernel"]).shape for i in range(len(params))]
  paths = []
  for start in range(-1, len(layers)):
    if start >= 0 and "bias" not in params[f"Dense_{start}"]:
      continue
    sizes = [layers[0][0] if start < 0 else layers[start][1], *(m for _, m in layers[start + 1 :])]
    for nodes in itertools.product(*map(range, sizes)):
      path = [] if start < 0 else [(f"Dense_{start}", "bias", (nodes[0],))]
      for layer, edge in enumerate(itertools.pairwise(nodes), start + 1):
        path.append((f"Dense_{layer}", "kernel", edge))
      paths.append(path)
  return paths


def residual_paths(params):
  """Through the block or by it; from an input or from a bias."""
  n, h = params["in"]["kernel"].shape
  k = params["a"]["kernel"].shape[1]
  m = params["out"]["kernel"].shape[1]
  heads = {unit: [[("in", "kernel", (i, unit))] for i in range(n)] for unit in range(h)}
  for unit in range(h):
    heads[unit].append([("in", "bias", (unit,))])
  tails = {unit: [[("out", "kernel", (unit, o))] for o in range(m)] for unit in range(h)}
  paths = [[("out", "bias", (o,))] for o in range(m)]
  for unit in range(h):
    paths += [head + tail for head in heads[unit] for tail in tails[unit]]
    paths += [[("b", "bias", (unit,)), *tail] for tail in tails[unit]]
  for inner, after in itertools.product(range(k), range(h)):
    last = [("b", "kernel", (inner, after))]
    paths += [[("a", "bias", (inner,)), *last, *tail] for tail in tails[after]]
    for before in range(h):
      middle = [("a", "kernel", (before, inner)), *last]
      paths += [head + middle + tail for head in heads[before] for tail in tails[after]]
  return paths


def enumerate_kappa(params, paths, p):
  """`kappa` and the path norm by their definitions."""
  weight = lambda edge: abs(float(np.asarray(params[edge[0]][edge[1]])[edge[2]]))
  sums = jax.tree.map(lambda w: np.zeros(w.shape), params)
  total = 0.0
  for path in paths:
    total += np.prod([weight(edge) ** p for edge in path])
    for edge in path:
      others = [weight(other) ** p for other in path if other != edge]
      sums[edge[0]][edge[1]][edge[2]] += np.prod(others)
  return jax.tree.map(lambda s: s ** (2 / p), sums), total ** (1 / p)

"""The spectrum of a small language model: eigenvalues, the trace of each layer, and both on two devices.

    NPROC=32 python benchmarks/language_model.py --workdir runs/language_model --data DIR

A decoder of 32.6 million parameters learns WikiText-2, with all of its 33 278 words. DIR has the text, as
`wt2.train.txt.gz` and `wt2.valid.txt.gz`. Then `flatness.Curvature` analyses the Hessian of its loss on 512
tokens. Each stage is a process of its own, so that its memory and CPU time are its own, and leaves its
results in `--workdir`. After an interruption the same command goes on with the stage that was stopped, and
the training with its last checkpoint. The stages `..._2` run on two simulated devices, with each parameter
split in halves along its last axis. The last stage runs nothing: it compiles products for a network of
GPT-2's size. The script writes the record `language_model` and its figure.
"""

import collections
import functools
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import serialization
from jax.sharding import NamedSharding, PartitionSpec
from scipy import special

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from _records import Found  # noqa: E402
from _report import flags  # noqa: E402

from jaxreg import flatness, losses  # noqa: E402
from jaxreg._figures import WIDTH, new_figure, tidy  # noqa: E402
from jaxreg.flatness import _streamed, _vectors  # noqa: E402
from jaxreg.flatness._eigen import SpectralDensity  # noqa: E402
from jaxreg.models._transformer import _Attention, _FeedForward, _positional_encoding  # noqa: E402

SIZES = {
  "vocabulary": 33278,
  "width": 384,
  "layers": 4,
  "length": 64,
  "sequences": 8,  # of the Hessian
  "batch": 4,  # sequences of a training step
  "steps": 800,
  "save": 50,  # steps between two checkpoints
  "rate": 1.5e-3,
  "products": 30,  # for the eigenpairs
  "vectors": 26,  # of the parameters' size, which the iteration may hold
  "probes": 16,
  "starts": 2,
  "nodes": 12,
  "large": (50257, 768, 12, 1024, 8),  # vocabulary, width, layers, length and sequences of the last stage
}
QUICK = {"vocabulary": 400, "width": 16, "layers": 1, "length": 8, "sequences": 4, "steps": 6, "save": 2}
QUICK |= {"products": 12, "vectors": 14, "probes": 4, "nodes": 4, "large": (400, 16, 1, 8, 4)}
STAGES = ("training", "eigenpairs", "traces", "eigenpairs_2", "traces_2", "density", "larger")
PAIRS = 5


class Block(nn.Module):
  """Causal attention and a feed-forward layer, each added to what is normalised before it."""

  width: int

  @nn.compact
  def __call__(self, x, seen):
    own = self.width // 8
    normal = nn.LayerNorm(name="attention_norm")(x)
    x += _Attention(num_heads=8, d_k=own, d_v=own, name="attention")(normal, normal, seen)
    return x + _FeedForward(4 * self.width, name="feed_forward")(nn.LayerNorm(name="feed_forward_norm")(x))


class Decoder(nn.Module):
  """Tokens `[batch, length]` to features `[batch, length, width]`: each position sees those before it."""

  vocabulary: int
  width: int
  layers: int

  @nn.compact
  def __call__(self, tokens):
    length = tokens.shape[1]
    table = self.param("embedding", nn.initializers.normal(self.width**-0.5), (self.vocabulary, self.width))
    x = jnp.take(table, tokens, axis=0) * self.width**0.5
    x += jnp.asarray(_positional_encoding(length, self.width), x.dtype)[None]
    seen = jnp.tril(jnp.ones((1, 1, length, length), bool))
    for number in range(self.layers):
      x = Block(self.width, name=f"block_{number}")(x, seen)
    return nn.LayerNorm(name="last_norm")(x)


def layer_of(name):
  """The layer of a parameter, by which traces are summed."""
  parts = name.split("/")
  return "/".join(parts[:2]) if parts[0].startswith("block") else parts[0]


class Study:
  """The model, its data and the folder of the results."""

  def __init__(self, sizes, workdir, data):
    self.sizes, self.workdir, self.data = sizes, workdir, data
    self.net = Decoder(sizes["vocabulary"], sizes["width"], sizes["layers"])

  def tokens(self):
    """The training and validation text as two long lines of tokens; read once."""
    file = self.workdir / "tokens.npz"
    if not file.is_file():
      words = {}
      for name in ("train", "valid"):
        with gzip.open(self.data / f"wt2.{name}.txt.gz", "rt", encoding="utf-8") as text:
          words[name] = text.read().replace("\n", " <eos> ").split()
      ranks = {word: rank for rank, (word, _) in enumerate(collections.Counter(words["train"]).most_common())}
      last = self.sizes["vocabulary"] - 1  # a smaller vocabulary has one token for all rarer words
      np.savez(file, **{name: [min(ranks[word], last) for word in text] for name, text in words.items()})
    with np.load(file) as found:
      return {name: found[name].astype(np.int32) for name in found}

  def batch(self, stream, number, batch):
    """Sequences of the stream, each with the tokens that follow."""
    length = self.sizes["length"]
    first = number * batch * length % (len(stream) - batch * length - 1)
    rows = stream[first : first + batch * length + 1]
    return {"inputs": rows[:-1].reshape(batch, length), "labels": rows[1:].reshape(batch, length)}

  def loss_fn(self, params, batch, *, key):
    hidden = {name: leaf for name, leaf in params.items() if name != "output"}
    features = self.net.apply({"params": hidden}, batch["inputs"])
    loss = losses.softmax_cross_entropy
    return losses.linear(loss, features, params["output"]["kernel"], batch["labels"]).mean()

  def init(self):
    width, vocabulary = self.sizes["width"], self.sizes["vocabulary"]
    tokens = jnp.zeros((1, self.sizes["length"]), jnp.int32)
    params = jax.jit(self.net.init)(jax.random.key(0), tokens)["params"]
    kernel = jax.random.normal(jax.random.key(1), (width, vocabulary)) / width
    return {**params, "output": {"kernel": kernel}}

  def optimizer(self):
    steps = self.sizes["steps"]
    rate = optax.warmup_cosine_decay_schedule(0, self.sizes["rate"], steps // 8, steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))

  def training(self):
    """Trains from the last checkpoint on; the parameters are left in `params.msgpack`."""
    stream, optimizer = self.tokens(), self.optimizer()
    assert stream["train"].max() == self.sizes["vocabulary"] - 1
    file = self.workdir / "checkpoint.msgpack"
    params = self.init()
    state = {"step": 0, "cpu": 0.0, "params": params, "optimizer": optimizer.init(params)}
    if file.is_file():
      state = serialization.from_bytes(state, file.read_bytes())
    before = state["cpu"]

    @jax.jit
    def step(params, own, batch):
      loss, gradient = jax.value_and_grad(self.loss_fn)(params, batch, key=None)
      updates, own = optimizer.update(gradient, own, params)
      return optax.apply_updates(params, updates), own, loss

    for number in range(state["step"], self.sizes["steps"]):
      batch = self.batch(stream["train"], number, self.sizes["batch"])
      state["params"], state["optimizer"], loss = step(state["params"], state["optimizer"], batch)
      if (number + 1) % self.sizes["save"] == 0:
        loss = float(loss)  # waits for the steps, before the time is taken
        state |= {"step": number + 1, "cpu": before + cpu()}
        write(file, serialization.to_bytes(state))
        print(f"step {number + 1}: loss {loss:.3f}, {state['cpu']:.0f} CPU s", flush=True)
    loss = jax.jit(lambda params, batch: self.loss_fn(params, batch, key=None))
    sequences = self.sizes["sequences"]
    val = [loss(state["params"], self.batch(stream["valid"], number, sequences)) for number in range(8)]
    counts = np.bincount(stream["train"], minlength=self.sizes["vocabulary"])
    write(self.workdir / "params.msgpack", serialization.to_bytes(state["params"]))
    return {
      "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
      "tokens": int(counts.sum()),
      "unigram": float(special.entr(counts / counts.sum()).sum()),
      "val": float(np.mean(val)),
      "train": float(loss(state["params"], self.batch(stream["train"], 0, sequences))),
      "before": before,
    }

  def curvature(self, mesh=None):
    """The Hessian on the first batch of the training text; with a mesh, each parameter is split over it."""
    batch = self.batch(self.tokens()["train"], 0, self.sizes["sequences"])
    params = serialization.msgpack_restore((self.workdir / "params.msgpack").read_bytes())
    if mesh is not None:
      split = lambda x: PartitionSpec(*[None] * (x.ndim - 1), "model")
      params = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, split(x))), params)
      batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec()))
    return flatness.Curvature(self.loss_fn, jax.tree.map(jnp.asarray, params), [batch])

  def eigenpairs(self, mesh=None):
    curvature, sizes = self.curvature(mesh), self.sizes
    size = sum(leaf.nbytes for leaf in curvature.operator.leaves)
    options = {"num_pairs": PAIRS, "num_steps": sizes["products"], "max_bytes": sizes["vectors"] * size}
    found = curvature.top_eigenpairs(key=jax.random.key(2), **options)
    shares = [{layer: 0.0 for layer in dict.fromkeys(map(layer_of, curvature.names))} for _ in found.vectors]
    for share, vector in zip(shares, found.vectors, strict=True):
      for name, leaf in vector.items():
        share[layer_of(name)] += float((leaf**2).sum())
    vectors = [tuple(vector.values()) for vector in found.vectors]
    operator = curvature._by_parameter(shared=False)
    again = [  # by one more product each, because the iteration only infers its residuals
      float(_vectors.norm(_vectors.plus(operator(vector), -value, vector)))
      for value, vector in zip(found.values.tolist(), vectors, strict=True)
    ]
    return {
      "values": found.values.tolist(),
      "residuals again": again,
      "residuals": found.residuals.tolist(),
      "converged": found.converged.tolist(),
      "shares": shares,
      "memory": {**self.memory(curvature), "parameters and eigenvectors": held()},
    }

  def traces(self, mesh=None):
    curvature = self.curvature(mesh)
    options = {"num_samples": self.sizes["probes"], "num_steps": 0, "layer_of": layer_of}
    found = flatness.layerwise(curvature, key=jax.random.key(3), **options)
    return {
      "names": found.names,
      "traces": found.traces.mean.tolist(),
      "errors": found.traces.standard_error.tolist(),
      "sizes": [
        sum(
          leaf.size
          for name, leaf in zip(curvature.names, curvature.operator.leaves, strict=True)
          if layer_of(name) == layer
        )
        for layer in found.names
      ],
    }

  def density(self):
    options = {"num_samples": self.sizes["starts"], "num_steps": self.sizes["nodes"]}
    found = self.curvature().density(key=jax.random.key(4), **options)
    return {name: getattr(found, name).tolist() for name in found._fields}

  def larger(self):
    """GiB that products with the matrices of a larger network need, as compiled for this machine."""
    vocabulary, width, layers, length, sequences = self.sizes["large"]
    large = Study(self.sizes | {"vocabulary": vocabulary, "width": width, "length": length}, None, None)
    large.net = Decoder(vocabulary, width, layers)
    params = jax.eval_shape(large.init)

    def logits(params, batch, *, key):
      hidden = {name: leaf for name, leaf in params.items() if name != "output"}
      return large.net.apply({"params": hidden}, batch["inputs"]) @ params["output"]["kernel"]

    def outer(outputs, batch):
      return losses.softmax_cross_entropy(outputs, batch["labels"]).mean()

    def gauss_newton(params, batch, vector):
      return flatness.gauss_newton(logits, outer, params, batch)(vector)

    def hessian(loss_fn, params, batch, vector):
      return flatness.hvp(loss_fn, params, batch)(vector)

    plain = lambda params, batch, *, key: outer(logits(params, batch, key=key), batch)
    products = {
      "Gauss-Newton": (gauss_newton, sequences),
      "Gauss-Newton, a sequence": (gauss_newton, 1),
      "Hessian": (functools.partial(hessian, plain), sequences),
      "Hessian, losses.linear": (functools.partial(hessian, large.loss_fn), sequences),
      "Hessian, losses.linear, a sequence": (functools.partial(hessian, large.loss_fn), 1),
    }
    found = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(params))}
    vector = jax.ShapeDtypeStruct((found["parameters"],), jnp.float32)
    for name, (product, number) in products.items():
      batch = {each: jax.ShapeDtypeStruct((number, length), jnp.int32) for each in ("inputs", "labels")}
      sizes = jax.jit(product).lower(params, batch, vector).compile().memory_analysis()
      found[name] = sizes.temp_size_in_bytes / 2**30
      print(f"{name}: {found[name]:.2f} GiB", flush=True)
    return found

  def memory(self, curvature):
    """MiB on each device that the compiled product needs."""
    streamed = curvature._by_parameter(shared=False)
    operator, vector = streamed._on_batch(next(streamed.batches())), streamed.like
    running = _streamed._start_sum(vector)
    program = _streamed._add_product.lower(streamed.layout, running, vector, 0, operator).compile()
    found = program.memory_analysis()
    kinds = {"arguments": "argument", "results": "output", "temporaries": "temp"}
    return {name: getattr(found, f"{kind}_size_in_bytes") / 2**20 for name, kind in kinds.items()}


def cpu():
  """The seconds that all threads of this process had a core."""
  used = resource.getrusage(resource.RUSAGE_SELF)
  return used.ru_utime + used.ru_stime


def held():
  """MiB of the arrays on the first device."""
  shards = [shard for x in jax.live_arrays() for shard in x.addressable_shards]
  return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0]) / 2**20


def write(file, content):
  """Replaces a file in one move."""
  partial = file.with_suffix(".partial")
  partial.write_bytes(content)
  partial.replace(file)


def run(study, stage):
  """One stage, in this process; the parameters of `..._2` are split over two devices."""
  name, _, devices = stage.partition("_")
  mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,)) if devices else None
  found = getattr(study, name)(*[mesh] * (mesh is not None))
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  found |= {"cpu": cpu() + found.pop("before", 0.0), "peak": peak}
  write(study.workdir / f"{stage}.json", json.dumps(found).encode())


def recorded(results):
  """The numbers of all stages as a record."""
  record = Found()
  training = results["training"]
  record.add("decoder", "parameters, million", training["parameters"] / 1e6, 1)
  record.add("decoder", "tokens of text", training["tokens"], 0)
  record.add("decoder", "loss of the Hessian's tokens", training["train"], 2)
  record.add("decoder", "loss of validation tokens", training["val"], 2)
  record.add("decoder", "entropy of the words' frequencies", training["unigram"], 2)
  for stage, found in results.items():
    record.add(stage, "CPU minutes", found["cpu"] / 60, 1)
    record.add(stage, "peak, GiB", found["peak"], 2)
  record.add("all stages", "CPU minutes", sum(found["cpu"] for found in results.values()) / 60, 1)
  record.add("all stages", "peak, GiB", max(found["peak"] for found in results.values()), 2)
  for product, size in results["larger"].items():
    if product not in ("cpu", "peak", "parameters"):
      record.add(product, "temporaries, GiB", size, 1)
  record.add("larger decoder", "parameters, million", results["larger"]["parameters"] / 1e6, 1)
  whole, halves = results["eigenpairs"], results["eigenpairs_2"]
  for number in range(PAIRS):
    row, share = f"eigenvalue {number + 1}", whole["shares"][number]
    record.add(row, "one device", whole["values"][number], 3)
    record.add(row, "two devices", halves["values"][number], 3)
    for title, found in (("one device", whole), ("two devices", halves)):
      record.add(row, f"residual in millionths, {title}", 1e6 * found["residuals"][number], 1)
    record.add(row, "by a product", 1e6 * halves["residuals again"][number], 1)
    for layer in ("output", "embedding"):
      record.add(row, f"of the vector in {layer}, %", 100 * share[layer], 1)
    rest = 1 - share["output"] - share["embedding"]
    record.add(row, "of the vector in the blocks, %", 100 * rest, 1)
  one, two = results["traces"], results["traces_2"]
  trace = sum(one["traces"])
  record.add("one device", "trace of all layers", trace, 1)
  of_output = one["traces"][one["names"].index("output")]
  for what, part in (("the output layer", of_output), ("the 5 eigenvalues", sum(whole["values"]))):
    record.add("one device", f"trace of {what}, %", 100 * part / trace, 0)
  off = np.abs(np.divide(halves["values"], whole["values"]) - 1).max()
  record.add("two devices", "largest difference of an eigenvalue, parts in a million", 1e6 * off, 1)
  for row, found in (("one device", whole), ("two devices", halves)):
    for kind, size in found["memory"].items():
      record.add(row, f"{kind}, MiB", size, 0)
    record.add(row, "vectors of the iteration at most, MiB", SIZES["vectors"] * found["memory"]["results"], 0)
  for number, layer in enumerate(one["names"]):
    for title, found in (("one device", one), ("two devices", two)):
      record.add(layer, f"trace, {title}", found["traces"][number], 3)
      record.add(layer, f"standard error, {title}", found["errors"][number], 3)
    record.add(layer, "parameters, thousand", one["sizes"][number] / 1000, 1)
  apart = np.abs(np.subtract(one["traces"], two["traces"])) / np.hypot(one["errors"], two["errors"])
  record.add("two devices", "largest difference of a trace, in its standard errors", apart.max(), 1)
  grid = np.asarray(results["density"]["grid"])
  beyond = 0.05 / 1.1 * np.ptp(grid)  # the grid reaches five widths beyond the Ritz values
  record.add("density", "least Ritz value", grid[0] + beyond, 3)
  record.add("density", "largest Ritz value", grid[-1] - beyond, 3)
  return record


def figure(results):
  """The density with the largest eigenvalues, and the trace of each layer."""
  drawn = new_figure(WIDTH, 4.2, "")
  left, right = drawn.subplots(1, 2)
  grid, density, error = (np.asarray(results["density"][name]) for name in SpectralDensity._fields)
  low = 1e-11 * density.max()  # one of all eigenvalues has a 3e-8th of the mass
  left.plot(grid, density, color="C0")
  left.fill_between(grid, np.maximum(density - error, low), density + error, color="C0", alpha=0.25)
  top = results["eigenpairs"]
  left.plot(top["values"], [2 * low] * PAIRS, "|", color="C3", markersize=14, label="largest 5")
  left.set(yscale="log", ylim=(low, 3 * density.max()), xlabel="eigenvalue", ylabel="density")
  left.legend(fontsize="small", frameon=False)
  tidy(left)
  found = results["traces"]
  each = dict(zip(found["names"], zip(found["traces"], found["errors"], strict=True), strict=True))
  blocks = [name for name in each if name.startswith("block")]
  names = ["embedding", *blocks, "last_norm", "output"]
  traces, errors = np.transpose([each[name] for name in names])
  places = np.arange(len(names))
  right.barh(places, traces, xerr=2 * errors, color="C1", height=0.7, error_kw={"linewidth": 1})
  right.axvline(0, color="black", linewidth=0.6)
  right.set_xscale("symlog", linthresh=1)
  ticks = [-100, -1, 0, 1, 10, 100]
  right.set_xticks(ticks, map(str, ticks))
  right.set(xlabel="trace, with 2 standard errors")
  right.set_yticks(places, [name.replace("_", " ") for name in names], fontsize="x-small")
  right.invert_yaxis()
  tidy(right, grid="x")
  return drawn


def main():
  parser = flags(__doc__, rounds=1)
  parser.add_argument("--workdir", type=Path, default=Path("runs/language_model"))
  parser.add_argument("--data", type=Path, required=True, help="folder of the text")
  parser.add_argument("--stage", choices=STAGES, help="this stage alone, in this process")
  options = parser.parse_args()
  sizes = SIZES | (QUICK if options.quick else {})
  options.workdir.mkdir(parents=True, exist_ok=True)
  if options.stage:
    run(Study(sizes, options.workdir, options.data), options.stage)
    return
  for stage in STAGES:
    if not (options.workdir / f"{stage}.json").is_file():
      print(f"{stage} ...", flush=True)
      two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} if stage.endswith("_2") else {}
      command = [sys.executable, __file__, *sys.argv[1:], "--stage", stage]
      subprocess.run(command, check=True, env=os.environ | two)
  results = {stage: json.loads((options.workdir / f"{stage}.json").read_text()) for stage in STAGES}
  record = recorded(results)
  figure(results).savefig(options.workdir / "language_model.png", dpi=120)
  if not options.quick:
    record.write("language_model", "NPROC=32 python benchmarks/language_model.py --data DIR")
    shutil.copy(options.workdir / "language_model.png", ROOT / "docs/figures")


if __name__ == "__main__":
  main()

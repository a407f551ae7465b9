"""From a configuration to functions: below here, nothing sees a configuration."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax.errors import FlaxError
from jax.sharding import AxisType

from jaxreg.train.config import ranges
from jaxreg.train.config.choices import chosen
from jaxreg.train.config.fields import Config, flatten, relevant
from jaxreg.train.data.dataset import Dataset, is_tokens
from jaxreg.train.errors import RunError
from jaxreg.train.lookup import short
from jaxreg.train.data.order import Order, bootstrap
from jaxreg.train.build.program import Program, make_program
from jaxreg.train.devices.replicas import Loop, Vmap, make_replicas
from jaxreg.train.devices.sharding import make_layout
from jaxreg.train.data.subsets import flip_labels, hide_labels, subset


def load_data(config: Config) -> Dataset:
  """The data set that `config.data` names, checked.

  Raises:
    RunError: naming the field or file at fault.
  """
  source, options = chosen(config, "data")
  data = source(**options).decoded_by(**config.data.stream)
  data = subset(data.checked(f"data.{short(config.data.name)}"), **config.data.subset).limited(config.data.limit)
  data = flip_labels(data, **config.data.flipped_labels)
  return hide_labels(data) if config.data.unlabelled.batch_size else data.without_rest()


def make_mesh(model: int = 1) -> jax.sharding.Mesh:
  """All devices in two axes: `data`, over which batches are split, and `model`, of so many devices.

  Raises:
    RunError: if they cannot be arranged so.
  """
  devices = jax.device_count()
  if devices % model:
    raise RunError(f"mesh.model: must divide the number of devices, {devices}, got {model}")
  # Auto axes: with the default Explicit ones, gathers and dropout on the batch axis raise.
  return jax.make_mesh((devices // model, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def check_devices(config: Config) -> None:
  """Checks that a batch can be laid out on the devices.

  Raises:
    RunError: if it cannot.
  """
  if config.parallel == "pmap" and jax.process_count() > 1:
    raise RunError(f"parallel: pmap runs in one process, here are {jax.process_count()}; give parallel=jit")
  devices = make_mesh(config.mesh.model).shape["data"]
  which = "the number of devices" + (" on the data axis" if config.mesh.model > 1 else "")
  unlabelled = config.data.unlabelled.batch_size
  if unlabelled and (config.parallel == "pmap" or config.accumulate > 1):
    raise RunError(
      "data.unlabelled.batch_size: parts of a batch would have examples with labels only, or without; give "
      f"parallel=jit and accumulate=1, got {config.parallel} and {config.accumulate}"
    )
  if unlabelled and (config.batch_size + unlabelled) % devices:
    raise RunError(
      f"batch_size: must with data.unlabelled.batch_size be divisible by {which}, {devices}, "
      f"got {config.batch_size} + {unlabelled}"
    )
  if not unlabelled and config.batch_size % (devices * config.accumulate):
    parts = f", {devices}"
    if config.accumulate > 1:
      parts = f" times accumulate, {devices} * {config.accumulate}"
    raise RunError(f"batch_size: must be divisible by {which}{parts}, got {config.batch_size}")


def steps_per_dispatch(config: Config) -> int:
  """How many steps one dispatch makes: on a CPU one, because there convolutions in a loop are slow."""
  alone = jax.default_backend() == "cpu" or config.parallel == "pmap"
  return config.steps_per_dispatch or (1 if alone else 8)


def is_resident(config: Config, dataset: Dataset) -> bool:
  """Whether the data are to lie on the devices."""
  return not dataset.streams() and dataset.nbytes <= config.data.resident_gib * 2**30


def make_order(config: Config, dataset: Dataset) -> Order:
  """Which training examples make the batch of a step."""
  seeds, number = range(config.seed, config.seed + config.replicas), len(dataset.train)
  return Order(
    seeds,
    number,
    config.batch_size,
    drawn=tuple(bootstrap(seed, number) for seed in seeds) if config.data.bootstrap else (),
    num_unlabelled=0 if dataset.unlabelled is None else len(dataset.unlabelled),
    unlabelled_batch_size=config.data.unlabelled.batch_size,
  )


def replicas_of(config: Config, mesh: jax.sharding.Mesh, program: Program) -> Vmap | Loop:
  """The form in which the replicas are trained, and where their states lie.

  Raises:
    RunError: if a rule of `mesh.shard` does not fit the parameters.
  """
  return make_replicas(
    mesh,
    config.replicas_by,
    number=config.replicas,
    params=program.abstract.params,
    parallel=config.parallel,
    layout=make_layout(program.abstract, mesh, config.mesh.shard, config.mesh.min_size),
  )


def build(config: Config, data: dict[str, Any]) -> Program:
  """The functions that `config` describes, for data as `Dataset.describe` gives it.

  Everything is traced abstractly once, so that what does not fit is told before anything is written.

  Raises:
    RunError: for options that no step can be built from.
  """
  num_train = data["sizes"]["train"]
  if config.batch_size > num_train:
    raise RunError(
      f"batch_size: must be at most the number of training examples, {num_train}, got {config.batch_size}"
    )
  unlabelled, rest = config.data.unlabelled.batch_size, data["sizes"].get("unlabelled", 0)
  if unlabelled > rest:
    raise RunError(
      f"data.unlabelled.batch_size: must be at most {rest}, what data.{config.data.name} and data.subset "
      f"leave of the training examples, got {unlabelled}"
    )
  steps_per_epoch = num_train // config.batch_size
  num_steps = config.steps or config.epochs * steps_per_epoch
  if num_steps > float(ranges.STEPS):
    raise RunError(
      f"epochs: must give at most {ranges.STEPS} steps, got {config.epochs} of {steps_per_epoch}"
    )

  if is_tokens(data["input_dtype"]) and (config.augment.names or len(config.augment.mean)):
    raise RunError(
      f"augment: is for images, and the inputs of data.{config.data.name} are tokens; leave it empty"
    )
  channels = data["input_shape"][-1] if data["input_shape"] else 0
  if len(config.augment.mean) not in (0, channels):
    raise RunError(
      f"augment.mean, augment.std: must be {channels} numbers, one a channel, got {config.augment.mean}"
    )
  try:
    program = make_program(config, data, steps_per_epoch, num_steps)
    state = program.abstract
    size = config.batch_size + unlabelled
    batch = {
      "inputs": jax.ShapeDtypeStruct((size, *data["input_shape"]), data["input_dtype"]),
      "labels": jax.ShapeDtypeStruct((size, *data.get("label_shape", ())), jnp.int32),
      "weights": jax.ShapeDtypeStruct((size, *data.get("label_shape", ())), jnp.float32),
    }
    jax.eval_shape(program.train_step, state, batch)
    jax.eval_shape(program.eval_step, state, batch, 0)
  except (ValueError, TypeError, AttributeError, ArithmeticError, FlaxError) as error:
    raise RunError(_of_a_field(str(error).splitlines()[0], config)) from error
  for field, value in relevant(flatten(config)).items():
    for number in value if isinstance(value, list) else [value]:
      if isinstance(number, float) and not math.isfinite(number):
        raise RunError(f"{field}: must be finite, got {number}")
  return program


def _of_a_field(message: str, config: Config) -> str:
  """The message of a function, `NAME must ...`, with the field of that name if one alone is read."""
  name, space, rest = message.partition(" ")
  fields = [field for field in relevant(flatten(config)) if field.split(".")[-1] == name]
  if len(fields) == 1 and space:
    return f"{fields[0]}: {rest}"
  chosen = ", ".join(f"{part}.{config[part].name}" for part in ("model", "method", "optimizer"))
  return f"config: {message} (with {chosen})"

"""A run: its functions on the devices, its data, and its intervals of evaluating, saving and logging."""

import functools

import jax

from jaxreg.train.assemble.load_data import is_resident, make_order
from jaxreg.train.config.choices import Config
from jaxreg.train.data.batches import make_source
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.devices.flops import peak_flops
from jaxreg.train.devices.replicas import Loop, Vmap, make_replicas
from jaxreg.train.devices.sharding import make_layout, make_mesh
from jaxreg.train.run.dispatch import Intervals
from jaxreg.train.run.evaluation import make_evaluate
from jaxreg.train.run.health import CollapseGuard
from jaxreg.train.run.interrupt import Interrupt
from jaxreg.train.run.loop import Run
from jaxreg.train.run.profile import Window
from jaxreg.train.step.program import Program


def replicas_of(config: Config, program: Program) -> Vmap | Loop:
  """Says how the replicas are trained (`Vmap` or `Loop`), and where their states lie."""
  mesh = make_mesh(config.mesh.model, config.mesh.axes, slices=config.mesh.slices)
  return make_replicas(
    mesh,
    number=config.replicas,
    params=program.abstract.params,
    parallel=config.parallel,
    layout=make_layout(program.abstract, mesh, config.mesh.shard, config.mesh.min_size),
  )


def make_run(config: Config, dataset: Dataset, program: Program, replicas: Vmap | Loop) -> Run:
  """Makes the parts of a run that stay the same at every step."""
  # If the data fit, each device holds a copy of them; else it gets its slice of each batch.
  resident = is_resident(config, dataset)
  splits = dataset.splits() | {"train": dataset.training()}
  interrupt = Interrupt()
  saves = [config.checkpoint.every * program.steps_per_epoch]
  if config.checkpoint.every_steps:
    saves.append(config.checkpoint.every_steps)
  return Run(
    program=program,
    replicas=replicas,
    seeds=range(config.seed, config.seed + config.replicas),
    batch_size=config.batch_size,
    eval_batch_size=config.eval_batch_size,
    data={
      name: make_source(replicas.mesh, split, resident=resident, standard=program.target.standard)
      for name, split in splits.items()
    },
    order=make_order(config, dataset),
    interrupt=interrupt,
    evaluate=make_evaluate(program, replicas, config.eval_batch_size, stop=interrupt.requested),
    every=Intervals(
      evaluate=config.eval_every * program.steps_per_epoch,
      save=tuple(saves),
      save_minutes=config.checkpoint.every_minutes,
      log=config.log_every,
      dispatch=steps_per_dispatch(config),
      sharpness=config.log.sharpness_every,
    ),
    best=config.checkpoint.best,
    wait=config.checkpoint.wait,
    guard=functools.partial(
      CollapseGuard,
      steps=config.watch.steps,
      num_classes=dataset.num_classes,
      clipped=config.optimizer.clip_norm > 0,
    ),
    profile=Window(config.profile.start, config.profile.steps),
    peak=peak_of(config, replicas),
  )


def peak_of(config: Config, replicas: Vmap | Loop) -> float:
  """Returns the peak of all devices in FLOP/s; 0 if it is not known."""
  devices = replicas.mesh.devices.ravel()
  configured = 1e12 * config.log.peak_teraflops
  return len(devices) * (configured or peak_flops(devices[0].device_kind))


def steps_per_dispatch(config: Config) -> int:
  """Says how many steps one dispatch makes; one on a CPU, where JAX's convolutions are slow in a loop."""
  alone = jax.default_backend() == "cpu" or config.parallel == "pmap"
  return config.steps_per_dispatch or (1 if alone else 8)

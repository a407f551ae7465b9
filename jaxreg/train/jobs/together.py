"""Runs that differ only in strengths and seeds, trained side by side in one program.

Each run keeps its own folder, checkpoints and records, as if it had been trained alone. `train` continues
from there: it evaluates the run, or trains its remaining steps.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg.train.assemble.from_config import build, sweep
from jaxreg.train.assemble.load_data import load_data, make_order
from jaxreg.train.assemble.run_parts import make_run, replicas_of
from jaxreg.train.assemble.saved import make_teacher
from jaxreg.train.config.choices import Config, flatten, relevant
from jaxreg.train.data.batches import make_feed
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.devices.replicas import Vmap, cloned, stacked
from jaxreg.train.devices.sharding import Layout
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.initial_state import compile_init, load_pretrained, with_pretrained
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import Checkpoints, abstract, restore
from jaxreg.train.run.health import Watchdog
from jaxreg.train.run.lock import check_there
from jaxreg.train.run.log import open_log, progress, say
from jaxreg.train.run.loop import train_steps
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.run.trackers import Place, Trackers, find_trackers
from jaxreg.train.step.metrics import Values, of_each
from jaxreg.train.step.state import SweptState, TrainState
from jaxreg.typing import Array

# The sections whose numbers may be strengths; others change the network, the data or what is reported.
SECTIONS = ("augment.", "average.", "method.", "model.", "noise.", "optimizer.", "regularizers.")
# With a 0 in these fields nothing is drawn or kept, so that 0 is another program than all other numbers.
SWITCHES = re.compile(r"model\..*|regularizers\..*\.limit")


class Planned(NamedTuple):
  """A run that is to be trained in a folder of its own."""

  label: str
  config: Config
  folder: Path


def train_together(runs: Iterable[Planned]) -> None:
  """Trains, to their last steps, all runs that can share a program; says in one line which ones cannot.

  Runs share a program if they differ only in seeds and in numbers that can be traced, and if replicas are
  trained by `vmap`. An interruption saves every run, and the same call continues; a loss of any run that is
  not finite raises a RunError.
  """
  runs = [run for run in runs if not (run.folder / "results.json").is_file()]
  apart: list[Planned] = []
  reasons: list[str] = []
  for members in _alike(runs, ()):
    dataset = load_data(members[0].config)
    fixed = _fixed(members, dataset) if len(members) > 1 else ()
    for group in _alike(members, fixed):
      differing = f"different {', '.join(fixed)}" if fixed else "other fields than strengths"
      if reason := differing if len(group) == 1 else _train(group, dataset):
        apart += group
        reasons.append(reason)
  if apart and len(runs) > 1:
    why = "; ".join(dict.fromkeys(reasons))
    progress(f"compare: trained apart: {'; '.join(run.label for run in apart)} ({why})")


def _alike(runs: Sequence[Planned], fixed: Sequence[str]) -> list[list[Planned]]:
  """The runs in groups that differ only in seeds and in strengths that are not `fixed`."""
  groups: dict[str, list[Planned]] = collections.defaultdict(list)
  for run in runs:
    flat = relevant(flatten(run.config))
    free = {name for name in flat if is_strength(name, flat[name]) and name not in fixed}
    off = {name for name in free if SWITCHES.fullmatch(name) and not flat[name]}
    key = {name: value for name, value in flat.items() if name != "seed" and name not in free - off}
    groups[json.dumps([key, sorted(free)], sort_keys=True)].append(run)
  return list(groups.values())


def is_strength(field: str, value: object) -> bool:
  """Whether a field of this value may be a strength; `sweep` says whether it can be traced."""
  return field.startswith(SECTIONS) and isinstance(value, float)


def _differing(runs: Sequence[Planned]) -> list[str]:
  """The fields but the seed that do not have one value in all runs."""
  flats = [relevant(flatten(run.config)) for run in runs]
  return [name for name in flats[0] if name != "seed" and any(flat[name] != flats[0][name] for flat in flats)]


def _fixed(runs: Sequence[Planned], dataset: Dataset) -> list[str]:
  """The differing fields whose values cannot be traced, because they decide what a step computes."""
  config, data = runs[0].config, dataset.describe()
  program, fields = build(config, data), _differing(runs)

  def traces(*fields: str) -> bool:
    try:
      sweep(program, config, data, fields)
    except RunError:
      return False
    return True

  return [] if traces(*fields) else [field for field in fields if not traces(field)]


def _train(group: Sequence[Planned], dataset: Dataset) -> str:
  """Trains a group to its last step; returns why it has to train apart, or "" once it is trained."""
  first, data, fields = group[0].config, dataset.describe(), _differing(group)
  if jax.process_count() > 1:
    return "several processes"
  teacher = make_teacher(data, first.teacher.workdir) if first.teacher.workdir else None
  programs = [build(run.config, data, teacher=teacher) for run in group]
  program = sweep(programs[0], first, data, fields, teacher=teacher)
  config = first.copy_and_resolve_references().unlock()
  config.replicas = first.replicas * len(group)
  replicas = replicas_of(config, program)
  if not isinstance(replicas, Vmap):
    return "this network is faster in a loop"
  if len(steps := {max(good_steps(run.folder), default=0) for run in group}) > 1:
    return "stopped at different steps"
  if (step := steps.pop()) >= program.num_steps:
    return ""
  orders = [make_order(each.config, dataset) for each in group]
  order = dataclasses.replace(
    orders[0],
    seeds=[seed for order in orders for seed in order.seeds],
    drawn=tuple(itertools.chain.from_iterable(order.drawn for order in orders)),
  )
  run = dataclasses.replace(make_run(config, dataset, program, replicas), order=order)
  flats = [flatten(each.config) for each in group]
  strengths = {
    field: np.repeat(np.array([flat[field] for flat in flats], np.float32), first.replicas)
    for field in fields
  }
  folders = [each.folder for each in group]
  label = f"{len(group)} runs in one program: {'; '.join(each.label for each in group)}"
  progress(f"compare: {label}")
  with contextlib.ExitStack() as held:
    there: list[Callable[[], None]] = []
    for folder, flat in zip(folders, flats, strict=True):
      claimed = workdirs.claim_and_lock(folder, flat, data, program.num_steps, held, part=label)
      if claimed["remark"]:
        progress(claimed["remark"])
      there.append(functools.partial(check_there, folder, claimed["token"]))
    held.enter_context(run.interrupt)
    keeps = {"keep": first.checkpoint.keep, "best": first.checkpoint.best}
    opened = [
      held.enter_context(Checkpoints(folder, **keeps, check_there=check))
      for folder, check in zip(folders, there, strict=True)
    ]
    saved = Several(opened, [each.abstract for each in programs])
    stacks = folders[0] / f"stacks-{jax.process_index()}.txt"
    watchdog = held.enter_context(Watchdog(stacks))
    states = compile_init(program, replicas)((np.array(order.seeds, np.uint32), strengths))
    if step:
      states = saved.restored(folders, step, states, replicas.stacked_layout)
    elif first.pretrained.workdir or first.pretrained.file:
      pretrained = load_pretrained(programs[0], **first.pretrained.to_dict())
      states = with_pretrained(program, states, pretrained, replicas.mesh)
    feed = held.enter_context(
      make_feed(replicas.mesh, run.data["train"], order, start=step, stop=program.num_steps)
    )
    check_all = lambda: [check() for check in there]
    trackers = find_trackers(first.log.trackers)
    places = [Place(folder, flat, step, say) for folder, flat in zip(folders, flats, strict=True)]
    tracks = [held.enter_context(Trackers(trackers, place)) for place in places]
    shown = {"eval_every": run.every.evaluate, "part": label, "check_there": check_all, "tracks": tracks}
    log = held.enter_context(open_log(*folders, start=step, program=program, **shown))
    train_steps(run, step, states, feed, saved, log, watchdog)
  return ""


class Several:
  """The checkpoints of runs that train side by side: each has its part of the stacked state, as if alone."""

  def __init__(self, each: Sequence[Checkpoints], states: Sequence[TrainState]):
    """Takes the abstract state of each run alone; its leaves are the first of the common state."""
    self._each, self._states = each, states

  @property
  def measured(self) -> bool:
    """Whether the last step of all runs was saved with metrics."""
    return all(one.measured for one in self._each)

  def save(self, step: int, state: TrainState, of_replicas: Values | None) -> None:
    """Starts saving the part of every run."""
    number = len(self._each)
    parts = _parts(jax.tree.leaves(state), number)
    values = [None] * number if of_replicas is None else of_each(of_replicas, number)
    for one, alone, leaves, own in zip(self._each, self._states, parts, values, strict=True):
      treedef = jax.tree.structure(alone)
      one.save(step, jax.tree.unflatten(treedef, leaves[: treedef.num_leaves]), own)

  def wait(self) -> None:
    """Waits until all runs are on disk."""
    for one in self._each:
      one.wait()

  def restored(self, folders: Sequence[Path], step: int, state: SweptState, layout: Layout) -> SweptState:
    """The common state at a step that all runs have saved; `state` gives the strengths and the shapes."""
    replicas = len(state.step) // len(folders)
    alone = [
      jax.tree.leaves(restore(folder, step, abstract(stacked(like, replicas), layout)))
      for folder, like in zip(folders, self._states, strict=True)
    ]
    join = jax.jit(lambda alone: [jnp.concatenate(x) for x in zip(*alone, strict=True)], out_shardings=layout)
    leaves = join(alone)
    return jax.tree.unflatten(jax.tree.structure(state), [*leaves, *state.strengths.values()])


@functools.partial(jax.jit, static_argnames="number")
def _parts(leaves: list[Array], number: int) -> list[list[Array]]:
  """The leaves of each of `number` runs, from leaves with a leading axis of all replicas."""
  split = [jnp.split(cloned(x), number) for x in leaves]
  return [[parts[run] for parts in split] for run in range(number)]

"""`job = merge`: writes the mean of several runs as a run, and draws the loss on the lines between them."""

import dataclasses
import functools
import math
import os
import secrets
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from etils.epath import Path
from jax.sharding import PartitionSpec
from matplotlib.figure import Figure

from jaxreg import averaging
from jaxreg._atomic_files import in_bucket, make_folder, remove, write_figures, write_json
from jaxreg._figures import WIDTH, colors, new_figure, tidy, verbatim
from jaxreg._metrics import metric
from jaxreg.paths import leaf_names
from jaxreg.train import keys
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import is_resident, load_data
from jaxreg.train.assemble.run_parts import replicas_of
from jaxreg.train.config.choices import Config, base_config, flatten
from jaxreg.train.data.batches import batch_indices, make_source, place
from jaxreg.train.errors import RunError, naming, one_line
from jaxreg.train.finished.restore import restore_config, restore_run
from jaxreg.train.jobs.train import figure_title
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import Checkpoints, restore_state
from jaxreg.train.run.evaluation import batches, make_evaluate
from jaxreg.train.run.initial_state import compile_init
from jaxreg.train.run.lock import check_there, locked
from jaxreg.train.run.log import progress, say
from jaxreg.train.run.manifest import check_path
from jaxreg.train.sealed_tables import Table, sealed
from jaxreg.train.step.metrics import chosen_metric, summarize
from jaxreg.train.step.state import TrainState, Variables
from jaxreg.train.user_paths import user_path
from jaxreg.typing import Array, Key, ModelState, Params, PyTree

POINTS = np.linspace(0, 1, 11)  # of a line between two networks
MOST_LINES = 4
MOST_EXAMPLES = 10_000  # for BatchNorm's statistics
MADE = ("checkpoints", "manifests", "figures", "results.json", "data.json", "environment.json")


@dataclasses.dataclass(frozen=True)
class Ingredient:
  """One trained network: its label, its variables on the host, its step and its metrics."""

  label: str
  variables: Variables
  step: int
  values: dict[str, float]


class Merger:
  """The functions of the merged run, its data, and how a network is measured.

  Attributes:
    config: the configuration of the merged run, which has one replica.
    program: its pure functions.
    description: what the run knows of its data.
    state: a state on the devices, whose variables are random.
  """

  def __init__(self, config: Config):
    self.config = _one_replica(config)
    dataset = load_data(self.config)
    self.description = dataset.describe()
    self.program = build(self.config, self.description)
    self.replicas = replicas_of(self.config, self.program)
    init = compile_init(self.program, self.replicas)
    self.state: TrainState = self.replicas.pick(
      self.replicas.unpack(init(np.array([self.config.seed], np.uint32))), 0
    )
    resident, standard = is_resident(self.config, dataset), self.program.target.standard
    self._sources = {
      name: make_source(self._mesh, split, resident=resident, standard=standard)
      for name, split in dataset.splits().items()
    }
    # As in training, the order is random: a file may have its classes one after the other.
    number = len(dataset.train)
    most = min(number, max(MOST_EXAMPLES, self.config.batch_size))
    shuffled = dataset.train.take(batch_indices(0, 0, num_examples=number, batch_size=most))
    self._shuffled = make_source(self._mesh, shuffled, resident=False, standard=standard)
    self._evaluate = make_evaluate(self.program, self.replicas, self.config.eval_batch_size)
    self._apply = jax.jit(self.program.apply_fn, static_argnames="train")

  @property
  def _mesh(self) -> jax.sharding.Mesh:
    return self.replicas.mesh

  def with_variables(self, variables: Variables) -> TrainState:
    """Returns the state with these variables, and without extras."""
    placed = place(self._mesh, jax.tree.map(np.asarray, variables), PartitionSpec())
    return self.state.replace(**placed, extras={})

  def values(self, variables: Variables, split: str = "val") -> dict[str, float]:
    """Measures a network on a split."""
    sums = self._evaluate((self.with_variables(variables),), self._sources[split])
    return {name: float(value[0]) for name, value in summarize(sums, split).items()}

  def completed(self, params: Params, other: Variables) -> Variables:
    """Returns parameters with new BatchNorm statistics; the dtypes and other state come from `other`."""
    params = jax.tree.map(lambda new, old: np.asarray(new).astype(old.dtype), params, other["params"])
    leaves, tree = jax.tree.flatten(other["model_state"])
    floating = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not floating:
      return {"params": params, "model_state": other["model_state"]}

    def apply_fn(
      params: Params, model_state: ModelState, x: Array, *, key: Key | None, train: bool
    ) -> tuple[PyTree, ModelState]:
      outputs, state = self._apply(params, filled(model_state), x, key=key, train=train)
      new = jax.tree.leaves(state)
      return outputs, [new[place] for place in floating]

    def filled(statistics: ModelState) -> ModelState:
      return tree.unflatten(
        [statistics[floating.index(at)] if at in floating else leaf for at, leaf in enumerate(leaves)]
      )

    placed = self.with_variables({"params": params, "model_state": other["model_state"]})
    all_leaves = jax.tree.leaves(placed.model_state)
    try:
      statistics = averaging.batch_norm_statistics(
        apply_fn,
        placed.params,
        [all_leaves[place] for place in floating],
        self._train_inputs(),
        momentum=None,
        key=keys.statistics(self.config.seed),
      )
    except ValueError as error:
      raise RunError(
        f"job: merge cannot estimate the state of this network again: {one_line(error)}"
      ) from error
    return {"params": params, "model_state": jax.device_get(filled(statistics))}

  def _train_inputs(self) -> Iterator[Array]:
    """Yields batches of training examples in random order, without the last one if it is smaller."""
    source, size = self._shuffled, self.config.batch_size
    number = max(len(source) // size, 1)
    for _, batch in zip(range(number), batches(source, size, self._mesh), strict=False):
      yield self.program.examples(batch).inputs

  def final_state(self, variables: Variables, step: int) -> TrainState:
    """Returns the state to save, stacked."""
    state = self.with_variables(variables)
    extras = jax.jit(self.program.extras.init)(state.variables)
    step_leaf = place(self._mesh, np.asarray(step, state.step.dtype), PartitionSpec())
    return self.replicas.pack((state.replace(extras=extras, step=step_leaf),))


def merge(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Writes a run into `workdir` whose parameters are the mean of the parameters of `merge.runs`.

  The runs must have one network, data and method. `merge.json` has what every network and the merge reach on
  the validation split, and the loss along the lines between the best network and others; a figure shows it.
  The configuration is that of the first run, with one replica. `config.json` is written last: a merge that is
  interrupted leaves no run, and the same command starts again.

  Raises:
    RunError: for runs that do not fit together, or if the uniform mean is worse than the best network.
  """
  workdir = user_path(workdir, "--workdir")
  if jax.process_count() > 1:
    raise RunError(f"job: merge runs in one process, here are {jax.process_count()}")
  if config.mesh.shard:
    raise RunError(f"mesh.shard: must be empty for job=merge, got {config.mesh.shard}")
  _check_free(workdir)
  merger = Merger(config)
  ingredients = _ingredients(config, merger)
  name = chosen_metric(config.checkpoint.best, ingredients[0].values)
  ingredients.sort(key=lambda each: (math.isnan(each.values[name]), each.values[name]))
  best = ingredients[0]
  if math.isnan(best.values[name]):
    raise RunError(f"merge.runs: {name} is not a number in any of the runs")
  progress(f"merge: {len(ingredients)} networks; the best has {name} {_shown(best.values[name], name)}")
  variables, rows = _soup(merger, ingredients, name)
  values = merger.values(variables)
  if sum(row["taken"] for row in rows) > 1 and not values[name] <= best.values[name]:
    if config.merge.recipe == "uniform":
      raise RunError(
        f"merge.recipe: the uniform mean has {name} {_shown(values[name], name)}, worse than "
        f"{_shown(best.values[name], name)} of {best.label}; nothing is written; give greedy, or other runs"
      )
    # With statistics of their own, the networks of the soup were measured in another way than the best run.
    variables, values = best.variables, best.values
    rows = [{**row, "taken": row["name"] == best.label} for row in rows]
  along = _lines(merger, ingredients, name)
  results = {"step": max(each.step for each in ingredients), **values, **merger.values(variables, "test")}
  found = {"metric": name, "recipe": config.merge.recipe, "ingredients": rows, "lines": along}
  figure = _figure(along, best.label, values, name, figure_title(merger.config))
  _write(merger, workdir, variables, values, results, found, figure)
  return {**results, "merge": found, "workdir": str(workdir)}


def lines(results: Table) -> str:
  """Formats the results for people: every network, the merge, and the barriers between the networks."""
  found = results["merge"]
  name = found["metric"]
  widest = max(len(row["name"]) for row in found["ingredients"])
  texts: list[str] = []
  for row in found["ingredients"]:
    with_it = row["with_it"]
    what = "taken" if row["taken"] else "not taken"
    what += "" if with_it is None else f": {_shown(with_it, name)} with it"
    texts.append(f"{row['name']:{widest}}  {name} {_shown(row['score'], name)}  {what}")
  number = sum(row["taken"] for row in found["ingredients"])
  test = name.replace("val/", "test/")
  texts.append(
    f"{'merge of ' + str(number):{widest}}  {name} {_shown(results[name], name)}  "
    f"{test} {_shown(results[test], test)}"
  )
  if number == 1:
    texts.append("no other network makes the best one better; the merge is a copy of it")
  for line in found["lines"]:
    barriers = ", ".join(f"{each} {_shown(value, each)}" for each, value in line["barriers"].items())
    texts.append(f"barrier to {line['to']}: {barriers}")
  return "\n".join([*texts, f"in {results['workdir']}: results.json, merge.json, checkpoints/"])


def _one_replica(config: Config) -> Config:
  """Returns the configuration of the merged run."""
  merged: Config = config.copy_and_resolve_references().unlock()
  merged.update_from_flattened_dict({"job": "train", "replicas": 1, "ensemble": 1})
  return merged.lock()


def _check_free(workdir: Path) -> None:
  """Checks that a folder is new, empty, or holds what an interrupted merge left."""
  check_path(workdir)
  if workdir.exists() and not workdir.is_dir():
    raise RunError(f"--workdir: {workdir} is a file; give a folder")
  if (workdir / "config.json").is_file():
    raise RunError(f"--workdir: {workdir} is a run already; give a new folder")
  there = [each.name for each in workdir.iterdir()] if workdir.is_dir() else []
  if workdirs.MERGE not in there and {*there} - {"lock"}:
    raise RunError(f"--workdir: {workdir} holds other files, such as {sorted(there)[0]}; give a new folder")


def _ingredients(config: Config, merger: Merger) -> list[Ingredient]:
  """Restores and measures each replica of each run."""
  made: list[Ingredient] = []
  folders = [user_path(each, "merge.runs") for each in config.merge.runs]
  if len({each if in_bucket(each) else os.path.realpath(each) for each in folders}) < len(folders):
    raise RunError(f"merge.runs: must be different runs, got {config.merge.runs}")
  for folder in folders:
    with naming("merge.runs"):
      their = restore_config(base_config(), folder)
      workdirs.check_mergeable(folder, flatten(merger.config), merger.description)
      program, state, _ = restore_run(folder, config.evaluate.checkpoint, 0, their)
    step = int(state.step)
    for replica in range(their.replicas):
      if replica:
        with naming("merge.runs"):
          state = restore_state(program, folder, step, replica, their.replicas)
      variables = jax.device_get(state.variables)
      _check_shapes(folder, variables, merger.program.abstract.variables)
      label = str(folder) + (f", seed {their.seed + replica}" if their.replicas > 1 else "")
      made.append(Ingredient(label, variables, step, merger.values(variables)))
  if len(made) < 2:
    raise RunError(
      f"merge.runs: must be at least two runs, or one run of several seeds, got {config.merge.runs}"
    )
  return made


def _check_shapes(folder: Path, variables: Variables, wanted: Variables) -> None:
  ours, theirs = (
    {name: leaf.shape for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)}
    for tree in (wanted, variables)
  )
  for name in sorted({*ours, *theirs}):
    if ours.get(name) != theirs.get(name):
      raise RunError(
        f"merge.runs: {folder} has another network: its {name} is {theirs.get(name, 'missing')}, "
        f"of the first run {ours.get(name, 'missing')}"
      )


def _soup(merger: Merger, ingredients: list[Ingredient], name: str) -> tuple[Variables, list[Table]]:
  """Merges networks in order, and says of each whether it was taken and what the merge with it reached."""
  best, scores = ingredients[0], []
  uniform = merger.config.merge.recipe == "uniform"

  def score(params: Params) -> float:
    scores.append(merger.values(merger.completed(params, best.variables))[name])
    return scores[-1]

  soup = averaging.soup(None if uniform else score)
  state = soup.init(best.variables["params"])
  rows: list[Table] = []
  for each in ingredients:
    before = int(state.count)
    state = soup.update(state, each.variables["params"])
    with_it = scores[-1] if scores and each is not best else None
    taken = int(state.count) > before
    rows.append({"name": each.label, "score": each.values[name], "taken": taken, "with_it": with_it})
  if int(state.count) < 2:
    return best.variables, [{**row, "taken": row["name"] == best.label} for row in rows]
  return merger.completed(soup.params(state), best.variables), rows


def _lines(merger: Merger, ingredients: list[Ingredient], name: str) -> list[Table]:
  """Measures networks along the lines from the best network to others.

  The barrier is the largest height above the chord between the ends.
  """
  best, *others = ingredients
  names = [each for each in dict.fromkeys((name, "val/nll")) if each in best.values]
  made: list[Table] = []
  for other in others[:MOST_LINES]:

    def between(share: float, other: Ingredient = other) -> Params:
      return jax.tree.map(
        lambda a, b: (1 - share) * a + share * b if jnp.issubdtype(a.dtype, jnp.floating) else a,
        best.variables["params"],
        other.variables["params"],
      )

    inner = [merger.values(merger.completed(between(float(t)), best.variables)) for t in POINTS[1:-1]]
    values = {each: [point[each] for point in (best.values, *inner, other.values)] for each in names}
    barriers = {
      each: float(np.max(np.array(line) - np.interp(POINTS, [0, 1], [line[0], line[-1]])))
      for each, line in values.items()
    }
    made.append({"to": other.label, "values": values, "barriers": barriers})
  return made


def _figure(lines: list[Table], best: str, merged: Mapping[str, float], name: str, title: str) -> Figure:
  """Draws the metrics along the lines from the best network to others."""
  names = [*lines[0]["values"]]
  figure = new_figure(WIDTH, 3.2, f"{title}: from the best network, {best}, to others")
  for axis, each in zip(np.ravel(figure.subplots(1, len(names))), names, strict=True):
    about = metric(each)
    for line, color in zip(lines, colors(len(lines)), strict=True):
      values = about.factor * np.array(line["values"][each], np.float64)
      axis.plot(POINTS, values, marker="o", markersize=3, color=color, label=verbatim(f"to {line['to']}"))
    axis.axhline(about.factor * merged[each], color="black", linestyle="--", linewidth=1, label="merge")
    axis.set_xlabel("share of the other network")
    axis.set_ylabel(f"val {about.title}" + (f", {about.unit}" if about.unit else ""))
    tidy(axis)
  axes = figure.axes
  figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize="small", ncols=1)
  return figure


def _write(
  merger: Merger,
  workdir: Path,
  variables: Variables,
  values: Mapping[str, float],
  results: Table,
  found: Table,
  figure: Figure,
) -> None:
  """Writes the run: `merge.json` first, so that the rest is known as ours, and `config.json` last."""
  token, best = secrets.token_hex(16), merger.config.checkpoint.best
  try:
    make_folder(workdir)
    with locked(workdir, say) as lock:
      _check_free(workdir)  # another merge may have ended here
      for name in MADE:
        if (workdir / name).exists():
          remove(workdir / name)
      write_json(workdir / workdirs.MERGE, sealed(found, token))
      there = functools.partial(check_there, workdir, lock)
      with Checkpoints(workdir, keep=2, best=best, run=token, check_there=there) as saved:
        metrics = {name: np.array([value]) for name, value in values.items()}
        saved.save(results["step"], merger.final_state(variables, results["step"]), metrics)
      write_figures(workdir / "figures", {"connectivity": figure})
      write_json(workdir / "results.json", sealed(results, token))
      there()
      workdirs.describe(workdir, flatten(merger.config), merger.description, token)
  except OSError as error:
    raise RunError(f"--workdir: {workdir} cannot be written ({one_line(error)}); give another") from error


def _shown(value: float, name: str) -> str:
  return f"{value:{metric(name).form}}"

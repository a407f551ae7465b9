"""`job = report`: a report card of a run, and its comparison with other runs."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable

import jax
import numpy as np
from etils.epath import Path

from jaxreg import models, reports
from jaxreg._atomic_files import in_bucket
from jaxreg._errors import ArgumentError
from jaxreg.train.config.choices import Config
from jaxreg.train.config.fields import row_of
from jaxreg.train.data.dataset import Split
from jaxreg.train.errors import RunError, field_error, naming, one_line
from jaxreg.train.finished.inputs import is_integer
from jaxreg.train.finished.loss import make_loss_fn, whole_batch
from jaxreg.train.finished.restore import RestoredRun, restore_config, restore_states
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import Numbers
from jaxreg.train.user_paths import user_path
from jaxreg.typing import Array, Key, Params

FOLDER = "report"
SEEDS = ("seed", "replicas")  # runs that differ in these fields are one model


def report(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Makes a card of each replica below `workdir/report`, and compares it with the runs of `report.against`.

  The cards of the other runs lie there, too: nothing is written into another run's folder.

  Raises:
    RunError: for labels that are not one class or number for each example, or data that are read by batch.
  """
  if jax.process_count() > 1:
    raise RunError(f"job: report runs in one process, here are {jax.process_count()}")
  workdir = user_path(workdir, "--workdir")
  runs = {workdir: config}
  for other in (user_path(each, "report.against") for each in config.report.against):
    if _real(other) in map(_real, runs):
      raise RunError(f"report.against: must be another run than {other}")
    with naming("report.against"):
      runs[other] = restore_config(config, other)
  models = _models([*runs]) if len(runs) > 1 else {}
  made: dict[Path, tuple[int, list[Path]]] = {}
  for folder, each in runs.items():
    with naming("workdir" if folder == workdir else "report.against"):
      made[folder] = _cards(each, folder, _place(folder, workdir))
  cards = {folder: folders for folder, (_, folders) in made.items()}
  pages = [card / "report.html" for card in cards[workdir]]
  if models:
    _, *others = models
    out = workdir / FOLDER / _file_name(f"against-{'-'.join(others)}")
    by_model = {
      label: [card for folder in folders for card in cards[folder]] for label, folders in models.items()
    }
    try:
      reports.compare(by_model, out=out, title=", ".join(models))
    except ValueError as error:
      raise RunError(f"report.against: {one_line(error)}") from error
    pages.insert(0, out / "report.html")
  card = json.loads((cards[workdir][0] / "report.json").read_text())
  sections = {name: card["sections"][name] for name in card["asked"]}
  missing = {name: each["reason"] for name, each in sections.items() if each["status"] != "done"}
  number = len(sections) - len(missing)
  return {"step": made[workdir][0], "pages": [*map(str, pages)], "sections": number, "missing": missing}


def lines(results: Table) -> str:
  """Lists the pages of a report, and the sections that it lacks."""
  missing = [f"not on the card: {name}: {reason}" for name, reason in results["missing"].items()]
  title = f"checkpoint of step {results['step']}, {results['sections']} sections"
  return "\n".join([title, *missing, *results["pages"]])


def _models(folders: list[Path]) -> dict[str, list[Path]]:
  """Groups the runs by model, by label. Runs that differ in the seed alone are one model, unless all do."""
  by_fields: dict[str, list[Path]] = {}
  for folder in folders:
    fields = workdirs.read_config(folder)
    same = {name: x for name, x in fields.items() if name not in SEEDS and row_of(name).scope != "call"}
    by_fields.setdefault(json.dumps(same, sort_keys=True), []).append(folder)
  groups = [*by_fields.values()] if len(by_fields) > 1 else [[folder] for folder in folders]
  number = r"(?<=.)[-_.]?\d+$"
  labels = [re.sub(number, "", first.name) if seeds else first.name for first, *seeds in groups]
  labels = labels if len({*labels}) == len(labels) else [str(first) for first, *_ in groups]
  return dict(zip(labels, groups, strict=True))


def _place(run: Path, workdir: Path) -> Path:
  """Returns the folder below `workdir` for the cards of a run, which is the same at each call."""
  if run == workdir:
    return workdir / FOLDER
  digits = hashlib.sha256(os.fsencode(_real(run))).hexdigest()[:8]  # runs may have one name
  return workdir / FOLDER / "others" / f"{_file_name(run.name)}-{digits}"


def _real(folder: Path) -> str:
  """Returns the path of a folder without links; a bucket has none."""
  return str(folder) if in_bucket(folder) else os.path.realpath(folder)


def _file_name(text: str) -> str:
  """Returns the beginning of a text that a file system takes as a name."""
  return os.fsencode(text.replace("/", "_"))[:100].decode(errors="ignore")


def _cards(config: Config, workdir: Path, place: Path) -> tuple[int, list[Path]]:
  """Makes a card of each replica in `place`; returns the step of the checkpoint and the folders."""
  run = restore_states(config, workdir)
  split, val, train = run.dataset.splits()[config.evaluate.split], run.dataset.val, run.dataset.train
  for each in (split, val, train):
    _check(each)
  folders: list[Path] = []
  for number, state in enumerate(run.each()):
    folder = place / (f"seed-{config.seed + number}" if run.number > 1 else "")
    held_out = None if np.array_equal(val.labels, split.labels) else _data(run, val)
    target, seeds = run.program.target, f", seed {config.seed + number}" if run.number > 1 else ""
    try:
      reports.report(
        _predict_fn(run, state),
        _data(run, split),
        params=state.params,
        loss_fn=make_loss_fn(run.program, state.model_state),
        in_units=_in_units(target) if isinstance(target, Numbers) else None,
        held_out=held_out,
        train=whole_batch(train, target.standard),
        out=folder,
        sections=config.report.sections or None,
        minutes=config.report.minutes / run.number,
        features_fn=_features_fn(run, state) if split.labels.dtype.kind in "iu" else None,
        last_layer=_last_layer(run, state),
        title=f"{workdir.name}: {run.program.name}, step {run.step}, {config.evaluate.split} split{seeds}",
        class_names=run.dataset.describe().class_names,
        alpha=config.evaluate.alpha,
        levels=target.levels if isinstance(target, Numbers) else (),
        value_range=(0.0, 1.0) if is_integer(str(split.inputs.dtype)) else None,
      )
    except ArgumentError as error:
      raise field_error("evaluate" if error.argument == "alpha" else "report", error) from error
    folders.append(folder)
  return run.step, folders


def _check(split: Split) -> None:
  if not isinstance(split.inputs, np.ndarray) or split.labels.ndim != 1:
    raise RunError(
      "job: report needs data in memory with one class or number for each example, "
      f"got {type(split.inputs).__name__} and labels {split.labels.shape}"
    )
  if len(split.labels) < 4:
    raise RunError(f"job: report needs at least four examples in each split, got {len(split.labels)}")


def _data(run: RestoredRun, split: Split) -> dict[str, np.ndarray]:
  """Returns the examples in the model's units."""
  inputs = split.inputs.astype(np.float32) / run.program.scale
  return {"inputs": inputs, "labels": split.labels}


def _features_fn(run: RestoredRun, state: TrainState) -> Callable[[Params, Array], Array]:
  """Builds `(params, inputs) -> features` of the backbone, without noise."""

  def features(params: Params, inputs: Array) -> Array:
    passed = run.program.network.features_and_outputs(
      params, state.model_state, inputs, key=None, train=False
    )
    return passed[0][0]

  return features


def _last_layer(run: RestoredRun, state: TrainState) -> tuple[Array, Array] | None:
  """Returns the kernel and the bias of a softmax; other methods have no single layer after the features."""
  if run.program.method.head is not models.SoftmaxHead:
    return None
  layer = state.params["head"]["classifier"]
  return layer["kernel"], layer["bias"]


def _predict_fn(run: RestoredRun, state: TrainState) -> Callable[..., Array]:
  """Builds `(params, inputs, *, key=None) -> predictions`, of numbers in no unit; a key draws noise."""
  program = run.program
  noisy = program.extras.draw is None and _samples_noise(run, state)

  def predict(params: Params, inputs: Array, *, key: Key | None = None) -> Array:
    if key is None or not noisy:
      outputs = program.predict_fn(state.replace(params=params), inputs, jax.random.clone(state.key))
    else:
      network, rule = jax.random.split(key)
      values, _ = program.network.apply(
        params, state.model_state, inputs, key=network, train=True, use_running_average=True
      )
      outputs = program.method.predicted(rule, values)
    return outputs

  return predict


def _in_units(target: Numbers) -> Callable[[np.ndarray], np.ndarray]:
  """Builds the map from predictions to those in the unit of the data, without a variance that is none."""
  return lambda outputs: target.original(outputs)[..., : 1 if target.predicts == "means" else None]


def _samples_noise(run: RestoredRun, state: TrainState) -> bool:
  """Tells whether the network can draw noise while its statistics stay."""
  inputs = jax.ShapeDtypeStruct((1, *run.dataset.describe().input_shape), np.float32)
  draw = functools.partial(run.program.network.apply, train=True, use_running_average=True)
  try:
    jax.eval_shape(draw, state.params, state.model_state, inputs, key=jax.random.key(0))
  except ArgumentError:
    return False
  return True

"""`job = predict`: writes what a trained run predicts for new examples into a CSV file."""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from jaxreg import calibration
from jaxreg._atomic_files import read_bytes, write_text
from jaxreg.train.config.choices import Config, flatten
from jaxreg.train.data.bounded_files import ERRORS, read_npz
from jaxreg.train.data.image_folder import find_images, left_out_line
from jaxreg.train.data.images import SUFFIXES, decode, depth_remark
from jaxreg.train.errors import ArgumentError, RunError, one_line
from jaxreg.train.finished.load import Predictor, restore_predictor
from jaxreg.train.finished.predicted import Predicted, by_target
from jaxreg.train.run.folder_name import EVALUATES
from jaxreg.train.run.workdir import check_same
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.targets import Numbers
from jaxreg.train.user_paths import local_path, user_path

Column = tuple[str, Sequence[object]]  # its name and its values


class Examples(NamedTuple):
  """New examples: a name for each, and a function that returns the stored inputs of a slice."""

  names: Sequence[object]
  stored: Callable[[slice], jax.Array]
  remarks: Sequence[str] = ()  # on files that are left out, or on how inputs are taken


def predict(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Writes the predictions for the examples of `predict.file` into `predict.out`, a CSV file.

  Raises:
    RunError: if the work directory holds nothing usable, or for examples that do not fit the run.
  """
  workdir, options, size = user_path(workdir, "--workdir"), config.predict, config.eval_batch_size
  source, out = _files(options.file, options.out)
  members = restored_members(config, workdir)
  model = members[0]
  try:
    examples = _examples(model, source)
    predictions = _predictions(members, examples.stored, len(examples.names), size)
  except ArgumentError as error:
    problem = error.problem if error.argument == "inputs" else str(error)
    raise RunError(f"predict.file: {source}: {problem}") from error
  except ValueError as error:  # inputs of another shape or dtype
    raise RunError(f"predict.file: {source}: {one_line(error)}") from error
  held = held_out(members, size) if options.conformal else None
  make_columns = _number_columns if isinstance(model.program.target, Numbers) else _class_columns
  columns = [("example", examples.names), *make_columns(model, predictions, held, config.evaluate.alpha)]
  _write(out, columns)
  remarks = [*filter(None, examples.remarks)]
  if (seeds := config.replicas // config.ensemble) > 1:
    remarks.append(
      f"the run has {seeds} {'seeds' if config.ensemble == 1 else 'ensembles'}: the first predicts"
    )
  return {
    "step": model.step,
    "examples": len(examples.names),
    "out": str(out),
    "columns": [name for name, _ in columns],
    "remarks": remarks,
  }


def restored_members(config: Config, workdir: epath.Path) -> list[Predictor]:
  """Returns the networks of a run, one or an ensemble, for a job of one process that takes stored inputs."""
  if jax.process_count() > 1:
    raise RunError(f"job: {config.job} runs in one process, got {jax.process_count()}")
  members = [
    restore_predictor(workdir, config, config.evaluate.checkpoint, replica)
    for replica in range(config.ensemble)
  ]
  check_same(workdir, flatten(config), members[0].data, EVALUATES)
  if members[0].data.has_tokens:
    raise RunError(f"job: {config.job} needs images, features or a table, and this run reads tokens")
  return members


def lines(results: Table) -> str:
  """Formats the results for people."""
  columns = results["columns"]
  more = f" and {len(columns) - 10} more" if len(columns) > 10 else ""
  done = (
    f"{results['examples']} predictions of the checkpoint of step {results['step']} are in {results['out']}"
  )
  return "\n".join([*results["remarks"], f"{done}; its columns are {', '.join(columns[:10])}{more}"])


def _files(file: str, out: str) -> tuple[Path, epath.Path]:
  """Returns the paths of the examples and of the predictions."""
  for field, path in {"file": file, "out": out}.items():
    if not path:
      raise RunError(f"predict.{field}: must name a file, as in jaxreg predict RUN FILE --out OUT.csv")
  source, target = local_path(file, "predict.file"), user_path(out, "predict.out")
  if not source.exists():
    raise RunError(f"predict.file: got {file!r}, which is not there; give a file, or a folder of images")
  if target.exists() and (not target.is_file() or os.path.realpath(target) == os.path.realpath(source)):
    raise RunError(f"predict.out: must be a new file, got {out!r}")
  return source, target


def _examples(model: Predictor, source: Path) -> Examples:
  """Opens a table, a folder of images or an `.npz` file, whichever the model and the path ask for."""
  if source.suffix.lower() == ".npz":
    return _array_examples(model, source)
  if source.suffix.lower() in SUFFIXES or (source.is_dir() and not model.data.columns):
    return _image_examples(model, source)
  if not model.data.columns:
    what = "a folder of images, or an .npz file" if len(model.input_shape) == 3 else "an .npz file"
    raise ArgumentError("inputs", f"this run reads no table; give {what}")
  frame = model.read_table(source)
  inputs = model.stored(frame, rows=frame.index)
  return Examples(frame.index, lambda part: inputs[part])


def _array_examples(model: Predictor, source: Path) -> Examples:
  """Reads the array `x`, or else `x_test`, of an `.npz` file."""
  try:
    arrays = read_npz(source)
  except ERRORS as error:
    raise ArgumentError("inputs", f"it cannot be read ({one_line(error)})") from error
  name = "x" if "x" in arrays else "x_test"
  if name not in arrays:
    raise ArgumentError(
      "inputs", f"it has no array x or x_test; it has {', '.join(sorted(arrays)) or 'none'}"
    )
  inputs = arrays[name]
  if not inputs.ndim or not len(inputs):
    raise ArgumentError("inputs", f"{name} must have examples, got the shape {inputs.shape}")
  if inputs.dtype.kind not in "biuf":
    raise ArgumentError("inputs", f"{name} must be real numbers, got {inputs.dtype}")
  if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
    row = int(np.argmax(~np.isfinite(inputs).reshape(len(inputs), -1).all(axis=1)))
    raise ArgumentError("inputs", f"{name} has NaN or an infinite value in example {row}")
  if inputs.dtype != np.uint8 and model.input_dtype.startswith("float"):
    inputs = inputs.astype(np.float64)
  remark = ""
  if model.decoding is not None and inputs.shape[1:] == model.input_shape:
    crops = f"finished crops of {model.decoding.size} pixels"
    remark = f"{name} is taken as {crops}; give image files to have them scaled and cropped"
  names = range(len(inputs))
  return Examples(names, lambda part: model.stored(inputs[part], rows=names[part]), [remark])


def _image_examples(model: Predictor, source: Path) -> Examples:
  """Lists the images of a folder, at any depth, or takes one image file."""
  if len(model.input_shape) != 3:
    raise ArgumentError("inputs", f"this run reads no images, but inputs of shape {model.input_shape}")
  left_out = Counter[str]()
  folder = source if source.is_dir() else source.parent
  names = [name for name, _ in find_images(source, left_out)] if source.is_dir() else [source.name]
  remark = left_out_line(source, left_out)
  if not names:
    raise ArgumentError(
      "inputs", f"it has no images; give {', '.join(SUFFIXES)} files. {remark}".rstrip(". ")
    )

  def stored(part: slice) -> jax.Array:
    files = [folder / name for name in names[part]]
    return model.stored(files if model.decoding is not None else np.stack([pixels(file) for file in files]))

  def pixels(file: Path) -> np.ndarray:
    try:
      image = np.asarray(decode(read_bytes(file), model.input_shape[-1]))
    except Exception as error:  # Pillow has no common error for damaged files
      raise ValueError(f"{file} cannot be decoded ({one_line(error)})") from error
    image = image.reshape(*image.shape[:2], -1)
    if image.shape != model.input_shape:
      raise ValueError(
        f"{file} must have the shape {model.input_shape} of the run's images, got {image.shape}"
      )
    return image

  depth = depth_remark(lambda number: read_bytes(folder / names[number]), len(names))
  return Examples(names, stored, [remark, depth])


def _predictions(
  members: Sequence[Predictor], stored: Callable[[slice], Any], number: int, batch_size: int
) -> np.ndarray:
  """Computes the joint predictions of all members, batch by batch.

  The last batch is filled up by its first example, so that each call of the compiled function has one shape.
  """
  target, parts = members[0].program.target, []
  size = min(batch_size, number)
  for start in range(0, number, size):
    inputs = jnp.asarray(stored(slice(start, start + size)))
    there = len(inputs)
    inputs = jnp.concatenate([inputs, jnp.repeat(inputs[:1], size - there, axis=0)])
    each = [member.predictions(inputs) for member in members]
    parts.append(np.asarray(each[0] if len(each) == 1 else target.mean(jnp.stack(each)))[:there])
  return np.concatenate(parts)


def held_out(members: Sequence[Predictor], batch_size: int) -> Predicted:
  """Computes the predictions of the validation split, which conformal sets and intervals learn from."""
  val = members[0].stored_dataset.val
  predictions = _predictions(members, lambda part: np.asarray(val.inputs[part]), len(val), batch_size)
  return Predicted(predictions, val.labels, members[0].program.target)


def _number_columns(
  model: Predictor, predictions: np.ndarray, held_out: Predicted | None, alpha: float
) -> list[Column]:
  """Makes a column of predictions for each target, and of the ends of its interval, in the data's units."""
  target = model.program.target
  assert isinstance(target, Numbers)
  parts = {"": target.point(predictions)}
  if held_out is not None:
    parts |= zip((" low", " high"), _conformal_ends(target, predictions, held_out, alpha), strict=True)
  elif target.predicts != "means":
    parts |= zip((" low", " high"), map(np.asarray, target.interval(predictions)), strict=True)
  units = {end: by_target(target.standard.original(np.asarray(x, np.float64))) for end, x in parts.items()}
  number = len(units[""])
  names = (
    model.class_names if len(model.class_names) == number else [f"prediction {k}" for k in range(number)]
  )
  return [(name + end, x[place].tolist()) for place, name in enumerate(names) for end, x in units.items()]


def _conformal_ends(
  target: Numbers, predictions: np.ndarray, held_out: Predicted, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
  """Computes conformal intervals of each target, as the network learns it."""
  low, high = (by_target(np.asarray(end)) for end in target.interval(predictions))
  ends = [
    calibration.conformal_intervals(low[k], high[k], *theirs, alpha=alpha, where=where)
    for k, (*theirs, where) in enumerate(held_out.intervals())
  ]
  lows, highs = (np.stack([np.asarray(end) for end in each], axis=-1) for each in zip(*ends, strict=True))
  shape = target.point(predictions).shape
  return lows.reshape(shape), highs.reshape(shape)


def _class_columns(
  model: Predictor, log_probs: np.ndarray, held_out: Predicted | None, alpha: float
) -> list[Column]:
  """Makes columns of the classes, their probabilities and conformal sets, or of each yes-or-no label."""
  sets = None
  if held_out is not None:
    ours, theirs = (calibration.conformal_scores(each) for each in (log_probs, held_out.predictions))
    labels = held_out.labels
    sets = np.asarray(calibration.conformal_sets(ours, theirs, labels, alpha=alpha, where=held_out.where))
  names = [*model.class_names]
  if log_probs.ndim == 2:
    names = names or [str(number) for number in range(log_probs.shape[1])]
    columns: list[Column] = [("class", [names[number] for number in log_probs.argmax(axis=1)])]
    columns += [
      (f"p({name})", _probabilities(column)) for name, column in zip(names, log_probs.T, strict=True)
    ]
    return columns + ([] if sets is None else [("set", _set_texts(sets, names))])
  names = names or [str(number) for number in range(log_probs.shape[1])]
  columns = []
  for number, name in enumerate(names):
    answers = log_probs[:, number]
    columns += [(name, answers.argmax(axis=1).tolist()), (f"p({name})", _probabilities(answers[:, 1]))]
    columns += [] if sets is None else [(f"set({name})", _set_texts(sets[:, number], ["0", "1"]))]
  return columns


def _probabilities(log_probs: np.ndarray) -> list[str]:
  """Writes probabilities with the nine digits of float32."""
  return [f"{p:.9g}" for p in np.exp(log_probs.astype(np.float64)).tolist()]


def _set_texts(sets: np.ndarray, names: Sequence[str]) -> list[str]:
  """Writes each set `[classes]` as a JSON list of names."""
  return [
    json.dumps([name for name, inside in zip(names, row, strict=True) if inside], ensure_ascii=False)
    for row in sets
  ]


def _write(out: epath.Path, columns: Sequence[Column]) -> None:
  """Writes columns as CSV."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow([name for name, _ in columns])
  writer.writerows(zip(*(values for _, values in columns), strict=True))
  try:
    write_text(out, text.getvalue(), errors="surrogateescape")
  except OSError as error:
    raise RunError(f"predict.out: {out} cannot be written ({one_line(error)})") from error

"""`job = export`: writes a trained run as one function that needs JAX only."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import calibration
from jaxreg._atomic_files import make_folder, write_bytes, write_json, write_text
from jaxreg.train.config.choices import Config
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.finished.inputs import in_model_units
from jaxreg.train.finished.load import Predictor
from jaxreg.train.finished.predicted import Predicted
from jaxreg.train.jobs.predict import held_out, restored_members
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.targets import Numbers
from jaxreg.train.user_paths import user_path
from jaxreg.typing import Array

EXAMPLE = '''"""Predicts with the exported run; needs JAX and NumPy only."""

import json
from pathlib import Path

import numpy as np
from jax import export

folder = Path(__file__).parent
about = json.loads((folder / "model.json").read_text())
model = export.deserialize((folder / "model.bin").read_bytes())


def predict(inputs):
  given = stored = np.asarray(inputs)
  if about["input_mean"]:
    stored = (np.asarray(given, np.float64) - about["input_mean"]) / about["input_std"]
  with np.errstate(all="ignore"):
    stored = stored.astype(about["input_dtype"])
  wrong = stored != given if stored.dtype.kind in "iu" else ~np.isfinite(stored)
  if wrong.any():
    raise ValueError(f"inputs must be finite {stored.dtype}, as the run's data are, got {given[wrong][0]}")
  outputs = model.call(stored)
  if about["label_mean"]:
    mean, std = about["label_mean"], about["label_std"]
    outputs = {name: np.asarray(value, np.float64) * std + mean for name, value in outputs.items()}
  return outputs


if __name__ == "__main__":
  outputs = predict(np.zeros((2, *about["input_shape"])))
  print({name: value.shape for name, value in outputs.items()})
'''


def export(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Writes `export/model.bin`, a `jax.export` of the prediction, with `model.json` and `predict.py`.

  The function takes stored inputs `[batch, ...]`; features of a table are standardised first, by the mean
  and the standard deviation in `model.json`. For classes it returns `probabilities` at the temperature, and
  `set`, which says which classes are in the conformal set. For numbers it returns `prediction`, and `low` and
  `high`, the ends of a conformal interval, standardised; `predict.py` gives them the units of the data in
  float64, by `label_mean` and `label_std`. Temperature and thresholds come from the validation split; sets
  come from the probabilities before the temperature.

  Raises:
    RunError: if the work directory holds nothing usable, or for a run whose program cannot be exported.
  """
  workdir, options = user_path(workdir, "--workdir"), config.export
  members = restored_members(config, workdir)
  model = members[0]
  learned = _calibrated(model, held_out(members, config.eval_batch_size), config.evaluate.alpha)
  numbers = {name: _as_json(value.tolist()) for name, value in learned.items()}
  function = functools.partial(_predict, members, learned)
  (batch,) = jax.export.symbolic_shape("batch")
  inputs = jax.ShapeDtypeStruct((batch, *model.input_shape), model.input_dtype)
  try:
    jax.eval_shape(function, inputs)
  except Exception as error:  # of the network, whose kind is any
    raise RunError(
      f"export: the network must take a batch of unknown size, as x.shape[0] does and len(x) does not "
      f"({one_line(error)})"
    ) from error
  try:
    exported = jax.export.export(jax.jit(function), platforms=options.platforms)(inputs)
    content = bytes(exported.serialize())
  except Exception as error:  # of lowering, whose kinds depend on the network
    raise RunError(f"export: this run cannot be exported ({one_line(error)})") from error
  about = {
    "input_shape": model.input_shape,
    "input_dtype": model.input_dtype,
    "input_names": model.input_names,
    "input_mean": model.data.input_mean,
    "input_std": model.data.input_std,
    "label_mean": model.data.label_mean,
    "label_std": model.data.label_std,
    "class_names": model.class_names,
    "step": model.step,
    "alpha": config.evaluate.alpha,
    "platforms": options.platforms,
    "jax": jax.__version__,
    **numbers,
  }
  folder = workdir / "export"
  try:
    make_folder(folder)
    write_bytes(folder / "model.bin", content)
    write_json(folder / "model.json", about)
    write_text(folder / "predict.py", EXAMPLE)
  except OSError as error:
    raise RunError(f"{folder}: cannot be written ({one_line(error)})") from error
  return {"step": model.step, "folder": str(folder), "bytes": len(content), **numbers}


def lines(results: Table) -> str:
  """Formats the results for people."""
  size = f"{results['bytes'] / 2**20:.1f} MiB"
  files = f"model.bin ({size}), model.json, predict.py"
  return f"the checkpoint of step {results['step']} is in {results['folder']}: {files}"


def _calibrated(model: Predictor, known: Predicted, alpha: float) -> dict[str, Any]:
  """Learns the temperature and the thresholds, or the widening, from the validation split."""
  target = model.program.target
  if isinstance(target, Numbers):
    thresholds = [
      calibration.conformal_threshold(
        calibration.interval_scores(*ends, where=where), alpha=alpha, where=where
      )
      for *ends, where in known.intervals()
    ]
    return {"widening": np.asarray(thresholds, np.float32).reshape(known.labels.shape[1:])}
  temperature = known.measured(calibration.fit_temperature)
  scores = calibration.conformal_scores(known.predictions)
  threshold = calibration.conformal_threshold(scores, known.labels, alpha=alpha, where=known.where)
  return {"temperature": np.float32(temperature), "threshold": np.float32(threshold)}


def _as_json(numbers: Any) -> Any:
  """Replaces infinite numbers, which JSON lacks, by None."""
  if isinstance(numbers, list):
    return [_as_json(each) for each in numbers]
  return numbers if math.isfinite(numbers) else None


def _predict(members: Sequence[Predictor], learned: dict[str, Any], inputs: Array) -> dict[str, Array]:
  """Predicts with all members; parameters become constants of the exported function."""
  model = members[0]
  target = model.program.target
  scaled = in_model_units(inputs, model.input_dtype, model.scale)
  each = [
    member.program.predict_fn(member.state, scaled, jax.random.clone(member.state.key)) for member in members
  ]
  joint = each[0] if len(each) == 1 else target.mean(jnp.stack(each))
  if isinstance(target, Numbers):
    low, high = target.interval(joint)
    return {
      "prediction": target.point(joint),
      "low": low - learned["widening"],
      "high": high + learned["widening"],
    }
  tempered = calibration.temper(joint, temperature=learned["temperature"])
  return {
    "probabilities": jnp.exp(tempered),
    "set": calibration.conformal_scores(joint) <= learned["threshold"],
  }

"""One name for one thing, in the arguments of all public functions and classes (`CONTRIBUTING.md`)."""

import importlib
import inspect

import pytest

import jaxreg
from jaxreg.paths import kernels_only

# Refused name: the name to use.
EVERYWHERE = {
  **dict.fromkeys(("apply", "outputs_fn", "predict_fn", "scores_fn"), "apply_fn"),
  **dict.fromkeys(("num", "num_probes", "num_masks", "num_draws", "num_projections"), "num_samples"),
  **dict.fromkeys(("steps", "num_iters", "num_matvecs", "max_products", "max_steps"), "num_steps"),
  **dict.fromkeys(("rtol", "atol", "tolerance"), "tol"),
  **dict.fromkeys(("keep_prob", "fraction", "drop"), "rate"),
  **dict.fromkeys(("strength", "precision", "lambda_"), "weight"),
  "eta": "eps, or variance",
  "per": "per_example",
  "shared_channels": "per_channel",
}
# In these folders only: elsewhere `where` says which examples count, `alpha` is a Beta distribution's or a
# level, and `batch_size` is that of a data batch.
IN_FOLDERS = {
  ("where", "mask"): ("averaging", "constraints", "flatness", "noise", "optim", "penalties"),
  ("alpha", "weight"): ("constraints", "optim", "penalties"),
  ("batch_size", "chunk_size"): ("ensembles", "flatness"),
}
EXCEPTIONS = {
  "reports.report predict_fn": "may be an array of predictions, or need no parameters",
  "flatness.power_law_fit where": "says which points count",
  "flatness.broken_power_law_fit where": "says which points count",
  "noise.embedding_noise where": "says which tokens count",
}
FOLDERS = [name for name in jaxreg.__all__ if name != "typing"]
TWO_PREDICTIONS = ("consistency", "jensen_shannon", "r_drop")


def parameters(folder):
  """`(name, parameter)` of each public function and class of a folder."""
  module = importlib.import_module(f"jaxreg.{folder}")
  for name in module.__all__:
    found = getattr(module, name)
    if inspect.isfunction(found) or (inspect.isclass(found) and not issubclass(found, Exception)):
      given = inspect.signature(found).parameters
      # Fields that a Linen module inherits have Flax's names.
      own = (inspect.isclass(found) and inspect.get_annotations(found)) or given
      yield from ((name, parameter) for parameter in given.values() if parameter.name in own)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_old_spelling(folder):
  refused = EVERYWHERE | {old: new for (old, new), folders in IN_FOLDERS.items() if folder in folders}
  wrong = [
    f"{folder}.{name}: {parameter.name} must be called {refused[parameter.name]}"
    for name, parameter in parameters(folder)
    if parameter.name in refused and f"{folder}.{name} {parameter.name}" not in EXCEPTIONS
  ]
  assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", FOLDERS)
def test_weights_are_given_by_name(folder):
  # The names of classes begin with a capital; their fields may be given by position.
  wrong = [
    f"{folder}.{name}"
    for name, p in parameters(folder)
    if p.name == "weights" and p.kind != p.KEYWORD_ONLY and name[0].islower()
  ]
  assert not wrong, f"weights must be keyword-only in {', '.join(wrong)}"


@pytest.mark.parametrize("folder", ["constraints", "penalties"])
def test_the_default_mask_is_kernels_only(folder):
  defaults = {name: p.default for name, p in parameters(folder) if p.name == "mask"}
  assert len(defaults) >= 7
  assert {name for name, default in defaults.items() if default is not kernels_only} == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_choice_of_one_draw_or_several_is_a_bool(folder):
  """`per_example` and `per_channel`, in place of a mask called "independent" or "shared"."""
  wrong = [
    f"{folder}.{name}({p.name}={p.default!r})"
    for name, p in parameters(folder)
    if (p.name == "mask" and p.default in ("independent", "shared"))
    or (p.name in ("per_example", "per_channel") and p.default is not p.empty and type(p.default) is not bool)
  ]
  assert not wrong


@pytest.mark.parametrize("name", ["mixup", "manifold_mixup"])
def test_mixing_draws_per_example_by_default(name):
  defaults = {p.name: p.default for one, p in parameters("augment") if one == name}
  assert defaults["per_example"] is True


@pytest.mark.parametrize("name", TWO_PREDICTIONS)
def test_terms_of_two_predictions_take_logits(name):
  names = [p.name for one, p in parameters("losses") if one == name]
  assert names
  assert not [one for one in names if "log_probs" in one]


def test_every_exception_is_one():
  """None is left of a name that has gone."""
  known = {f"{folder}.{name} {p.name}" for folder in FOLDERS for name, p in parameters(folder)}
  assert not EXCEPTIONS.keys() - known

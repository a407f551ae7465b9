"""The functions and classes that a configuration can name, a row each: `REGISTRY[group][name]`.

An object of a user's own module, `module:NAME`, needs no row: `find` infers its kind. Rows are read when they
are used, so a row that is added later is found, too.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType

import optax
import optax.contrib

from jaxreg import augment, constraints, models, noise, optim, penalties
from jaxreg.train.data import sources
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.entries import Chosen, Entry, Fields, options, parameters, shown
from jaxreg.train.errors import RunError, unknown
from jaxreg.train.methods import METHODS
from jaxreg.train.methods.method import Method
from jaxreg.train.methods.numbers import on_outputs
from jaxreg.train.methods.softmax import on_logits
from jaxreg.train.modules import adapt
from jaxreg.train.step import averages, optimizer, schedule, terms
from jaxreg.train.user_modules import imported, is_yours, short

MASK = ("mask",)  # penalties, noise and constraints on the parameters that a mask selects
LABELS = ("labels",)  # terms that count labelled examples alone
CLASSES = ("classes",)  # terms of log-probabilities
IMAGES, MIXES = ("value_range",), ("num_classes",)  # augmentations of colours, and of labels
HELD_OUT = ("validation_fraction",)  # sources that hold validation examples out of the training examples
RATE, DECAYS = ("learning_rate",), ("learning_rate", "weight_decay", "mask")  # optimizers


def _rows(module: object, kind: str, names: str, needs: tuple[str, ...] = ()) -> dict[str, Entry]:
  return {name: Entry(getattr(module, name), kind, needs=needs) for name in names.split()}


REGISTRY: dict[str, dict[str, Entry]] = {
  "data": {
    **_rows(sources, "source", "digits diabetes parallel_text"),
    **_rows(sources, "source", "csv huggingface npz image_folder", HELD_OUT),
    "idx": Entry(sources.idx, "source", needs=("subset",)),
    "tfds": Entry(sources.tfds, "source", needs=("subset", *HELD_OUT)),
  },
  "augment": {
    **_rows(augment, "augmentation", "pad_crop flip translate rotate scale cutout random_erasing"),
    **_rows(augment, "augmentation", "lighting rand_augment auto_augment augmix trivial_augment", IMAGES),
    "random_resized_crop": Entry(augment.random_resized_crop, "augmentation"),
    "color_jitter": Entry(augment.color_jitter, "augmentation", needs=IMAGES),
    "mixup": Entry(augment.mixup, "augmentation", needs=MIXES),
    "manifold_mixup": Entry(augment.manifold_mixup, "augmentation", {"layers": ("backbone", "head")}, MIXES),
    "cutmix": Entry(augment.cutmix, "augmentation", needs=MIXES),
  },
  "model": {
    **_rows(models, "backbone", "MLP RNN LeNet TutorialCNN CifarResNet ResNet VGG VGG9 Airbench ViT"),
    "Transformer": Entry(models.Transformer, "backbone", needs=("vocab_size", "source_length")),
  },
  # Each method has its file in `methods`.
  "method": {name: Entry(method, "method") for name, method in METHODS.items()},
  "regularizers": {
    **_rows(penalties, "penalty", "l2 l1", MASK),
    "elastic_net": Entry(penalties.elastic_net, "penalty", {"ratio": 0.5}, MASK),
    **_rows(penalties, "penalty", "group_lasso hoyer orthogonality", MASK),
    "tying": Entry(penalties.tying, "penalty", {"pairs": ()}),
    "l2_sp": Entry(penalties.l2_sp, "penalty", needs=("reference", "mask")),
    "learned_dropout": Entry(penalties.learned_dropout, "penalty"),
    **_rows(terms, "term", "fgsm pgd gradient_penalty", LABELS),
    **_rows(terms, "term", "virtual_adversarial", ("divergence",)),
    **_rows(terms, "term", "trades r_drop pi_model mean_teacher entropy z_loss", CLASSES),
    **_rows(terms, "term", "distillation", (*CLASSES, "teacher")),
    **_rows(terms, "term", "pseudo_label fixmatch augmix", CLASSES),
    **_rows(terms, "term", "reconstruction l1_activity kl_sparsity jacobian_penalty"),
    **_rows(terms, "term", "activity_variance activity_covariance"),
  },
  "noise": {
    "gaussian_noise": Entry(noise.gaussian_noise, "input_noise", {"std": 0.1}),
    "weight_noise": Entry(noise.weight_noise, "params_noise", {"std": 0.01}, MASK),
    "dropconnect_params": Entry(noise.dropconnect_params, "params_noise", {"rate": 0.5}, MASK),
    "label_noise": Entry(noise.label_noise, "label_noise", {"rate": 0.1}, ("num_classes",)),
  },
  "average": {
    **_rows(averages, "average", "none early_stopping"),
    **_rows(averages, "average", "swa swag", ("num_steps", "steps_per_epoch")),
    "ema": Entry(averages.ema, "average"),
    "power_ema": Entry(averages.power_ema, "average", needs=("num_steps",)),
  },
  "optimizer": {
    **_rows(optax, "step", "adabelief adadelta adafactor adagrad adam adamax", RATE),
    **_rows(optax, "step", "adamaxw adamw adan", DECAYS),
    **_rows(optax, "step", "amsgrad fromage", RATE),
    "lamb": Entry(optax.lamb, "step", needs=DECAYS),
    **_rows(optax, "step", "lars lbfgs", RATE),
    "lion": Entry(optax.lion, "step", needs=DECAYS),
    "nadam": Entry(optax.nadam, "step", needs=RATE),
    "nadamw": Entry(optax.nadamw, "step", needs=DECAYS),
    **_rows(optax, "step", "novograd optimistic_adam_v2 optimistic_gradient_descent", RATE),
    "polyak_sgd": Entry(optax.polyak_sgd, "step", needs=("max_learning_rate",)),
    **_rows(optax, "step", "radam rmsprop rprop sgd sign_sgd signum sm3 yogi", RATE),
    **_rows(optim, "step", "exact_adagrad exact_adam adaptive trust_region", RATE),
    "p_norm_sgd": Entry(optim.p_norm_sgd, "step", {"weight": ...}, RATE),  # the rate replaces the weight
    "path_sgd": Entry(optim.path_sgd, "step", needs=("learning_rate", "apply_fn", "input_shape")),
    "sgld": Entry(optim.sgld, "step", needs=("learning_rate", "num_examples")),
    "fista": Entry(optim.fista, "step", needs=("learning_rate", "prox")),
    **_rows(optimizer, "step", "noisy_sgd mahalanobis", RATE),
    **_rows(optax.contrib, "step", "acprop ademamix simplified_ademamix", DECAYS),
    **_rows(optax.contrib, "step", "adopt cocob dadapt_adamw dog dowg momo momo_adam prodigy", RATE),
    **_rows(optimizer, "step", "muon sophia", RATE),
    "schedule_free": Entry(optimizer.schedule_free, "wrapper", needs=RATE),
    **_rows(optim, "wrapper", "sam asam gsam"),
    "layer_decay": Entry(optim.layer_decay, "wrapper", {"layers": ("backbone/*", "head/*")}),
    **_rows(optimizer, "wrapper", "gradient_noise reparameterize"),
  },
  "optimizer.constraints": {
    "max_norm": Entry(constraints.max_norm, "projection", {"limit": 3.0}, MASK),
    "unit_norm": Entry(constraints.unit_norm, "projection", needs=MASK),
    "min_max_norm": Entry(constraints.min_max_norm, "projection", {"low": 0.5, "high": 3.0}, MASK),
    "prox_l1": Entry(constraints.prox_l1, "prox", {"weight": 1e-4}, MASK),
    "prox_elastic_net": Entry(constraints.prox_elastic_net, "prox", {"weight": 1e-4, "ratio": 0.5}, MASK),
    "prox_group_lasso": Entry(constraints.prox_group_lasso, "prox", {"weight": 1e-4}, MASK),
    "prox_l0": Entry(constraints.prox_l0, "prox", {"weight": 1e-4}, MASK),
    "prox_non_negative": Entry(constraints.prox_non_negative, "prox", needs=MASK),
  },
  "optimizer.weight_decay.schedule": {
    "constant": Entry(schedule.constant, "schedule"),
    "step": Entry(schedule.step, "schedule", needs=("warmup", "num_steps", "steps_per_epoch")),
    "cosine": Entry(schedule.cosine, "schedule", needs=("warmup", "num_steps")),
  },
  "optimizer.schedule": {
    "constant": Entry(schedule.constant, "schedule"),
    "step": Entry(schedule.step, "schedule", needs=("warmup", "num_steps", "steps_per_epoch")),
    "cosine": Entry(schedule.cosine, "schedule", needs=("warmup", "num_steps")),
    "noam": Entry(schedule.noam, "schedule"),
  },
}
# Groups whose field `names` takes several; in the others, the field is `name`.
SEVERAL = ("augment", "regularizers", "noise", "optimizer.constraints")
CHOOSERS = {group: f"{group}.{'names' if group in SEVERAL else 'name'}" for group in REGISTRY}


@dataclasses.dataclass(frozen=True)
class Kind:
  """What the objects of a kind have in common.

  Attributes:
    group: the group whose field names them.
    words: the kind in the words of a message.
    fits: whether an object of a user's own module is of this kind.
    supplied: the arguments that the trainer gives to an object that has them.
    hidden: arguments that are not options.
  """

  group: str
  words: str
  fits: Callable[[object], bool]
  supplied: tuple[str, ...] = ()
  hidden: tuple[str, ...] = ()


def _takes(group: str, *first: str, supplied: tuple[str, ...] = (), hidden: tuple[str, ...] = ()) -> Kind:
  """Returns the kind of the functions whose first parameters have these names."""

  def fits(thing: object) -> bool:
    return tuple(parameters(thing))[: len(first)] == first

  return Kind(group, f"a function of ({', '.join(first)}, ...)", fits, supplied, hidden)


def _is_source(thing: object) -> bool:
  # Only a return annotation makes a source: a work directory of other people may name any function.
  try:
    returned = typing.get_type_hints(thing).get("return")
  except (NameError, TypeError):
    return False
  return callable(thing) and isinstance(returned, type) and issubclass(returned, Dataset)


def _is_method(thing: object) -> bool:
  return isinstance(thing, Method) or tuple(parameters(thing))[:2] in LOSSES


def _is_step(thing: object) -> bool:
  return not {"learning_rate", "max_learning_rate"}.isdisjoint(parameters(thing))


_OPTIMIZERS = (  # arguments with a field outside the options, and arguments that must be functions
  *("scaling", "weight_decay", "weight_decay_rate", "key", "num_examples", "prox", "trained", "mask"),
  *("weight_decay_mask", "trust_ratio_mask", "mu_dtype", "accumulator_dtype", "init_step", *RATE),
  "max_learning_rate",
)
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
LOSSES: dict[tuple[str, ...], Callable[..., Method]] = {
  ("logits", "labels"): on_logits,
  ("outputs", "targets"): on_outputs,
}  # a user's own, by arguments
# The first kind that fits an object counts.
KINDS: dict[str, Kind] = {
  "source": Kind("data", "a function that says `-> jaxreg.train.Dataset`", _is_source),
  "augmentation": _takes("augment", "key", "batch", supplied=(*IMAGES, *MIXES), hidden=("channel_axis",)),
  "backbone": Kind(
    "model",
    "a class of Linen, NNX or Equinox modules, or a jaxreg.train.Backbone",
    adapt.is_backbone,
    hidden=adapt.CONSTRUCTOR,
  ),
  "method": Kind(
    "method",
    "a jaxreg.train.Method, or a loss of (logits, labels, ...) or (outputs, targets, ...)",
    _is_method,
  ),
  "penalty": _takes("regularizers", "params", supplied=("mask", "reference"), hidden=("axis", "fisher")),
  "term": _takes("regularizers", "key", "view"),
  "input_noise": _takes("noise", "key", "x", supplied=MASK, hidden=("shared_axes",)),
  "params_noise": _takes("noise", "key", "params", supplied=MASK),
  "label_noise": _takes("noise", "key", "labels", supplied=MIXES),
  "wrapper": _takes("optimizer", "inner", supplied=RATE, hidden=_OPTIMIZERS),
  "step": Kind(
    "optimizer",
    "a function of learning_rate",
    _is_step,
    (*DECAYS, "max_learning_rate", "apply_fn", "input_shape", "num_examples", "prox"),
    _OPTIMIZERS,
  ),
  "prox": _takes("optimizer.constraints", "params", "step", supplied=MASK, hidden=("axis", "step")),
  "projection": _takes("optimizer.constraints", "params", supplied=MASK, hidden=("axis",)),
}


def find(group: str, name: object, *, field: str = "", kind: str = "") -> Entry:
  """Finds the entry that a field names: a row, or an object of a user's own module.

  `field` names the field in messages, by default the group's own; with `kind`, only that kind fits.
  """
  field = field or CHOOSERS[group]
  rows = {row: entry for row, entry in REGISTRY[group].items() if kind in ("", entry.kind)}
  kinds = {each: of for each, of in KINDS.items() if of.group == group and kind in ("", each)}
  if not (kinds and isinstance(name, str) and is_yours(name)):
    if not isinstance(name, str) or name not in rows:
      raise unknown(field, name, rows, others=" or MODULE:NAME" if kinds else "")
    return rows[name]
  thing, row = imported(name, field), REGISTRY[group].get(short(name))
  if row is not None and thing is not row.function:
    raise RunError(
      f"{field}: {name} has the name of one of jaxreg's own, which would share its options; rename it"
    )
  entry = row or infer(group, thing, short(name))
  if entry is None or entry.kind not in kinds:
    words = " or ".join(of.words for of in kinds.values())
    raise RunError(f"{field}: {name} must be {words}, got {shown(thing)}")
  return entry


def takes_modules(group: str) -> bool:
  """Tells whether the field of a group takes objects of a user's own modules."""
  return any(kind.group == group for kind in KINDS.values())


def choose(group: str, name: str, options: Mapping[str, object] = MappingProxyType({})) -> Chosen:
  """Returns the entry that a field names, with its options."""
  return Chosen(short(name), find(group, name), options)


def infer(group: str, thing: object, name: str) -> Entry | None:
  """Infers the entry of an object of a user's own module, from its parameters; None if it fits no kind."""
  kind = next((each for each, of in KINDS.items() if of.group == group and of.fits(thing)), None)
  if kind is None:
    return None
  names = parameters(thing.head if isinstance(thing, Method) else thing)
  needs = tuple(name for name in KINDS[kind].supplied if name in names)
  if kind == "step" and not {"weight_decay", "mask"} <= names.keys():
    needs = tuple(name for name in needs if name not in ("weight_decay", "mask"))
  elif kind == "backbone":
    required = [each.name for each in names.values() if each.default is each.empty and each.kind not in _REST]
    needs = tuple(name for name in required if name not in adapt.CONSTRUCTOR)
  elif kind == "term" and getattr(thing, "needs_labels", True):
    needs = LABELS
  elif kind == "method":
    if not isinstance(thing, Method):
      # The sum of all terms is called loss.
      thing = LOSSES[tuple(names)[:2]](thing, "data" if name == "loss" else name)
    needs = ()
  return Entry(thing, kind, needs=needs)


# Options of a kind, in addition to the options of its function. A limit replaces a penalty's weight.
_MORE = {"penalty": {"weight": 1e-4, "limit": 0.0}, "term": {"weight": 1.0}, "wrapper": {"inner": "sgd"}}


def options_of(entry: Entry) -> Fields:
  """Returns an entry's options with their defaults; a method's are grouped in `head`, `loss`, `predict`."""
  function = entry.function
  if isinstance(function, Method):
    head = ("parent", "name", "input_shape", "num_classes", "label_shape", *function.shared)
    skip = {"head": head, "loss": ("posterior_logits", "targets", "where"), "predict": function.shared}
    return {part: options(getattr(function, part), skip[part]) for part in skip}
  hidden = KINDS[entry.kind].hidden if entry.kind in KINDS else ()
  return {**_MORE.get(entry.kind, {}), **options(function, (*entry.needs, *hidden), entry.defaults)}

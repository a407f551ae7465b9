"""The functions that a configuration can name, by their names; the tables are read when they are used.

A function of ours needs a row here, or in `example_terms.TERMS` if it looks at examples again.
"""

import functools
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from jaxreg import augment, constraints, noise, penalties
from jaxreg.train.step.example_terms import TERMS

# The functions by name. `partial` gives a default to each option that has none in the function's signature.
REGULARIZERS: dict[str, Callable[..., Any]] = {
  "l2": penalties.l2,
  "l1": penalties.l1,
  "elastic_net": functools.partial(penalties.elastic_net, ratio=0.5),
  "group_lasso": penalties.group_lasso,
  "hoyer": penalties.hoyer,
  "orthogonality": penalties.orthogonality,
  "gaussian_prior": functools.partial(penalties.gaussian_prior, precision=1.0),
  "laplace_prior": functools.partial(penalties.laplace_prior, rate=1.0),
  "tying": functools.partial(penalties.tying, pairs=()),
  "l2_sp": penalties.l2_sp,
  "learned_dropout": penalties.learned_dropout,
}
CONSTRAINTS: dict[str, Callable[..., Any]] = {
  "max_norm": functools.partial(constraints.max_norm, limit=3.0),
  "unit_norm": constraints.unit_norm,
  "min_max_norm": functools.partial(constraints.min_max_norm, low=0.5, high=3.0),
  "prox_l1": functools.partial(constraints.prox_l1, weight=1e-4),
  "prox_elastic_net": functools.partial(constraints.prox_elastic_net, weight=1e-4, ratio=0.5),
  "prox_group_lasso": functools.partial(constraints.prox_group_lasso, weight=1e-4),
  "prox_l0": functools.partial(constraints.prox_l0, weight=1e-4),
  "prox_non_negative": constraints.prox_non_negative,
}
NOISES: dict[str, Callable[..., Any]] = {
  "gaussian_noise": functools.partial(noise.gaussian_noise, std=0.1),
  "weight_noise": functools.partial(noise.weight_noise, std=0.01),
  "dropconnect_params": functools.partial(noise.dropconnect_params, rate=0.5),
  "label_noise": functools.partial(noise.label_noise, rate=0.1),
}
AUGMENTATIONS: dict[str, Callable[..., Any]] = {
  "pad_crop": augment.pad_crop,
  "flip": augment.flip,
  "translate": augment.translate,
  "rotate": augment.rotate,
  "scale": augment.scale,
  "cutout": augment.cutout,
  "random_erasing": augment.random_erasing,
  "lighting": augment.lighting,
  "rand_augment": augment.rand_augment,
  "auto_augment": augment.auto_augment,
  "augmix": augment.augmix,
  "trivial_augment": augment.trivial_augment,
  "random_resized_crop": augment.random_resized_crop,
  "color_jitter": augment.color_jitter,
  "mixup": augment.mixup,
  "manifold_mixup": functools.partial(augment.manifold_mixup, layers=("backbone", "head")),
  "cutmix": augment.cutmix,
}
# The tables by the group of the configuration that names their rows; a row added later is found, too.
CHOSEN: dict[str, Mapping[str, Callable[..., Any]]] = {
  "regularizers": ChainMap(TERMS, REGULARIZERS),
  "noise": NOISES,
  "optimizer.constraints": CONSTRAINTS,
}

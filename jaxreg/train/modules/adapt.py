"""Chooses the adapter of a module."""

import sys
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from jaxreg.train.entries import Options
from jaxreg.train.modules.equinox import equinox
from jaxreg.train.modules.functions import Backbone, functions
from jaxreg.train.modules.linen import linen
from jaxreg.train.modules.module import PureModule
from jaxreg.train.modules.nnx import nnx_module

CONSTRUCTOR = ("parent", "name", "axis_name", "rngs", "key")  # arguments of a class that are not options


def is_backbone(thing: object) -> bool:
  """Tells whether the trainer takes an object as a backbone: a class of modules, or a `Backbone`."""
  classes = (nn.Module, *filter(None, (_module_class("flax.nnx"), _module_class("equinox"))))
  return isinstance(thing, Backbone) or (isinstance(thing, type) and issubclass(thing, classes))


def adapt(
  thing: Callable[..., Any] | Backbone, options: Options, x: jax.ShapeDtypeStruct, *, part: str = "backbone"
) -> PureModule:
  """Adapts a class of modules, made with `options`, or a `Backbone`, for inputs like `x`."""
  if isinstance(thing, Backbone):
    return functions(thing, x)
  for package, adapter in {"flax.nnx": nnx_module, "equinox": equinox}.items():
    module_class = _module_class(package)
    if module_class is not None and isinstance(thing, type) and issubclass(thing, module_class):
      return adapter(thing, options, x)
  return linen(thing(**options), part)


def _module_class(package: str) -> type | None:
  """Returns the class of the package's modules; None if the package was never imported."""
  return getattr(sys.modules.get(package), "Module", None)

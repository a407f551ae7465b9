"""Types of the arguments and results of the public functions.

Public are the functions that you write, and `Mask`; the other names are jaxreg's own short forms.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax

__all__ = ["ApplyFn", "LossFn", "Mask"]

Array = jax.Array
Key = jax.Array
PyTree = Any
Params = PyTree
Batch = PyTree
ModelState = PyTree
Metrics = dict[str, tuple[jax.Array, jax.Array]]
# Which parameters: a glob on names or several, a tree of bools, or a function from parameters to such a tree.
Mask = Any


class LossFn(Protocol):
  """`(params, batch, *, key) -> scalar`; `batch` is any pytree and always an argument, never a closure.

  `key` is always passed, by name, and a loss without noise ignores it. If a function says so, `key=None` asks
  for no noise.
  """

  def __call__(self, params: Params, batch: Batch, *, key: Key | None) -> Array: ...


class ApplyFn(Protocol):
  """`(params, model_state, x, *, key, train) -> (outputs, model_state)`; hides the module system."""

  def __call__(
    self, params: Params, model_state: ModelState, x: Array, *, key: Key | None, train: bool
  ) -> tuple[PyTree, ModelState]: ...


class Objective(Protocol):
  """`(params, state, batch, key) -> (loss, (model_state, metrics))`, with the whole train state in view."""

  def __call__(
    self, params: Params, state: PyTree, batch: Batch, key: Key
  ) -> tuple[Array, tuple[ModelState, Metrics]]: ...

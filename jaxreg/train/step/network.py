"""The network of a step: a backbone and a head as pure functions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from jaxreg import augment
from jaxreg._errors import ArgumentError
from jaxreg.train import keys
from jaxreg.train.data.dataset import is_tokens
from jaxreg.train.methods.method import Outputs
from jaxreg.train.modules.module import PureModule
from jaxreg.typing import Array, Key, ModelState, Params, PyTree

Noises = Mapping[str, Sequence[Callable[[Key, PyTree], PyTree]]]  # under the name of what they perturb


@dataclasses.dataclass(frozen=True)
class Network:
  """A backbone and a head, whose parameters and states are `{"backbone": ..., "head": ...}`.

  Parameters and statistics are float32, whatever dtype the layers compute in. Losses and masks are float32 as
  well: they promote the outputs of the head.

  Attributes:
    backbone, head: from inputs to features, and from features to the outputs by name.
    noises: what training adds to `inputs` and `params`.
    mean, std: of each channel of the inputs, by which they are standardized; or empty.
    precision: the dtype of the layers.
  """

  backbone: PureModule
  head: PureModule
  noises: Noises
  mean: Sequence[float] = ()
  std: Sequence[float] = ()
  precision: str = "float32"

  def init(self, key: Key, x: Array) -> tuple[Params, ModelState]:
    """Draws the parameters, and the state of the parts that have one, for inputs like `x`."""
    params, model_state = self.backbone.init(key, x)
    features, _ = self.backbone.apply(params, model_state, x, key=None, train=False)
    head_params, head_state = self.head.init(key, features)
    states = {"backbone": model_state, "head": head_state}
    return {"backbone": params, "head": head_params}, {part: state for part, state in states.items() if state}

  def apply(
    self,
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    use_running_average: bool = False,
  ) -> tuple[Outputs, ModelState]:
    """Computes the outputs of the head and the new state, without noise if the key is None.

    With `use_running_average`, layers with statistics, such as BatchNorm, are in evaluation mode while all
    others train.
    """
    params, x = self.prepared(params, x, key)
    features, model_state = self.features(
      params, model_state, x, key=key, train=train, use_running_average=use_running_average
    )
    return self.outputs(
      params, model_state, features, key=key, train=train, use_running_average=use_running_average
    )

  def features_and_outputs(
    self,
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    mixing: PyTree = None,
  ) -> tuple[tuple[PyTree, Outputs], ModelState]:
    """Computes both; `mixing` is the entry of that name in a batch of `augment.manifold_mixup`."""
    params, x = self.prepared(params, x, key)
    features, model_state = self.features(params, model_state, x, key=key, train=train, mixing=mixing)
    outputs, model_state = self.outputs(params, model_state, features, key=key, train=train, mixing=mixing)
    return (features, outputs), model_state

  def prepared(self, params: Params, x: Array, key: Key | None) -> tuple[Params, Array]:
    """Adds the noise of a pass to parameters and inputs, standardizes inputs, and casts both."""

    def cast(x: Array) -> Array:
      return x.astype(self.precision)

    params = jax.tree.map(cast, self._perturbed("params", params, key))
    if is_tokens(x.dtype):
      return params, x
    if self.mean:  # not by `augment.normalize`, which takes images alone
      shape = (1,) * (x.ndim - 1) + (-1,)
      center, scale = (
        np.reshape(np.asarray(numbers, np.float32), shape) for numbers in (self.mean, self.std)
      )
      x = (x - center) / scale
    return params, cast(self._perturbed("inputs", x, key))

  def features(
    self,
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    mixing: PyTree = None,
    use_running_average: bool = False,
  ) -> tuple[PyTree, ModelState]:
    """Computes what enters the head, of prepared parameters and inputs."""
    mixed = () if mixing is None else mixing.shares
    if other := [layer for layer in mixed if layer.split("/")[0] not in ("backbone", "head")]:
      raise ArgumentError(
        "layers", f"must be among backbone, head and the layers in them, got {', '.join(other)}"
      )
    if mixing is not None and "backbone" in mixed:
      x = augment.mix_hidden(x, mixing, layer="backbone")
    state = model_state.get("backbone", {})
    features, state = self.backbone.apply(
      params["backbone"],
      state,
      x,
      key=key,
      train=train,
      mixing=mixing,
      use_running_average=use_running_average,
    )
    if mixing is not None and "head" in mixed:
      features = augment.mix_hidden(features, mixing, layer="head")
    return features, {**model_state, "backbone": state} if state else model_state

  def outputs(
    self,
    params: Params,
    model_state: ModelState,
    features: PyTree,
    *,
    key: Key | None,
    train: bool,
    mixing: PyTree = None,
    use_running_average: bool = False,
  ) -> tuple[Outputs, ModelState]:
    """Computes what the head makes of its features."""
    state = model_state.get("head", {})
    outputs, state = self.head.apply(
      params["head"],
      state,
      features,
      key=key,
      train=train,
      mixing=mixing,
      use_running_average=use_running_average,
    )
    return outputs, {**model_state, "head": state} if state else model_state

  def _perturbed(self, kind: str, x: PyTree, key: Key | None) -> PyTree:
    if key is None or not self.noises[kind]:
      return x
    # The kind's name is folded into the key, so that other kinds and layers draw other numbers.
    key = keys.named(key, kind)
    for number, perturb in enumerate(self.noises[kind]):
      x = perturb(keys.numbered(key, number), x)
    return x

"""What an example term may ask of the objective: the batch, the forward pass of the loss, further passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batch
from jaxreg.typing import Array, Batch, Key, Params


class Pass(NamedTuple):
  """What a forward pass returns, as `View.again` says."""

  loss: Array
  aux: Any


@dataclasses.dataclass(frozen=True, eq=False)
class View:
  """What an example term sees.

  Attributes:
    params: the parameters, without noise.
    batch: the batch, after the perturbations of `"batch"` and `"labels"`.
    key: the key of the loss's pass, or None.
    step: the number of the step, or None.
    weights: `[batch]`, the weights of the examples; None if all count alike.
    loss, aux: what `loss_fn` returned in the loss's own pass, which all terms share.
  """

  params: Params
  batch: Batch
  key: Key | None
  step: ArrayLike | None
  weights: Array | None
  loss: Array
  aux: Any
  _run: Callable[[Params, Batch, Key | None], Pass]
  _clean: list[tuple[Any, Pass]] = dataclasses.field(default_factory=list)

  def again(
    self,
    *,
    inputs: Array | None = None,
    batch: Batch = None,
    params: Params = None,
    key: Key | EllipsisType | None = ...,
  ) -> Pass:
    """A further forward pass; what is not given is that of the loss's pass.

    Args:
      inputs: in the place of `batch["inputs"]`.
      batch: another batch.
      params: other parameters, such as those of a mean teacher.
      key: another key, for other noise; None for no noise. By default the noise is that of the loss's pass.

    Returns:
      A named tuple: `loss`, `[batch]` or a scalar, the sum if `loss_fn` returns terms by name; and `aux`.
      Nothing is computed twice: without arguments it is the loss's own pass, and terms share the pass with
      `key=None`.
    """
    if inputs is None and batch is None and params is None:
      if key is ...:
        return Pass(self.loss, self.aux)
      if key is None:
        return self._without_noise()
    batch = self.batch if batch is None else batch
    if inputs is not None:
      check_batch(batch, "inputs")
      batch = {**batch, "inputs": inputs}
    if isinstance(key, EllipsisType):
      # The same noise: this second use of the key is intended.
      key = None if self.key is None else jax.random.clone(self.key)
    return self._run(self.params if params is None else params, batch, key)

  def loss_of_inputs(self, x: Array) -> Array:
    """The loss at other inputs with the same noise, `[batch]`: what the attacks of `adversarial` take.

    A scalar loss, the mean over the examples, is repeated: the gradient of the sum in an input is that of the
    input's own loss.
    """
    loss = self.again(inputs=x).loss
    return loss if loss.ndim else jnp.broadcast_to(loss, x.shape[:1])

  def _without_noise(self) -> Pass:
    # A value computed inside of a transformation, such as the body of a loop, must not be used outside of it.
    here = jax.extend.core.get_opaque_trace_state()
    for trace, found in self._clean:
      if trace == here:
        return found
    self._clean.append((here, self._run(self.params, self.batch, None)))
    return self._clean[-1][1]

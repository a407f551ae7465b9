"""What an example term can read of an objective: the batch, the loss's forward pass, and further passes."""

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
  """The result of a forward pass, as `View.again` says."""

  loss: Array
  aux: Any


@dataclasses.dataclass(frozen=True, eq=False)
class View:
  """The batch and the forward pass of an objective, for an example term.

  Attributes:
    params: the parameters, without noise.
    batch: the batch, after the perturbations of `"batch"` and `"labels"`; labels are 0 where the term's
      weight is 0.
    key: the key of the loss's pass, or None.
    step: the number of the step, or None.
    weights: `[batch]`, the weights of the examples; None if all weights are equal.
    loss, aux: the result of `loss_fn` in the loss's own pass, which all terms share.
  """

  params: Params
  batch: Batch
  key: Key | None
  step: ArrayLike | None
  weights: Array | None
  loss: Array
  aux: Any
  _run: Callable[[Params, Batch, Key | None], Pass]
  _batch: Batch  # of further passes; with all labels, because terms share these passes
  _clean: list[tuple[Any, Pass]] = dataclasses.field(default_factory=list)

  def again(
    self,
    *,
    inputs: Array | None = None,
    batch: Batch = None,
    params: Params = None,
    key: Key | EllipsisType | None = ...,
  ) -> Pass:
    """Runs a further forward pass; arguments that are left out are taken from the loss's pass.

    Args:
      inputs: replaces `batch["inputs"]`.
      batch: another batch.
      params: other parameters, such as a mean teacher's.
      key: another key, for other noise; None for no noise. The default is the noise of the loss's pass.

    Returns:
      A named tuple: `loss`, `[batch]` or a scalar, the sum if `loss_fn` returns terms by name; and `aux`.
      Nothing is computed twice: without arguments this is the loss's own pass, and terms share the pass with
      `key=None`.
    """
    if inputs is None and batch is None and params is None:
      if key is ...:
        return Pass(self.loss, self.aux)
      if key is None:
        return self._without_noise()
    batch = self._batch if batch is None else batch
    if inputs is not None:
      check_batch(batch, "inputs")
      batch = {**batch, "inputs": inputs}
    if isinstance(key, EllipsisType):
      # The same noise: this second use of the key is intended.
      key = None if self.key is None else jax.random.clone(self.key)
    return self._run(self.params if params is None else params, batch, key)

  def loss_of_inputs(self, x: Array) -> Array:
    """Computes the loss `[batch]` at other inputs with the same noise, for the attacks of `adversarial`.

    A scalar loss, the mean over the examples, is repeated: then the gradient of the sum with respect to an
    input is the gradient of that input's own loss.
    """
    loss = self.again(inputs=x).loss
    return loss if loss.ndim else jnp.broadcast_to(loss, x.shape[:1])

  def _without_noise(self) -> Pass:
    # A value that was computed inside a transformation, such as a loop's body, must not be used outside it.
    here = jax.extend.core.get_opaque_trace_state()
    for trace, clean in self._clean:
      if trace == here:
        return clean
    self._clean.append((here, self._run(self.params, self._batch, None)))
    return self._clean[-1][1]

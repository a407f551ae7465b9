"""The curvature of a network as one object, on any data: arrays, batches, loaders, several devices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import analysis, widened
from jaxreg.flatness._damped_solve import Solution, damped_solve
from jaxreg.flatness._fisher import Fisher, GivenScores, Likelihood, drawn_scores
from jaxreg.flatness._gauss_newton_diagonal import diagonal
from jaxreg.flatness._hutchinson import Estimate, operator_diagonal
from jaxreg.flatness._lanczos import (
  EigenPairs,
  SpectralDensity,
  operator_trace,
  spectral_density,
  top_eigenpairs,
)
from jaxreg.flatness._operators import GaussNewton, Hessian
from jaxreg.flatness._streamed import Streamed, automatic, batches_of
from jaxreg.flatness._subset import Where, selected
from jaxreg.typing import (
  Array,
  Batch,
  Key,
  ModelState,
  Params,
  check_count,
  check_key,
  check_loss_fn,
  one_line,
)


@dataclasses.dataclass(frozen=True)
class WithState:
  """A function of parameters that also takes a model's state, as one of the pair `(params, model_state)`."""

  function: Callable[..., Any]

  def __call__(self, params: Params, batch: Batch, *, key: Key | None) -> Any:
    return self.function(params[0], batch, key=key, model_state=params[1])


def _check_function(function: Callable[..., Any], name: str, has_state: bool) -> None:
  check_loss_fn(function, name, also=("model_state",) if has_state else ())


class Curvature(Streamed):
  r"""The Hessian of a mean loss over any data, as a function :math:`v \mapsto H v` with its analyses.

  .. math:: H = \frac1n \sum_b n_b \nabla^2 L_b

  It composes `hvp`, `top_eigenpairs`, `operator_trace`, `operator_diagonal` and `spectral_density`. Its loop
  over batches and products is on the host: nothing but one batch and its activations need fit in memory
  beside a few vectors, and convolutions keep their threads on a CPU. So it cannot be called inside `jit`;
  `hvp` can.

  Another checkpoint of the same network compiles nothing anew if `loss_fn` is the same function. If the data
  are one batch, its activations are computed once for all products, and stay in memory with the object; with
  a `chunk_size` below the size of the batch they do not.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over the examples; with `model_state` it also takes
      the keyword `model_state`.
    params: any pytree; float16 and bfloat16 are widened to float32.
    data: a tuple, a dict or an array is one batch, with examples along the leading axis of its leaves. A list
      has batches. So has any other iterable that starts anew, such as a loader, with the same examples each
      time; their order may change. Batches may be NumPy arrays or PyTorch tensors.
    where: the parameters that count, as in `subset`; the others are constant.
    key: for noise, which is then fixed; batch `b` gets `fold_in(key, b)`, so batches must keep their order.
    model_state: running averages and the like: constants that are arguments of the compiled code.
    chunk_size: the most examples at once; by default a whole batch.
    mesh: the examples of a batch, if they divide, and the basis of `top_eigenpairs` are sharded over all its
      devices. Its axes count as automatic, even if `jax.make_mesh` made them explicit. On simulated devices
      of a CPU set `NPROC=32` in the environment, else `gauss_newton_diagonal` can wait without end.

  Raises:
    TypeError: if a selected leaf is not floating, `loss_fn` does not take its arguments, `mesh` is no mesh,
      or `data` is an iterator or a list of unlike items.
    ValueError: if `where` selects nothing, or `chunk_size` is below 1.

  Example:
    >>> loss = lambda params, x, *, key: 0.5 * ((x @ params) ** 2).mean()
    >>> batches = [jnp.array([[2.0, 0.0]]), jnp.array([[0.0, 1.0]])]
    >>> curvature = Curvature(loss, jnp.ones(2), batches)
    >>> curvature.diagonal().mean, round(float(curvature.top_eigenpairs(key=jax.random.key(0)).values[0]), 4)
    (Array([2. , 0.5], dtype=float32), 2.0)

  References:
    Yao et al., `PyHessian: Neural Networks Through the Lens of the Hessian`, 2020.
  """

  names: tuple[str, ...]
  has_state: bool

  def __init__(
    self,
    loss_fn: Callable[..., Array],
    params: Params,
    data: Any,
    *,
    where: Where = "*",
    key: Key | None = None,
    model_state: ModelState = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
  ) -> None:
    _check_function(loss_fn, "loss_fn", model_state is not None)
    if chunk_size is not None:
      check_count(chunk_size, "chunk_size")
    mask = selected(params, where)
    names = itertools.compress(paths.leaf_names(params), mask)
    if has_state := model_state is not None:
      loss_fn, params = WithState(loss_fn), (params, model_state)
      mask += (False,) * len(jax.tree.leaves(model_state))
    params = widened(params)
    if mesh is not None:
      if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {one_line(mesh)}")
      mesh = automatic(mesh)
      params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    operator = Hessian(params, None, key, loss_fn, mask)
    self._set(operator, batches_of(data), chunk_size, mesh, tuple(names), has_state)

  def _set(self, operator: Any, data: Any, chunk_size: Any, mesh: Any, names: Any, has_state: bool) -> None:
    Streamed.__init__(self, operator, data, chunk_size, mesh)
    object.__setattr__(self, "names", names)
    object.__setattr__(self, "has_state", has_state)

  def _of(self, operator: Any) -> Curvature:
    """Returns the curvature of another operator at the same point, over the same data."""
    new = object.__new__(Curvature)
    new._set(operator, self.data, self.chunk_size, self.mesh, self.names, self.has_state)
    return new

  def _function(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    _check_function(function, name, self.has_state)
    return WithState(function) if self.has_state else function

  def __repr__(self) -> str:
    return f"Curvature({self.operator!r})"

  def gauss_newton(self, outputs_fn: Callable[..., Any], outer_loss_fn: Callable[..., Array]) -> Curvature:
    """Returns the Gauss-Newton matrix instead of the Hessian; the arguments are those of `gauss_newton`.

    With `model_state`, `outputs_fn` takes it too.
    """
    old, outputs_fn = self.operator, self._function(outputs_fn, "outputs_fn")
    return self._of(GaussNewton(old.params, None, old.key, outputs_fn, outer_loss_fn, old.mask))

  @analysis
  def gauss_newton_diagonal(
    self, outputs_fn: Callable[..., Any], outer_loss_fn: Callable[..., Array]
  ) -> Array:
    """Computes the diagonal of the Gauss-Newton matrix exactly, by `gauss_newton_diagonal`, batch by batch.

    With `model_state`, `outputs_fn` takes it too.
    """
    old, outputs_fn = self.operator, self._function(outputs_fn, "outputs_fn")
    total, count = jnp.zeros_like(self.like), 0
    for batch in self.batches():
      found = self.finished(diagonal(outputs_fn, outer_loss_fn, old.mask, old.params, widened(batch)))
      # As in a product: the host reads the next batch while the devices compute this one, and no further.
      total = jax.block_until_ready(total) + found * num_examples(batch)
      count += num_examples(batch)
    if not count:
      raise ValueError("data must have at least one batch each time it is iterated, got none")
    return total / count

  def fisher(
    self,
    outputs_fn: Callable[..., Array],
    *,
    key: Key,
    likelihood: Likelihood = "categorical",
    num_samples: int = 1,
  ) -> Curvature:
    """Returns the Monte Carlo Fisher matrix instead; the arguments are those of `fisher`.

    Batch `b` gets `fold_in(key, b)`, so batches must keep their order.
    """
    check_key(key)
    old, outputs_fn = self.operator, self._function(outputs_fn, "outputs_fn")
    scores_fn = drawn_scores(likelihood, num_samples)
    return self._of(Fisher(old.params, None, key, outputs_fn, scores_fn, old.mask))

  def empirical_fisher(self, outputs_fn: Callable[..., Array], losses_fn: Callable[..., Array]) -> Curvature:
    """Returns the empirical Fisher matrix instead; the arguments are those of `empirical_fisher`."""
    old, outputs_fn = self.operator, self._function(outputs_fn, "outputs_fn")
    return self._of(Fisher(old.params, None, None, outputs_fn, GivenScores(losses_fn), old.mask))

  def solve(self, vector: ArrayLike, *, damping: float, **options: Any) -> Solution:
    """Multiplies by the inverse of the damped curvature, by `damped_solve` with its options."""
    return damped_solve(self, vector, damping=damping, **options)

  def top_eigenpairs(self, *, key: Key, **options: Any) -> EigenPairs:
    """Computes eigenpairs by `top_eigenpairs`, with its options; `v0` is a warm start."""
    return top_eigenpairs(self, key=key, **options)

  def trace(self, *, key: Key, num: int = 32) -> Estimate:
    """Estimates the trace by `operator_trace`; `gauss_newton_diagonal` may give it exactly."""
    return operator_trace(self, key=key, num=num)

  def diagonal(self, *, key: Key | None = None, num: int = 32) -> Estimate:
    """Estimates the diagonal by `operator_diagonal`, or without a key computes it exactly."""
    return operator_diagonal(self, key=key, num=num)

  def density(self, *, key: Key, **options: Any) -> SpectralDensity:
    """Estimates the density of the eigenvalues by `spectral_density`, with its options."""
    return spectral_density(self, key=key, **options)

  def matrix(self) -> Array:
    """Builds the symmetric matrix `[size, size]`, by one product for each parameter."""
    like = self.like
    rows = jnp.stack([self(jnp.zeros_like(like).at[i].set(1)) for i in range(like.size)])
    return (rows + rows.T) / 2

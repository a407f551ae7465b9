"""The curvature of a network as one object, on any data: arrays, batches, loaders, several devices."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_count, check_loss_fn, one_line
from jaxreg._sums import add
from jaxreg.flatness._batches import Streamed, automatic, batches_of
from jaxreg.flatness._common import analysis, widened
from jaxreg.flatness._eigen import (
  EigenPairs,
  Solution,
  SpectralDensity,
  damped_solve,
  spectral_density,
  top_eigenpairs,
)
from jaxreg.flatness._jacobians import diagonal
from jaxreg.flatness._operators import Fisher, GaussNewton, Hessian, Likelihood, scores
from jaxreg.flatness._split import is_split, leaves_of, split_eigenpairs, split_trace
from jaxreg.flatness._subset import selected
from jaxreg.flatness._trace import Estimate, operator_diagonal, operator_trace
from jaxreg.typing import Array, Batch, Key, Mask, ModelState, Params


@dataclasses.dataclass(frozen=True)
class WithState:
  """Turns a function of parameters and a model's state into one of the pair `(params, model_state)`."""

  function: Callable[..., Any]

  def __call__(self, params: Params, batch: Batch, *, key: Key | None) -> Any:
    return self.function(params[0], batch, key=key, model_state=params[1])


class Curvature(Streamed):
  r"""The Hessian of a mean loss over any data, as a function :math:`v \mapsto H v` with its analyses.

  .. math:: H = \frac1n \sum_b n_b \nabla^2 L_b

  Its loop over batches and products is on the host: nothing but one batch and its activations need fit in
  memory beside a few vectors, and convolutions keep their threads on a CPU. So it cannot be called inside
  `jit`; `hvp` can. Another checkpoint compiles nothing anew if `loss_fn` is the same function. If the data
  are one batch of at most `chunk_size` examples, its activations are computed once, and stay in memory.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over the examples; with `model_state` it also takes
      the keyword `model_state`.
    params: any pytree; float16 and bfloat16 are widened to float32.
    data: a tuple, a dict or an array is one batch, with examples along the leading axis of its leaves. A list
      has batches. So has any other iterable that starts anew, such as a loader, with the same examples each
      time; their order may change. Batches may be NumPy arrays or PyTorch tensors.
    mask: the parameters that count, as in `subset`; the others are constant.
    key: for noise, which is then fixed; batch `b` gets `fold_in(key, b)`, so batches must keep their order.
    model_state: running averages and the like: constants that are arguments of the compiled code.
    chunk_size: the most examples at once; by default a whole batch.
    mesh: without it, parameters that are split over devices stay so, and only `top_eigenpairs`, `trace` and
      `layerwise` of the Hessian take them. With it parameters are copied to each device; the examples of a
      batch, if they divide, and the basis of `top_eigenpairs` are sharded over all its devices, along axes
      that count as automatic. On simulated devices of a CPU set `NPROC=32` in the environment, else
      `gauss_newton_diagonal` can wait without end.

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
    mask: Mask = "*",
    key: Key | None = None,
    model_state: ModelState = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
  ) -> None:
    self.has_state = model_state is not None
    loss_fn = self._function(loss_fn, "loss_fn")
    if chunk_size is not None:
      check_count(chunk_size, "chunk_size")
    taken = selected(params, mask)
    self.names = tuple(itertools.compress(paths.leaf_names(params), taken))
    if self.has_state:
      params = (params, model_state)
      taken += (False,) * len(jax.tree.leaves(model_state))
    params = widened(params)
    if mesh is not None:
      if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {one_line(mesh)}")
      mesh = automatic(mesh)
      params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    super().__init__(Hessian(params, None, key, taken, loss_fn), batches_of(data), chunk_size, mesh)

  def _of(self, operator: Any, names: tuple[str, ...] | None = None) -> Curvature:
    """Returns the curvature of another operator at the same point, over the same data."""
    new = object.__new__(Curvature)
    Streamed.__init__(new, operator, self.data, self.chunk_size, self.mesh)
    new.names, new.has_state = names or self.names, self.has_state
    return new

  def _part(self, names: Collection[str]) -> Curvature:
    """Returns the diagonal block of the selected parameters that have these names."""
    old, taken = self.operator, iter(self.names)
    mask = tuple(selected and next(taken) in names for selected in old.mask)
    return self._of(dataclasses.replace(old, mask=mask), tuple(name for name in self.names if name in names))

  def _function(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    check_loss_fn(function, name, also=("model_state",) if self.has_state else ())
    return WithState(function) if self.has_state else function

  def __repr__(self) -> str:
    return f"Curvature({self.operator!r})"

  def gauss_newton(self, apply_fn: Callable[..., Any], outer_loss_fn: Callable[..., Array]) -> Curvature:
    """Returns the Gauss-Newton matrix, as `gauss_newton`; with `model_state`, `apply_fn` takes it too."""
    old, apply_fn = self.operator, self._function(apply_fn, "apply_fn")
    return self._of(GaussNewton(old.params, None, old.key, old.mask, apply_fn, outer_loss_fn))

  @analysis
  def gauss_newton_diagonal(self, apply_fn: Callable[..., Any], outer_loss_fn: Callable[..., Array]) -> Array:
    """Computes the diagonal of the Gauss-Newton matrix exactly, as `gauss_newton_diagonal`."""
    old, apply_fn = self.operator, self._function(apply_fn, "apply_fn")

    def add_batch(running: Any, size: int, number: int, batch: Batch) -> Any:
      found = diagonal(apply_fn, outer_loss_fn, old.mask, old.params, widened(batch))
      return add(running, self.finished(found) * size)

    return self.mean(add_batch)

  def fisher(
    self,
    apply_fn: Callable[..., Array],
    *,
    key: Key | None = None,
    likelihood: Likelihood = "categorical",
    num_samples: int | None = 1,
    losses_fn: Callable[..., Array] | None = None,
  ) -> Curvature:
    """Returns the Fisher matrix, as `fisher`; batch `b` gets `fold_in(key, b)`, so keep their order."""
    scores_fn = scores(key, likelihood, num_samples, losses_fn)
    old, apply_fn = self.operator, self._function(apply_fn, "apply_fn")
    return self._of(Fisher(old.params, None, key, old.mask, apply_fn, scores_fn))

  def solve(self, vector: ArrayLike, *, damping: float, **options: Any) -> Solution:
    """Multiplies by the inverse of the damped curvature, by `damped_solve` with its options."""
    return damped_solve(self, vector, damping=damping, **options)

  @functools.cached_property
  def like(self) -> Array:
    """The selected parameters, `[size]`: the shape and dtype of a vector."""
    if self.is_split:
      raise ValueError(
        "params are split over devices, where only top_eigenpairs, trace and layerwise of the Hessian keep "
        "them so; give mesh= for a copy on each device"
      )
    return self.operator.like

  @property
  def is_split(self) -> bool:
    """Whether the parameters are split over devices, and stay so."""
    return self.mesh is None and is_split(leaves_of(self.operator))

  def top_eigenpairs(self, *, key: Key, max_bytes: int | None = None, **options: Any) -> EigenPairs:
    """Computes eigenpairs by `top_eigenpairs`, with its options; `v0` is a warm start.

    Of parameters that are split over devices, every vector is split as they are. Then, and with `max_bytes`,
    the options are `num_pairs`, `num_steps`, `which` and `tol`, and `vectors` has for each pair a dict from
    the names of the parameters. `max_bytes` bounds the vectors on all devices together: when it is reached,
    the iteration goes on from the best half of them.
    """
    if self.is_split or max_bytes is not None:
      self._hessian_alone("top_eigenpairs of split parameters, or with max_bytes,")
      return split_eigenpairs(self, key=key, max_bytes=max_bytes, **options)
    return top_eigenpairs(self, key=key, **options)

  def _hessian_alone(self, what: str) -> None:
    if not isinstance(self.operator, Hessian):
      raise ValueError(f"{what} is for the Hessian, got {type(self.operator).__name__}")

  def trace(self, *, key: Key, num_samples: int = 32) -> Estimate:
    """Estimates the trace by `operator_trace`; `gauss_newton_diagonal` may give it exactly."""
    if self.is_split:
      self._hessian_alone("trace of split parameters")
      return split_trace(self, key=key, num_samples=num_samples)
    return operator_trace(self, key=key, num_samples=num_samples)

  def diagonal(self, *, key: Key | None = None, num_samples: int = 32) -> Estimate:
    """Estimates the diagonal by `operator_diagonal`, or without a key computes it exactly."""
    return operator_diagonal(self, key=key, num_samples=num_samples)

  def density(self, *, key: Key, **options: Any) -> SpectralDensity:
    """Estimates the density of the eigenvalues by `spectral_density`, with its options."""
    return spectral_density(self, key=key, **options)

  def matrix(self) -> Array:
    """Builds the symmetric matrix `[size, size]`, by one product for each parameter."""
    like = self.like
    rows = jnp.stack([self(jnp.zeros_like(like).at[i].set(1)) for i in range(like.size)])
    return (rows + rows.T) / 2

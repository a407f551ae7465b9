"""The curvature of a network as one object, on any data: arrays, batches, loaders, several devices.

A product passes three classes. `Flat` splits the vector into one array per parameter, `Streamed` adds up the
batches, and `Hessian.product_and_count` differentiates the loss of a batch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._analyses import full_precision, widened
from jaxreg._checks import check_count, check_loss_fn, one_line
from jaxreg.flatness._eigen import (
  EigenPairs,
  Solution,
  SpectralDensity,
  damped_solve,
  eigenpairs_in_memory,
  spectral_density,
  top_eigenpairs,
)
from jaxreg.flatness._jacobians import diagonal
from jaxreg.flatness._operators import Fisher, GaussNewton, Hessian, Likelihood, Operator, make_scores
from jaxreg.flatness._streamed import Flat, RunningSum, Streamed, add_vector, as_batches, automatic
from jaxreg.flatness._subset import as_vector, selected
from jaxreg.flatness._trace import (
  Estimate,
  estimate_mean,
  operator_diagonal,
  sample_traces,
)
from jaxreg.flatness._vectors import is_split
from jaxreg.typing import Array, Batch, Key, Mask, ModelState, Params


@dataclasses.dataclass(frozen=True)
class WithState:
  """Turns a function of parameters and a model's state into one of the pair `(params, model_state)`."""

  function: Callable[..., Any]

  def __call__(self, params: Params, batch: Batch, *, key: Key | None) -> Any:
    return self.function(params[0], batch, key=key, model_state=params[1])


class Curvature:
  r"""The Hessian of a mean loss over any data, as a function :math:`v \mapsto H v` with its analyses.

  .. math:: H = \frac{\sum_b n_b \nabla^2 L_b}{\sum_b n_b}

  If some examples do not count, or not alike, the loss must return `(mean, count)`, as `(losses.sum() /
  where.sum(), where.sum())`. Then `n_b` is the count, else the number of examples. So the result does not
  depend on how the data are cut into batches. The `outer_loss_fn` of the methods may return the same pair.

  Its loops over batches and products run on the host: memory holds one batch, its activations and a few
  vectors, and convolutions keep their threads on a CPU. So it cannot be called inside `jit`; `hvp` can.
  Another checkpoint needs no compilation if `loss_fn` is the same function. If the data are one batch of at
  most `chunk_size` examples, its activations are computed once and stay in memory.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over the examples, or `(mean, count)`; with
      `model_state` it also takes the keyword `model_state`.
    params: any pytree; float16 and bfloat16 are widened to float32.
    data: a tuple, a dict or an array is one batch, with examples along the leading axis of its leaves. A list
      is a list of batches. A loader is any other iterable that can be iterated again: it must yield the same
      examples each time, in any order. Batches may be NumPy arrays or PyTorch tensors.
    mask: the parameters that count, as in `subset`; the others are constant.
    key: for noise, which is then fixed; batch `b` gets `fold_in(key, b)`, so batches must keep their order.
    model_state: constants such as BatchNorm's running averages, as arguments of the compiled code.
    chunk_size: the maximum number of examples at a time; by default a whole batch.
    mesh: copies the parameters to each device. The examples of a batch, if they divide evenly, and the basis
      of `top_eigenpairs` are sharded over all its devices, along automatic axes. On simulated devices of a
      CPU set `NPROC=32` in the environment, else `gauss_newton_diagonal` can wait without end. Without
      `mesh`, parameters that are split over devices stay split, and only `top_eigenpairs`, `trace` and
      `layerwise` accept them.

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
  _streamed: Streamed

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
    loss_fn = self._with_state(loss_fn, "loss_fn")
    if chunk_size is not None:
      check_count(chunk_size, "chunk_size")
    taken = selected(params, mask)
    self.names = tuple(itertools.compress(paths.leaf_names(params), taken))
    if self.has_state:
      params = (params, model_state)
      taken += (False,) * len(jax.tree.leaves(model_state))
    params = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, widened(params))
    if mesh is not None:
      if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {one_line(mesh)}")
      mesh = automatic(mesh)
      params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    self._streamed = Streamed(Hessian(params, None, key, taken, loss_fn), as_batches(data), chunk_size, mesh)

  def __repr__(self) -> str:
    return f"Curvature({self.operator!r})"

  def _with_state(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    check_loss_fn(function, name, also=("model_state",) if self.has_state else ())
    return WithState(function) if self.has_state else function

  def _with_operator(self, operator: Operator) -> Curvature:
    """Returns the curvature of another operator at the same point, over the same data."""
    new = object.__new__(Curvature)
    new.names, new.has_state = self.names, self.has_state
    new._streamed = dataclasses.replace(self._streamed, operator=operator)
    return new

  @property
  def operator(self) -> Operator:
    """The operator without data."""
    return self._streamed.operator

  @property
  def is_split(self) -> bool:
    """Whether the parameters are split over devices, and stay split."""
    return self._streamed.mesh is None and is_split(self.operator.leaves)

  @property
  def like(self) -> Array:
    """The selected parameters, `[size]`, with the shape and dtype of a vector."""
    return self._flat_operator.like[0]

  @functools.cached_property
  def _flat_operator(self) -> Flat:
    """The operator of flat vectors."""
    if self.is_split:
      raise ValueError(
        "params are split over devices, where only top_eigenpairs, trace and layerwise keep them split; give "
        "mesh= for a copy on each device"
      )
    return Flat(self._streamed)

  def _by_parameter(self, *, shared: bool) -> Streamed:
    """Returns the operator of vectors with an array per parameter, each split as the parameter is.

    With `shared`, the activations of data in one batch stay in memory.
    """
    return self._streamed if shared else dataclasses.replace(self._streamed, shared=False)

  def __call__(self, vector: Array) -> Array:
    """Multiplies a vector `[size]` by the matrix: one pass over the data."""
    if isinstance(vector, Tracer):
      raise TypeError(
        "products with a Curvature run on the host: call it outside of jit, grad, vmap and scan"
      )
    return self._flat_operator((as_vector(vector, self.like),))[0]

  def gauss_newton(self, apply_fn: Callable[..., Any], outer_loss_fn: Callable[..., Array]) -> Curvature:
    """Returns the Gauss-Newton matrix, as `gauss_newton`; with `model_state`, `apply_fn` takes it too."""
    old, apply_fn = self.operator, self._with_state(apply_fn, "apply_fn")
    return self._with_operator(GaussNewton(old.params, None, old.key, old.mask, apply_fn, outer_loss_fn))

  @full_precision
  def gauss_newton_diagonal(self, apply_fn: Callable[..., Any], outer_loss_fn: Callable[..., Array]) -> Array:
    """Computes the diagonal of the Gauss-Newton matrix exactly, as `gauss_newton_diagonal`."""
    like, apply_fn = self._flat_operator.like, self._with_state(apply_fn, "apply_fn")
    compute = partial(diagonal, apply_fn, outer_loss_fn, self.operator.mask, self.operator.params)

    def add_diagonal(running: RunningSum, number: int, batch: Batch) -> tuple[RunningSum, Array]:
      values, count = self._streamed.finished(compute(widened(batch)))
      return add_vector(running, (values,), count), count

    return self._streamed.mean(add_diagonal, like)[0]

  def fisher(
    self,
    apply_fn: Callable[..., Array],
    *,
    key: Key | None = None,
    likelihood: Likelihood = "categorical",
    num_samples: int | None = 1,
    losses_fn: Callable[..., Array] | None = None,
  ) -> Curvature:
    """Returns the Fisher matrix, as `fisher`; batch `b` gets `fold_in(key, b)`: keep the order of batches.

    Batches weigh by their examples, which all count: `losses_fn` gives the others a loss of 0.
    """
    scores_fn = make_scores(key, likelihood, num_samples, losses_fn)
    old, apply_fn = self.operator, self._with_state(apply_fn, "apply_fn")
    return self._with_operator(Fisher(old.params, None, key, old.mask, apply_fn, scores_fn))

  def solve(self, vector: ArrayLike, *, damping: float, **options: Any) -> Solution:
    """Multiplies by the inverse of the damped curvature, by `damped_solve` with its options."""
    return damped_solve(self, vector, damping=damping, **options)

  @full_precision
  def top_eigenpairs(self, *, key: Key, max_bytes: int | None = None, **options: Any) -> EigenPairs:
    """Computes eigenpairs by `top_eigenpairs` with its options; `v0` is a warm start.

    If the parameters are split over devices, every vector is split as they are. Then, and with `max_bytes`,
    the options are `num_pairs`, `num_steps`, `which` and `tol`, and `vectors` has for each pair a dict from
    the names of the parameters. `max_bytes` bounds the vectors on all devices together: when the basis is
    full, the iteration goes on from its best half.
    """
    if not self.is_split and max_bytes is None:
      return top_eigenpairs(self, key=key, **options)
    values, vectors, residuals, converged = eigenpairs_in_memory(
      self._by_parameter(shared=False), key=key, max_bytes=max_bytes, **options
    )
    named = [dict(zip(self.names, vector, strict=True)) for vector in vectors]
    return EigenPairs(values, named, residuals, converged)  # type: ignore[arg-type]

  @full_precision
  def trace(self, *, key: Key, num_samples: int = 32) -> Estimate:
    """Estimates the trace, as `operator_trace`; `gauss_newton_diagonal` may give it exactly.

    The signs are drawn for each parameter, so that they are the same if the parameters are split.
    """
    operator = self._by_parameter(shared=not self.is_split)
    return estimate_mean(sample_traces(operator, key, num_samples).sum(axis=1))

  def diagonal(self, *, key: Key | None = None, num_samples: int = 32) -> Estimate:
    """Estimates the diagonal by `operator_diagonal`, or computes it exactly without a key."""
    return operator_diagonal(self, key=key, num_samples=num_samples)

  def density(self, *, key: Key, **options: Any) -> SpectralDensity:
    """Estimates the density of the eigenvalues by `spectral_density`, with its options."""
    return spectral_density(self, key=key, **options)

  def matrix(self) -> Array:
    """Builds the symmetric matrix `[size, size]`, by one product for each parameter."""
    like = self.like
    rows = jnp.stack([self(jnp.zeros_like(like).at[number].set(1)) for number in range(like.size)])
    return (rows + rows.T) / 2

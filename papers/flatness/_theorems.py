"""Dropout after the last hidden layer with a squared error: exact loss, Hessian and gradient noise.

The network has one output, `f(x) = sum_j f_j(x) + b`, where `f_j` is the contribution of hidden unit `j`.
Dropout multiplies unit `j` by `1 + eta_j`, which is `1/p` with probability `p` and 0 otherwise, so that
`f_eta = f + sum_j eta_j f_j`. The loss is `l = (f_eta - y)^2 / 2`. The source calls `p` the dropout rate, but
it is the probability of keeping a unit, here `keep_prob`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_range, check_wide
from jaxreg._sums import Compensated, add, compensated, products, total
from jaxreg.flatness import subset
from jaxreg.typing import Array, Mask, Params

# `(params, x) -> (contributions [m], output bias)` for one example `x`.
ContributionFn = Callable[[Params, Array], tuple[Array, Array]]
# `(residual, contributions [m]) -> [1 + m, 1 + m]` for one example.
Coefficients = Callable[[Array, Array], Array]


def expected_dropout_loss(
  contribution_fn: ContributionFn,
  params: Params,
  inputs: ArrayLike,
  targets: ArrayLike,
  *,
  keep_prob: ArrayLike,
) -> Array:
  r"""Computes the exact mean of the loss over dropout masks: the loss without dropout plus a penalty.

  .. math:: \mathbb{E}_\eta R^{drop} = \frac{1}{2n} \sum_i \Bigl[(f(x_i) - y_i)^2
    + \frac{1-p}{p} \sum_j f_j(x_i)^2\Bigr]

  Args:
    contribution_fn: `(params, x) -> (contributions, output_bias)`, `[m]` and a scalar, for one example.
    params: any pytree.
    inputs: `[n, ...]`, the examples.
    targets: `[n]`, floating.
    keep_prob: `p`, the probability of keeping a unit, above 0.

  Returns:
    A scalar; differentiable.

  Raises:
    TypeError: if `targets` are not floating.
    ValueError: for a `keep_prob` outside (0, 1], or a shape that does not fit.

  Example:
    >>> hidden = lambda w, x: (w * x, jnp.zeros(()))
    >>> expected_dropout_loss(hidden, jnp.ones(2), jnp.array([[1., 2.]]), jnp.array([3.]), keep_prob=0.5)
    Array(2.5, dtype=float32)

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    the risk whose second derivatives are Eq. 2.
  """
  inputs, targets = _check(contribution_fn, params, inputs, targets, keep_prob)
  residual, contributions = _outputs(contribution_fn, params, inputs, targets)
  return _twice_expected_loss(residual, contributions, keep_prob).mean() / 2


def dropout_hessian(
  contribution_fn: ContributionFn,
  params: Params,
  inputs: ArrayLike,
  targets: ArrayLike,
  *,
  keep_prob: ArrayLike,
  mask: Mask = "*",
  chunk_size: int = 64,
) -> Array:
  r"""Computes the mean Hessian of the loss over dropout masks, by first derivatives alone: theorem 1.

  .. math:: H = \frac1n \sum_i \Bigl[\nabla f \nabla^\top f + \frac{1-p}{p} \sum_j \nabla f_j \nabla^\top f_j
    \Bigr](x_i)

  It is exact at any parameters if `f` and every `f_j` are piecewise linear in the selected parameters: within
  the weights of one layer, with piecewise linear activations. The proof lets all second derivatives vanish.
  Across layers they do not, and this is a Gauss-Newton matrix: the exact Hessian has the additional term
  `(f - y) Hess f + (1-p)/p sum_j f_j Hess f_j`. In the tests' small network this term is half of the Hessian
  at initialisation, and 0 where the mean gradient is 0, as the theorem's assumption 1 requires.

  Args:
    contribution_fn: as in `expected_dropout_loss`.
    params: any pytree.
    inputs: `[n, ...]`, the examples.
    targets: `[n]`, floating.
    keep_prob: `p`, the probability of keeping a unit, above 0.
    mask: the leaves of `params` to differentiate, as in `flatness.subset`.
    chunk_size: number of examples with derivatives in memory at once, `chunk_size * (1 + m) * D` numbers.

  Returns:
    `[D, D]`, symmetric and positive semi-definite; parameters in the order of the leaves.

  Raises:
    TypeError: if `targets` or a selected leaf are not floating.
    ValueError: for a `keep_prob` outside (0, 1], a shape that does not fit, or a `mask` without leaves.

  Example:
    >>> hidden = lambda w, x: (w * x, jnp.zeros(()))
    >>> dropout_hessian(hidden, jnp.ones(2), jnp.array([[1., 2.]]), jnp.array([3.]), keep_prob=0.5)
    Array([[2., 2.],
           [2., 8.]], dtype=float32)

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    theorem 1.
  """
  inputs, targets = _check(contribution_fn, params, inputs, targets, keep_prob)
  noise = _moments(keep_prob, targets)

  def coefficients(residual: Array, contributions: Array) -> Array:
    return _diagonal(jnp.ones_like(residual), jnp.full_like(contributions, noise.second))

  return _mean_form(coefficients, contribution_fn, params, inputs, targets, mask, chunk_size)


def dropout_covariance(
  contribution_fn: ContributionFn,
  params: Params,
  inputs: ArrayLike,
  targets: ArrayLike,
  *,
  keep_prob: ArrayLike,
  mask: Mask = "*",
  chunk_size: int = 64,
) -> Array:
  r"""Computes the approximate covariance of an example's gradient: theorem 2 as printed.

  .. math:: \Sigma = \frac1n \sum_i \Bigl[a_i \nabla f \nabla^\top f
    + b_i \frac{1-p}{p} \sum_j \nabla f_j \nabla^\top f_j\Bigr](x_i), \quad
    a_i = 2 \mathbb{E}_\eta l(f_\eta(x_i), y_i), \quad b_i = 2 l(f(x_i), y_i)

  The covariance is over masks and examples. This is no identity: the derivation keeps the loss to first order
  in the noise, and drops its cross terms and the square of the mean gradient. `dropout_covariance_exact`
  includes all of them.

  Args:
    contribution_fn, params, inputs, targets, keep_prob, mask, chunk_size: as in `dropout_hessian`.

  Returns:
    `[D, D]`, symmetric and positive semi-definite; parameters in the order of the leaves.

  Raises:
    TypeError, ValueError: as in `dropout_hessian`.

  Example:
    >>> hidden = lambda w, x: (w * x, jnp.zeros(()))
    >>> dropout_covariance(hidden, jnp.ones(2), jnp.array([[1., 2.]]), jnp.array([3.]), keep_prob=0.5)
    Array([[ 5., 10.],
           [10., 20.]], dtype=float32)

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    theorem 2.
  """
  inputs, targets = _check(contribution_fn, params, inputs, targets, keep_prob)
  noise = _moments(keep_prob, targets)

  def coefficients(residual: Array, contributions: Array) -> Array:
    b = jnp.square(residual)
    a = _twice_expected_loss(residual, contributions, keep_prob)
    return _diagonal(a, jnp.full_like(contributions, b * noise.second))

  return _mean_form(coefficients, contribution_fn, params, inputs, targets, mask, chunk_size)


def dropout_covariance_exact(
  contribution_fn: ContributionFn,
  params: Params,
  inputs: ArrayLike,
  targets: ArrayLike,
  *,
  keep_prob: ArrayLike,
  sampling: Literal["full_batch", "single_example"] = "full_batch",
  mask: Mask = "*",
  chunk_size: int = 64,
) -> Array:
  r"""Computes the exact covariance of the gradient under dropout, without drawing a mask.

  With `u = grad f`, `u_j = grad f_j`, the residual `e = f - y`, `s = sum_j f_j^2`, `w = sum_j f_j u_j` and
  the moments `m_2`, `m_3`, `m_4` of `eta_j`, the gradient of an example has the mean `g = e u + m_2 w` and

  .. math:: \mathrm{Cov}_\eta(\nabla l) = m_2 s\, u u^\top
    + \sum_j (e m_2 f_j + m_3 f_j^2)(u u_j^\top + u_j u^\top) + m_2^2\, w w^\top
    + \sum_j \bigl[e^2 m_2 + 2 e m_3 f_j + (m_4 - 3 m_2^2) f_j^2 + m_2^2 s\bigr] u_j u_j^\top

  .. math:: \Sigma_{full} = \frac{1}{n^2} \sum_i \mathrm{Cov}_\eta(\nabla l_i), \qquad
    \Sigma_{single} = \frac1n \sum_i \bigl[\mathrm{Cov}_\eta(\nabla l_i) + g_i g_i^\top\bigr]
    - \bar g \bar g^\top

  No derivative is neglected: the result holds for any parameters and any activation.

  Args:
    contribution_fn, params, inputs, targets, keep_prob, mask, chunk_size: as in `dropout_hessian`.
    sampling: `"full_batch"` is for the gradient of the mean loss, with one mask per example, as in training
      with full batches. `"single_example"` is for the gradient of one random example with a random mask, as
      in theorem 2.

  Returns:
    `[D, D]`, symmetric and positive semi-definite; parameters in the order of the leaves.

  Raises:
    TypeError, ValueError: as in `dropout_hessian`; ValueError also for another `sampling`.

  Example:
    >>> hidden = lambda w, x: (w * x, jnp.zeros(()))
    >>> dropout_covariance_exact(hidden, jnp.ones(2), jnp.array([[1., 2.]]), jnp.array([3.]), keep_prob=1.0)
    Array([[0., 0.],
           [0., 0.]], dtype=float32)

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021:
    the covariance whose approximation is theorem 2; the closed form is our own.
  """
  if sampling not in ("full_batch", "single_example"):
    raise ValueError(f"sampling must be 'full_batch' or 'single_example', got {sampling!r}")
  inputs, targets = _check(contribution_fn, params, inputs, targets, keep_prob)
  noise = _moments(keep_prob, targets)

  def covariance(residual: Array, contributions: Array) -> Array:
    return _gradient_covariance(residual, contributions, noise)

  def second_moment(residual: Array, contributions: Array) -> Array:
    mean = jnp.concatenate([residual[None], noise.second * contributions])
    return covariance(residual, contributions) + jnp.outer(mean, mean)

  arguments = (contribution_fn, params, inputs, targets, mask, chunk_size)
  if sampling == "full_batch":
    return _mean_form(covariance, *arguments) / len(inputs)
  flat, merge, _ = subset(params, mask)
  loss = lambda flat: expected_dropout_loss(
    contribution_fn, merge(flat), inputs, targets, keep_prob=keep_prob
  )
  with jax.default_matmul_precision("highest"):
    mean = _wide(jax.grad(loss)(flat))
  return _mean_form(second_moment, *arguments) - jnp.outer(mean, mean)


def loewner_bounds(
  contribution_fn: ContributionFn,
  params: Params,
  inputs: ArrayLike,
  targets: ArrayLike,
  *,
  keep_prob: ArrayLike,
) -> tuple[Array, Array]:
  r"""Computes bounds of the printed covariance as multiples of the Hessian.

  .. math:: \min_i b_i\, H \preceq \Sigma \preceq \max_i a_i\, H

  with `a_i` and `b_i`, the `H` of `dropout_hessian` and the `Sigma` of `dropout_covariance`; the bounds need
  not hold for the exact covariance. The source's proposition is the case of labels 0 and 1 with outputs
  between `delta` and `1 - delta`, where all `b_i` are at least `delta^2`.

  Args:
    contribution_fn, params, inputs, targets, keep_prob: as in `expected_dropout_loss`.

  Returns:
    Two scalars, `min_i b_i` and `max_i a_i`.

  Raises:
    TypeError, ValueError: as in `expected_dropout_loss`.

  Example:
    >>> hidden = lambda w, x: (w * x, jnp.zeros(()))
    >>> loewner_bounds(hidden, jnp.ones(2), jnp.array([[1., 2.]]), jnp.array([2.]), keep_prob=0.5)
    (Array(1., dtype=float32), Array(6., dtype=float32))

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    proposition 1.
  """
  inputs, targets = _check(contribution_fn, params, inputs, targets, keep_prob)
  residual, contributions = _outputs(contribution_fn, params, inputs, targets)
  return jnp.square(residual).min(), _twice_expected_loss(residual, contributions, keep_prob).max()


class _Moments(NamedTuple):
  """The moments of `eta`, which has mean 0."""

  second: Array
  third: Array
  fourth: Array


def _moments(keep_prob: ArrayLike, like: Array) -> _Moments:
  # In the arrays' dtype: a NumPy scalar would widen them.
  p = jnp.asarray(keep_prob, like.dtype)
  q = 1 - p
  return _Moments(q / p, q * (1 - 2 * p) / p**2, q * (1 - 3 * p + 3 * p**2) / p**3)


def _twice_expected_loss(residual: Array, contributions: Array, keep_prob: ArrayLike) -> Array:
  """Computes the theorems' `a_i`, `[..., m] -> [...]`."""
  ratio = _moments(keep_prob, contributions).second
  return jnp.square(residual) + ratio * jnp.square(contributions).sum(axis=-1)


def _gradient_covariance(residual: Array, contributions: Array, noise: _Moments) -> Array:
  """Computes the covariance of one example's gradient as a form in `(u, u_1, ..., u_m)`, `[1 + m, 1 + m]`."""
  e, f = residual, contributions
  square = (f**2).sum()
  head = noise.second * square
  cross = e * noise.second * f + noise.third * f**2
  excess = noise.fourth - 3 * noise.second**2
  own = e**2 * noise.second + 2 * e * noise.third * f + excess * f**2 + noise.second**2 * square
  units = jnp.diag(own) + noise.second**2 * jnp.outer(f, f)
  return jnp.block([[head[None, None], cross[None]], [cross[:, None], units]])


def _diagonal(first: Array, others: Array) -> Array:
  return jnp.diag(jnp.concatenate([first[None], others]))


def _outputs(
  contribution_fn: ContributionFn, params: Params, inputs: Array, targets: Array
) -> tuple[Array, Array]:
  """Computes residuals `[n]` and contributions `[n, m]`."""
  with jax.default_matmul_precision("highest"):
    contributions, bias = jax.vmap(contribution_fn, (None, 0))(params, inputs)
  contributions, bias = _wide(contributions), _wide(bias)
  return contributions.sum(axis=-1) + bias - targets, contributions


def _mean_form(
  coefficients: Coefficients,
  contribution_fn: ContributionFn,
  params: Params,
  inputs: Array,
  targets: Array,
  mask: Mask,
  chunk_size: int,
) -> Array:
  """Computes the mean over examples of `J' C J`: `J` has the rows `u, u_1, ...`, `coefficients` makes `C`."""
  check_count(chunk_size, "chunk_size")
  flat, merge, _ = subset(params, mask)
  number = len(inputs)
  size = min(chunk_size, number)
  chunks = -(-number // size)
  # Copies of the last example, which do not count, fill up the last chunk.
  pad = lambda x: jnp.pad(x, [(0, chunks * size - number)] + [(0, 0)] * (x.ndim - 1), mode="edge")
  cut = lambda x: x.reshape(chunks, size, *x.shape[1:])
  counts = (jnp.arange(chunks * size) < number).astype(_wide(flat).dtype)

  def example(x: Array, y: Array, counts: Array) -> tuple[Array, Array]:
    def outputs(flat: Array) -> tuple[Array, Array]:
      contributions, bias = contribution_fn(merge(flat), x)
      values = jnp.concatenate([(contributions.sum() + bias)[None], contributions])
      return values, values

    jacobian, values = map(_wide, jax.jacrev(outputs, has_aux=True)(flat))
    return jacobian, counts * (coefficients(values[0] - y, values[1:]) @ jacobian)

  def add_chunk(running: Compensated, chunk: tuple[Array, Array, Array]) -> tuple[Compensated, None]:
    left, right = (x.reshape(-1, flat.size) for x in jax.vmap(example)(*chunk))
    return add(running, products(left, right).astype(running[0].dtype)), None

  with jax.default_matmul_precision("highest"):
    start = compensated(jnp.zeros((flat.size, flat.size), counts.dtype))
    running, _ = jax.lax.scan(add_chunk, start, (cut(pad(inputs)), cut(pad(targets)), cut(counts)))
  # The sum is symmetric up to rounding, which an eigendecomposition should not see.
  form = total(running)
  return (form + form.T) / (2 * number)


def _check(
  contribution_fn: ContributionFn, params: Params, inputs: ArrayLike, targets: ArrayLike, keep_prob: ArrayLike
) -> tuple[Array, Array]:
  check_range(keep_prob, "keep_prob", low=0, high=1, open_low=True)
  inputs, targets = jnp.asarray(inputs), check_wide(targets, "targets")
  if inputs.ndim == 0 or len(inputs) == 0:
    raise ValueError(f"inputs must have shape [n, ...] with n at least 1, got {inputs.shape}")
  if targets.shape != inputs.shape[:1]:
    raise ValueError(f"targets must have shape {inputs.shape[:1]}, one per input, got {targets.shape}")
  example = jax.ShapeDtypeStruct(inputs.shape[1:], inputs.dtype)
  outputs = jax.eval_shape(contribution_fn, params, example)
  shapes = [getattr(x, "shape", None) for x in outputs] if isinstance(outputs, tuple) else outputs
  match shapes:
    case [(_,), ()]:
      return inputs, targets
  raise ValueError(
    f"contribution_fn must return contributions [m] and a scalar output bias for one example, got {shapes}"
  )


def _wide(x: Array) -> Array:
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))

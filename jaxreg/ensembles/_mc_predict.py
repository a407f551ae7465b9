"""Monte Carlo prediction: many runs of a stochastic model on the same inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreg._checks import check_count, check_key, check_wide
from jaxreg._loops import map_rows
from jaxreg.ensembles._uncertainty import Uncertainty, uncertainty
from jaxreg.typing import Array, Batch, Key, Params


class MCMoments(NamedTuple):
  """What `mc_regress` returns."""

  mean: Array
  variance: Array
  samples: Array


def mc_predict(
  apply_fn: Callable[..., Any],
  params: Params,
  x: Batch,
  *,
  key: Key,
  num_samples: int,
  per_example: bool = True,
  chunk_size: int | None = None,
) -> Uncertainty:
  r"""Computes the mean prediction and uncertainty of a classifier with its noise on, as in MC dropout.

  .. math:: p(y \mid x) \approx \frac1M \sum_{i=1}^M p(y \mid x, z_i), \qquad
    \mathrm{H}\bigl[\mathbb{E}_z p\bigr] = \mathbb{E}_z \mathrm{H}[p] + \mathrm{I}(y; z)

  `x` is the same in every term. `apply_fn` must make BatchNorm use its running statistics while the noise is
  on. A Linen module needs one switch for noise and one for BatchNorm, and `mutable=False` raises if BatchNorm
  is still in training mode:

  .. code-block:: python

    def apply_fn(params, x, *, key):
      variables = {"params": params, "batch_stats": batch_stats}
      return model.apply(variables, x, dropout=True, use_running_average=True, rngs={"dropout": key},
                         mutable=False)

  In NNX, `nnx.view(model, deterministic=False, use_running_average=True)` is such a model.

  Args:
    apply_fn: `(params, x, *, key) -> [batch, ..., classes]`, logits or log-probabilities.
    params: any pytree.
    x: an array or a pytree of arrays `[batch, ...]`.
    key: the same key gives the same answer.
    num_samples: `M`.
    per_example: whether each example has its own noise, as in training: `apply_fn` is called on the batch.
      With False it is called on one example at a time with the same key, so that draw `i` is one function of
      `x`: for plots, and to compare examples.
    chunk_size: number of draws at once; fewer draws need less memory for activations. Default: all. The
      result is the same.

  Returns:
    A NamedTuple, as `uncertainty` returns it.

  Example:
    >>> apply_fn = lambda w, x, *, key: jax.random.bernoulli(key, 0.5, x.shape) * x @ w
    >>> x, w = jnp.ones((1, 1)), jnp.array([[jnp.log(3.0), 0.0]])  # 3/4 or 1/2
    >>> predict = jax.jit(lambda key: mc_predict(apply_fn, w, x, key=key, num_samples=1000))
    >>> jnp.exp(predict(jax.random.key(0)).mean_log_probs).round(2)
    Array([[0.63, 0.37]], dtype=float32)

  References:
    Gal and Ghahramani, `Dropout as a Bayesian Approximation`, 2016.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, testing.
  """
  outputs = _draws(apply_fn, params, x, key, num_samples, per_example, chunk_size)
  return uncertainty(jax.nn.log_softmax(outputs, axis=-1))


def mc_regress(
  apply_fn: Callable[..., Any],
  params: Params,
  x: Batch,
  *,
  key: Key,
  num_samples: int,
  per_example: bool = True,
  chunk_size: int | None = None,
) -> MCMoments:
  r"""Computes the mean and variance of the outputs of a model with its noise on.

  .. math:: \bar f = \frac1M \sum_i f(x, z_i), \qquad \frac1M \sum_i (f(x, z_i) - \bar f)^2

  The variance comes from the noise in the model; the noise of the observations adds to it.

  Args:
    apply_fn: `(params, x, *, key) -> [batch, ...]`.
    params, x, key, num_samples, per_example, chunk_size: as in `mc_predict`.

  Returns:
    A NamedTuple of `mean` and `variance` of the draws (divided by their number), `[batch, ...]`, and of
    `samples`, the draws, `[num_samples, batch, ...]`; float32 or wider.

  Example:
    >>> apply_fn = lambda w, x, *, key: w * jax.random.bernoulli(key, 0.5, x.shape) * x
    >>> result = mc_regress(apply_fn, 1.0, jnp.ones(1), key=jax.random.key(0), num_samples=1000)
    >>> result.mean.round(1), result.variance.round(2)
    (Array([0.5], dtype=float32), Array([0.25], dtype=float32))

  References:
    Gal and Ghahramani, `Dropout as a Bayesian Approximation`, 2016.
  """
  outputs = _draws(apply_fn, params, x, key, num_samples, per_example, chunk_size)
  # Divide before adding: the sum of large outputs may overflow when their mean does not.
  mean = (outputs / num_samples).sum(axis=0)
  return MCMoments(mean, jnp.square(outputs - mean[None]).mean(axis=0), outputs)


def _draws(
  apply_fn: Callable[..., Any],
  params: Params,
  x: Batch,
  key: Key,
  num_samples: int,
  per_example: bool,
  chunk_size: int | None,
) -> Array:
  """The outputs `[num_samples, batch, ...]`, in at least float32."""
  check_count(num_samples, "num_samples")
  if chunk_size is not None:
    check_count(chunk_size, "chunk_size")

  def predict_batch(key: Key) -> Array:
    return apply_fn(params, x, key=key)

  def predict_each(key: Key) -> Array:
    def single(example):
      return apply_fn(params, jax.tree.map(lambda a: a[None], example), key=key)[0]

    return jax.vmap(single)(x)

  keys = jax.random.split(check_key(key), num_samples)
  draw = predict_batch if per_example else predict_each
  outputs = jax.vmap(draw)(keys) if chunk_size is None else map_rows(draw, keys, chunk_size)
  return check_wide(outputs, "the outputs of apply_fn")

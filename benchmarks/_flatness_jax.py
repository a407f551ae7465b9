"""jaxreg's side of the benchmark of flatness: each method is one measurement, from the pixels on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _clock import now
from _flatness_problem import (
  WHERE,
  convolution_loss,
  logits,
  loss,
  make_convolutions,
  network,
  outer_loss,
)

from jaxreg import flatness


class Side:
  """A network, its data, and what is computed of them."""

  def __init__(self, params, batch):
    self.params, self.batch = params, batch
    self.size = flatness.subset(params, WHERE).flat.size
    self.cache = {}

  def runner(self, call):
    """`run(n)`, which calls `n` times and returns the seconds of one."""

    def run(number):
      began = now()
      for _ in range(number):
        jax.block_until_ready(call())
      return (now() - began) / number

    return run

  def loss(self):
    return loss(self.params, self.batch, key=None)

  def hessian(self):
    return flatness.hessian(loss, self.params, self.batch, mask=WHERE)

  def convolution(self, examples, path):
    """The block of a convolution by Jacobians, and its products; leaves the problem at `path`."""
    params, batch = make_convolutions(examples)
    np.savez(path, **{name: np.asarray(value) for name, value in {**params, **batch}.items()})
    # On the host: in a compiled loop, XLA runs convolutions on a CPU many times slower.
    product = flatness.Curvature(convolution_loss, params, batch, mask="first")
    return lambda: flatness.gauss_newton_matrix(logits, outer_loss, params, batch, mask="first"), product

  def whole(self):
    """The curvature of all layers."""
    return flatness.Curvature(loss, self.params, self.batch)

  def products(self, matrix):
    """`[size] -> [size]` of all layers: with what products share kept, and compiled without."""
    if matrix == "hessian":
      kept, other = self.whole(), flatness.hvp(loss, self.params, self.batch)
    else:
      kept = self.whole().gauss_newton(network, outer_loss)
      other = flatness.gauss_newton(network, outer_loss, self.params, self.batch)
    return {"Curvature": kept, type(other).__name__: partial(_apply, other)}

  def kfac(self, vector, damping=None):
    """The product of KFAC of all layers and a vector, or with damping of its inverse; builds it first."""
    parts, first = [], 0
    for block in flatness.kfac(network, self.params, self.batch, num_samples=None).values():
      part = vector[first : (first := first + block.scales.size)]
      parts.append(block(part) if damping is None else block.solve(part, damping=damping))
    return jnp.concatenate(parts)

  def trace(self, probes, seed=0):
    return self.whole().trace(key=jax.random.key(seed), num_samples=probes)

  def exact_trace(self):
    return self.whole().gauss_newton_diagonal(network, outer_loss).sum()

  def eigenpairs(self, number, tol):
    # The peers do not check the products either.
    return self.whole().top_eigenpairs(
      key=jax.random.key(0), num_pairs=number, num_steps=200, until_converged=True, tol=tol, check=False
    )

  def density(self, probes, steps, seed=0):
    return self.whole().density(key=jax.random.key(seed), num_samples=probes, num_steps=steps)

  def samples(self, number, seed=0):
    return samples(self.params, self.batch, jax.random.key(seed), number)

  def sampled_covariance(self, number):
    return flatness.noise_covariance(self.samples(number))

  def top_eigenpairs(self):
    return top_eigenpairs(self.params, self.batch, jax.random.key(0))

  def components(self, number):
    """Principal directions of sampled noise, spread over all ranks, the largest variance first."""
    directions = flatness.principal_components(self.samples(20 * number)).directions
    return directions[:: len(directions) // number][:number]

  def intervals(self, directions):
    return intervals(self.params, self.batch, directions)

  def kept(self, name, make):
    if name not in self.cache:
      self.cache[name] = make()
    return self.cache[name]

  def memory(self, number, directions, most=None):
    """Bytes of results and temporary arrays of each compiled program, or of the first `most` of them."""
    key = jax.random.key(0)
    lines = jnp.zeros((directions, self.size)).at[:, 0].set(1)
    drawn = jax.ShapeDtypeStruct((3 * number, self.size), jnp.float32)
    programs = {
      "hessian": (lambda p, b: flatness.hessian(loss, p, b, mask=WHERE), ()),
      "sample_gradients": (partial(samples, number=number), (key,)),
      "principal_components": (lambda p, b, x: flatness.principal_components(x), (drawn,)),
      "top_eigenpairs": (top_eigenpairs, (key,)),
      "interval_flatness": (intervals, (lines,)),
    }
    sizes = {}
    for name, (call, rest) in list(programs.items())[:most]:
      used = jax.jit(call).lower(self.params, self.batch, *rest).compile().memory_analysis()
      sizes[name] = used.temp_size_in_bytes + used.output_size_in_bytes
    return sizes


_apply = jax.jit(lambda operator, vector: operator(vector))


def samples(params, batch, key, number):
  return flatness.sample_gradients(loss, params, batch, key=key, num_samples=number, mask=WHERE)


def top_eigenpairs(params, batch, key):
  operator = flatness.hvp(loss, params, batch, mask=WHERE)
  return flatness.top_eigenpairs(operator, operator.like, key=key, num_pairs=20, num_steps=60)


def intervals(params, batch, directions):
  return flatness.interval_flatness(loss, params, directions, batch, mask=WHERE)

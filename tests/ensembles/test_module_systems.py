"""KFAC and Laplace of one network, written for five module systems, give the same numbers."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import linen as nn
from flax import nnx

from jaxreg import ensembles, flatness

SIZES = (4, 7, 3)
SIZE = 4 * 7 + 7 + 7 * 3 + 3
TAU = 0.7
rng = np.random.default_rng(0)
W = [rng.normal(size=pair) / 2 for pair in itertools.pairwise(SIZES)]
B = [rng.normal(size=n) / 2 for n in SIZES[1:]]
X, NEW = rng.normal(size=(9, 4)), rng.normal(size=(5, 4))


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


class Nnx(nnx.Module):
  def __init__(self):
    self.a, self.b = (nnx.Linear(m, n, rngs=nnx.Rngs(0)) for m, n in itertools.pairwise(SIZES))

  def __call__(self, x):
    return self.b(jnp.tanh(self.a(x)))


def plain():
  params = [{"w": jnp.asarray(w), "b": jnp.asarray(b)} for w, b in zip(W, B)]
  return params, lambda p, x, *, key: jnp.tanh(x @ p[0]["w"] + p[0]["b"][None]) @ p[1]["w"] + p[1]["b"][None]


def linen():
  model = nn.Sequential([nn.Dense(7, param_dtype=float), jnp.tanh, nn.Dense(3, param_dtype=float)])
  params = {f"layers_{2 * i}": {"kernel": jnp.asarray(W[i]), "bias": jnp.asarray(B[i])} for i in range(2)}
  return params, lambda p, x, *, key: model.apply({"params": p}, x)


def of_nnx():
  graph, state = nnx.split(Nnx())
  new = {name: {"kernel": jnp.asarray(W[i]), "bias": jnp.asarray(B[i])} for i, name in enumerate("ab")}
  nnx.replace_by_pure_dict(state, new)
  return state, lambda p, x, *, key: nnx.merge(graph, p)(x)


def haiku():
  """Haiku's tree and operations: it multiplies by `w`, and adds `b` in the shape of the product."""
  params = {f"mlp/~/linear_{i}": {"w": jnp.asarray(W[i]), "b": jnp.asarray(B[i])} for i in range(2)}

  def linear(p, x):
    product = jnp.dot(x, p["w"])
    return product + jnp.broadcast_to(p["b"], product.shape)

  first, second = params
  return params, lambda p, x, *, key: linear(p[second], jnp.tanh(linear(p[first], x)))


def equinox():
  model = eqx.nn.MLP(4, 3, 7, 1, jnp.tanh, key=jax.random.key(0))
  where = lambda m: [x for layer in m.layers for x in (layer.weight, layer.bias)]
  new = [jnp.asarray(x) for i in range(2) for x in (W[i].T, B[i])]
  params, static = eqx.partition(eqx.tree_at(where, model, new), eqx.is_array)
  return params, lambda p, x, *, key: jax.vmap(eqx.combine(p, static))(x)


FORMS = (plain, linen, of_nnx, haiku, equinox)


def kfac_oracle(x):
  """The outputs at `NEW` and their covariance: factors `[1, h]`, and gradients, of each layer by hand."""
  hidden = np.tanh(x @ W[0] + B[0])
  p = oracles.softmax(hidden @ W[1] + B[1])
  curvature = np.stack([np.diag(q) - np.outer(q, q) for q in p])
  new = np.tanh(NEW @ W[0] + B[0])
  back = lambda h: np.einsum("nh,hc->nhc", 1 - h**2, W[1])  # from the outputs to the first layer's
  one = lambda h: np.concatenate([np.ones((len(h), 1)), h], axis=1)
  covariance = 0
  for h, g, at, slope in (
    (x, back(hidden), NEW, back(new)),
    (hidden, np.stack([np.eye(3)] * len(x)), new, np.stack([np.eye(3)] * len(NEW))),
  ):
    a = one(h).T @ one(h) / len(x)
    b = np.einsum("nuc,ncd,nvd->uv", g, curvature, g) / len(x)
    inverse = np.linalg.inv(len(x) * np.kron(a, b) + TAU * np.eye(len(a) * len(b)))
    j = np.einsum("nk,nuc->ncku", one(at), slope).reshape(len(NEW), 3, -1)
    covariance = covariance + j @ inverse @ j.swapaxes(1, 2)
  return new @ W[1] + B[1], covariance


@pytest.mark.parametrize("form", [*(pytest.param(f, marks=pytest.mark.thorough) for f in FORMS[:4]), equinox])
def test_the_same_network_in_five_forms(form):
  params, apply_fn = form()
  posterior = ensembles.laplace(apply_fn, params, jnp.asarray(X))
  assert posterior.values.size == SIZE == sum(x.size for x in jax.tree.leaves(params))
  outputs, covariance = kfac_oracle(X)
  found = posterior.linearized(jnp.asarray(NEW), precision=TAU)
  np.testing.assert_allclose(found.outputs, outputs, rtol=1e-10)
  np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9)
  blocks = flatness.kfac(apply_fn, params, jnp.asarray(X[:1]), num_samples=None)
  assert [block.scales.shape for block in blocks.values()] == [(5, 7), (8, 3)]
  for block in blocks.values():  # exact for the last layer of one example, in the order of `subset`
    if block.scales.shape == (8, 3):
      outer = lambda z, x: jax.nn.logsumexp(z, axis=-1).mean()
      exact = flatness.gauss_newton(apply_fn, outer, params, jnp.asarray(X[:1]), mask=block.names).matrix()
      np.testing.assert_allclose(block.matrix(), exact, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_layers_of_the_same_network_have_the_same_curvature(form):
  """`layerwise` goes by names, and sees two layers in each form."""
  tops = []
  for params, apply_fn in (form(), plain()):
    loss = lambda p, x, *, key, f=apply_fn: (jax.nn.logsumexp(f(p, x, key=None), axis=-1) ** 2).mean()
    curvature = flatness.Curvature(loss, params, jnp.asarray(X))
    tops.append(flatness.layerwise(curvature, key=jax.random.key(0), num_steps=100).top_eigenvalues)
  np.testing.assert_allclose(*tops, rtol=1e-9)


@pytest.mark.thorough
def test_layers_of_a_flat_tree_are_those_of_layer_of():
  params = {"kernel": jnp.asarray(W[0]), "bias": jnp.asarray(B[0])}
  loss = lambda p, x, *, key: (jnp.tanh(x @ p["kernel"] + p["bias"][None]) ** 2).mean()
  curvature = flatness.Curvature(loss, params, jnp.asarray(X))
  assert flatness.layerwise(curvature, key=jax.random.key(0), num_steps=0).names == ("bias", "kernel")
  layers = flatness.layerwise(curvature, key=jax.random.key(0), num_steps=35, layer_of=lambda name: "layer")
  assert layers.names == ("layer",)
  expected = np.linalg.eigvalsh(curvature.matrix())[-1]
  np.testing.assert_allclose(layers.top_eigenvalues[0], expected, rtol=1e-9)


@pytest.mark.parametrize("names", [("kernel", "bias"), pytest.param(("x", "y"), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("structure", ["kfac", "dense"])
def test_linear_regression_in_a_flat_tree(names, structure):
  """KFAC is exact: variances and evidence are those of Bayesian linear regression."""
  kernel, bias = names
  params = {kernel: jnp.asarray(W[0][:, :1]), bias: jnp.asarray(B[0][:1])}
  apply_fn = lambda p, x, *, key: x @ p[kernel] + p[bias][None]
  posterior = ensembles.laplace(
    apply_fn, params, jnp.asarray(X), likelihood="normal", structure=structure, noise_variance=0.3
  )
  design, new = (np.concatenate([np.ones((len(x), 1)), x], axis=1) for x in (X, NEW))
  precision = design.T @ design / 0.3 + TAU * np.eye(5)
  variances = np.einsum("np,pq,nq->n", new, np.linalg.inv(precision), new)
  found = posterior.linearized(jnp.asarray(NEW), precision=TAU)
  np.testing.assert_allclose(found.covariance[:, 0, 0], variances, rtol=1e-9)
  theta = np.concatenate([B[0][:1], W[0][:, 0]])
  evidence = (5 * np.log(TAU) - TAU * theta @ theta - np.linalg.slogdet(precision)[1]) / 2
  np.testing.assert_allclose(posterior.log_evidence(TAU), evidence, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["kfac", "ekfac", "diagonal", "dense"])
def test_a_mask_is_obeyed_and_bfloat16_layers_have_a_curvature(structure):
  params, apply_fn = linen()
  posterior = ensembles.laplace(apply_fn, params, jnp.asarray(X), structure=structure, mask="*/kernel")
  draws = posterior.sample(jax.random.key(0), precision=TAU, num_samples=2)
  for layer, own in draws.items():
    np.testing.assert_array_equal(own["bias"][0], params[layer]["bias"])
    assert (own["kernel"][0] != own["kernel"][1]).any()
  model = nn.Sequential([nn.Dense(7, dtype=jnp.bfloat16), jnp.tanh, nn.Dense(3, dtype=jnp.bfloat16)])
  params = jax.tree.map(jnp.float32, params)
  narrow = lambda p, x, *, key: model.apply({"params": p}, x)
  found, exact = (
    ensembles.laplace(fn, params, jnp.float32(X), structure=structure).linearized(
      jnp.float32(NEW), precision=1.0
    )
    for fn in (narrow, apply_fn)
  )
  np.testing.assert_allclose(found.covariance, exact.covariance, rtol=0.1, atol=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["kfac", "ekfac"])
def test_parameters_without_a_factor_are_named_or_dense(structure):
  """A scale of the outputs has an exact block; one of many parameters is named."""
  apply_fn = lambda p, x, *, key: (x @ p["w"]) * p["scale"][None]
  params, x = {"w": jnp.asarray(W[0]), "scale": jnp.ones(7)}, jnp.asarray(X)
  with pytest.raises(ValueError, match=r"^mask must select only kernels and biases .* but scale is used by"):
    flatness.kfac(apply_fn, params, x, num_samples=None)
  both, alone = (
    ensembles.laplace(apply_fn, params, x, structure=name, mask=mask).log_evidence(TAU)
    for name, mask in ((structure, "*"), (structure, "w"))
  )
  logits = X @ W[0]
  p = oracles.softmax(logits)
  hessian = sum(np.outer(z, z) * (np.diag(q) - np.outer(q, q)) for z, q in zip(logits, p))
  own = (7 * np.log(TAU) - TAU * 7 - np.linalg.slogdet(hessian + TAU * np.eye(7))[1]) / 2
  np.testing.assert_allclose(both - alone, own, rtol=1e-9)
  many = {"w": params["w"], "scale": jnp.ones((7, 600))}
  wide = lambda p, x, *, key: (x @ p["w"]) * p["scale"].mean(axis=1)[None]
  with pytest.raises(ValueError, match=r"^mask: structure=e?kfac has no factor for scale, and 4200"):
    ensembles.laplace(wide, many, x, structure=structure)

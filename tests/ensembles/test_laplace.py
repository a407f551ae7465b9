"""The Laplace approximation of networks and their layers, against closed forms in float64 NumPy."""

import json
from pathlib import Path

import contract
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import ensembles

N, D, K, TAU, NOISE = 12, 3, 4, 0.7, 0.3
rng = np.random.default_rng(0)
X, NEW, KERNEL = rng.normal(size=(N, D)), rng.normal(size=(5, D)), rng.normal(size=(D, K))
P = D * K


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def linear(params, x, *, key):
  assert key is None
  return x @ params["layer"]["kernel"]


def fit(structure, likelihood="categorical", **options):
  params = {"layer": {"kernel": jnp.asarray(KERNEL)}, "other": jnp.ones(2)}
  mask = options.pop("mask", "layer/*")
  return ensembles.laplace(
    linear, params, jnp.asarray(X), structure=structure, likelihood=likelihood, mask=mask, **options
  )


def jacobians(x):
  return np.stack([np.kron(row[None], np.eye(K)) for row in x])


def gauss_newton(likelihood, noise=1.0):
  if likelihood == "normal":
    outer = [np.eye(K) / noise] * N
  else:
    outer = [np.diag(p) - np.outer(p, p) for p in oracles.softmax(X @ KERNEL)]
  return sum(j.T @ a @ j for j, a in zip(jacobians(X), outer, strict=True))


def covariances(hessian, tau=TAU):
  inverse = np.linalg.inv(hessian + tau * np.eye(P))
  return np.stack([j @ inverse @ j.T for j in jacobians(NEW)])


@pytest.mark.parametrize("likelihood", ["categorical", pytest.param("normal", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("structure", ["dense", "diagonal", "kfac", "ekfac"])
@pytest.mark.parametrize("chunk_size", [pytest.param(None, marks=pytest.mark.thorough), 5])
def test_outputs_of_a_linear_model(x64, likelihood, structure, chunk_size):
  hessian = gauss_newton(likelihood, NOISE)
  if structure == "diagonal":
    hessian = np.diag(np.diag(hessian))
  elif likelihood == "categorical" and structure != "dense":
    p = oracles.softmax(X @ KERNEL)
    outer = np.mean([np.diag(q) - np.outer(q, q) for q in p], axis=0)
    hessian, exact = np.kron(X.T @ X, outer), hessian
    if structure == "ekfac":  # the same eigenvectors, and the exact matrix's diagonal along them
      basis = np.kron(np.linalg.eigh(X.T @ X)[1], np.linalg.eigh(outer)[1])
      hessian = basis @ np.diag(np.diag(basis.T @ exact @ basis)) @ basis.T
  posterior = fit(structure, likelihood, noise_variance=NOISE, chunk_size=chunk_size)
  found = posterior.linearized(NEW, precision=TAU, chunk_size=2)
  np.testing.assert_allclose(found.outputs, NEW @ KERNEL, rtol=1e-9)
  np.testing.assert_allclose(found.covariance, covariances(hessian), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("gap", [5, 17, 25])
@pytest.mark.parametrize("structure", ["dense", "diagonal", "kfac", "ekfac"])
def test_confident_classes_keep_their_curvature_in_float32(structure, gap):
  """`p (1 - p)` of a probability that rounds to 1, and the same of the others, which are tiny."""
  params = {"kernel": jnp.float32([[gap, 0, 0]])}
  found = ensembles.laplace(
    lambda params, x, *, key: x @ params["kernel"], params, np.ones((4, 1), np.float32), structure=structure
  ).values
  small = np.exp(-float(gap))
  p = np.array([1, small, small]) / (1 + 2 * small)
  hessian = np.diag(p * (p @ (1 - np.eye(3)))) - np.outer(p, p) * (1 - np.eye(3))
  want = np.diag(hessian) if structure == "diagonal" else np.linalg.eigvalsh(hessian)
  np.testing.assert_allclose(np.sort(found), 4 * np.sort(want), rtol=1e-4, atol=1e-5 * 4 * want.max())


def log_evidence(hessian, tau):
  """The integral over the parameters of the quadratic posterior, less its value at the mean's likelihood."""
  sign, logdet = np.linalg.slogdet(hessian + tau * np.eye(P))
  assert sign > 0
  return (P * np.log(tau) - tau * (KERNEL**2).sum() - logdet) / 2


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["dense", "kfac"])
def test_evidence_of_bayesian_linear_regression(x64, structure):
  """`log N(y; 0, X X' / tau + noise I)`, at the posterior's mean: Bishop, Pattern Recognition, Eq. 3.86."""
  y = X @ KERNEL[:, 0] + np.sqrt(NOISE) * rng.normal(size=N)

  def exact(tau):
    covariance = X @ X.T / tau + NOISE * np.eye(N)
    return -(y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2

  for tau in (0.01, 1.0, 30.0):
    mean = np.linalg.solve(X.T @ X + NOISE * tau * np.eye(D), X.T @ y)
    params = {"kernel": jnp.asarray(mean[:, None])}
    posterior = ensembles.laplace(
      lambda params, x, *, key: x @ params["kernel"],
      params,
      jnp.asarray(X),
      likelihood="normal",
      structure=structure,
      noise_variance=NOISE,
    )
    residual = y - X @ mean
    likelihood = -(residual @ residual / NOISE + N * np.log(2 * np.pi * NOISE)) / 2
    np.testing.assert_allclose(posterior.log_evidence(tau) + likelihood, exact(tau), rtol=1e-9)


def test_the_best_precision_of_one_weight():
  """The root of 1 / t - w^2 - 1 / (s + t), in float32."""
  x, w = np.arange(1.0, 7.0, dtype=np.float32)[:, None], 0.8
  posterior = ensembles.laplace(
    lambda p, x, *, key: x @ p["kernel"],
    {"kernel": jnp.full((1, 1), w)},
    jnp.asarray(x),
    likelihood="normal",
    structure="dense",
  )
  s, q = float((x**2).sum()), w**2
  root = (((q * s) ** 2 + 4 * q * s) ** 0.5 - q * s) / (2 * q)
  np.testing.assert_allclose(posterior.best_precision(), root, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("likelihood", ["categorical", "normal"])
def test_the_best_precision_has_the_largest_evidence(x64, likelihood):
  posterior, hessian = fit("dense", likelihood), gauss_newton(likelihood)
  np.testing.assert_allclose(posterior.log_evidence(TAU), log_evidence(hessian, TAU), rtol=1e-9)
  grid = np.logspace(-3, 3, 20001)
  values = np.linalg.eigvalsh(hessian)
  evidence = (P * np.log(grid) - grid * (KERNEL**2).sum() - np.log(values[:, None] + grid).sum(axis=0)) / 2
  np.testing.assert_allclose(posterior.best_precision(), grid[evidence.argmax()], rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["dense", "kfac", "diagonal"])
def test_draws_have_the_posterior_mean_and_covariance(x64, structure):
  posterior = fit(structure, "normal")
  draws = jax.jit(lambda key: posterior.sample(key, precision=TAU, num_samples=20000))(jax.random.key(0))
  assert draws["other"].shape == (20000, 2)
  assert (draws["other"] == 1).all()
  flat = np.asarray(draws["layer"]["kernel"]).reshape(-1, P)
  hessian = gauss_newton("normal")
  hessian = np.diag(np.diag(hessian)) if structure == "diagonal" else hessian
  expected = np.linalg.inv(hessian + TAU * np.eye(P))
  np.testing.assert_allclose(flat.mean(axis=0), KERNEL.ravel(), atol=5 * np.sqrt(expected.max() / 20000))
  np.testing.assert_allclose(np.cov(flat.T), expected, atol=6 * expected.max() / np.sqrt(20000))


def mlp(params, x, *, key):
  hidden = jnp.tanh(x @ params["a"]["kernel"] + params["a"]["bias"][None])
  return hidden @ params["b"]["kernel"] + params["b"]["bias"][None]


@pytest.mark.thorough
def test_blocks_of_a_network_are_those_of_its_gauss_newton_matrix(x64):
  """One example: there Kronecker factors are exact, block by block, with biases in their places."""
  shapes = {"a": (D, 4), "b": (4, K)}
  params = {
    name: {"kernel": jnp.asarray(rng.normal(size=s)), "bias": jnp.asarray(rng.normal(size=s[1:]))}
    for name, s in shapes.items()
  }
  x = jnp.asarray(X[:1])
  flat, unravel = jax.flatten_util.ravel_pytree(params)
  jacobian = np.asarray(jax.jacobian(lambda flat: mlp(unravel(flat), x, key=None)[0])(flat))
  p = oracles.softmax(np.asarray(mlp(params, x, key=None)))[0]
  hessian = jacobian.T @ (np.diag(p) - np.outer(p, p)) @ jacobian
  of_a = 4 + D * 4
  hessian[:of_a, of_a:] = hessian[of_a:, :of_a] = 0
  new = jax.vmap(lambda x: jax.jacobian(lambda flat: mlp(unravel(flat), x[None], key=None)[0])(flat))
  rows = np.asarray(new(jnp.asarray(NEW)))
  inverse = np.linalg.inv(hessian + TAU * np.eye(flat.size))
  expected = np.stack([j @ inverse @ j.T for j in rows])
  # The last layer's block is exact; the first one's is a Kronecker product only up to the classes' mean.
  for structure in ("kfac", "ekfac"):
    posterior = ensembles.laplace(mlp, params, x, structure=structure, mask="b/*")
    covariance = posterior.linearized(jnp.asarray(NEW), precision=TAU).covariance
    own = np.linalg.inv(hessian[of_a:, of_a:] + TAU * np.eye(flat.size - of_a))
    np.testing.assert_allclose(
      covariance, np.stack([j @ own @ j.T for j in rows[:, :, of_a:]]), rtol=1e-7, atol=1e-10
    )
    whole = ensembles.laplace(mlp, params, x, structure=structure)
    np.testing.assert_allclose(
      whole.linearized(jnp.asarray(NEW), precision=TAU).covariance, expected, rtol=1e-7, atol=1e-10
    )


TORCH = json.loads((Path(__file__).parent / "laplace_torch.json").read_text())
NAMES = {"full": "dense", "kron": "kfac", "diag": "diagonal"}
LIKELIHOODS = {"classification": "categorical", "regression": "normal"}


@pytest.mark.thorough
@pytest.mark.parametrize("case", TORCH["cases"], ids=lambda case: f"{case['likelihood']}-{case['structure']}")
def test_numbers_of_laplace_torch(x64, case):
  """Version 0.3 on the same weights, by `benchmarks/laplace_torch.py`."""
  params = [{"kernel": jnp.asarray(kernel)} for kernel in TORCH["kernels"]]
  posterior = ensembles.laplace(
    lambda params, x, *, key: jnp.tanh(x @ params[0]["kernel"]) @ params[1]["kernel"],
    params,
    jnp.asarray(TORCH["inputs"]),
    likelihood=LIKELIHOODS[case["likelihood"]],
    structure=NAMES[case["structure"]],
    noise_variance=TORCH["noise_variance"],
    chunk_size=3,
  )
  tau = TORCH["precision"]
  found = posterior.linearized(jnp.asarray(TORCH["new"]), precision=tau)
  np.testing.assert_allclose(found.outputs, case["outputs"], atol=1e-8)
  np.testing.assert_allclose(found.covariance, case["covariance"], rtol=1e-6, atol=1e-8)
  np.testing.assert_allclose(posterior.log_evidence(tau), case["evidence"], rtol=1e-7)


@pytest.mark.parametrize("structure", ["dense", "diagonal", "kfac", "ekfac"])
def test_each_output_may_have_its_own_noise_and_another_one_compiles_nothing(structure):
  params, x = {"kernel": jnp.asarray(KERNEL, jnp.float32)}, jnp.asarray(X, jnp.float32)
  outputs = lambda params, x, *, key: x @ params["kernel"]
  call = lambda noise: ensembles.laplace(
    outputs, params, x, likelihood="normal", structure=structure, noise_variance=noise
  )
  noise, other = jnp.linspace(0.3, 2.0, K), jnp.linspace(1.0, 3.0, K)
  expected = (X**2).sum() * (1 / np.asarray(noise, np.float64)).sum()
  np.testing.assert_allclose(call(noise).values.sum(), expected, rtol=1e-5)  # the trace
  assert contract.compilations(lambda: call(other)) == 0


def test_refusals():
  with pytest.raises(
    ValueError, match=r"noise_variance must be a scalar or have shape \(4,\), got shape \(3,\)"
  ):
    fit("kfac", "normal", noise_variance=jnp.ones(3))
  with pytest.raises(ValueError, match=r"^precision must lie in \(0, inf"):
    fit("diagonal").log_evidence(0.0)
  without_axis = lambda params, x, *, key: (x @ params["kernel"])[:, 0]
  for structure in ("kfac", "ekfac", "diagonal", "dense"):
    options = {"likelihood": "normal", "structure": structure}
    with pytest.raises(ValueError, match=r"shape \(40, outputs\), got \(40,\); add an axis"):
      ensembles.laplace(without_axis, {"kernel": jnp.ones((3, 1))}, jnp.ones((40, 3)), **options)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
      fit(structure, chunk_size=0)


def test_the_prediction_is_nearly_the_integral_over_a_gaussian():
  """For two classes, one of them certain: MacKay's approximation is right to 0.02."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(80)
  for mean, var in ((0.5, 1.0), (2.0, 4.0), (-3.0, 9.0)):
    exact = (weights * oracles.sigmoid(mean + np.sqrt(var) * nodes)).sum() / weights.sum()
    log_probs = ensembles.probit_log_probs(jnp.array([mean, 0.0]), jnp.array([var, 0.0]))
    assert np.exp(log_probs[0]) == pytest.approx(exact, abs=0.02)
    assert np.exp(log_probs[0]) == pytest.approx(
      oracles.sigmoid(mean / np.sqrt(1 + np.pi * var / 8)), rel=1e-5
    )

"""The numbers that `job = flatness` puts in its tables, from arrays whose answer is known."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs

from jaxreg import flatness, losses
from jaxreg.flatness._covariance import PrincipalComponents
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.flatness import analyses
from jaxreg.train.jobs.flatness.job import _compare_profiles
from jaxreg.train.jobs.flatness.network_at_point import make_networks, with_weights
from jaxreg.train.jobs.flatness.requirements import check_parts
from jaxreg.train.step.batch import make_examples


def _profile(*curvatures):
  """Losses 2 + c a^2 on both sides."""
  alphas = np.linspace(-1, 1, 5)
  return {"alphas": alphas, "losses": 2 + np.outer(curvatures, alphas**2)}


def test_rises_are_above_the_loss_at_the_parameters():
  found = analyses.rises(_profile(4.0, 8.0))
  np.testing.assert_allclose(found["0.5"], [1, 2])
  np.testing.assert_allclose(found["1"], [4, 8])


def test_lower_along_counts_directions_of_lower_rise():
  """The second row rises less along two of three directions at either distance."""
  rows = {"no dropout": _profile(4.0, 4.0, 4.0), "keep 0.8": _profile(1.0, 2.0, 9.0)}
  results = {label: {"profile": {}} for label in rows}
  _compare_profiles({label: {"arrays": {"profile": each}} for label, each in rows.items()}, results)
  assert results["keep 0.8"]["profile"]["1"]["flatter_than"] == {
    "row": "no dropout",
    "directions": 2,
    "of": 3,
  }
  assert "flatter_than" not in results["no dropout"]["profile"]["1"]


def test_the_isotropic_control_has_the_total_variance_of_the_samples():
  like = np.random.default_rng(0).normal(size=(4000, 3)) * np.array([0.1, 1, 10])
  control = analyses.isotropic_samples(like, seed=1)
  # Each estimate of a variance has a relative standard error of sqrt(2 / 4000).
  np.testing.assert_allclose(control.var(axis=0), like.var(axis=0).sum() / 3, rtol=4 * np.sqrt(2 / 4000) * 2)
  assert abs(np.corrcoef(control.T) - np.eye(3)).max() < 4 / np.sqrt(4000)


@pytest.mark.thorough
@pytest.mark.parametrize("analysis", ["variance_flatness", "projected_variance"])
def test_fits_leave_out_rounding_errors(monkeypatch, analysis):
  """Six points on a power law, and four below the tolerance that are far from it."""
  x = np.geomspace(1, 32, 6)
  law, noise = x**-2 / 32, np.full(4, 1e-12)
  x, y = np.concatenate([x, np.full(4, 1e3)]), np.concatenate([law, noise])
  if analysis == "projected_variance":
    x, y = np.concatenate([y[:6], noise]), np.concatenate([x[:6], np.full(4, 1e3)])
    pairs = {"values": x, "vectors": np.eye(10), "residuals": np.zeros(10), "by": "lanczos"}
    cache = SimpleNamespace(arrays=lambda *_: pairs)
    monkeypatch.setattr(flatness, "projected_variance", lambda samples, vectors: samples[0])
    options = {"eigenpairs": 0, "tol": 1e-9}
    _, summary = analyses.projected_variance(None, cache, None, {"gradients": y[None]}, **options)
  else:
    intervals = {"width": x, "evaluations": np.ones(10), "crossed": np.ones((10, 2), bool)}
    cache = SimpleNamespace(blocks=lambda *_, **__: intervals)
    parts = PrincipalComponents(y, np.eye(10), np.zeros(10), np.int32(10))
    monkeypatch.setattr(analyses, "_principal", lambda _: parts)
    options = {"factors": (2.0,), "directions": 0, "tol": 1e-9}
    network = SimpleNamespace(layer=None)
    _, summary = analyses.variance_flatness(network, cache, {"gradients": y}, **options)
  fits = (
    summary["gradients"]["fits"]["2"] if analysis == "variance_flatness" else summary["fits"]["gradients"]
  )
  assert fits["num_points"] == 6
  assert fits["slope"] == pytest.approx(-2 if analysis == "variance_flatness" else -0.5)


@pytest.mark.thorough
@pytest.mark.parametrize(("activation", "by"), [(jax.nn.relu, "jacobians"), (jnp.tanh, "products")])
def test_jacobians_give_the_hessian_where_it_is_that_of_gauss_and_newton(activation, by):
  """Of the first of two layers, used at two positions; checked against JAX's own."""
  rng = np.random.default_rng(0)
  params = {"first": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), "last": jnp.eye(2, 3)}

  def apply_fn(params, state, inputs, *, key, train):
    return {"logits": activation(inputs @ params["first"]).mean(axis=1) @ params["last"]}, state

  loss = lambda key, *, labels, logits: {"loss": losses.softmax_cross_entropy(logits, labels)}
  examples = functools.partial(make_examples, scale=1.0)
  program = SimpleNamespace(
    apply_fn=apply_fn,
    values_fn=runs.values_of(apply_fn),
    method=SimpleNamespace(loss=loss),
    examples=examples,
  )
  batch = {
    "inputs": rng.normal(size=(6, 2, 3)).astype(np.float32),
    "labels": np.arange(6, dtype=np.int32) % 3,
  }
  state = SimpleNamespace(params=params, model_state={})
  subject = make_networks(program, params, jax.tree.map(jnp.asarray, with_weights(batch)), ("first",))(state)
  assert subject.hessian_by == by
  part = flatness.subset(params, "first")
  expected = jax.hessian(lambda flat: subject.loss_fn(part.merge(flat), subject.batch, key=None))(part.flat)
  np.testing.assert_allclose(subject.hessian(), expected, atol=1e-5 * float(np.abs(expected).max()))


def test_batch_norm_couples_the_examples_so_an_alignment_needs_parts():
  program = SimpleNamespace(abstract=SimpleNamespace(model_state={"mean": 0.0}))
  dataset = SimpleNamespace(train=SimpleNamespace(take=lambda chosen: range(12)[chosen]))
  options = lambda **fields: SimpleNamespace(
    **{"examples": 0, "parts": 1, "analyses": ("alignment",), **fields}
  )
  for fields in ({"parts": 4}, {"analyses": ("variance_flatness",)}, {"examples": 6, "parts": 3}):
    check_parts(program, options(**fields), dataset)
  for fields, message in (({}, "be above 1, got 1"), ({"examples": 6, "parts": 4}, "divide the 6 examples")):
    with pytest.raises(RunError, match=f"flatness.parts: must {message}"):
      check_parts(program, options(**fields), dataset)

"""Losses of several tasks in one: whose gradient goes where, likelihoods, and a network with two heads."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit
from scipy import stats
from sklearn.datasets import load_digits

from jaxreg import losses, models

RNG = np.random.default_rng(0)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "multi-task learning",
  "what is shared learns from the weighted sum of the tasks' gradients, what is a task's own from it alone",
  size="toy",
)
def test_who_gets_gradient_from_what():
  """Two linear heads on a shared linear layer, squared errors: gradients in closed form."""
  x, targets = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 5))
  shared, heads = RNG.normal(size=(3, 2)), RNG.normal(size=(2, 2))
  weights = {"one": 0.5, "two": 2.0}

  def objective(shared, heads):
    hidden = jnp.asarray(x) @ shared
    errors = {task: jnp.square(hidden @ head - y) / 2 for (task, head), y in zip(heads.items(), targets)}
    return losses.multitask(errors, weights=weights).sum()

  with jax.enable_x64(True):
    params = jnp.asarray(shared), {"one": jnp.asarray(heads[0]), "two": jnp.asarray(heads[1])}
    got, got_heads = jax.grad(objective, (0, 1))(*params)
  residuals = [x @ shared @ head - y for head, y in zip(heads, targets)]
  own = [x.T @ np.outer(r, head) for r, head in zip(residuals, heads)]
  np.testing.assert_allclose(got, 0.5 * own[0] + 2 * own[1], rtol=1e-12)
  for task, weight, r in zip(weights, weights.values(), residuals):
    np.testing.assert_allclose(got_heads[task], weight * (x @ shared).T @ r, rtol=1e-12)


def test_uncertainty_weighting_of_half_squared_errors_is_a_gaussian_likelihood():
  y, mean, log_vars = RNG.normal(size=(2, 7)), RNG.normal(size=(2, 7)), RNG.normal(size=2)
  with jax.enable_x64(True):
    halves = {"a": (y[0] - mean[0]) ** 2 / 2, "b": (y[1] - mean[1]) ** 2 / 2}
    got = losses.uncertainty_weighting(halves, dict(zip("ab", log_vars)))
  scale = np.exp(log_vars / 2)[:, None]
  want = -stats.norm.logpdf(y, mean, scale).sum(0) - np.log(2 * np.pi)  # a constant for each of two
  np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.thorough
def test_at_the_best_weights_the_scale_of_a_loss_has_no_effect():
  """At s = log 2 L a term is 1/2 + s / 2, and the sum's gradient half of that of the sum of log L."""
  values = np.array([3.0, 0.02])

  def objective(log_vars, values):
    return losses.uncertainty_weighting(dict(zip("ab", values)), dict(zip("ab", log_vars)))

  with jax.enable_x64(True):
    at = jnp.log(2 * jnp.asarray(values))
    value, (by_log_vars, by_values) = jax.value_and_grad(objective, (0, 1))(at, jnp.asarray(values))
  np.testing.assert_allclose(by_log_vars, 0, atol=1e-14)
  np.testing.assert_allclose(by_values, 0.5 / values, rtol=1e-12)
  np.testing.assert_allclose(value, 1 + np.log(2 * values).sum() / 2, rtol=1e-12)


@pytest.mark.slow
def test_two_heads_learn_digits_and_their_parity():
  images, labels = load_digits(return_X_y=True)
  x, y = (
    jnp.asarray(images / 16, jnp.float32),
    {"digit": jnp.asarray(labels), "parity": jnp.asarray(labels % 2)},
  )
  model = models.Classifier(models.MLP((32,)), models.AffineHead({"digit": (10,), "parity": (2,)}))
  variables = jit(lambda key: model.init(key, x[:1], train=False))(jax.random.key(0))
  params = {**variables, "log_vars": {"digit": jnp.zeros(()), "parity": jnp.zeros(())}}
  tx = optax.adam(0.02)

  def terms(params):
    outputs = model.apply({"params": params["params"]}, x[:1200], train=True)
    by_task = lambda task, out: losses.softmax_cross_entropy(out, y[task][:1200]).mean()
    return {task: by_task(task, out) for task, out in outputs.items()}

  def objective(params):
    return losses.uncertainty_weighting(terms(params), params["log_vars"])

  def step(carry, _):
    params, state = carry
    updates, state = tx.update(jax.grad(objective)(params), state)
    return (optax.apply_updates(params, updates), state), None

  params = jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), None, 150)[0][0])(params)
  outputs = model.apply({"params": params["params"]}, x[1200:], train=False)
  accuracy = {task: (out.argmax(-1) == y[task][1200:]).mean() for task, out in outputs.items()}
  assert accuracy["digit"] > 0.88
  assert accuracy["parity"] > 0.9
  assert all(s < -1 for s in params["log_vars"].values())  # both losses have fallen far below 1/2


def test_refusals():
  one = {"a": jnp.ones(3)}
  weighted = lambda each, weights: losses.multitask(each, weights=weights)
  for function in (weighted, losses.uncertainty_weighting):
    with pytest.raises(ValueError, match="losses must hold at least one task"):
      function({}, {})
    with pytest.raises(ValueError, match=r"must have the tasks of losses, \['a'\], got \['b'\]"):
      function(one, {"b": jnp.ones(())})
    with pytest.raises(TypeError, match="losses\\['a'\\] must be floating"):
      function({"a": jnp.ones(3, int)}, {"a": jnp.ones(())})
    with pytest.raises(ValueError, match="losses must have the same shape"):
      function({"a": jnp.ones(3), "b": jnp.ones(2)}, {"a": jnp.ones(()), "b": jnp.ones(())})
  with pytest.raises(ValueError, match=r"log_vars\['a'\] must have shape"):
    losses.uncertainty_weighting(one, {"a": jnp.ones(3)})


def test_the_terms_are_the_weighted_losses():
  tasks = {"digit": jnp.array([2.0, 4.0]), "parity": jnp.array([1.0, 3.0])}
  terms = losses.multitask_terms(tasks, weights={"digit": 1.0, "parity": 0.5})
  np.testing.assert_allclose(terms["parity"], [0.5, 1.5])
  log_vars = {"digit": jnp.log(4.0), "parity": jnp.log(1.0)}
  terms = losses.uncertainty_weighting_terms(tasks, log_vars)
  np.testing.assert_allclose(terms["digit"], np.array([2.0, 4.0]) / 4 + np.log(2), rtol=1e-6)

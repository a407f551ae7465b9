"""FISTA as an optimizer: against scikit-learn's lasso, and L1-penalised softmax regression by the trainer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from sklearn.linear_model import Lasso

from jaxreg import constraints, optim, train

RNG = np.random.default_rng(0)
DESIGN = RNG.normal(size=(30, 12)) * np.linspace(0.2, 1, 12)
TARGETS = DESIGN[:, :4].sum(1) + 0.1 * RNG.normal(size=30)
LASSO = functools.partial(constraints.prox_l1, weight=0.05, mask="*")


def squares(params):
  return jnp.mean((jnp.asarray(DESIGN) @ params["w"] - jnp.asarray(TARGETS)) ** 2) / 2


def test_it_finds_the_lasso_of_scikit_learn(x64):
  tx = optim.fista(100.0, prox=LASSO)

  def step(carry, _):
    params, state = carry
    given = {"w": jnp.full(12, jnp.nan)}  # the gradient that it does not use
    updates, state = tx.update(given, state, params, value_fn=squares, grad_fn=jax.grad(squares))
    return (optax.apply_updates(params, updates), state), None

  start = {"w": jnp.zeros(12)}
  run = jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), None, length=1000)[0])
  params, state = run(start)
  want = Lasso(0.05, fit_intercept=False, tol=1e-12).fit(DESIGN, TARGETS).coef_
  np.testing.assert_allclose(params["w"], want, atol=1e-7)
  np.testing.assert_array_equal(np.asarray(params["w"]) == 0, want == 0)
  largest = np.linalg.eigvalsh(DESIGN.T @ DESIGN / len(DESIGN)).max()
  assert 0.5 / largest <= state.step < 100


def test_refusals():
  params = {"w": jnp.zeros(12)}
  for options, match in (
    ({"shrink": 1.0}, "shrink must"),
    ({"learning_rate": 0.0}, "learning_rate must"),
  ):
    with pytest.raises(ValueError, match=match):
      optim.fista(**{"learning_rate": 1.0, **options})
  with pytest.raises(TypeError, match="prox must"):
    optim.fista(1.0, prox=3)  # pyright: ignore
  tx = optim.fista(1.0)
  with pytest.raises(ValueError, match="params, value_fn and grad_fn must be given"):
    tx.update(params, tx.init(params), params)


X = RNG.normal(size=(60, 6)).astype(np.float32)
LABELS = (X @ RNG.normal(size=(6, 3)) + 0.5 * RNG.normal(size=(60, 3))).argmax(1).astype(np.int32)


def softmax_regression(**fields):
  config = train.base_config()
  fields = {
    **{"method.name": "softmax", "model.MLP.widths": (), "model.MLP.dropout_rate": 0.0, "batch_size": 60},
    **{
      "optimizer.name": "fista",
      "optimizer.learning_rate": 50.0,
      "optimizer.constraints.names": ("prox_l1",),
    },
    **{"optimizer.constraints.prox_l1.weight": 0.03, **fields},
  }
  config.update_from_flattened_dict(fields)
  return train.make_program(config, input_shape=(6,), num_classes=3, num_examples=60)


@pytest.mark.thorough
def test_the_trainer_finds_a_minimum_of_the_penalised_loss():
  """The conditions of optimality, in NumPy: the slope is the weight where a kernel's entry is not 0."""
  program = softmax_regression()
  batch = {"inputs": X, "labels": LABELS, "weights": np.ones(60, np.float32)}
  step = jax.jit(program.train_step)
  state = jax.jit(program.init)(0)
  for _ in range(400):
    state, metrics = step(state, batch)
  head = jax.tree.map(lambda w: np.asarray(w, np.float64), state.params["head"]["classifier"])
  p = oracles.softmax(X @ head["kernel"] + head["bias"])
  gap = (p - oracles.one_hot(LABELS, 3)) / 60
  slope, kernel = X.T.astype(np.float64) @ gap, head["kernel"]
  used = kernel != 0
  assert 3 < used.sum() < kernel.size - 3
  np.testing.assert_allclose(slope[used], -0.03 * np.sign(kernel[used]), atol=2e-4)
  assert (abs(slope[~used]) < 0.03 + 2e-4).all()
  np.testing.assert_allclose(gap.sum(0), 0, atol=2e-4)  # biases have no penalty
  nll = -np.log(p[np.arange(60), LABELS]).mean()
  np.testing.assert_allclose(float(metrics["nll"][0]) / 60, nll, rtol=1e-3)


def test_the_trainer_refuses_a_part_of_the_examples():
  with pytest.raises(
    train.RunError, match=r"batch_size: must be the number of training examples .* 60, got 30"
  ):
    softmax_regression(batch_size=30)

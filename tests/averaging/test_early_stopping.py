"""Sequences of metrics, and when and with what they stop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging

NAN, INF = np.nan, np.inf


@functools.cache
def runner(patience, min_delta, mode):
  """States after every evaluation of a sequence, in one scan; the parameters are the evaluation's number."""
  stopping = averaging.early_stopping(patience=patience, min_delta=min_delta, mode=mode)

  def step(state, inputs):
    state = stopping.update(state, *inputs)
    return state, state

  def run(metrics):
    params = {"w": jnp.arange(8.0), "n": jnp.arange(8, dtype=jnp.int32)}
    start = jax.tree.map(lambda leaf: -jnp.ones_like(leaf[0]), params)
    return jax.lax.scan(step, stopping.init(start), (params, metrics))[1]

  return jax.jit(run)


# metrics (padded to 8), patience, min_delta, mode, the evaluation that says stop (or None), the best one.
TABLE = {
  "falls, then rises": ([5, 4, 3, 4, 5, 6, 7, 8], 3, 0.0, "min", 5, 2),
  "patience 1": ([5, 4, 3, 4, 1, 1, 1, 1], 1, 0.0, "min", 3, 2),
  "never worse": ([8, 7, 6, 5, 4, 3, 2, 1], 1, 0.0, "min", None, 7),
  "ties are no improvement": ([3, 3, 3, 3, 1, 1, 1, 1], 3, 0.0, "min", 3, 0),
  "NaN first": ([NAN, 5, 4, NAN, 3, 4, 4, 4], 3, 0.0, "min", 7, 4),
  "only NaN": ([NAN] * 8, 3, 0.0, "min", 2, -1),
  "improves in time": ([3, 4, 4, 2, 4, 4, 1, 9], 3, 0.0, "min", None, 6),
  "too small a gain": ([3, 2.9, 2.8, 2.7, 2.4, 2, 2, 2], 3, 0.5, "min", 3, 0),
  # Gains add up: against the best that was kept, not the last.
  "small gains add up": ([3, 2.8, 2.4, 2.2, 1.8, 1.6, 1.5, 1.4], 3, 0.5, "min", 7, 4),
  "large is good": ([1, 2, 5, 4, 3, 4, 9, 9], 3, 0.0, "max", 5, 2),
  "large is good, too small a gain": ([3, 3.1, 3.2, 3.3, 4, 5, 5, 5], 3, 0.5, "max", 3, 0),
  "large is good, small gains add up": ([3, 3.2, 3.6, 3.8, 4.2, 4.4, 4.5, 4.6], 3, 0.5, "max", 7, 4),
  "large is good, NaN first": ([NAN, -3, -2, INF, 1, 1, 1, 1], 3, 0.0, "max", 6, 3),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.claim(
  "regularization",
  "early stopping",
  "the latest model is returned: not the last iterate but the latest stored copy, the best on validation",
  status="erratum",
  size="enumeration",
)
def test_table(name):
  metrics, patience, min_delta, mode, stops, best = TABLE[name]
  states = runner(patience, min_delta, mode)(np.float32(metrics))
  want = np.arange(8) >= (8 if stops is None else stops)
  np.testing.assert_array_equal(states.should_stop, want)
  assert states.best_step[-1] == best
  # The parameters of the best evaluation, of either dtype, and its metric.
  assert states.params["w"][-1] == states.params["n"][-1] == best
  assert states.params["n"].dtype == np.int32
  np.testing.assert_array_equal(
    states.best_metric[-1], np.float32(metrics[best] if best >= 0 else {"min": INF, "max": -INF}[mode])
  )
  # Nothing moves once it has stopped.
  if stops is not None:
    for leaf in jax.tree.leaves(states):
      np.testing.assert_array_equal(leaf[stops:], jnp.broadcast_to(leaf[stops], leaf[stops:].shape))
    assert states.num_worse[-1] == patience


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_state_holds_no_nan_before_the_first_evaluation(mode):
  with jax.debug_nans(True):
    stopping = averaging.early_stopping(patience=2, mode=mode)
    state = jax.jit(stopping.init)({"w": jnp.zeros(2)})
    state = jax.jit(stopping.update)(state, {"w": jnp.ones(2)}, jnp.float32(3))
  assert (state.best_metric, state.best_step) == (3, 0)


def test_what_does_not_fit_is_refused():
  params = {"w": jnp.zeros(2)}
  for given, metric, options, error, match in (
    (params, 3.0, {"patience": 0}, ValueError, "patience"),
    (params, 3.0, {"patience": 1.0}, TypeError, "patience"),
    (params, 3.0, {"min_delta": -1.0}, ValueError, "min_delta"),
    (params, 3.0, {"mode": "best"}, ValueError, "mode must be one of min, max"),
    (params, 3, {}, TypeError, "metric must be floating"),
    (params, jnp.ones(2), {}, ValueError, "metric must have shape"),
    ({"v": jnp.zeros(2)}, 3.0, {}, ValueError, "params must have the structure"),
  ):
    with pytest.raises(error, match=match):  # noqa: PT012
      stopping = averaging.early_stopping(**{"patience": 1, **options})
      stopping.update(stopping.init(params), given, metric)

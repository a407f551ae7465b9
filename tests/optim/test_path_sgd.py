"""Path-SGD: kappa and the path norm by enumeration, and rescaled networks that stay the same network."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import relu_nets as nets
from contract import jit

from jaxreg.optim import path_sgd
from jaxreg.optim._path_sgd import _path_sum, _powers, path_kappa

WHERE = "Path-SGD"


def network(name):
  rng = np.random.default_rng(0)
  if name == "residual":
    params = nets.residual_params(rng)
    return nets.residual, params, nets.residual_paths(params), (3,)
  params = nets.mlp_params(rng, (4, 5, 3, 2), biases=name == "biases")
  return nets.mlp, params, nets.mlp_paths(params), (4,)


@pytest.mark.claim(
  "adaptive_sgd",
  WHERE,
  "the products of weights along all paths are summed by one pass of abs(w)^p, whose derivative is kappa; "
  "odd p needs the absolute values that are not printed",
  status="erratum",
  size="enumeration",
)
@pytest.mark.parametrize("p", [2.0, 3.0])
@pytest.mark.parametrize("name", ["plain", "biases", "residual"])
def test_kappa_is_the_sum_over_paths(name, p, x64):
  apply, params, paths, shape = network(name)
  kappa, norm = nets.enumerate_kappa(params, paths, p)
  got = jit(lambda params: path_kappa(apply, params, shape, p=p))(params)
  chex.assert_trees_all_close(got, kappa, rtol=1e-11)
  got = jit(lambda params: _path_sum(apply, _powers(params, p), shape))(params)
  np.testing.assert_allclose(got, norm**p, rtol=1e-12)


@pytest.mark.claim(
  "adaptive_sgd",
  WHERE,
  "printed without the half, with which eta g / kappa is the minimum along a coordinate; without, half of it",
  status="erratum",
)
def test_steps_minimise_the_halved_problem_of_a_coordinate(x64):
  """Along one weight the squared 2-norm of the change of all products is kappa times the change squared."""
  apply, params, paths, shape = network("plain")
  eta, edge = 0.1, ("Dense_1", "kernel", (2, 1))
  w = {(layer, i): float(v) for layer in params for i, v in np.ndenumerate(params[layer]["kernel"])}
  products = lambda delta: np.array(
    [np.prod([w[e[0], e[2]] + (delta if e == edge else 0.0) for e in path]) for path in paths if edge in path]
  )
  gradient, before = 0.7, products(0.0)
  grads = jax.tree.map(lambda w: jnp.full_like(w, gradient), params)
  tx = path_sgd(eta, apply_fn=apply, input_shape=shape)
  step = float(jit(lambda g, w: tx.update(g, tx.init(w), w)[0])(grads, params)["Dense_1"]["kernel"][2, 1])
  halved = lambda d: eta * gradient * d + 0.5 * ((products(d) - before) ** 2).sum()
  printed = lambda d: eta * gradient * d + ((products(d) - before) ** 2).sum()
  grid = step * np.linspace(0, 2, 401)
  np.testing.assert_allclose(grid[np.argmin([halved(d) for d in grid])], step, rtol=1e-2)
  np.testing.assert_allclose(grid[np.argmin([printed(d) for d in grid])], step / 2, rtol=1e-2)


def train(apply, tx, networks, x, y, steps):
  """What each of several networks puts out before every step, and after the last."""
  loss = lambda params: jnp.mean((apply(params, x) - y) ** 2)

  def step(carry, _):
    params, state = carry
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    return (optax.apply_updates(params, updates), state), apply(params, x)

  def run(params):
    (params, _), outputs = jax.lax.scan(step, (params, tx.init(params)), length=steps)
    return jnp.concatenate([outputs, apply(params, x)[None]])

  return np.asarray(jit(jax.vmap(run))(jax.tree.map(lambda *w: jnp.stack(w), *networks)))


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  WHERE,
  "Path-SGD is invariant to all inner rescaling, and SGD is not: 20 steps, equal outputs",
  size="toy",
)
def test_rescaled_networks_stay_the_same(x64):
  rng = np.random.default_rng(1)
  params = nets.mlp_params(rng, (4, 6, 5, 2))
  x, y = rng.normal(size=(16, 4)), rng.normal(size=(16, 2))
  other = params
  for i, size in ((0, 6), (1, 5)):
    scales = np.exp(1.5 * rng.normal(size=size))
    here, after = other[f"Dense_{i}"], other[f"Dense_{i + 1}"]
    here = {"kernel": here["kernel"] * scales[None, :], "bias": here["bias"] * scales}
    other = {
      **other,
      f"Dense_{i}": here,
      f"Dense_{i + 1}": {**after, "kernel": after["kernel"] / scales[:, None]},
    }
  path = path_sgd(0.02, apply_fn=nets.mlp, input_shape=(4,))
  one, two = train(nets.mlp, path, (params, other), x, y, 20)
  np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)
  assert np.abs(one[-1] - one[0]).max() > 0.1
  plain = optax.sgd(0.02)
  one, two = train(nets.mlp, plain, (params, other), x, y, 1)
  np.testing.assert_allclose(one[0], two[0], rtol=1e-9)
  assert np.abs(one[1] - two[1]).max() > 0.1


def test_a_shared_weight_counts_all_its_paths(x64):
  """A convolution of width 1 on 3 positions, summed: the paths of each position add up."""
  apply = lambda params, x: jax.nn.relu(x[..., None] * params["w"][None, None, :]).sum(1) @ params["v"]
  params = {"w": jnp.array([2.0, -1.0]), "v": jnp.array([[3.0], [0.5]])}
  kappa = jit(lambda params: path_kappa(apply, params, (3,)))(params)
  np.testing.assert_allclose(kappa["w"], [3 * 9, 3 * 0.25])
  np.testing.assert_allclose(kappa["v"][:, 0], [3 * 4, 3 * 1])


def test_dead_edges_do_not_move():
  params = {"Dense_0": {"kernel": jnp.array([[1.0, 2.0]])}, "Dense_1": {"kernel": jnp.array([[0.0], [3.0]])}}
  tx = path_sgd(1.0, apply_fn=nets.mlp, input_shape=(1,))
  grads = {"Dense_0": {"kernel": jnp.array([[0.0, 1.0]])}, "Dense_1": {"kernel": jnp.ones((2, 1))}}
  update = lambda tx: jit(lambda g, w: tx.update(g, tx.init(w), w)[0])(grads, params)
  got = update(tx)
  np.testing.assert_allclose(got["Dense_0"]["kernel"], [[0, -1 / 9]], rtol=1e-6)
  np.testing.assert_allclose(got["Dense_1"]["kernel"], [[-1], [-1 / 4]], rtol=1e-6)
  bounded = path_sgd(1.0, apply_fn=nets.mlp, input_shape=(1,), eps=1.0)
  got = update(bounded)
  np.testing.assert_allclose(got["Dense_0"]["kernel"], [[0, -1 / 10]], rtol=1e-6)


def test_mask_and_refusals():
  params = nets.mlp_params(np.random.default_rng(3), (2, 3, 1), dtype=np.float32)
  tx = path_sgd(1.0, apply_fn=nets.mlp, input_shape=(2,), mask="*/kernel")
  got = jit(lambda w: tx.update(w, tx.init(w), w)[0])(params)
  np.testing.assert_array_equal(got["Dense_0"]["bias"], -params["Dense_0"]["bias"])
  assert np.abs(got["Dense_0"]["kernel"] + params["Dense_0"]["kernel"]).max() > 0.1
  with pytest.raises(ValueError, match="params must be given to update"):
    tx.update(params, tx.init(params))
  with pytest.raises(TypeError, match="apply_fn must be a function"):
    path_sgd(0.1, apply_fn=None, input_shape=(2,))  # type: ignore[arg-type]
  with pytest.raises(ValueError, match="p must lie in"):
    path_sgd(0.1, apply_fn=nets.mlp, input_shape=(2,), p=0.5)

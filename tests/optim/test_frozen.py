"""Optimizers that call functions of the parameters, where Optax hides a part of them or a part is frozen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import constraints, optim

RHO, EPS, ALPHA, RATE = 0.3, 0.1, 0.4, 0.1
PARAMS = {"stem": {"kernel": np.array([[1.0, -2.0], [0.5, 3.0]])}, "head": {"kernel": np.array([2.0, -1.5])}}
MASK = {"stem": {"kernel": False}, "head": {"kernel": True}}
X = np.random.default_rng(0).normal(size=(5, 2))


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


def loss(params):
  return jnp.square(jnp.asarray(X) @ params["stem"]["kernel"] @ params["head"]["kernel"] - 1.0).mean()


gradient = jax.grad(loss)
FEATURES = X @ PARAMS["stem"]["kernel"]


def slope(head):
  """The head's gradient, in NumPy, with the stem as it is."""
  return 2 * FEATURES.T @ (FEATURES @ head - 1.0) / len(X)


def along(first, size):
  """The head's gradient at the second point, where weights have the size `size`."""
  scaled = size * first
  return slope(PARAMS["head"]["kernel"] + RHO * size * scaled / np.linalg.norm(scaled))


def wanted(name):
  head = PARAMS["head"]["kernel"]
  first = slope(head)
  second = along(first, np.abs(head) + EPS if name == "asam" else np.ones(2))
  if name == "gsam":
    second = second - ALPHA * (first - (first @ second) / (second @ second) * second)
  return -RATE * second


MAKE = {
  "sam": lambda inner, **options: optim.sam(inner, rho=RHO, **options),
  "asam": lambda inner, **options: optim.asam(inner, rho=RHO, eps=EPS, **options),
  "gsam": lambda inner, **options: optim.gsam(inner, rho=RHO, weight=ALPHA, **options),
}


def frozen_forms(make):
  """Each way to freeze the stem, with what `update` takes beside `grad_fn`."""
  sgd, whole = optax.sgd(RATE), {"all_params": PARAMS}
  labels = {"stem": "old", "head": "new"}
  parts = lambda tx: optax.partition({"old": optax.set_to_zero(), "new": tx}, labels)
  zeros = optax.masked(optax.set_to_zero(), jax.tree.map(lambda taken: not taken, MASK))
  return {
    "masked": (optax.chain(optax.masked(make(sgd), MASK), zeros), whole),
    "partition": (parts(make(sgd)), whole),
    "trained": (make(sgd, trained=MASK), {}),
    "trained by a glob": (make(sgd, trained="head/*"), {}),
    "trained, within partition": (parts(make(sgd, trained="*")), whole),
    "trained, round partition": (make(parts(sgd), trained=MASK), {}),
    "trained, in a chain": (optax.chain(optax.clip_by_global_norm(1e6), make(sgd, trained=MASK)), {}),
  }


@pytest.mark.thorough
@pytest.mark.parametrize("name", MAKE)
def test_frozen_parameters_stay_and_are_not_perturbed(name):
  """Against NumPy of the head alone, whose norm is the head's."""
  seen = []

  def grad_fn(params):
    seen.append(params["stem"]["kernel"])
    return gradient(params)

  for form, (tx, extra) in frozen_forms(MAKE[name]).items():
    first = gradient(PARAMS)
    updates, state = tx.update(first, tx.init(PARAMS), PARAMS, grad_fn=grad_fn, **extra)
    np.testing.assert_array_equal(seen.pop(), PARAMS["stem"]["kernel"], err_msg=form)
    np.testing.assert_array_equal(updates["stem"]["kernel"], 0, err_msg=form)
    np.testing.assert_allclose(updates["head"]["kernel"], wanted(name), rtol=1e-12, err_msg=form)
    again, _ = jax.jit(lambda g, s, w, tx=tx, extra=extra: tx.update(g, s, w, grad_fn=gradient, **extra))(
      first, state, PARAMS
    )
    np.testing.assert_allclose(again["head"]["kernel"], wanted(name), rtol=1e-12, err_msg=form)
  assert not seen


@pytest.mark.thorough
@pytest.mark.parametrize("name", MAKE)
def test_frozen_parameters_have_no_state_and_accumulate(name):
  inner = optax.MultiSteps(optax.adam(RATE), every_k_schedule=2)
  tx = MAKE[name](inner.gradient_transformation(), trained=MASK)
  state = tx.init(PARAMS)
  shapes = {x.shape for x in jax.tree.leaves(state)}
  assert (2,) in shapes
  assert (2, 2) not in shapes
  for last in (False, True):
    updates, state = tx.update(gradient(PARAMS), state, PARAMS, grad_fn=gradient)
    assert (updates["stem"]["kernel"] == 0).all()
    assert (updates["head"]["kernel"] != 0).all() == last


@pytest.mark.thorough
def test_a_mask_of_asam_may_be_a_tree_of_all_parameters():
  """The head's weights keep the size 1 if the mask does not select them."""
  tx = optim.asam(
    optax.sgd(RATE), rho=RHO, eps=EPS, mask={"stem": {"kernel": True}, "head": {"kernel": False}}
  )
  masked = optax.masked(tx, MASK)
  first = gradient(PARAMS)
  updates, _ = masked.update(first, masked.init(PARAMS), PARAMS, grad_fn=gradient, all_params=PARAMS)
  np.testing.assert_allclose(updates["head"]["kernel"], wanted("sam"), rtol=1e-12)


def test_fista_of_a_part_finds_the_lasso_of_that_part():
  """Its optimality: a weight's slope is minus the penalty's, and no larger where the weight is 0."""
  prox = lambda params, step: constraints.prox_l1(params, step, weight=0.05)
  parts = {"old": optax.set_to_zero(), "new": optim.fista(1.0, prox=prox)}
  tx = optax.partition(parts, {"stem": "old", "head": "new"})

  def step(carry, _):
    params, state = carry
    extra = {"value_fn": loss, "grad_fn": gradient, "all_params": params}
    updates, state = tx.update(params, state, params, **extra)
    return (optax.apply_updates(params, updates), state), None

  run = jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), length=300)[0][0])
  params = run(jax.tree.map(jnp.asarray, PARAMS))
  np.testing.assert_array_equal(params["stem"]["kernel"], PARAMS["stem"]["kernel"])
  head = np.asarray(params["head"]["kernel"])
  moving = head != 0
  assert moving.any()
  np.testing.assert_allclose(slope(head)[moving], -0.05 * np.sign(head[moving]), atol=1e-6)
  assert (np.abs(slope(head)[~moving]) <= 0.05).all()


@pytest.mark.thorough
def test_path_sgd_of_a_part_divides_by_the_paths_through_all():
  """`kappa` of a head's weight is the sum of squares of the stem's weights into its unit."""
  apply_fn = lambda params, x: jax.nn.relu(x @ params["stem"]["kernel"]) @ params["head"]["kernel"]
  tx = optax.masked(optim.path_sgd(RATE, apply_fn=apply_fn, input_shape=(2,)), MASK)
  updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS, all_params=PARAMS)
  kappa = (PARAMS["stem"]["kernel"] ** 2).sum(0)
  np.testing.assert_allclose(updates["head"]["kernel"], -RATE * PARAMS["head"]["kernel"] / kappa, rtol=1e-12)
  np.testing.assert_array_equal(updates["stem"]["kernel"], PARAMS["stem"]["kernel"])
  with pytest.raises(TypeError, match=r"apply_fn must take params .* all_params=params"):
    tx.update(PARAMS, tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize("form", ["dense", "diagonal"])
def test_a_metric_of_all_parameters_serves_for_a_part(form):
  entries = {"stem": {"kernel": np.full((2, 2), 7.0)}, "head": {"kernel": np.array([2.0, 5.0])}}
  metric = entries if form == "diagonal" else jax.tree.map(lambda x: np.diag(x.ravel()), entries)
  tx = optax.masked(optim.mahalanobis(RATE, **{form: metric}), MASK)
  updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
  want = -RATE * PARAMS["head"]["kernel"] / [2.0, 5.0]
  np.testing.assert_allclose(updates["head"]["kernel"], want, rtol=1e-12)


@pytest.mark.parametrize("name", MAKE)
def test_what_is_missing_is_named(name):
  tx = optax.masked(MAKE[name](optax.sgd(RATE)), MASK)
  state = tx.init(PARAMS)
  with pytest.raises(TypeError, match=r"grad_fn must take params .* if update also gets all_params=params"):
    tx.update(PARAMS, state, PARAMS, grad_fn=gradient)
  hidden = {"stem": {"kernel": optax.MaskedNode()}, "head": PARAMS["head"]}
  with pytest.raises(ValueError, match="all_params must be the whole tree"):
    tx.update(PARAMS, state, PARAMS, grad_fn=gradient, all_params=hidden)
  with pytest.raises(ValueError, match="all_params must have the structure of the whole tree"):
    tx.update(PARAMS, state, PARAMS, grad_fn=gradient, all_params=PARAMS["head"])
  with pytest.raises(ValueError, match="trained: mask: 'tail/\\*' selects no parameter"):
    MAKE[name](optax.sgd(RATE), trained="tail/*").init(PARAMS)


@pytest.mark.parametrize("name", [*MAKE, "fista"])
@pytest.mark.parametrize("skipped", [False, True])
def test_accumulation_around_a_second_gradient_is_refused(name, skipped):
  """`grad_fn` would see the last part of the batch only."""
  tx = optim.fista(RATE) if name == "fista" else MAKE[name](optax.sgd(RATE), trained="*")
  options = {"should_skip_update_fn": optax.skip_not_finite} if skipped else {}
  around = optax.MultiSteps(optax.chain(optax.clip(1e6), tx), every_k_schedule=2, **options)
  update = jax.jit(lambda g, state, w: around.update(g, state, w, grad_fn=gradient, value_fn=loss))
  with pytest.raises(ValueError, match=r"optax.MultiSteps must not wrap .* grad_fn, .*optim\."):
    update(gradient(PARAMS), around.init(PARAMS), PARAMS)


@pytest.mark.parametrize("name", ["sam", "gsam"])
def test_accumulation_inside_takes_the_mean_of_second_gradients(name):
  """Parts of a batch with data of their own, against NumPy; the steps between are 0."""
  rng = np.random.default_rng(1)
  parts = [(rng.normal(size=(4, 3)), rng.normal(size=4)) for _ in range(3)]
  w = rng.normal(size=3)
  inner = optax.MultiSteps(optax.sgd(RATE), every_k_schedule=3, accumulator_dtype=jnp.float64)
  tx = MAKE[name](inner.gradient_transformation())
  state, total = tx.init(jnp.asarray(w)), 0
  for number, (x, y) in enumerate(parts):
    slope_of_part = lambda w, x=x, y=y: 2 * x.T @ (x @ w - y) / 4
    updates, state = tx.update(slope_of_part(w), state, jnp.asarray(w), grad_fn=slope_of_part)
    first = slope_of_part(w)
    second = slope_of_part(w + RHO * first / np.linalg.norm(first))
    if name == "gsam":
      second = second - ALPHA * (first - (first @ second) / (second @ second) * second)
    total = total + second
    np.testing.assert_allclose(updates, -RATE * total / 3 if number == 2 else np.zeros(3), rtol=1e-12)


def test_errors_of_grad_fn_itself_pass_unchanged():
  def broken(params):
    raise KeyError("broken")

  tx = optim.sam(optax.sgd(RATE), trained=MASK)
  with pytest.raises(KeyError, match="broken"):
    tx.update(PARAMS, tx.init(PARAMS), PARAMS, grad_fn=broken)

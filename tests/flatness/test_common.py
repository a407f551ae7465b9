"""What holds for every analysis: full precision, data as arguments, readable refusals."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness

pytestmark = pytest.mark.thorough

WHERE = "Dense_1/*"
SIZE = 28
KEY = jax.random.key(0)
ROWS = np.eye(SIZE, dtype=np.float32)


def _key():
  return jax.random.clone(KEY)


def _outputs(params, batch, *, key):
  return nets.second(params, batch)


def _units(params, x):
  hidden = jnp.tanh(nets.second(params, {"inputs": x[None]}))[0]
  return hidden * params["Dense_2"]["kernel"][:, 0], params["Dense_2"]["bias"][0]


def _squares(z, b):
  return (z**2).sum()


def _on_loss(function, **options):
  return lambda p, b: function(nets.loss_fn, p, b, mask=WHERE, **options)


def _on_operator(function, **options):
  return lambda p, b: function(
    flatness.hvp(nets.loss_fn, p, b, mask=WHERE), jnp.zeros(SIZE), key=_key(), **options
  )


ANALYSES = {
  "hvp": lambda p, b: flatness.hvp(nets.loss_fn, p, b, mask=WHERE)(jnp.ones(SIZE)),
  "gauss_newton": lambda p, b: flatness.gauss_newton(_outputs, _squares, p, b, mask=WHERE)(jnp.ones(SIZE)),
  "gauss_newton_matrix": lambda p, b: flatness.gauss_newton_matrix(_outputs, _squares, p, b, mask=WHERE),
  "gauss_newton_diagonal": lambda p, b: flatness.gauss_newton_diagonal(_outputs, _squares, p, b, mask=WHERE),
  "hessian": _on_loss(flatness.hessian),
  "loss_profile": lambda p, b: flatness.loss_profile(nets.loss_fn, p, p, jnp.ones(2), b),
  "loss_surface": lambda p, b: flatness.loss_surface(nets.loss_fn, p, (p, p), jnp.ones(2), jnp.ones(2), b),
  "interval_flatness": lambda p, b: flatness.interval_flatness(nets.loss_fn, p, ROWS, b, mask=WHERE),
  "sample_gradients": lambda p, b: flatness.sample_gradients(nets.loss_fn, p, b, key=_key(), num_samples=2),
  "sample_noise_by_parts": lambda p, b: flatness.sample_noise_by_parts(
    nets.loss_fn, p, [b], key=_key(), num_samples=2
  ),
  "update_sharpness": lambda p, b: flatness.update_sharpness(nets.loss_fn, p, p, b),
  "gradient_noise_scale": lambda p, b: flatness.gradient_noise_scale(b["inputs"], b["inputs"][:, 0]),
  "per_example_noise_covariance": _on_loss(flatness.per_example_noise_covariance, key=KEY),
  "top_eigenpairs": _on_operator(flatness.top_eigenpairs),
  "operator_trace": _on_operator(flatness.operator_trace),
  "spectral_density": _on_operator(flatness.spectral_density, num_steps=8),
  "noise_covariance": lambda p, b: flatness.noise_covariance(b["inputs"]),
  "principal_components": lambda p, b: flatness.principal_components(b["inputs"]),
  "projected_variance": lambda p, b: flatness.projected_variance(b["inputs"], jnp.eye(nets.INPUTS)),
  "hessian_variance_alignment": lambda p, b: flatness.hessian_variance_alignment(
    jnp.eye(nets.INPUTS), samples=b["inputs"]
  ),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_products_are_in_full_precision(name):
  """Whatever the platform's default, which on accelerators is TF32 or bfloat16: seen in what is traced."""
  params, batch = nets.make_params(dtype=np.float32), nets.make_batch(dtype=np.float32)
  text = str(jax.make_jaxpr(ANALYSES[name])(params, batch))
  products = text.count("dot_general[")
  assert products > 0
  assert products == text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")


@pytest.mark.parametrize(
  "call",
  [
    lambda loss, p, b: flatness.hessian(loss, p, b),
    lambda loss, p, b: flatness.loss_profile(loss, p, p, jnp.ones(2), b),
    lambda loss, p, b: flatness.interval_flatness(loss, p, jnp.eye(3), b),
    lambda loss, p, b: flatness.sample_gradients(loss, p, b, key=_key(), num_samples=2),
    lambda loss, p, b: flatness.per_example_noise_covariance(loss, p, b, key=_key()),
  ],
  ids=["hessian", "profile", "interval", "gradients", "per_example"],
)
def test_data_are_no_constants_of_what_is_compiled(call):
  """Other parameters and data of the same shapes trace nothing again."""
  traced = []

  def loss(params, batch, *, key):
    traced.append(1)
    return 1 + ((batch @ params) ** 2).mean()

  call(loss, jnp.ones(3), jnp.ones((4, 3)))
  before = len(traced)
  call(loss, 2 * jnp.ones(3), 3 * jnp.ones((4, 3)))
  assert 0 < before == len(traced)


@pytest.mark.parametrize(
  "call",
  [
    lambda samples: flatness.projected_variance(samples, samples[:5]),
    lambda samples: flatness.principal_components(samples),
    lambda samples: flatness.hessian_variance_alignment(lambda v: 2 * v, samples=samples, hessian_trace=1.0),
  ],
  ids=["projected_variance", "principal_components", "alignment"],
)
def test_no_matrix_over_all_parameters_is_built(call):
  """Of 20 samples of 3000 parameters, 0.24 MB, where the covariance would be 36 MB."""
  compiled = jax.jit(call).lower(jax.ShapeDtypeStruct((20, 3000), np.float32)).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 3e6


def _refusals(loss, key=None):
  params, batch = jnp.ones(3), jnp.ones((4, 3))
  yield lambda: flatness.hessian(loss, params, batch, key=key)
  yield lambda: flatness.loss_profile(loss, params, params, jnp.ones(2), batch, key=key)
  yield lambda: flatness.interval_flatness(loss, params, jnp.eye(3), batch, key=key)


@pytest.mark.parametrize(
  ("loss", "key", "error", "message"),
  [
    (lambda p, b, *, key: b @ p, None, ValueError, r"loss_fn must return a scalar.*got shape \(4,\)"),
    (lambda p, b, *, key: (p.sum(), p), None, ValueError, r"loss_fn must return a scalar.*\(\(\), \(3,\)\)"),
    (
      lambda p, b, *, key: p @ jax.random.normal(key, (3,)),
      None,
      TypeError,
      "key must be given, because loss_fn draws noise, got None",
    ),
    (
      lambda p, b, *, key: p @ jax.random.normal(jnp.ones(3), (3,)),
      None,
      TypeError,
      "invalid PRNG key data",
    ),
    (lambda p, b, *, key: p.sum(), 3, TypeError, "key must be a typed key.*got int32"),
  ],
)
def test_losses_and_keys_that_do_not_fit(loss, key, error, message):
  for call in _refusals(loss, key):
    with pytest.raises(error, match=message):
      call()


def test_samples_too_want_a_scalar():
  loss = lambda p, b, *, key: b @ p
  for function, options in (
    (flatness.sample_gradients, {"num_samples": 2}),
    (flatness.per_example_noise_covariance, {}),
  ):
    with pytest.raises(ValueError, match="loss_fn must return a scalar"):
      function(loss, jnp.ones(3), jnp.ones((4, 3)), key=_key(), **options)


def test_a_loss_with_noise_of_its_own_is_refused():
  """What changes from call to call has no level, and its Hessian is no operator."""
  generator = np.random.default_rng(0)
  loss = lambda p, b, *, key: 1 + (p**2).sum() * generator.uniform(1, 2)
  with pytest.raises(ValueError, match=r"loss_fn must give the same loss in every call, got \S+ and"):
    flatness.interval_flatness(loss, jnp.ones(3), jnp.eye(3), None)
  with pytest.raises(ValueError, match="matvec must give the same product in every call"):
    flatness.top_eigenpairs(flatness.hvp(loss, jnp.ones(3), None), jnp.ones(3), key=_key())

"""The autoencoder against NumPy, its noise, and what tying its kernels means."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import losses, models

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)), jnp.float32)


def init(**options):
  model = models.Autoencoder(width=4, **options)
  return model, model.init(jax.random.key(1), X, train=False)["params"]


def shapes(params):
  return {
    jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }


@pytest.mark.claim(
  "adaptive_sgd", "effect on features", "an autoencoder of MNIST with one hidden layer of 256 units"
)
@pytest.mark.parametrize("tied", [False, True])
def test_the_lecture_s_autoencoder(tied):
  x = jax.ShapeDtypeStruct((2, 28, 28, 1), jnp.float32)
  run = lambda key, x: models.Autoencoder(tied=tied).init_with_output(key, x, train=False)
  outputs, variables = jax.eval_shape(run, jax.random.key(0), x)
  assert outputs["hidden"].shape == (2, 256)
  assert outputs["outputs"].shape == x.shape
  count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
  assert count == 784 * 256 + 256 + (0 if tied else 256 * 784) + 784


@pytest.mark.thorough
def test_values_and_what_tying_means():
  """Tied, the one kernel gets the gradients of both uses."""
  model, params = init()
  tied, own = init(tied=True)
  assert shapes(own) == {
    "['decoder_bias']": (6,),
    "['encoder']['bias']": (4,),
    "['encoder']['kernel']": (6, 4),
  }
  params["decoder"]["kernel"] = own["encoder"]["kernel"].T
  params["encoder"]["kernel"] = own["encoder"]["kernel"]

  def run(model, params):
    out = model.apply({"params": params}, X, train=False)
    return losses.reconstruction(out["outputs"], X).sum(), out

  both = jit(
    lambda p, q: [jax.value_and_grad(run, 1, has_aux=True)(m, r) for m, r in ((model, p), (tied, q))]
  )
  ((_, out), gradient), ((_, out_tied), gradient_tied) = both(params, own)
  kernel, flat = np.asarray(own["encoder"]["kernel"], np.float64), np.asarray(X, np.float64).reshape(5, 6)
  hidden = np.maximum(flat @ kernel, 0)
  for o in (out, out_tied):
    np.testing.assert_allclose(o["hidden"], hidden, atol=1e-5)
    np.testing.assert_allclose(o["outputs"], (hidden @ kernel.T).reshape(X.shape), atol=1e-5)
  want = gradient["encoder"]["kernel"] + gradient["decoder"]["kernel"].T
  np.testing.assert_allclose(gradient_tied["encoder"]["kernel"], want, rtol=1e-4, atol=1e-5)
  assert np.abs(gradient["decoder"]["kernel"]).max() > 0.01


@pytest.mark.thorough
def test_noise_is_in_training_only_and_where_it_should_be():
  names = ("dropout_rate", "input_dropout_rate", "input_noise")
  _, params = init()

  def run(key):
    def apply(train, **options):
      model = models.Autoencoder(width=4, **options)
      return model.apply({"params": params}, X, train=train, rngs={"dropout": jax.random.clone(key)})

    quiet = [apply(False, **{name: 0.5}) for name in names]
    return (
      apply(True),
      quiet,
      [apply(True, **{name: 0.5}) for name in names],
      apply(True, input_dropout_rate=1.0),
    )

  clean, quiet, noisy, empty = jit(run)(jax.random.key(0))
  for out in quiet:
    chex.assert_trees_all_equal(out, clean)
  # Dropping hidden units leaves what they were; noise on the inputs changes them.
  np.testing.assert_array_equal(noisy[0]["hidden"], clean["hidden"])
  assert all((out["hidden"] != clean["hidden"]).any() for out in noisy[1:])
  assert all((out["outputs"] != clean["outputs"]).any() for out in noisy)
  np.testing.assert_array_equal(empty["hidden"], 0)
  # Masked inputs are not scaled up: every hidden unit is of some subset of the six.
  kernel, flat = np.asarray(params["encoder"]["kernel"], np.float64), np.asarray(X, np.float64).reshape(5, 6)
  masks = (np.arange(64)[:, None] >> np.arange(6)) & 1
  of_all_masks = np.maximum((masks[:, None] * flat) @ kernel, 0)
  distance = np.abs(of_all_masks - np.asarray(noisy[1]["hidden"])).max(-1)
  assert (distance.min(0) < 1e-5).all()

"""Shapes, counts, initial values and noise of the models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxreg import losses, models, paths

MNIST = (2, 28, 28, 1)


def initialise(model, key, x, **arguments):
  return model.init_with_output(key, x, **arguments)[1]


def abstract_params(model, shape):
  init = functools.partial(initialise, model, train=False)
  return jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))["params"]


@pytest.mark.parametrize(
  ("model", "shape", "arguments"),
  [
    (models.MLP((3,)), (1, 4), {"train": False}),
    (models.LeNet(), (1, 16, 16, 1), {"train": False}),
    (models.TutorialCNN(), (1, 4, 4, 1), {"train": False}),
    (models.SoftmaxHead(3), (1, 4), {}),
    (models.DropMaxHead(3), (1, 4), {}),
    (models.GroupSoftmaxHead(3), (1, 4), {}),
    (models.AffineHead({"digit": (3,), "inputs": (2, 2)}), (1, 4), {}),
    (models.Classifier(models.MLP((3,)), models.DropMaxHead(3)), (1, 4), {"train": False}),
  ],
  ids=lambda value: type(value).__name__,
)
def test_a_model_is_initialised_as_any_linen_module(model, shape, arguments):
  """`model.init(key, x)`: no attribute of a module may hide it."""
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  variables = jax.eval_shape(lambda key, x: model.init(key, x, **arguments), jax.random.key(0), x)
  assert count(variables["params"]) > 0


def count(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def classifier(backbone, head):
  return models.Classifier(backbone, head)


@pytest.mark.parametrize(
  ("backbone", "head", "shape", "parameters"),
  [
    # The released code's LeNet, and the tutorial's network, both with softmax as published.
    (models.LeNet(), models.SoftmaxHead(10), MNIST, 431_080),
    (models.LeNet(), models.DropMaxHead(10), MNIST, 441_100),
    (models.LeNet(), models.GroupSoftmaxHead(10), MNIST, 431_080),
    (models.TutorialCNN(), models.SoftmaxHead(10), MNIST, 3_274_634),
    (models.TutorialCNN(), models.DropMaxHead(10), MNIST, 3_274_634 + 2 * 10_250),
    (models.MLP(), models.SoftmaxHead(10), (2, 8, 8, 1), 64 * 256 + 256 + 256 * 256 + 256 + 2570),
    (models.MLP((5,)), models.DropMaxHead(3), (2, 7), 7 * 5 + 5 + 3 * (5 * 3 + 3)),
    (models.MLP(()), models.SoftmaxHead(3), (2, 7), 7 * 3 + 3),
  ],
)
def test_numbers_of_parameters(backbone, head, shape, parameters):
  assert count(abstract_params(classifier(backbone, head), shape)) == parameters


@pytest.mark.parametrize(
  ("backbone", "shape", "features"),
  [
    (models.MLP((5, 6)), (3, 4, 4, 2), 6),
    (models.MLP(()), (3, 4, 4, 2), 32),
    (models.LeNet(), (3, 28, 28, 1), 500),
    (models.LeNet(), (3, 16, 17, 3), 500),
    (models.TutorialCNN(), (3, 28, 28, 1), 1024),
    (models.TutorialCNN(), (3, 4, 4, 1), 1024),
  ],
)
@pytest.mark.parametrize(
  ("head", "names"),
  [
    (models.SoftmaxHead(7), {"logits"}),
    (models.DropMaxHead(7), {"logits", "retain_logits", "residual_logits"}),
    (
      models.DropMaxHead(7, stop_gradient="parameters"),
      {"logits", "retain_logits", "residual_logits", "posterior_logits"},
    ),
  ],
)
def test_shapes(backbone, shape, features, head, names):
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  out, _ = jax.eval_shape(functools.partial(backbone.init_with_output, train=False), jax.random.key(0), x)
  assert (out.shape, out.dtype) == ((3, features), jnp.float32)
  joined = classifier(backbone, head)
  out, _ = jax.eval_shape(functools.partial(joined.init_with_output, train=False), jax.random.key(0), x)
  assert {name: value.shape for name, value in out.items()} == dict.fromkeys(names, (3, 7))


IMAGES, VECTORS, RATES = (2, 8, 8, 1), (2, 7), r"dropout_rates must be empty or.*2 hidden layers"
CIFAR, VGG9, VGG, RNN = models.CifarResNet, models.VGG9, models.VGG, models.RNN


@pytest.mark.parametrize(
  ("model", "shape", "message"),
  [
    (models.LeNet(), (2, 784), r"LeNet.*\(2, 784\)"),
    (models.LeNet(), (2, 28, 28), r"LeNet.*\(2, 28, 28\)"),
    (models.LeNet(), (2, 15, 28, 1), r"LeNet.*\(2, 15, 28, 1\)"),
    (models.TutorialCNN(), (2, 784), r"TutorialCNN.*\(2, 784\)"),
    (models.TutorialCNN(), (2, 28, 3, 1), r"TutorialCNN.*\(2, 28, 3, 1\)"),
    (models.MLP((0,)), VECTORS, r"widths must be at least 1, got \(0,\)"),
    (models.MLP((8, -1)), VECTORS, r"widths must be at least 1, got \(8, -1\)"),
    (models.MLP((8,), initializer="he"), VECTORS, "initializer must be one of glorot, lecun, tutorial, got"),
    (classifier(models.MLP(()), models.SoftmaxHead(3, initializer="he")), VECTORS, "initializer must be"),
    (models.MLP((8, 8), dropout_rates=(0.5,)), VECTORS, RATES),
    (models.MLP((8, 8), dropout_rates=(0.5, 0.5, 0.5)), VECTORS, RATES),
    (models.MLP((8, 8), dropout_rates=(0.5, 0.5), dropout_rate=0.5), VECTORS, RATES),
    (models.MLP((3,), dropout="other"), VECTORS, "dropout must be one of"),
    (models.MLP((3,), activation="other"), VECTORS, "activation must be one of"),
    (models.MLP((3,), layer="other"), VECTORS, "layer must be one of"),
    (CIFAR(8, dropout="other"), IMAGES, "dropout must be one of"),
    (CIFAR(8, branch_noise="other"), IMAGES, "branch_noise must be one of"),
    (CIFAR(depth=21), IMAGES, "depth must be 6n"),
    (CIFAR(width=0), IMAGES, "width must be at least 1"),
    (CIFAR(), (8, 8, 3), "needs images"),
    (models.ResNet(depth=20), IMAGES, "depth must be one of 18, 34, 50, 101, 152, got 20"),
    (models.ResNet(stem="small"), IMAGES, "stem must be"),
    (VGG9(width=0), (1, 32, 32, 3), "width must be at least 1, got 0"),
    (VGG9(), (1, 3072), r"VGG9 needs images .*got \(1, 3072\)"),
    (VGG9(), (1, 32, 7, 3), r"at least 8x8, got \(1, 32, 7, 3\)"),
    (VGG(), (1, 31, 64, 3), r"at least 32x32, got \(1, 31, 64, 3\)"),
    (VGG(depth=9), (1, 32, 32, 3), "depth must be one of 11, 13, 16, 19, got 9"),
    (VGG(width=0), (1, 32, 32, 3), "width must be at least 1, got 0"),
    (VGG(hidden=0), (1, 32, 32, 3), "hidden must be at least 1, got 0"),
    (RNN(), (2, 784), "RNN needs sequences"),
    (RNN(0), (2, 3, 4), "width"),
    (RNN(cell="lstm"), (2, 3, 4), "cell must be"),
    (RNN(weight_noise_std=-1.0), (2, 3, 4), "weight_noise_std"),
  ],
)
def test_what_does_not_fit_is_refused(model, shape, message):
  with pytest.raises(ValueError, match=message):
    abstract_params(model, shape)


@functools.cache
def initial(init):
  """Parameters of an MLP with a DropMax head, by name."""
  model = classifier(models.MLP((150, 80), initializer=init), models.DropMaxHead(40, initializer=init))
  params = jax.jit(functools.partial(initialise, model, train=False))(jax.random.key(5), jnp.zeros((1, 60)))[
    "params"
  ]
  return dict(zip(paths.leaf_names(params), map(np.asarray, jax.tree.leaves(params)), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("init", ["glorot", "tutorial"])
def test_every_layer_starts_differently(init):
  kernels = {name: w for name, w in initial(init).items() if name.endswith("kernel")}
  assert len(kernels) == 5
  first = [w[:40, :40].tobytes() for w in kernels.values()]
  assert len(set(first)) == 5


def test_glorot_is_uniform_with_zero_biases():
  for name, w in initial("glorot").items():
    if name.endswith("bias"):
      assert (w == 0).all(), name
    else:
      bound = np.sqrt(6 / sum(w.shape))
      assert 0.99 * bound < np.abs(w).max() <= bound, name
      assert stats.kstest(w.ravel() / bound, stats.uniform(-1, 2).cdf).pvalue > 1e-3, name


def test_tutorial_is_a_normal_truncated_at_two_standard_deviations_with_biases_of_a_tenth():
  for name, w in initial("tutorial").items():
    if name.endswith("bias"):
      assert (w == np.float32(0.1)).all(), name
    else:
      # As TensorFlow's: 0.1 is the scale of the normal before it is cut, not after.
      assert 0.198 < np.abs(w).max() <= 0.2000001, name
      assert stats.kstest(w.ravel() / 0.1, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3, name


def test_the_default_initialisations():
  assert (
    models.MLP().initializer == models.LeNet().initializer == models.DropMaxHead(3).initializer == "glorot"
  )
  assert models.TutorialCNN().initializer == "tutorial"


QUIET = (models.Airbench(), CIFAR(8), models.LeNet(), models.MLP(), models.ResNet(18), VGG9())


@pytest.mark.parametrize("model", QUIET, ids=lambda model: type(model).__name__)
def test_without_options_a_network_draws_no_noise(model):
  """Drawing would need the key `dropout`."""
  init = lambda key: model.init({"params": key}, jnp.zeros((1, 32, 32, 3)), train=True)
  assert jax.eval_shape(init, jax.random.key(0))["params"]


@functools.cache
def head_weights():
  random = np.random.default_rng(0)
  names = ("classifier", "prior", "residual")
  return {
    name: {
      "kernel": random.normal(size=(5, 3)).astype(np.float32),
      "bias": random.normal(size=3).astype(np.float32),
    }
    for name in names
  }


HEADS = pytest.mark.parametrize("stop_gradient", ["activations", "parameters"])
BRANCHES = pytest.mark.parametrize("branch_only", [False, True])


@pytest.mark.thorough
@HEADS
@BRANCHES
def test_the_dropmax_head_is_the_function_on_its_weights(stop_gradient, branch_only):
  options = {"stop_gradient": stop_gradient, "branch_only": branch_only}
  features = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
  head = models.DropMaxHead(3, **options)
  params = jax.eval_shape(functools.partial(initialise, head), jax.random.key(0), features)["params"]
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, head_weights())

  def through_module(weights, features):
    return head.apply({"params": weights}, features)

  def through_function(weights, features):
    return losses.dropmax_heads(features, *weights.values(), **options)

  def gradients(function):
    total = lambda *a: sum((k + 2) * (v**2).sum() for k, v in enumerate(function(*a).values()))
    return jax.grad(total, argnums=(0, 1))(head_weights(), features)

  ours, expected = through_module(head_weights(), features), through_function(head_weights(), features)
  assert ours.keys() == expected.keys()
  for name in ours:
    np.testing.assert_array_equal(ours[name], expected[name])
  for one, other in zip(
    jax.tree.leaves(gradients(through_module)), jax.tree.leaves(gradients(through_function)), strict=True
  ):
    np.testing.assert_array_equal(one, other)
    assert np.abs(other).max() > 0


def test_the_softmax_head_is_affine():
  features = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
  weights = head_weights()["classifier"]
  out = models.SoftmaxHead(3).apply({"params": {"classifier": weights}}, features)
  np.testing.assert_allclose(
    out["logits"], features.astype(np.float64) @ weights["kernel"] + weights["bias"], rtol=1e-5, atol=1e-6
  )


@pytest.mark.claim(
  "adaptive_sgd",
  "effect on features",
  "an autoencoder of MNIST with one hidden layer of 256 units",
)
def test_the_lecture_s_autoencoder():
  model = classifier(models.MLP((256,)), models.AffineHead({"outputs": MNIST[1:]}))
  assert count(abstract_params(model, MNIST)) == 784 * 256 + 256 + 256 * 784 + 784


def test_affine_layers_side_by_side():
  features = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
  head = models.AffineHead({"outputs": (), "inputs": (3, 2)})
  params = initialise(head, jax.random.key(0), features)["params"]
  out = head.apply({"params": params}, features)
  assert {name: value.shape for name, value in out.items()} == {"outputs": (4,), "inputs": (4, 3, 2)}
  for name, value in out.items():
    layer = jax.tree.map(np.float64, params[name])
    want = (features @ layer["kernel"] + layer["bias"]).reshape(value.shape)
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


NOISY = {
  "MLP": (models.MLP((64,), dropout_rate=0.5), (4, 10)),
  "MLP inputs": (models.MLP((), input_dropout_rate=0.5), (4, 50)),
  "LeNet": (models.LeNet(dropout_rate=0.5), (2, 16, 16, 1)),
  "TutorialCNN": (models.TutorialCNN(), (2, 4, 4, 1)),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "shape"), NOISY.values(), ids=NOISY)
def test_dropout_is_a_function_of_the_key_given(model, shape):
  x = np.random.default_rng(0).uniform(1, 2, size=shape).astype(np.float32)
  variables = jax.jit(functools.partial(initialise, model, train=False))(jax.random.key(0), x)
  noisy = jax.jit(lambda v, x, key: model.apply(v, x, train=True, rngs={"dropout": key}))
  one, again, other = (np.asarray(noisy(variables, x, jax.random.key(seed))) for seed in (1, 1, 2))
  clean = np.asarray(jax.jit(functools.partial(model.apply, train=False))(variables, x))
  np.testing.assert_array_equal(one, again)
  assert (one != other).mean() > 0.1
  # Half of what was alive is dropped, and the rest doubled.
  alive = clean != 0
  assert alive.sum() >= 60
  kept = (one != 0) & alive
  np.testing.assert_allclose(one[kept], 2 * clean[kept], rtol=1e-5)
  assert abs(kept.sum() / alive.sum() - 0.5) < 4 * np.sqrt(0.25 / alive.sum())
  assert (one[~alive] == 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["MLP", "LeNet", "TutorialCNN"])
def test_without_dropout_no_key_is_needed_and_training_changes_nothing(name):
  model, shape = NOISY[name]
  quiet = model.clone(dropout_rate=0.0)
  x = np.random.default_rng(0).uniform(1, 2, size=shape).astype(np.float32)
  variables = jax.jit(functools.partial(initialise, model, train=False))(jax.random.key(0), x)
  apply = lambda model, train: jax.jit(functools.partial(model.apply, train=train))(variables, x)
  of_training = apply(quiet, True)
  np.testing.assert_array_equal(of_training, apply(quiet, False))
  # Nor with dropout, when it is not training.
  np.testing.assert_array_equal(of_training, apply(model, False))
  with pytest.raises(Exception, match="dropout"):
    apply(model, True)


def applied(model, x, train=True, seed=1):
  variables = jax.jit(functools.partial(initialise, model, train=False))(jax.random.key(0), x)
  rngs = {"dropout": jax.random.key(seed)}
  return np.asarray(jax.jit(lambda v, x: model.apply(v, x, train=train, rngs=rngs))(variables, x))


@pytest.mark.thorough
def test_one_rate_for_all_layers_is_that_rate_for_each():
  x = np.ones((2, 10), np.float32)
  one = models.MLP((32, 32), dropout_rate=0.5, initializer="tutorial")
  each = models.MLP((32, 32), dropout_rates=(0.5, 0.5), initializer="tutorial")
  np.testing.assert_array_equal(applied(one, x), applied(each, x))


@pytest.mark.thorough
def test_a_rate_of_0_drops_nothing_after_its_layer():
  x = np.ones((2, 10), np.float32)
  mlp = functools.partial(models.MLP, (64, 64), initializer="tutorial")
  clean = applied(mlp(), x)
  np.testing.assert_array_equal(applied(mlp(dropout_rates=(0.0, 0.0)), x), clean)
  # After the last layer: half of what is there, doubled.
  last = applied(mlp(dropout_rates=(0, 0.5)), x)
  kept = last != 0
  np.testing.assert_allclose(last[kept], 2 * clean[kept], rtol=1e-5)
  assert 0 < kept[clean != 0].mean() < 1
  # After the first: what comes out is other numbers, not zeros.
  first = applied(mlp(dropout_rates=(0.5, 0)), x)
  assert (first != 0).mean() > (last != 0).mean()
  assert not np.isclose(first, 2 * clean)[first != 0].any()


def test_a_warm_start_keeps_every_class_with_the_same_probability():
  head = models.DropMaxHead(6, initial_rate=0.1)
  plain = models.DropMaxHead(6)
  features = 10 * np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  params, before = (initialise(each, jax.random.key(0), features)["params"] for each in (head, plain))
  outputs = head.apply({"params": params}, features)
  np.testing.assert_allclose(jax.nn.sigmoid(outputs["retain_logits"]), 0.9, rtol=1e-6)
  np.testing.assert_array_equal(outputs["residual_logits"], 0)
  np.testing.assert_array_equal(params["classifier"]["kernel"], before["classifier"]["kernel"])
  # Equal retain probabilities: what is predicted is the softmax.
  predicted = losses.dropmax_log_probs(outputs["logits"], outputs["retain_logits"])
  np.testing.assert_allclose(predicted, jax.nn.log_softmax(outputs["logits"]), rtol=1e-5, atol=1e-6)
  with pytest.raises(ValueError, match=r"initial_rate must lie in \(0, 1\), got 1\.5"):
    initialise(models.DropMaxHead(6, initial_rate=1.5), jax.random.key(0), features)

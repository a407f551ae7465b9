"""Explicit axes beyond the contract: split classes, sums of many blocks, and functions without a case."""

import functools

import chex
import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxreg import augment, averaging, calibration, ensembles, flatness, losses, noise

EXAMPLES = 256
_rng = np.random.default_rng(0)
_draw = lambda *shape: _rng.normal(size=shape).astype(np.float32)
X, LOGITS, LABELS = _draw(EXAMPLES, 6), _draw(EXAMPLES, 4), _rng.integers(0, 4, EXAMPLES)
LOG_PROBS = np.asarray(jax.nn.log_softmax(LOGITS))
PARAMS = {"bias": _draw(1, 4), "kernel": _draw(6, 4)}
ROWS, CLASSES, WHOLE = PartitionSpec("data"), PartitionSpec("data", "model"), PartitionSpec()
key = lambda: jax.random.key(0)


def outputs(params, batch, *, key):
  return batch[0] @ params["kernel"] + params["bias"]


def outer(logits, batch):
  return losses.softmax_cross_entropy(logits, batch[1]).mean()


def loss(params, batch, *, key):
  return outer(outputs(params, batch, key=key), batch)


def noisy(params, batch, *, key):
  return loss(params, (noise.dropout(key, batch[0], rate=0.5), batch[1]), key=None)


def swag(params):
  average = averaging.swag(rank=2)
  state = average.init(params)
  for _ in range(3):
    params = jax.tree.map(lambda x: x * x + 1, params)
    state = average.update(state, params)
  return average.sample(key(), state)


def ekfac(params, batch, **options):
  options = {"num_samples": None, "mask": "kernel", "corrected": True, **options}
  return flatness.kfac(outputs, params, batch, **options)["kernel"]


BATCH = (PARAMS, WHOLE), (X, ROWS), (LABELS, ROWS)


def pasted(key, batch):
  return augment.cutmix(key, {**batch, "labels": jax.nn.one_hot(jnp.arange(8), 8)})


def with_annotations(function, *, split=ROWS):
  """An augmentation of images of one channel, with masks, boxes and points."""
  x, points = _draw(8, 6, 6, 1), _draw(8, 3, 4)
  call = lambda x, masks, boxes, points: function(
    key(), {"inputs": x, "masks": masks, "boxes": boxes, "points": points}
  )
  return call, (x, split), (x[..., 0] > 0, split), (points, split), (points[..., :2], split)


CALLS = {
  **{
    name: with_annotations(getattr(augment, name))
    for name in ("flip", "translate", "rotate", "random_resized_crop", "cutout")
  },
  "cutmix": with_annotations(pasted),
  "softmax_cross_entropy": (losses.softmax_cross_entropy, (LOGITS, CLASSES), (LABELS, ROWS)),
  "label_smoothing": (losses.label_smoothing, (LOGITS, CLASSES), (LABELS, ROWS)),
  "sparsemax": (losses.sparsemax, (LOGITS, CLASSES), (LABELS, ROWS)),
  "dropmax": (
    lambda z, labels: losses.dropmax(key(), z, 2 * z, 3 * z, labels),
    *((LOGITS, CLASSES), (LABELS, ROWS)),
  ),
  "sampled_softmax": (
    lambda z, labels: losses.sampled_softmax(key(), z, labels),
    *((LOGITS, CLASSES), (LABELS, ROWS)),
  ),
  "nll": (calibration.nll, (LOG_PROBS, CLASSES), (LABELS, ROWS)),
  "aps_scores": (lambda x: calibration.aps_scores(key(), x), (LOG_PROBS, CLASSES)),
  "classwise bins": (
    functools.partial(calibration.ece_bins, kind="classwise"),
    *((LOG_PROBS, CLASSES), (LABELS, ROWS)),
  ),
  "smooth_ece": (calibration.smooth_ece, (LOG_PROBS, ROWS), (LABELS, ROWS)),
  "matrix scaling": (
    functools.partial(calibration.fit_temperature, kind="matrix"),
    *((LOGITS, ROWS), (LABELS, ROWS)),
  ),
  "ece_bins": (calibration.ece_bins, (LOG_PROBS, ROWS), (LABELS, ROWS)),
  "fit_temperature": (calibration.fit_temperature, (LOGITS, ROWS), (LABELS, ROWS)),
  "label_noise": (lambda x: noise.label_noise(key(), x, num_classes=4, rate=0.5), (LABELS, ROWS)),
  "swag": (swag, (PARAMS, PartitionSpec(None, "model"))),
  "gauss_newton_matrix": (
    lambda params, *batch: flatness.gauss_newton_matrix(outputs, outer, params, batch, chunk_size=48),
    *BATCH,
  ),
  "gauss_newton_diagonal": (
    lambda params, *batch: flatness.gauss_newton_diagonal(outputs, outer, params, batch),
    *BATCH,
  ),
  "kfac": (lambda params, *batch: ekfac(params, batch).matrix(), *BATCH),
  "kfac in chunks": (lambda params, *batch: ekfac(params, batch, chunk_size=48).matrix(), *BATCH),
  "laplace in chunks": (
    lambda params, *batch: (
      ensembles.laplace(outputs, params, batch, structure="ekfac", chunk_size=48)
      .linearized(batch, precision=1.0, chunk_size=48)
      .covariance
    ),
    *BATCH,
  ),
  "per_example_noise_covariance": (
    lambda params, *batch: flatness.per_example_noise_covariance(noisy, params, batch, key=key()),
    *BATCH,
  ),
  "chunked": (
    lambda params, *batch: jax.grad(flatness.chunked(loss, 48))(params, batch, key=None),
    *BATCH,
  ),
  "top_eigenpairs": (
    lambda params, *batch: flatness.top_eigenpairs(flatness.hvp(loss, params, batch), key=key()).values,
    *BATCH,
  ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CALLS)
def test_gives_what_it_gives_on_one_device(name):
  call, *arguments = CALLS[name]
  want = jax.jit(call)(*(x for x, _ in arguments))
  mesh = contract.explicit_mesh()
  placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in arguments]
  with jax.set_mesh(mesh):
    for form in (jax.jit(call), call):
      got = jax.tree.map(np.asarray, form(*placed))
      chex.assert_trees_all_close(got, jax.tree.map(np.asarray, want), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_masks_are_the_same_bits_on_all_axes():
  """Rows and columns both split, and a shared axis whole."""
  x = jnp.ones((8, 4, 6))
  mesh = contract.explicit_mesh()
  placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None, "model")))
  for axes in ((), (1,), (2,), (0, 2)):
    with jax.set_mesh(mesh):
      got = noise.dropout(key(), placed, rate=0.5, shared_axes=axes)
    assert got.sharding.spec == PartitionSpec("data", None, "model")
    np.testing.assert_array_equal(got, noise.dropout(key(), x, rate=0.5, shared_axes=axes))

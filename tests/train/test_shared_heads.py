"""Several tasks on one head, against NumPy, and an autoencoder whose classifier only reads."""

import jax
import numpy as np
import oracles
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.methods.multitask import CoarseTasksHead
from jaxreg.train.registry import REGISTRY

TASKS = ((0, 1, 0, 1), (2, 0, 1, 1))
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 1, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("learned", [False, True])
def test_the_terms_of_several_tasks(learned):
  head = CoarseTasksHead(4, TASKS, learned_weights=learned)
  variables = head.init(jax.random.key(0), X)
  if learned:
    variables["params"]["log_vars"] = np.array([0.3, -0.2, 0.5], np.float32)
  got = REGISTRY["method"]["multitask"].function.loss(labels=LABELS, weight=0.5, **head.apply(variables, X))
  losses = []
  for name, labels in (
    ("classes", LABELS),
    *((f"task{i}", np.array(t)[LABELS]) for i, t in enumerate(TASKS)),
  ):
    layer = variables["params"][name]["classifier"]
    logits = np.float64(X) @ np.float64(layer["kernel"]) + np.float64(layer["bias"])
    losses.append(oracles.cross_entropy(logits, labels))
  weights, offsets = [1, 0.5, 0.5], [0, 0, 0]
  if learned:
    weights, offsets = np.exp([-0.3, 0.2, -0.5]), np.array([0.3, -0.2, 0.5]) / 2
  each = [w * loss + offset for w, loss, offset in zip(weights, losses, offsets, strict=True)]
  np.testing.assert_allclose(got["nll"], each[0], rtol=1e-5)
  np.testing.assert_allclose(got["tasks"], each[1] + each[2], rtol=1e-5)


def test_a_task_needs_a_label_for_each_class():
  fields = {"method.name": "multitask", "method.multitask.head.tasks": ((0, 1),)}
  with pytest.raises(train.RunError, match=r"tasks: must each have 10 labels of at least 0, got \(0, 1\)"):
    build(runs.make_config(fields), sources.digits().describe())


@pytest.mark.thorough
@pytest.mark.parametrize("probe", [True, False])
def test_a_probe_does_not_train_the_features(probe):
  """Without the term of the decoder, the backbone has a gradient from the classifier alone."""
  fields = {"method.name": "autoencoder", "method.autoencoder.head.probe": probe, "optimizer.name": "sgd"}
  built = build(runs.make_config({**fields, "model.MLP.widths": (5,)}), sources.digits().describe())
  state = jax.jit(built.init)(0)
  after, _ = jax.jit(built.train_step)(state, runs.digits_batch(8))
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.params, after.params)
  assert any(jax.tree.leaves(moved["backbone"])) != probe
  assert any(jax.tree.leaves(moved["head"]["classes"]))
  assert not any(jax.tree.leaves(moved["head"]["inputs"]))


def test_the_decoder_has_to_be_there():
  with pytest.raises(train.RunError, match=r"needs a head with a decoder, as the autoencoder has"):
    build(
      runs.make_config({"method.name": "softmax", "regularizers.names": ("reconstruction",)}),
      sources.digits().describe(),
    )

"""The first step of DropMax, where a run on CIFAR-10 collapses: why, and that the configs survive it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_configs import CONFIGS

from jaxreg import losses, models
from jaxreg.train import cli
from jaxreg.train.registry import choose
from jaxreg.train.step.optimizer import make_optimizer

CONFIG_FILES = [("dropmax_cifar10", 10), ("dropmax_cifar100", 100)]
WIDTH = 64  # of the last features
POOLED = 213.0  # ||E h||^2 of the pooled ReLU features of ResNet-32 at its initialisation


def move_of_the_residual_logits(config, classes, *, residual_kernel=1.0):
  """The mean over examples of the change of each residual logit, `[classes]`, by the first step of `config`.

  `residual_kernel` scales the initial kernel of the residual layer.
  """
  generator = np.random.default_rng(0)
  mean = np.sqrt(POOLED / WIDTH)
  # Features after a ReLU and a pooling: positive, and hardly different from example to example.
  features = jnp.asarray(mean * generator.uniform(0.8, 1.2, (250, WIDTH)), jnp.float32)
  labels = jnp.asarray(np.arange(250) % classes)
  head = models.DropMaxHead(classes)
  params = jax.jit(head.init)(jax.random.key(0), features)["params"]
  params["residual"]["kernel"] *= residual_kernel
  chosen = config.optimizer
  chain = make_optimizer(
    choose("optimizer", chosen.name, chosen[chosen.name].to_dict()),
    lambda step: chosen.learning_rate,
    weight_decay=chosen.weight_decay.rate,
    mask=chosen.weight_decay.mask,
    clip_norm=chosen.clip_norm,
  )

  def loss(params):
    return losses.dropmax(jax.random.key(1), **head.apply({"params": params}, features), labels=labels).mean()

  @jax.jit
  def move(params):
    updates, _ = chain.update(jax.grad(loss)(params), chain.init(params), params)
    after = head.apply({"params": jax.tree.map(jnp.add, params, updates)}, features)["residual_logits"]
    return after - head.apply({"params": params}, features)["residual_logits"]

  return np.asarray(move(params)).mean(axis=0)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "classes"), CONFIG_FILES)
def test_the_first_step_moves_no_residual_logit_far(name, classes):
  config = cli.parse(["--config", f"{CONFIGS}/{name}.py"], CONFIGS).config
  assert np.abs(move_of_the_residual_logits(config, classes)).max() < 1


@pytest.mark.thorough
def test_the_appendix_alone_shuts_every_mask_in_one_step():
  """Zero biases, an auxiliary target of 1 in 10 and features that are not centred: every logit falls by 8."""
  config = cli.parse(["--config", f"{CONFIGS}/dropmax_cifar10.py"], CONFIGS).config
  config.optimizer.clip_norm = 0.0
  move = move_of_the_residual_logits(config, 10, residual_kernel=0.0)
  # By hand, of the auxiliary term: rate * (sigmoid(0) - 1 / classes) * (1 + ||E h||^2); the likelihood adds.
  auxiliary = 0.1 * (0.5 - 0.1) * (1 + POOLED)
  assert auxiliary > 8
  assert (move < -0.95 * auxiliary).all()

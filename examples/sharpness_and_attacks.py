"""SAM, adversarial training and averaged weights together: `python examples/sharpness_and_attacks.py`.

Sharpness-aware minimisation needs the gradient function. Adversarial training wraps the loss. Weights are
averaged by a state beside the optimizer's.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from jaxreg import adversarial, averaging, losses, optim


def loss_fn(params, batch, *, key):
  return losses.softmax_cross_entropy(batch["inputs"] @ params["kernel"], batch["labels"]).mean()


attack = functools.partial(adversarial.pgd, eps=0.1, num_steps=1, random_start=False)
robust = adversarial.adversarial_loss(loss_fn, attack, mix=0.5)  # half clean, half attacked
optimizer, average = optim.sam(optax.sgd(0.1), rho=0.05), averaging.swa()


@jax.jit
def step(params, state, kept, batch, key):
  # SAM calls it a second time, which must see the same noise.
  grad_fn = lambda params: jax.grad(robust)(params, batch, key=jax.random.clone(key))
  updates, state = optimizer.update(grad_fn(params), state, params, grad_fn=grad_fn)
  params = optax.apply_updates(params, updates)
  return params, state, average.update(kept, params)


batch = {"inputs": jax.random.normal(jax.random.key(0), (8, 16)), "labels": jnp.arange(8)}
params = {"kernel": jnp.zeros((16, 10))}
state, kept = optimizer.init(params), average.init(params)
for number in range(5):
  params, state, kept = step(params, state, kept, batch, jax.random.fold_in(jax.random.key(1), number))
log_probs = losses.softmax_log_probs(batch["inputs"] @ average.params(kept)["kernel"])

loss = -log_probs[jnp.arange(8), batch["labels"]].mean()
print(f"loss of the averaged weights: {loss:.3f}")

"""The same call in NNX, Linen, Equinox and plain JAX: `python examples/any_model.py`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from jaxreg import losses

key, x, labels = jax.random.key(0), jnp.ones((8, 64)), jnp.arange(8)
models = {
  "nnx": nnx.Linear(64, 30, rngs=nnx.Rngs(1)),
  "linen": lambda x: nn.Dense(30).init_with_output(jax.random.key(1), x)[0],
  "equinox": jax.vmap(eqx.nn.Linear(64, 30, key=jax.random.key(1))),
  "jax": lambda x: x @ jnp.full((64, 30), 0.01),
}
for name, model in models.items():
  logits, retain_logits, residual_logits = jnp.split(model(x), 3, axis=-1)
  key, subkey = jax.random.split(key)
  loss = losses.dropmax(subkey, logits, retain_logits, residual_logits, labels)  # [8], one value an example
  log_probs = losses.dropmax_log_probs(logits, retain_logits)  # [8, 10]
  print(f"{name}: mean loss {loss.mean():.2f} nats")

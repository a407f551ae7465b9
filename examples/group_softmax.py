"""A loss on more than logits takes the arrays themselves: `python examples/group_softmax.py`.

Here they are the features and the last layer's weights.
"""

import jax.numpy as jnp

from jaxreg import losses

features, kernel, bias, labels = jnp.ones((8, 64)), jnp.ones((64, 10)), jnp.zeros(10), jnp.arange(8)
loss, logits = losses.group_softmax(features, kernel, bias, labels, num_groups=4, kind="II", with_logits=True)
log_probs = losses.softmax_log_probs(logits, logit_scale=1 / 4)  # [8, 10]

print(f"mean loss {loss.mean():.2f} nats; the label's log-probability {log_probs[0, 0]:.2f}")

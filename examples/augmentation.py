"""Augmentation of a batch: `python examples/augmentation.py`.

The labels of `mixup` and `cutmix` become soft, `[batch, classes]`, and the losses take them. A loss that
needs one class an example, such as DropMax, refuses them by name.
"""

import jax
import jax.numpy as jnp

from jaxreg import augment, losses

batch = {"inputs": jnp.zeros((8, 28, 28, 1)), "labels": jnp.arange(8)}
shifted = augment.pad_crop(jax.random.key(0), batch, padding=4)  # the labels as they came
mixed = augment.mixup(jax.random.key(1), batch, num_classes=10)
logits = jnp.zeros((8, 10))
loss = losses.focal(logits, mixed["labels"])  # [8]

print(f"labels of shape {mixed['labels'].shape}, mean loss {loss.mean():.2f}")

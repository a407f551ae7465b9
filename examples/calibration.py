"""Calibration: sums that add up over batches, then one division: `python examples/calibration.py`."""

import jax
import jax.numpy as jnp

from jaxreg import calibration

labels = jnp.arange(8) % 3
log_probs = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (8, 3)))
bins = calibration.merge(None, calibration.ece_bins(log_probs[:4], labels[:4]))
bins = calibration.merge(bins, calibration.ece_bins(log_probs[4:], labels[4:]))
error = calibration.ece(bins)  # of all eight, in [0, 1]
total, count = calibration.nll(log_probs, labels)  # nats: total / count is the mean
temperature = calibration.fit_temperature(log_probs, labels)
calibrated = calibration.temper(log_probs, temperature=temperature)

print(f"ECE {error:.3f}, NLL {total / count:.3f} nats, temperature {temperature:.2f}")

"""Per-example losses: `([key,] logits, labels, *, ...) -> [batch]`, unreduced, in at least float32.

Samplers of a loss's masks and its prediction rule stand beside it. A compound loss has a `<name>_terms`
beside it: a dict whose sum it is.
"""

from jaxreg.losses._dropmax import (
  dropmax,
  dropmax_diagnostics,
  dropmax_heads,
  dropmax_log_mask,
  dropmax_log_probs,
  dropmax_mask,
  dropmax_masked_logits,
  dropmax_monte_carlo_log_probs,
  dropmax_terms,
)
from jaxreg.losses._label_smoothing import label_smoothing
from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs

__all__ = [
  "dropmax",
  "dropmax_diagnostics",
  "dropmax_heads",
  "dropmax_log_mask",
  "dropmax_log_probs",
  "dropmax_mask",
  "dropmax_masked_logits",
  "dropmax_monte_carlo_log_probs",
  "dropmax_terms",
  "label_smoothing",
  "softmax_cross_entropy",
  "softmax_log_probs",
]

"""Losses per example: `([key,] logits, labels, *, ...) -> [batch]`, unreduced, in at least float32.

A loss on more than logits takes `(features, kernel, bias, labels, *, ...)`, without `bias` if it has none.
The samplers and the prediction rule of a loss stand beside it. So does `<name>_terms`, a dict of the terms of
a compound loss, whose sum is the loss. These files import JAX, Optax, NumPy and the core only.

Labels are integers `[...]`. Losses that support soft labels also take probabilities `[..., classes]`, as
`augment.mixup` and `augment.cutmix` return them; the loss is then the mean of its values for the classes,
weighted by the probabilities. A loss that needs one class refuses soft labels. A label out of range gives
NaN, or raises if it is known: in a Python integer, a NumPy array, or outside of `jit` a JAX array on the CPU.
"""

from jaxreg._names import suggest_names
from jaxreg.losses._bi_tempered import bi_tempered, bi_tempered_log_probs
from jaxreg.losses._confidence_penalty import confidence_penalty
from jaxreg.losses._consistency import consistency
from jaxreg.losses._cosface import arcface, cosface, cosine_log_probs
from jaxreg.losses._deterministic_attention import deterministic_attention
from jaxreg.losses._deterministic_dropmax import deterministic_dropmax, deterministic_dropmax_terms
from jaxreg.losses._distillation import distillation
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
from jaxreg.losses._dropmax_qp import dropmax_qp, dropmax_qp_terms
from jaxreg.losses._entropy import entropy, pseudo_label
from jaxreg.losses._focal import focal
from jaxreg.losses._group_softmax import group_softmax, group_softmax_and_logits, group_softmax_log_probs
from jaxreg.losses._group_softmax_scores import (
  discriminative_scores,
  feature_groups,
  fixed_scores,
  interleaved_scores,
  posterior_scores,
  random_scores,
  rival_scores,
)
from jaxreg.losses._jensen_shannon import jensen_shannon
from jaxreg.losses._label_smoothing import label_smoothing
from jaxreg.losses._large_margin import large_margin
from jaxreg.losses._logit_adjustment import logit_adjustment
from jaxreg.losses._multitask import (
  multitask,
  multitask_terms,
  uncertainty_weighting,
  uncertainty_weighting_terms,
)
from jaxreg.losses._poly_loss import poly_loss
from jaxreg.losses._r_drop import r_drop
from jaxreg.losses._random_dropmax import random_dropmax, random_dropmax_mask
from jaxreg.losses._reconstruction import reconstruction
from jaxreg.losses._sampled_softmax import sample_classes, sampled_softmax
from jaxreg.losses._semi_supervised import semi_supervised
from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs
from jaxreg.losses._sparsemax import sparsemax, sparsemax_log_probs, sparsemax_probs
from jaxreg.losses._z_loss import z_loss

__all__ = [
  "arcface",
  "bi_tempered",
  "bi_tempered_log_probs",
  "confidence_penalty",
  "consistency",
  "cosface",
  "cosine_log_probs",
  "deterministic_attention",
  "deterministic_dropmax",
  "deterministic_dropmax_terms",
  "discriminative_scores",
  "distillation",
  "dropmax",
  "dropmax_diagnostics",
  "dropmax_heads",
  "dropmax_log_mask",
  "dropmax_log_probs",
  "dropmax_mask",
  "dropmax_masked_logits",
  "dropmax_monte_carlo_log_probs",
  "dropmax_qp",
  "dropmax_qp_terms",
  "dropmax_terms",
  "entropy",
  "feature_groups",
  "fixed_scores",
  "focal",
  "group_softmax",
  "group_softmax_and_logits",
  "group_softmax_log_probs",
  "interleaved_scores",
  "jensen_shannon",
  "label_smoothing",
  "large_margin",
  "logit_adjustment",
  "multitask",
  "multitask_terms",
  "poly_loss",
  "posterior_scores",
  "pseudo_label",
  "r_drop",
  "random_dropmax",
  "random_dropmax_mask",
  "random_scores",
  "reconstruction",
  "rival_scores",
  "sample_classes",
  "sampled_softmax",
  "semi_supervised",
  "softmax_cross_entropy",
  "softmax_log_probs",
  "sparsemax",
  "sparsemax_log_probs",
  "sparsemax_probs",
  "uncertainty_weighting",
  "uncertainty_weighting_terms",
  "z_loss",
]

suggest_names(globals())

"""Losses per example: `([key,] logits, labels, *, ...) -> [batch]`, unreduced, in at least float32.

A loss on more than logits takes `(features, kernel, bias, labels, *, ...)`, or no `bias`. `<name>_log_probs`
is the prediction rule of the loss `<name>`, and `<name>_terms` returns its terms by name.

Labels are integers `[...]`. Losses that support soft labels also take probabilities `[..., classes]`, as
`augment.mixup` and `augment.cutmix` return them; the loss is then the mean of its values for the classes,
weighted by the probabilities. A loss of a single class refuses soft labels. A label out of range gives
NaN. It raises an error where its value is known: in a Python integer, in a NumPy array, and outside of `jit`
in a JAX array on the CPU.

`binary_*` and `asymmetric`, for yes-or-no labels, and `gaussian_nll`, `student_t_nll` and `pinball`, for real
targets, return a value per label or target.

`where` says which examples count: bool, of the shape of the result. The loss and its derivatives of the other
examples are exactly 0, even for a label of -1, NaN or padding. The mean over the examples that count is
`loss.sum() / where.sum()`. In Optax's softmax losses a `where` of the shape `[..., classes]` excludes classes
from the softmax. Here a logit of -inf does that.
"""

from jaxreg.losses._active_passive import active_passive
from jaxreg.losses._bi_tempered import bi_tempered, bi_tempered_log_probs
from jaxreg.losses._binary import (
  asymmetric,
  binary_confidence_penalty,
  binary_cross_entropy,
  binary_focal,
  binary_poly_loss,
)
from jaxreg.losses._class_weights import class_weights
from jaxreg.losses._confidence_penalty import confidence_penalty
from jaxreg.losses._consistency import consistency
from jaxreg.losses._cosface import arcface, cosface, cosine_log_probs
from jaxreg.losses._deterministic_attention import deterministic_attention
from jaxreg.losses._deterministic_dropmax import deterministic_dropmax, deterministic_dropmax_terms
from jaxreg.losses._distillation import distillation
from jaxreg.losses._dropmax import dropmax, dropmax_terms
from jaxreg.losses._dropmax_diagnostics import dropmax_diagnostics
from jaxreg.losses._dropmax_heads import dropmax_heads
from jaxreg.losses._dropmax_prediction import dropmax_log_probs
from jaxreg.losses._dropmax_qp import dropmax_qp, dropmax_qp_terms
from jaxreg.losses._entropy import entropy, pseudo_label
from jaxreg.losses._focal import focal
from jaxreg.losses._forward_correction import forward_correction, transition_matrix
from jaxreg.losses._generalized_cross_entropy import generalized_cross_entropy
from jaxreg.losses._group_softmax import group_softmax
from jaxreg.losses._jensen_shannon import jensen_shannon
from jaxreg.losses._label_smoothing import label_smoothing
from jaxreg.losses._large_margin import large_margin
from jaxreg.losses._linear import linear
from jaxreg.losses._logit_adjustment import logit_adjustment
from jaxreg.losses._multitask import (
  multitask,
  multitask_terms,
  uncertainty_weighting,
  uncertainty_weighting_terms,
)
from jaxreg.losses._poly_loss import poly_loss
from jaxreg.losses._r_drop import r_drop
from jaxreg.losses._random_dropmax import random_dropmax
from jaxreg.losses._reconstruction import reconstruction
from jaxreg.losses._regression import gaussian_nll, pinball, student_t_nll
from jaxreg.losses._sampled_softmax import sampled_softmax
from jaxreg.losses._semi_supervised import semi_supervised
from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs
from jaxreg.losses._sparsemax import sparsemax, sparsemax_log_probs
from jaxreg.losses._z_loss import z_loss

__all__ = [
  "active_passive",
  "arcface",
  "asymmetric",
  "bi_tempered",
  "bi_tempered_log_probs",
  "binary_confidence_penalty",
  "binary_cross_entropy",
  "binary_focal",
  "binary_poly_loss",
  "class_weights",
  "confidence_penalty",
  "consistency",
  "cosface",
  "cosine_log_probs",
  "deterministic_attention",
  "deterministic_dropmax",
  "deterministic_dropmax_terms",
  "distillation",
  "dropmax",
  "dropmax_diagnostics",
  "dropmax_heads",
  "dropmax_log_probs",
  "dropmax_qp",
  "dropmax_qp_terms",
  "dropmax_terms",
  "entropy",
  "focal",
  "forward_correction",
  "gaussian_nll",
  "generalized_cross_entropy",
  "group_softmax",
  "jensen_shannon",
  "label_smoothing",
  "large_margin",
  "linear",
  "logit_adjustment",
  "multitask",
  "multitask_terms",
  "pinball",
  "poly_loss",
  "pseudo_label",
  "r_drop",
  "random_dropmax",
  "reconstruction",
  "sampled_softmax",
  "semi_supervised",
  "softmax_cross_entropy",
  "softmax_log_probs",
  "sparsemax",
  "sparsemax_log_probs",
  "student_t_nll",
  "transition_matrix",
  "uncertainty_weighting",
  "uncertainty_weighting_terms",
  "z_loss",
]

"""Losses per example: `([key,] logits, labels, *, ...) -> [batch]`, unreduced, in at least float32.

A loss on more than logits takes `(features, kernel, bias, labels, *, ...)`, without `bias` if it has none.
The prediction rule of a loss stands beside it as `<name>_log_probs`.

Labels are integers `[...]`. Losses that support soft labels also take probabilities `[..., classes]`, as
`augment.mixup` and `augment.cutmix` return them; the loss is then the mean of its values for the classes,
weighted by the probabilities. A loss that needs one class refuses soft labels. A label out of range gives
NaN, or raises if it is known: in a Python integer, a NumPy array, or outside of `jit` a JAX array on the CPU.

Losses of labels that are each yes or no, `binary_*` and `asymmetric`, and of real targets, `gaussian_nll`,
`student_t_nll` and `pinball`, give a value for each label or target.

`where` says which examples count: bool, of the shape of the result. Elsewhere the loss and its derivatives
are exactly 0, whatever stands there: a label of -1, NaN, padding. The mean over the examples that count is
`loss.sum() / where.sum()`. The `where` of Optax's softmax losses may also be `[..., classes]`: it takes
classes out of the softmax. Here a logit of -inf does that.
"""

from jaxreg._names import suggest_names
from jaxreg.losses._bi_tempered import bi_tempered as bi_tempered
from jaxreg.losses._bi_tempered import bi_tempered_log_probs as bi_tempered_log_probs
from jaxreg.losses._binary import asymmetric as asymmetric
from jaxreg.losses._binary import binary_confidence_penalty as binary_confidence_penalty
from jaxreg.losses._binary import binary_cross_entropy as binary_cross_entropy
from jaxreg.losses._binary import binary_distillation as binary_distillation
from jaxreg.losses._binary import binary_focal as binary_focal
from jaxreg.losses._binary import binary_logit_adjustment as binary_logit_adjustment
from jaxreg.losses._binary import binary_poly_loss as binary_poly_loss
from jaxreg.losses._class_weights import class_weights as class_weights
from jaxreg.losses._confidence_penalty import confidence_penalty as confidence_penalty
from jaxreg.losses._consistency import consistency as consistency
from jaxreg.losses._cosface import arcface as arcface
from jaxreg.losses._cosface import cosface as cosface
from jaxreg.losses._cosface import cosine_log_probs as cosine_log_probs
from jaxreg.losses._deterministic_attention import deterministic_attention as deterministic_attention
from jaxreg.losses._deterministic_dropmax import deterministic_dropmax as deterministic_dropmax
from jaxreg.losses._distillation import distillation as distillation
from jaxreg.losses._dropmax import dropmax as dropmax
from jaxreg.losses._dropmax import dropmax_terms as dropmax_terms
from jaxreg.losses._dropmax_diagnostics import dropmax_diagnostics as dropmax_diagnostics
from jaxreg.losses._dropmax_heads import dropmax_heads as dropmax_heads
from jaxreg.losses._dropmax_prediction import dropmax_log_probs as dropmax_log_probs
from jaxreg.losses._dropmax_qp import dropmax_qp as dropmax_qp
from jaxreg.losses._entropy import entropy as entropy
from jaxreg.losses._entropy import pseudo_label as pseudo_label
from jaxreg.losses._focal import focal as focal
from jaxreg.losses._group_softmax import group_softmax as group_softmax
from jaxreg.losses._jensen_shannon import jensen_shannon as jensen_shannon
from jaxreg.losses._label_smoothing import label_smoothing as label_smoothing
from jaxreg.losses._large_margin import large_margin as large_margin
from jaxreg.losses._linear import linear as linear
from jaxreg.losses._logit_adjustment import logit_adjustment as logit_adjustment
from jaxreg.losses._multitask import multitask as multitask
from jaxreg.losses._multitask import uncertainty_weighting as uncertainty_weighting
from jaxreg.losses._poly_loss import poly_loss as poly_loss
from jaxreg.losses._r_drop import r_drop as r_drop
from jaxreg.losses._random_dropmax import random_dropmax as random_dropmax
from jaxreg.losses._reconstruction import reconstruction as reconstruction
from jaxreg.losses._regression import gaussian_nll as gaussian_nll
from jaxreg.losses._regression import pinball as pinball
from jaxreg.losses._regression import student_t_nll as student_t_nll
from jaxreg.losses._sampled_softmax import sampled_softmax as sampled_softmax
from jaxreg.losses._semi_supervised import semi_supervised as semi_supervised
from jaxreg.losses._softmax import softmax_cross_entropy as softmax_cross_entropy
from jaxreg.losses._softmax import softmax_log_probs as softmax_log_probs
from jaxreg.losses._sparsemax import sparsemax as sparsemax
from jaxreg.losses._sparsemax import sparsemax_log_probs as sparsemax_log_probs
from jaxreg.losses._z_loss import z_loss as z_loss

suggest_names(globals())

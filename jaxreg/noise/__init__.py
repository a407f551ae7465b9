"""Stochastic layers as functions: `(key, x, *, rate | std | ...) -> x`, in the dtype of `x`.

What multiplies weights takes them too: `dropconnect(key, x, kernel, ...)`, and `weight_noise`,
`dropconnect_params` and `rnn_weight_noise` a tree of parameters in place of `x`. What is learnt has its cost
beside it: `concrete_dropout_kl`, `variational_dropout_kl`.
"""

from jaxreg.noise._alpha_dropout import alpha_dropout
from jaxreg.noise._concrete_dropout import concrete_dropout, concrete_dropout_kl
from jaxreg.noise._drop_block import drop_block, drop_block_mask
from jaxreg.noise._dropconnect import dropconnect, dropconnect_moments, dropconnect_params
from jaxreg.noise._dropout import dropout, dropout_mask, dropout_mean
from jaxreg.noise._gaussian_dropout import gaussian_dropout
from jaxreg.noise._gaussian_noise import gaussian_noise
from jaxreg.noise._label_noise import label_noise
from jaxreg.noise._recurrent_dropout import recurrent_dropout
from jaxreg.noise._rnn_weight_noise import rnn_weight_noise, rnn_weight_noise_init
from jaxreg.noise._shake_shake import shake_drop, shake_shake
from jaxreg.noise._spatial_dropout import spatial_dropout
from jaxreg.noise._stochastic_depth import stochastic_depth
from jaxreg.noise._token_dropout import token_dropout, token_dropout_indices
from jaxreg.noise._variational_dropout import variational_dropout, variational_dropout_kl
from jaxreg.noise._weight_noise import weight_noise
from jaxreg.noise._weight_scaling import scale_weights

__all__ = [
  "alpha_dropout",
  "concrete_dropout",
  "concrete_dropout_kl",
  "drop_block",
  "drop_block_mask",
  "dropconnect",
  "dropconnect_moments",
  "dropconnect_params",
  "dropout",
  "dropout_mask",
  "dropout_mean",
  "gaussian_dropout",
  "gaussian_noise",
  "label_noise",
  "recurrent_dropout",
  "rnn_weight_noise",
  "rnn_weight_noise_init",
  "scale_weights",
  "shake_drop",
  "shake_shake",
  "spatial_dropout",
  "stochastic_depth",
  "token_dropout",
  "token_dropout_indices",
  "variational_dropout",
  "variational_dropout_kl",
  "weight_noise",
]


def __dir__() -> list[str]:
  return __all__

"""Stochastic layers as functions: `(key, x, *, rate | std | ...) -> x`, in the dtype of `x`.

`layer` turns a function into a layer that Equinox models can hold; Flax has `models.Noise` for Linen and
`models.NNXNoise`. The KL of a learned rate or variance has a function of its own: `concrete_dropout_kl`,
`variational_dropout_kl`.

Without a key (`key=None`) nothing is drawn: `f(None, x, ...)` is `x`, so a loss that gets `key=None` has no
noise. Then `dropconnect` is the plain layer, and `shake_shake` the mean of its branches. No test-time factor
is applied: with `inverted=False` multiply by `1 - rate`, or call `scale_weights`.

Functions that multiply weights take the weights too: `dropconnect(key, x, kernel, ...)`. `weight_noise`,
`dropconnect_params` and `rnn_weight_noise` take a tree of parameters in place of `x`.
"""

from jaxreg.noise._alpha_dropout import alpha_dropout
from jaxreg.noise._concrete_dropout import concrete_dropout, concrete_dropout_kl
from jaxreg.noise._drop_block import drop_block
from jaxreg.noise._dropconnect import dropconnect, dropconnect_params
from jaxreg.noise._dropout import dropout
from jaxreg.noise._embedding_noise import embedding_noise
from jaxreg.noise._gaussian_noise import gaussian_dropout, gaussian_noise
from jaxreg.noise._label_noise import label_noise
from jaxreg.noise._layer import layer
from jaxreg.noise._rnn_weight_noise import rnn_weight_noise, rnn_weight_noise_init
from jaxreg.noise._shake_shake import shake_drop, shake_shake
from jaxreg.noise._structured_dropout import (
  drop_path_rates,
  recurrent_dropout,
  spatial_dropout,
  stochastic_depth,
)
from jaxreg.noise._token_dropout import token_dropout
from jaxreg.noise._variational_dropout import variational_dropout, variational_dropout_kl
from jaxreg.noise._weight_noise import weight_noise
from jaxreg.noise._weight_scaling import scale_weights

__all__ = [
  "alpha_dropout",
  "concrete_dropout",
  "concrete_dropout_kl",
  "drop_block",
  "drop_path_rates",
  "dropconnect",
  "dropconnect_params",
  "dropout",
  "embedding_noise",
  "gaussian_dropout",
  "gaussian_noise",
  "label_noise",
  "layer",
  "recurrent_dropout",
  "rnn_weight_noise",
  "rnn_weight_noise_init",
  "scale_weights",
  "shake_drop",
  "shake_shake",
  "spatial_dropout",
  "stochastic_depth",
  "token_dropout",
  "variational_dropout",
  "variational_dropout_kl",
  "weight_noise",
]

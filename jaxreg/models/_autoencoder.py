"""An autoencoder with one hidden layer, denoising if its inputs or hidden units are noisy."""

import functools
import math

from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import acts
from jaxreg.models._hidden_noise import dropped
from jaxreg.models._layers import flatten, initializers
from jaxreg.typing import Array


class Autoencoder(nn.Module):
  """One hidden layer and back: `[batch, ...] -> {"hidden": [batch, width], "outputs": [batch, ...]}`.

  The hidden units are rectified, and returned before dropout. The outputs are affine: means of a Gaussian or
  logits, for `losses.reconstruction`. On images of 784 pixels and with its defaults this is the lecture's
  784-256 autoencoder of MNIST; `dropout_rate=0.5` gives the one that the lecture compares it with. With noise
  on the inputs it is a denoising autoencoder, which reconstructs the clean inputs.

  Attributes:
    width: number of hidden units.
    dropout_rate: probability of dropping a hidden unit in training.
    input_dropout_rate: probability of dropping an input in training, masking noise without rescaling.
    input_noise: standard deviation of Gaussian noise on the inputs in training.
    tied: whether the decoder's kernel is the encoder's, transposed; the decoder keeps its own bias.
    initializer: `glorot` or `tutorial`.

  References:
    Vincent et al., `Extracting and Composing Robust Features with Denoising Autoencoders`, 2008.
    Srivastava et al., `Dropout: A Simple Way to Prevent Neural Networks from Overfitting`, 2014.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, effect on features.
  """

  width: int = 256
  dropout_rate: float = 0.0
  input_dropout_rate: float = 0.0
  input_noise: float = 0.0
  tied: bool = False
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> dict[str, Array]:
    init = initializers(self.initializer)
    masking = functools.partial(noise.dropout, inverted=False)
    inputs = dropped(self, flatten(x), self.input_dropout_rate, train=train, function=masking)
    if train and acts(self.input_noise):
      inputs = noise.gaussian_noise(self.make_rng("dropout"), inputs, std=self.input_noise)
    encoder = nn.Dense(self.width, name="encoder", **init)
    hidden = nn.relu(encoder(inputs))
    kept = dropped(self, hidden, self.dropout_rate, train=train)
    if self.tied:
      bias = self.param("decoder_bias", init["bias_init"], inputs.shape[-1:])
      outputs = kept @ encoder.variables["params"]["kernel"].T + bias[None]
    else:
      outputs = nn.Dense(math.prod(x.shape[1:]), name="decoder", **init)(kept)
    return {"hidden": hidden, "outputs": outputs.reshape(x.shape)}

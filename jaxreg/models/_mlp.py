"""A multi-layer perceptron."""

from collections.abc import Sequence

from flax import linen as nn

from jaxreg import noise
from jaxreg._checks import check_choice
from jaxreg._errors import ArgumentError
from jaxreg._initializers import initializers
from jaxreg.models._dense import KINDS, Dense
from jaxreg.models._hidden_noise import dropped, noisy
from jaxreg.models._layers import flatten
from jaxreg.typing import Array


class MLP(nn.Module):
  """Dense layers with an activation and dropout, on flattened inputs: `[batch, ...] -> [batch, widths[-1]]`.

  Attributes:
    widths: units of each hidden layer.
    dropout_rate: probability of dropping a hidden unit, after each layer.
    input_dropout_rate: probability of dropping an input.
    initializer: `glorot`, `tutorial` or `lecun`.
    dropout_rates: instead of `dropout_rate`, one rate per hidden layer, 0 for none.
    dropout: the function of `jaxreg.noise` on the hidden units: `dropout`, `gaussian_dropout`, or with
      `activation="selu"` `alpha_dropout`.
    activation: `relu`, `selu`, `tanh` or `sigmoid`.
    hidden_noise_std: standard deviation of Gaussian noise on the output of each hidden layer in training.
    layer: `dense`, or a kind of `Dense`.
  """

  widths: Sequence[int] = (256, 256)
  dropout_rate: float = 0.0
  input_dropout_rate: float = 0.0
  initializer: str = "glorot"
  dropout_rates: Sequence[float] = ()
  dropout: str = "dropout"
  activation: str = "relu"
  layer: str = "dense"
  hidden_noise_std: float = 0.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if min(self.widths, default=1) < 1:
      raise ArgumentError("widths", f"must be at least 1, got {tuple(self.widths)}")
    rates = self.dropout_rates or [self.dropout_rate] * len(self.widths)
    if len(rates) != len(self.widths) or (self.dropout_rates and self.dropout_rate):
      raise ArgumentError(
        "dropout_rates",
        f"must be empty or hold one rate for each of the {len(self.widths)} hidden layers "
        f"with dropout_rate 0, got {tuple(self.dropout_rates)} and dropout_rate {self.dropout_rate}",
      )
    check_choice(self.dropout, "dropout", ("dropout", "gaussian_dropout", "alpha_dropout"))
    check_choice(self.activation, "activation", ("relu", "selu", "tanh", "sigmoid"))
    check_choice(self.layer, "layer", ("dense", *KINDS))
    x = dropped(self, flatten(x), self.input_dropout_rate, train=train)
    for number, (width, rate) in enumerate(zip(self.widths, rates)):
      name = f"Dense_{number}"  # layers of every kind have the same names
      if self.layer == "dense":
        x = nn.Dense(width, **initializers(self.initializer), name=name)(x)
      else:
        x = Dense(width, self.layer, self.initializer, name=name)(x, train=train)
      x = getattr(nn, self.activation)(x)
      x = dropped(self, x, rate, train=train, function=getattr(noise, self.dropout))
      x = noisy(self, x, train=train)
    return x

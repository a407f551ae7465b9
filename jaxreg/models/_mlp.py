"""A multi-layer perceptron."""

from collections.abc import Sequence

from flax import linen as nn

from jaxreg import noise
from jaxreg.models._layers import flatten, initializers
from jaxreg.typing import Array


class MLP(nn.Module):
  """Dense layers with ReLU and dropout, on flattened inputs: `[batch, ...] -> [batch, widths[-1]]`.

  Attributes:
    widths: units of each hidden layer.
    dropout_rate: probability of dropping a hidden unit, after each layer.
    input_dropout_rate: probability of dropping an input.
    initializer: `glorot` or `tutorial`.
    dropout_rates: instead of `dropout_rate`, one for each hidden layer, 0 for none.
    dropout: on the hidden units, the function of `jaxreg.noise`: `dropout`, `gaussian_dropout`.

  Raises:
    ValueError: if a width is below 1, or there are rates but not one for each layer, or both kinds of them,
      or for another `dropout`.
  """

  widths: Sequence[int] = (256, 256)
  dropout_rate: float = 0.0
  input_dropout_rate: float = 0.0
  initializer: str = "glorot"
  dropout_rates: Sequence[float] = ()
  dropout: str = "dropout"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if min(self.widths, default=1) < 1:
      raise ValueError(f"widths must be at least 1, got {tuple(self.widths)}")
    rates = self.dropout_rates or [self.dropout_rate] * len(self.widths)
    if len(rates) != len(self.widths) or (self.dropout_rates and self.dropout_rate):
      raise ValueError(
        f"dropout_rates must be empty or, without a dropout_rate, a rate for each of the {len(self.widths)} "
        f"hidden layers, got {tuple(self.dropout_rates)} and dropout_rate {self.dropout_rate}"
      )
    if self.dropout not in ("dropout", "gaussian_dropout"):
      raise ValueError(f"dropout must be 'dropout' or 'gaussian_dropout', got {self.dropout!r}")
    x = flatten(x)
    if train and self.input_dropout_rate:
      x = noise.dropout(self.make_rng("dropout"), x, rate=self.input_dropout_rate)
    for width, rate in zip(self.widths, rates):
      x = nn.relu(nn.Dense(width, **initializers(self.initializer))(x))
      if train and rate:
        x = getattr(noise, self.dropout)(self.make_rng("dropout"), x, rate=rate)
    return x

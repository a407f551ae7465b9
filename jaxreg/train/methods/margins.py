"""Softmax of cosines, with a margin for the target."""

from jaxreg import losses, models
from jaxreg.train.methods.method import Method

METHODS = {
  "cosface": Method(
    models.CosineHead, losses.cosface, losses.cosine_log_probs, terms=("cosface",), shared=("scale",)
  ),
  "arcface": Method(
    models.CosineHead, losses.arcface, losses.cosine_log_probs, terms=("arcface",), shared=("scale",)
  ),
}

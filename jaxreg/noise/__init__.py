"""Stochastic layers as functions: `(key, x, *, rate | std | ...) -> x`, in the dtype of `x`."""

from jaxreg.noise._dropout import dropout, dropout_mask, dropout_mean

__all__ = ["dropout", "dropout_mask", "dropout_mean"]

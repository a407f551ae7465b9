"""Sparse codes: `(dictionary, x, *, num_nonzero) -> code`, so that a few columns explain an input."""

from jaxreg.sparse._omp import omp
from jaxreg.sparse._topk import topk_code

__all__ = ["omp", "topk_code"]


def __dir__() -> list[str]:
  return __all__

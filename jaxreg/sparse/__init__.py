"""Sparse codes: `(dictionary, x, *, num_nonzero) -> code`, so that a few columns explain an input."""

from jaxreg._names import suggest_names
from jaxreg.sparse._omp import omp
from jaxreg.sparse._topk import topk_code

__all__ = ["omp", "topk_code"]

suggest_names(globals())

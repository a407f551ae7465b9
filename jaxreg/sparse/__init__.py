"""Sparse codes: `(dictionary, x, *, num_nonzero) -> code`, which explain an input by a few columns.

These files import JAX, Optax, NumPy and the core only.
"""

from jaxreg._names import suggest_names
from jaxreg.sparse._omp import omp
from jaxreg.sparse._topk import topk_code

__all__ = ["omp", "topk_code"]

suggest_names(globals())

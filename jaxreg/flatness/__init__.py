"""Flatness of minima and structure of noise: `(loss_fn, params, ..., batch, *, key, mask) -> analysis`.

Which function to use:

- `Curvature`: a network, any data (batches, a loader, several devices) and all analyses as methods.
- `hvp`: the Hessian as a function of a vector, for compiled code of your own.
- `hessian`: the whole matrix of a model with few parameters.

These functions work on any pytree of parameters and any `loss_fn(params, batch, *, key) -> scalar`, with
`key=None` for no noise. If some examples do not count, the loss must return `(mean, count)`; then functions
that merge batches or chunks weight them by their counts. `mask` selects parameters; directions and samples
are rows in the order of `subset(params, mask).flat`. Parameters and data in float16 or bfloat16 are widened
to float32. Use `chunked(loss_fn, chunk_size)` if a data set is too large for one pass.
"""

from jaxreg.flatness._chunked import chunked
from jaxreg.flatness._covariance import (
  hessian_variance_alignment,
  noise_covariance,
  principal_components,
  projected_variance,
)
from jaxreg.flatness._curvature import Curvature
from jaxreg.flatness._eigen import damped_solve, spectral_density, top_eigenpairs
from jaxreg.flatness._jacobians import gauss_newton_diagonal, gauss_newton_matrix
from jaxreg.flatness._layers import KroneckerBlock, kfac, layerwise
from jaxreg.flatness._noise import (
  per_example_noise_covariance,
  sample_gradients,
  sample_noise_by_parts,
)
from jaxreg.flatness._operators import fisher, gauss_newton, hessian, hvp
from jaxreg.flatness._power_law import broken_power_law_fit, power_law_fit
from jaxreg.flatness._profiles import (
  filter_normalized_direction,
  loss_profile,
  loss_surface,
  trajectory_plane,
)
from jaxreg.flatness._sharpness import interval_flatness, sam_sharpness
from jaxreg.flatness._subset import subset
from jaxreg.flatness._trace import operator_diagonal, operator_trace
from jaxreg.flatness._update import gradient_noise_scale, update_sharpness

__all__ = [
  "Curvature",
  "KroneckerBlock",
  "broken_power_law_fit",
  "chunked",
  "damped_solve",
  "filter_normalized_direction",
  "fisher",
  "gauss_newton",
  "gauss_newton_diagonal",
  "gauss_newton_matrix",
  "gradient_noise_scale",
  "hessian",
  "hessian_variance_alignment",
  "hvp",
  "interval_flatness",
  "kfac",
  "layerwise",
  "loss_profile",
  "loss_surface",
  "noise_covariance",
  "operator_diagonal",
  "operator_trace",
  "per_example_noise_covariance",
  "power_law_fit",
  "principal_components",
  "projected_variance",
  "sam_sharpness",
  "sample_gradients",
  "sample_noise_by_parts",
  "spectral_density",
  "subset",
  "top_eigenpairs",
  "trajectory_plane",
  "update_sharpness",
]

"""Flatness of minima and structure of noise: `(loss_fn, params, ..., batch, *, key, where) -> analysis`.

These functions work on any pytree of parameters and any `loss_fn(params, batch, *, key) -> scalar`, with
`key=None` for no noise. `where` selects parameters by name; directions and samples are rows in the order of
`subset(params, where).flat`. Parameters and data in float16 or bfloat16 are widened to float32. Use
`chunked(loss_fn, chunk_size)` if a data set is too large for one pass.
These files import JAX, Optax, NumPy and the core only; stochastic traces import matfree when called: `pip
install jaxreg[flatness]`.
"""

from jaxreg._names import suggest_names
from jaxreg.flatness._chunked import chunked
from jaxreg.flatness._covariance import (
  PrincipalComponents,
  noise_covariance,
  principal_components,
  projected_variance,
)
from jaxreg.flatness._curvature import Curvature
from jaxreg.flatness._damped_solve import Solution, damped_solve
from jaxreg.flatness._dense import (
  DenseBlock,
  dense_hessian,
  dense_interval_flatness,
  dense_noise_covariance,
)
from jaxreg.flatness._directions import filter_normalized_direction, loss_profile, loss_surface
from jaxreg.flatness._fisher import Fisher, empirical_fisher, fisher
from jaxreg.flatness._gauss_newton_diagonal import gauss_newton_diagonal
from jaxreg.flatness._gauss_newton_matrix import gauss_newton_matrix
from jaxreg.flatness._hutchinson import Estimate, operator_diagonal
from jaxreg.flatness._interval import IntervalFlatness, interval_flatness
from jaxreg.flatness._kfac import KroneckerBlock, kfac
from jaxreg.flatness._lanczos import (
  EigenPairs,
  SpectralDensity,
  operator_trace,
  spectral_density,
  top_eigenpairs,
)
from jaxreg.flatness._layerwise import Layerwise, layerwise
from jaxreg.flatness._lazy import LazySamples, lazy_gradients, lazy_trajectory
from jaxreg.flatness._noise import per_example_noise_covariance
from jaxreg.flatness._noise_by_parts import sample_noise_by_parts
from jaxreg.flatness._operators import GaussNewton, Hessian, gauss_newton, hessian, hvp, materialize
from jaxreg.flatness._power_law import BrokenPowerLaw, PowerLaw, broken_power_law_fit, power_law_fit
from jaxreg.flatness._relations import Alignment, hessian_variance_alignment
from jaxreg.flatness._samples import sample_gradients, sample_trajectory
from jaxreg.flatness._sharpness import keskar_sharpness, sam_sharpness
from jaxreg.flatness._subset import Subset, subset
from jaxreg.flatness._theorems import (
  dropout_covariance,
  dropout_covariance_exact,
  dropout_hessian,
  expected_dropout_loss,
  loewner_bounds,
)
from jaxreg.flatness._trajectory_plane import Plane, trajectory_plane

__all__ = [
  "Alignment",
  "BrokenPowerLaw",
  "Curvature",
  "DenseBlock",
  "EigenPairs",
  "Estimate",
  "Fisher",
  "GaussNewton",
  "Hessian",
  "IntervalFlatness",
  "KroneckerBlock",
  "Layerwise",
  "LazySamples",
  "Plane",
  "PowerLaw",
  "PrincipalComponents",
  "Solution",
  "SpectralDensity",
  "Subset",
  "broken_power_law_fit",
  "chunked",
  "damped_solve",
  "dense_hessian",
  "dense_interval_flatness",
  "dense_noise_covariance",
  "dropout_covariance",
  "dropout_covariance_exact",
  "dropout_hessian",
  "empirical_fisher",
  "expected_dropout_loss",
  "filter_normalized_direction",
  "fisher",
  "gauss_newton",
  "gauss_newton_diagonal",
  "gauss_newton_matrix",
  "hessian",
  "hessian_variance_alignment",
  "hvp",
  "interval_flatness",
  "keskar_sharpness",
  "kfac",
  "layerwise",
  "lazy_gradients",
  "lazy_trajectory",
  "loewner_bounds",
  "loss_profile",
  "loss_surface",
  "materialize",
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
  "sample_trajectory",
  "spectral_density",
  "subset",
  "top_eigenpairs",
  "trajectory_plane",
]

suggest_names(globals())

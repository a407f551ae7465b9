"""Flatness of minima and structure of noise: `(loss_fn, params, ..., batch, *, key, mask) -> analysis`.

Which curvature to take:

- `Curvature`: a network, any data (batches, a loader, several devices) and all analyses as methods.
- `hvp`: the Hessian as a function of a vector, for compiled code of your own.
- `hessian`: the whole matrix of a model with few parameters.

These functions work on any pytree of parameters and any `loss_fn(params, batch, *, key) -> scalar`, with
`key=None` for no noise. `mask` selects parameters; directions and samples are rows in the order of
`subset(params, mask).flat`. Parameters and data in float16 or bfloat16 are widened to float32. Use
`chunked(loss_fn, chunk_size)` if a data set is too large for one pass.
Stochastic traces need matfree: `pip install jaxreg[flatness]`.
"""

from jaxreg._names import suggest_names
from jaxreg.flatness._batches import chunked as chunked
from jaxreg.flatness._covariance import hessian_variance_alignment as hessian_variance_alignment
from jaxreg.flatness._covariance import noise_covariance as noise_covariance
from jaxreg.flatness._covariance import principal_components as principal_components
from jaxreg.flatness._covariance import projected_variance as projected_variance
from jaxreg.flatness._curvature import Curvature as Curvature
from jaxreg.flatness._eigen import damped_solve as damped_solve
from jaxreg.flatness._eigen import spectral_density as spectral_density
from jaxreg.flatness._eigen import top_eigenpairs as top_eigenpairs
from jaxreg.flatness._jacobians import gauss_newton_diagonal as gauss_newton_diagonal
from jaxreg.flatness._jacobians import gauss_newton_matrix as gauss_newton_matrix
from jaxreg.flatness._layers import DenseBlock as DenseBlock
from jaxreg.flatness._layers import DenseLayer as DenseLayer
from jaxreg.flatness._layers import KroneckerBlock as KroneckerBlock
from jaxreg.flatness._layers import kfac as kfac
from jaxreg.flatness._layers import layerwise as layerwise
from jaxreg.flatness._noise import per_example_noise_covariance as per_example_noise_covariance
from jaxreg.flatness._noise import sample_gradients as sample_gradients
from jaxreg.flatness._noise import sample_noise_by_parts as sample_noise_by_parts
from jaxreg.flatness._noise import sample_trajectory as sample_trajectory
from jaxreg.flatness._operators import fisher as fisher
from jaxreg.flatness._operators import gauss_newton as gauss_newton
from jaxreg.flatness._operators import hessian as hessian
from jaxreg.flatness._operators import hvp as hvp
from jaxreg.flatness._power_law import broken_power_law_fit as broken_power_law_fit
from jaxreg.flatness._power_law import power_law_fit as power_law_fit
from jaxreg.flatness._profiles import filter_normalized_direction as filter_normalized_direction
from jaxreg.flatness._profiles import loss_profile as loss_profile
from jaxreg.flatness._profiles import loss_surface as loss_surface
from jaxreg.flatness._profiles import trajectory_plane as trajectory_plane
from jaxreg.flatness._sharpness import interval_flatness as interval_flatness
from jaxreg.flatness._sharpness import keskar_sharpness as keskar_sharpness
from jaxreg.flatness._sharpness import sam_sharpness as sam_sharpness
from jaxreg.flatness._stationary_points import hessian_index as hessian_index
from jaxreg.flatness._stationary_points import landscape_constants as landscape_constants
from jaxreg.flatness._stationary_points import pl_ratio as pl_ratio
from jaxreg.flatness._subset import subset as subset
from jaxreg.flatness._trace import operator_diagonal as operator_diagonal
from jaxreg.flatness._trace import operator_trace as operator_trace

suggest_names(globals())

"""The one runner of the contract: every check on every case of every folder, each in its set.

A public function without a case fails here, unless `ELSEWHERE` names the file that tests it.
"""

import importlib
import inspect
import pathlib
import re

import cases_constraints
import cases_functions
import cases_losses
import cases_noise
import cases_optim
import cases_penalties
import cases_reparam
import chex
import contract
import pytest
from absl.testing import parameterized

from jaxreg import conformance

FOLDERS = (
  "losses",
  "noise",
  "penalties",
  "constraints",
  "reparam",
  "augment",
  "adversarial",
  "averaging",
  "ensembles",
  "calibration",
  "optim",
  "flatness",
  "objective",
)

# What no case calls: analyses (`flatness`), which run once and not in a step, and what has no
# array to map over. Each is tested in the file named, under its own transformations where they apply.
ELSEWHERE = {
  "averaging/test_swag.py": "averaging.swag",
  "calibration/test_detectors.py": "calibration.fit_detector",
  "calibration/test_more_calibration.py": "calibration.fit_temperature",
  "constraints/test_proximal_gradient.py": "constraints.proximal_gradient",
  "optim/test_fista_optimizer.py": "optim.fista",
  "constraints/test_lagrangian.py": "constraints.dual_init constraints.dual_step constraints.lagrangian",
  "ensembles/test_laplace.py": "ensembles.laplace",
  "flatness/test_chunked.py": "flatness.chunked",
  "flatness/test_covariance.py": "flatness.hessian_variance_alignment flatness.noise_covariance "
  "flatness.principal_components flatness.projected_variance",
  "flatness/test_curvature.py": "flatness.layerwise flatness.operator_diagonal",
  "flatness/test_eigen.py": "flatness.damped_solve flatness.spectral_density flatness.top_eigenpairs",
  "flatness/test_jacobians.py": "flatness.gauss_newton_diagonal flatness.gauss_newton_matrix",
  "flatness/test_flatness_layers.py": "flatness.kfac",
  "flatness/test_flatness_noise.py": "flatness.per_example_noise_covariance flatness.sample_gradients "
  "flatness.sample_noise_by_parts",
  "flatness/test_operators.py": "flatness.fisher flatness.gauss_newton flatness.hessian flatness.hvp",
  "flatness/test_power_law.py": "flatness.broken_power_law_fit flatness.power_law_fit",
  "flatness/test_profiles.py": "flatness.filter_normalized_direction flatness.loss_profile "
  "flatness.loss_surface flatness.trajectory_plane",
  "flatness/test_sharpness.py": "flatness.interval_flatness flatness.sam_sharpness",
  "flatness/test_subset.py": "flatness.subset",
  "flatness/test_trace.py": "flatness.operator_trace",
  "flatness/test_update.py": "flatness.gradient_noise_scale flatness.update_sharpness",
  "losses/test_class_weights.py": "losses.class_weights",
  "losses/test_forward_correction.py": "losses.transition_matrix",
  "losses/test_dropmax.py": "losses.deterministic_dropmax_terms losses.dropmax_qp_terms",
  "losses/test_multitask.py": "losses.multitask_terms losses.uncertainty_weighting_terms",
  "losses/test_linear.py": "losses.linear",
  "noise/test_label_noise.py": "noise.label_noise",
  "noise/test_structured_dropout.py": "noise.drop_path_rates",
  "noise/test_layer.py": "noise.layer",
  "noise/test_rnn_weight_noise.py": "noise.rnn_weight_noise_init",
  "objective/test_compose.py": "objective.example_term objective.penalty objective.perturbation",
  "test_sums.py": "calibration.merge",
}

DEFAULT, THOROUGH, SLOW = (), (pytest.mark.thorough,), (pytest.mark.slow,)

PLAIN = (*cases_losses.CASES, *cases_noise.CASES, *cases_reparam.CASES)
PARAMS = (*cases_penalties.CASES, *cases_constraints.CASES)
CALLED = cases_functions.CASES
CASES = (*contract.CASES, *PLAIN, *PARAMS, *CALLED)
# For the checks that compile a case once more: `PLAIN` is plain arithmetic, for which they are slow.
TABLE = (
  # check,                             contract.CASES, PLAIN, PARAMS, CALLED
  (contract.check_oracle, (DEFAULT, DEFAULT, THOROUGH, None)),
  (contract.check_oracle_of_two_axes, (THOROUGH, SLOW, SLOW, None)),
  (contract.check_float64, (THOROUGH, SLOW, THOROUGH, None)),
  (conformance.check_dtypes, (THOROUGH, THOROUGH, THOROUGH, THOROUGH)),
  (conformance.check_bfloat16_values, (SLOW, SLOW, SLOW, SLOW)),
  (conformance.check_vmap, (SLOW, SLOW, SLOW, SLOW)),
  (contract.check_sharded, (THOROUGH, THOROUGH, THOROUGH, THOROUGH)),
  (conformance.check_explicit_axes, (DEFAULT, THOROUGH, THOROUGH, THOROUGH)),
  (contract.check_explicit_axes_without_a_mesh, (THOROUGH, THOROUGH, THOROUGH, THOROUGH)),
  (contract.check_explicit_gradients, (THOROUGH, THOROUGH, THOROUGH, THOROUGH)),
  (contract.check_manual_axes, (THOROUGH, THOROUGH, THOROUGH, THOROUGH)),
  (conformance.check_keys, (DEFAULT, DEFAULT, None, SLOW)),
  (contract.check_no_key, (DEFAULT, DEFAULT, None, None)),
  (contract.check_rejections, (DEFAULT, DEFAULT, None, None)),
  (conformance.check_gradients, (THOROUGH, SLOW, THOROUGH, None)),
  (conformance.check_finite, (DEFAULT, DEFAULT, THOROUGH, THOROUGH)),
  (contract.check_second_derivatives, (THOROUGH, THOROUGH, THOROUGH, None)),
  (conformance.check_where, (THOROUGH, THOROUGH, None, None)),
  (contract.check_zero, (None, None, THOROUGH, None)),
)
CURVED = ("losses.", "noise.", "penalties.")
OF_OPTIM = (
  (cases_optim.check_fifty_steps, DEFAULT),
  (cases_optim.check_zero_gradients, THOROUGH),
  (cases_optim.check_jit_vmap_pmap_and_sharding, SLOW),
  (cases_optim.check_explicit_axes, THOROUGH),
  (cases_optim.check_mixed_dtypes, SLOW),
  (cases_optim.check_masks, SLOW),
  (cases_optim.check_injected_hyperparameters, SLOW),
  (cases_optim.check_accumulated_gradients, SLOW),
  (cases_optim.check_chains_and_unknown_extra_arguments, SLOW),
)
APPLIES = {
  # An example's inputs are what has no batch axis.
  "oracle_of_two_axes": lambda case: "gradient" not in case.function and "jacobian" not in case.function,
  "bfloat16_values": lambda case: case.function not in cases_functions.COMPUTE_NARROW,
  "keys": lambda case: case.keyed,
  # JAX itself refuses an eager gradient there, and arguments of which only the shape counts.
  "explicit_axes_without_a_mesh": lambda case: case.keyed and not case.function.startswith(contract.RULES),
  # Samplers of masks need their key.
  "no_key": lambda case: case.keyed and case.function.startswith("noise.") and case.output == "same",
  "gradients": lambda case: case.smooth and case.gradient,
  "finite": lambda case: case.smooth,
  "explicit_gradients": lambda case: case.smooth,
  "second_derivatives": lambda case: case.smooth and case.function.startswith(CURVED),
  "where": lambda case: case.function.startswith("losses.") and "where" in parameters(case.function),
  # A matrix has the size of what is selected, and path_sgd has a mask of its own.
  "masks": lambda row: row.masked,
}


def parameters(name):
  """The parameters of a function by name."""
  folder, _, function = name.rpartition(".")
  return inspect.signature(getattr(importlib.import_module(f"jaxreg.{folder}"), function)).parameters


# The cases of a function after its first one have other options of the same code.
FIRST = {case.function: case for case in reversed(CASES)}.values()


def rows():
  """`(check, case)` with the mark of its set."""
  for check, marks in TABLE:
    name = check.__name__.removeprefix("check_")
    for cases, mark in zip((contract.CASES, PLAIN, PARAMS, CALLED), marks):
      for case in cases if mark is not None else ():
        if APPLIES.get(name, lambda case: True)(case):
          own = name == "gradients" and case.function in contract.OWN_RULES
          other = mark == DEFAULT and case not in FIRST
          yield pytest.param(check, case, id=f"{name}-{case}", marks=THOROUGH if own or other else mark)
  for check, mark in OF_OPTIM:
    name = check.__name__.removeprefix("check_")
    for row in filter(APPLIES.get(name), cases_optim.CASES):
      yield pytest.param(check, row, id=f"{name}-optim.{row}", marks=mark)


# What the sources use: a call without the option is theirs.
OF_THE_SOURCE = {
  "losses.large_margin": {"weight": 0.3},
  "losses.focal": {"gamma": 2.0},
  "losses.label_smoothing": {"smoothing": 0.1},
  "losses.cosface": {"margin": 0.35, "scale": 64.0},
  "losses.arcface": {"margin": 0.5, "scale": 64.0},
  "adversarial.pgd": {"norm": "linf", "random_start": True},
  "augment.cutmix": {"alpha": 1.0},
  "augment.random_erasing": {"rate": 0.5, "area": (0.02, 0.4)},
  "noise.drop_block": {"block_size": 7},
  "optim.sam": {"rho": 0.05},
  "optim.asam": {"rho": 0.5, "eps": 0.01},
  "optim.gradient_noise": {"gamma": 0.55},
  "optim.sgld": {"temperature": 1.0},
}


@pytest.mark.parametrize("name", OF_THE_SOURCE)
def test_defaults_are_those_of_the_source(name):
  options = parameters(name)
  assert {option: options[option].default for option in OF_THE_SOURCE[name]} == OF_THE_SOURCE[name]


@pytest.mark.parametrize(("check", "case"), rows())
def test_contract(check, case):
  check(case)


def variants(cases, **which):
  """chex's variants of a compiled call."""

  class Variants(chex.TestCase):
    @chex.variants(**which)
    @parameterized.named_parameters(*((str(case), case) for case in cases))
    def test_gives_the_same(self, case):
      got = self.variant(case)(contract.make(case))
      contract.assert_same(case, got, contract.jitted(case)(contract.make(case)))

  return Variants


@pytest.mark.slow
class TestVariants(variants(CASES, with_jit=True, without_jit=True, with_device=True, with_pmap=True)):
  pass


def test_every_public_function_is_here_or_named_where_it_is():
  """A new function without a row, a case or a place in `ELSEWHERE` fails here, and so does one with two."""
  public = set()
  for folder in FOLDERS:
    module = importlib.import_module(f"jaxreg.{folder}")
    public |= {f"{folder}.{name}" for name in module.__all__ if not inspect.isclass(getattr(module, name))}
  elsewhere = [name for names in ELSEWHERE.values() for name in names.split()]
  cases = {case.function for case in CASES} | {f"optim.{row.name}" for row in cases_optim.CASES}
  assert not cases & set(elsewhere)
  assert len(elsewhere) == len(set(elsewhere))
  private = {name for name in cases if name.startswith("_")}  # rules of a loss that only the trainer names
  assert (cases - private) | set(elsewhere) == public


@pytest.mark.parametrize("file", ELSEWHERE)
def test_what_is_elsewhere_is_there(file):
  text = (pathlib.Path(__file__).parent / file).read_text()
  for name in ELSEWHERE[file].split():
    assert re.search(rf"\b{name.partition('.')[2]}\b", text), name

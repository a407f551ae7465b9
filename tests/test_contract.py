"""Every check of `contract.py` on every public function of the functional core."""

import importlib

import cases_calibration
import cases_losses
import cases_noise
import cases_reparam
import contract
import pytest
from contract import SHAPES, SUBPACKAGES

CASES = (*contract.CASES, *cases_losses.CASES, *cases_noise.CASES, *cases_reparam.CASES)
# Those whose derivative is written by hand.
OWN_RULES = ("losses.bi_tempered", "noise.shake_shake", "noise.shake_drop", "reparam.spectral_norm")
ELSEWHERE = cases_noise.ELSEWHERE | cases_calibration.ELSEWHERE | cases_losses.ELSEWHERE
KEYED = [case for case in CASES if case.keyed]
# Samplers of masks need their key.
NOISE = [case for case in KEYED if case.function.startswith("noise.") and case.output == "same"]
SMOOTH = [case for case in CASES if case.smooth]
DIFFERENTIABLE = [case for case in SMOOTH if case.gradient]


def later(cases, also=()):
  """For the checks that compile a case once more: slow for what is plain arithmetic, but `also` these."""
  plain = (*cases_losses.CASES, *cases_noise.CASES, *cases_reparam.CASES)
  slow = [c for c in plain if c.function not in also]
  return [pytest.param(c, marks=[pytest.mark.slow] if c in slow else []) for c in cases]


def test_every_public_function_has_a_case():
  public = {f"{s}.{name}" for s in SUBPACKAGES for name in importlib.import_module(f"jaxreg.{s}").__all__}
  assert {case.function for case in CASES} == public - ELSEWHERE


def test_every_public_name_exists():
  for subpackage in SUBPACKAGES:
    module = importlib.import_module(f"jaxreg.{subpackage}")
    assert all(callable(getattr(module, name)) for name in module.__all__)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_oracle(case):
  contract.check_oracle(case, SHAPES[0])


@pytest.mark.thorough
@pytest.mark.parametrize("case", later(CASES), ids=str)
def test_oracle_of_two_axes(case):
  contract.check_oracle(case, SHAPES[1])


@pytest.mark.thorough
@pytest.mark.parametrize("case", later(CASES), ids=str)
def test_float64(case):
  contract.check_float64(case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=str)
def test_dtypes(case):
  contract.check_dtypes(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bfloat16_values(case):
  contract.check_bfloat16_values(case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", later(CASES), ids=str)
def test_jit(case):
  contract.check_jit(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", later(CASES), ids=str)
def test_vmap_is_a_loop(case):
  contract.check_vmap(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pmap_is_a_loop(case):
  contract.check_pmap(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", later(CASES), ids=str)
def test_sharded_is_unsharded(case):
  contract.check_sharded(case)


@pytest.mark.parametrize("case", KEYED, ids=str)
def test_keys(case):
  contract.check_keys(case)


@pytest.mark.parametrize("case", NOISE, ids=str)
def test_without_a_key_there_is_no_noise(case):
  contract.check_no_key(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rejections(case):
  contract.check_rejections(case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", later(DIFFERENTIABLE, also=OWN_RULES), ids=str)
def test_gradients(case):
  contract.check_gradients(case)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_finite_at_extreme_logits(case):
  contract.check_finite(case)

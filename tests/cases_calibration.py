"""What of `jaxreg.calibration` the contract leaves to `calibration/test_more_calibration.py`.

A bin jumps with the values and a temperature has no gradient: what is left of the checks is made there, with
fewer compilations.
"""

ELSEWHERE = {
  f"calibration.{name}"
  for name in (
    "adaptive_bins",
    "classwise_bins",
    "classwise_ece",
    "fit_temperature",
    "mce",
    "reliability",
    "temper",
  )
}

"""The flatness of the minimum of your own run: loss profiles, variance over flatness and over curvature.

Command: python run.py --config configs/flatness.py --config.flatness.workdir=runs/dropout
         --config.flatness.mask="('backbone/Dense_1/*',)"
         after python run.py --config configs/toolbox_digits.py:dropout --workdir runs/dropout
         --config.optimizer.schedule.name=constant
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise
structure`, 2021, for any run of `run.py` with `job=train`. The run is not changed.

The default `where` takes all parameters. This is fine for the profile, and for `projected_variance` with
`eigenpairs`; variance over flatness needs a subset of some thousands at most. All analyses but the profile
and `layerwise` need a run that draws noise, such as dropout, with a learning rate above 0 past its end.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.job = "flatness"
  config.method.name = "softmax"
  config.flatness.workdir = "runs/dropout"
  config.flatness.analyses = ("profile", "projected_variance", "layerwise")
  config.flatness.projected_variance.eigenpairs = 50
  return config

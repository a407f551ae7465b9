"""How flat is the minimum of a run of yours: loss profiles, variance over flatness and over curvature.

Command: python run.py --config configs/flatness.py --config.flatness.workdir=runs/dropout
         --config.flatness.where="('backbone/Dense_1/*',)"
         after python run.py --config configs/toolbox_digits.py:dropout --workdir runs/dropout
         --config.optimizer.schedule.name=constant
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, for any run of `run.py`. `job=train` of its own config made it; nothing of it is changed.

The default `where` takes all parameters: fine for the profile, and for `projected_variance` with
`eigenpairs`; variance over flatness wants a subset of some thousands at most. But for the profile, the run
must draw noise, as dropout, and have a learning rate that is not 0 past its end.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.job = "flatness"
  config.method.name = "softmax"
  config.flatness.workdir = "runs/dropout"
  config.flatness.analyses = ("profile", "projected_variance")
  config.flatness.projected_variance.eigenpairs = 50
  return config

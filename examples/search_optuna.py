"""A search by Optuna: a trial trains longer while it is good; a killed search goes on with its trials.

Command, in one process at a time: pip install optuna && python examples/search_optuna.py TRIALS FOLDER
"""

import sys
from pathlib import Path

import optuna

from jaxreg import train

EPOCHS = (4, 8, 16)  # a trial that is worse than the median of the others at the same epoch ends there


def objective(trial: optuna.Trial) -> float:
  config = train.base_config()  # scikit-learn's digits
  config.method.name = "label_smoothing"
  config.optimizer.learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
  config.model.MLP.dropout_rate = trial.suggest_float("dropout_rate", 0.0, 0.8)
  config.method.label_smoothing.loss.smoothing = trial.suggest_float("smoothing", 0.0, 0.3)
  error = 1.0
  for config.epochs in EPOCHS:  # the same folder with more epochs: the run goes on from its checkpoint
    error = train.train(config, FOLDER / f"trial_{trial.number}")["val/error"]
    trial.report(error, config.epochs)
    if trial.should_prune():
      raise optuna.TrialPruned
  return error


TRIALS, FOLDER, State = int(sys.argv[1]), Path(sys.argv[2]), optuna.trial.TrialState
FOLDER.mkdir(parents=True, exist_ok=True)
study = optuna.create_study(storage=f"sqlite:///{FOLDER}/study.db", study_name="digits", load_if_exists=True)
study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # a seed of its own after each start
ended = study.get_trials(states=(State.COMPLETE, State.PRUNED))
killed = {str(each.params): each.params for each in study.get_trials(states=(State.RUNNING, State.FAIL))}
for params in killed.keys() - {str(each.params) for each in ended}:
  study.enqueue_trial(killed[params])
study.optimize(objective, n_trials=TRIALS - len(ended))
print(f"{study.best_value:.2%} of the validation digits are wrong with {study.best_params}")

"""What training ends in: errors on the digits, and the equilibrium of DropMax's retain probabilities."""

import jax
import numpy as np
import pytest
import runs
from scipy import optimize
from scipy.special import expit

from jaxreg.train.assemble.from_config import build
from jaxreg.train.data.dataset import DataSpec

pytestmark = pytest.mark.slow


def digits_error(tmp_path, *arguments):
  status, _, err = runs.run([*arguments, "--workdir", tmp_path / "run"], tmp_path)
  assert status == 0, err
  results = runs.table(tmp_path / "run" / "results.json")
  print(f"\n{' '.join(arguments)}: test error {results['test/error']:.2%}, NLL {results['test/nll']:.4f}")
  return results["test/error"]


def test_digits_over_five_seeds(tmp_path):
  errors = []
  for seed in range(5):
    (tmp_path / str(seed)).mkdir()
    errors.append(digits_error(tmp_path / str(seed), f"--config.seed={seed}"))
  assert len(set(errors)) > 1
  assert np.mean(errors) <= 0.04


def test_the_equilibrium_by_training():
  """On three clusters far apart the likelihood vanishes, and the other terms alone decide.

  Of the target, `-log rho + rho log rho + (1 - rho) log(1 - rho)` is least where `logit rho = 1 / rho`:
  0.782188. Of the others, with the posterior at 0, it is the mirror image, 0.217812. The posterior does not
  quite reach 0, because the divergence holds it back: the exact fixed point is solved for below.
  """
  random = np.random.default_rng(0)
  labels = np.arange(96) % 3
  angles = 2 * np.pi * labels / 3
  inputs = 5 * np.stack([np.cos(angles), np.sin(angles)], -1) + 0.02 * random.normal(size=(96, 2))
  batch = {
    "inputs": inputs.astype(np.float32),
    "labels": labels.astype(np.int32),
    "weights": np.ones(96, np.float32),
  }
  fields = {
    "model.MLP.widths": (),
    "model.MLP.dropout_rate": 0.0,
    "batch_size": 96,
    "optimizer.schedule.name": "cosine",
    "steps": 6000,
  }
  data = DataSpec(
    num_classes=3,
    input_shape=(2,),
    input_dtype="float32",
    scale=1.0,
    sizes={"train": 96},
  )
  config = runs.make_config(fields)
  program = build(config, data)

  @jax.jit
  def train(batch):
    state, history = jax.lax.scan(
      lambda state, _: program.train_step(state, batch), program.init(config.seed), length=program.num_steps
    )
    return state, jax.tree.map(lambda x: x[-500:], history)

  _, history = jax.device_get(train(batch))
  mean = {name: float(np.mean(total / count)) for name, (total, count) in history.items()}
  print(f"\n{mean}")
  assert mean["accuracy"] == 1
  assert mean["nll"] < 1e-2
  assert abs(mean["retain_target"] - 0.782188) < 0.01
  assert abs(mean["retain_nontarget"] - 0.217812) < 0.01

  def stationary(logits):
    prior, residual = logits
    rho, g = expit(prior), expit(prior + residual)
    return rho - g + rho * (1 - rho) * prior, expit(residual) + g * (1 - g) * residual

  prior, residual = optimize.fsolve(stationary, (-1.3, -3.5), xtol=1e-12)
  print(f"exact: rho_k {expit(prior):.6f}, g_k {expit(prior + residual):.6f}")
  assert abs(mean["retain_target"] - 0.782188) < 0.002
  assert abs(mean["retain_nontarget"] - expit(prior)) < 0.002
  assert abs(mean["posterior_nontarget"] - expit(prior + residual)) < 0.002

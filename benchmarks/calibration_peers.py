"""What other libraries compute from two sets of logits: the fixture of `tests/calibration/test_peers.py`.

    PYTHON benchmarks/calibration_peers.py FOLDER > tests/calibration/peers.json

PYTHON has probmetrics 1.3 with numba, dirichletcal 0.5.3, relplot 1.0.3, uncertainty-calibration 0.1.4,
netcal 1.4 and torch-uncertainty 0.13 with lightning, in an environment of its own. FOLDER has `mnist/` and
`networks/`. The logits are those of the nearest class mean on digits, and of a robust network on MNIST.
"""

import gzip
import json
import sys
import warnings
from pathlib import Path

import calibration
import numpy as np
import relplot
import torch
from dirichletcal.calib.fulldirichlet import FullDirichletCalibrator
from netcal.metrics import ECE
from netcal.scaling import TemperatureScaling
from probmetrics.calibrators import SMSCalibrator, SVSCalibrator, get_calibrator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty.metrics.classification import AUGRC, AURC
from torch_uncertainty.post_processing import TemperatureScaler

K, WEIGHT, BINS = 10, 0.02, 15


def digits():
  """Returns minus the squared distances to the class means of 500 digits, and labels, for 1290 others."""
  x, labels = load_digits(return_X_y=True)
  x = x / 16
  means = np.stack([x[:500][labels[:500] == k].mean(axis=0) for k in range(K)])
  logits = -np.square(x[:, None] - means).sum(axis=-1)
  return logits[500:1790], labels[500:1790], 600


def mnist(folder):
  """Returns the logits of CNN-A of alpha-beta-CROWN, and labels, for the first 3000 test images."""
  sys.path.insert(0, str(folder / "networks"))
  import nets

  images, labels = (
    np.frombuffer(
      gzip.decompress((folder / "mnist" / f"t10k-{name}-ubyte.gz").read_bytes()), np.uint8, offset=start
    )
    for name, start in (("images-idx3", 16), ("labels-idx1", 8))
  )
  x = torch.from_numpy(images.reshape(-1, 1, 28, 28)[:3000] / np.float32(255))
  tensors = nets.load(folder / "networks" / "abc_mnist_cnn_a_adv.npz")
  with torch.no_grad():
    logits = nets.forward("abc_mnist_cnn_a_adv", tensors, x)
  return logits.double().numpy(), labels[:3000].astype(np.int64), 1500


def nll(probs, labels):
  return -np.log(probs[np.arange(len(labels)), labels]).mean()


def computed(logits, labels, number):
  """Returns the peers' results: maps are fitted to the first `number` examples, the rest is measured."""
  log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
  probs = np.exp(log_probs)
  fit, test = slice(number), slice(number, None)
  data = DataLoader(
    TensorDataset(torch.from_numpy(logits[fit]).float(), torch.from_numpy(labels[fit])), batch_size=number
  )
  results = {}
  scalar = get_calibrator("temp-scaling").fit(probs[fit], labels[fit])
  netcal = TemperatureScaling().fit(probs[fit], labels[fit], random_state=0)
  uncertainty = TemperatureScaler(lr=0.1, max_iter=200)
  uncertainty.fit(data, progress=False)
  results["temperature"] = {
    "probmetrics": 1 / scalar.invtemp_,
    "netcal": 1 / float(netcal.temperature[0]),  # its temperature multiplies
    "torch-uncertainty": float(uncertainty.temperature[0]),
  }
  # Their solvers, from the features that ours has.
  features, own = torch.from_numpy(log_probs[fit] * scalar.invtemp_), torch.from_numpy(labels[fit])
  kernel, bias = SVSCalibrator()._fit_bfgs(features, own, K, *[K / number] * 2)
  results["vector"] = {"kernel": kernel.tolist(), "bias": bias.tolist()}
  matrix = SMSCalibrator()._fit_bfgs(features, own, K, *[K / number] * 2, K * (K - 1) / number)
  results["matrix"] = {"kernel": matrix[:, :-1].T.tolist(), "bias": matrix[:, -1].tolist()}
  options = {"reg_lambda": WEIGHT, "reg_mu": WEIGHT, "reg_norm": True}
  for name, rows in (("dirichlet", False), ("dirichlet, last row 0", True)):
    full = FullDirichletCalibrator(ref_row=rows, **options).fit(probs[fit], labels[fit])
    weights = np.asarray(full.weights)
    results[name] = {"kernel": weights[:, :-1].T.tolist(), "bias": weights[:, -1].tolist()}
    results[name]["nll"] = nll(full.predict_proba(probs[test]), labels[test])
  results["end to end"] = {}
  for name in ("svs", "sms", "isotonic"):
    fitted = get_calibrator(name).fit(probs[fit], labels[fit])
    results["end to end"][name] = nll(np.maximum(fitted.predict_proba(probs[test]), 1e-6), labels[test])
  probs, labels = probs[test], labels[test]
  confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
  options = {"p": 2, "debias": True, "num_bins": BINS, "mode": "top-label"}
  of_width = {"binning_scheme": calibration.get_equal_prob_bins}
  results["errors"] = {
    "width": ECE(BINS).measure(probs, labels),
    "mass": calibration.get_ece_em(probs, labels, num_bins=BINS),
    "debiased, width": calibration.lower_bound_scaling_ce(probs, labels, **options, **of_width),
    "debiased, mass": calibration.lower_bound_scaling_ce(probs, labels, **options),
    "smooth": relplot.smECE(confidence, right.astype(float)),
  }
  for name, metric in {"aurc": AURC(), "augrc": AUGRC()}.items():
    metric.update(torch.from_numpy(probs), torch.from_numpy(labels))
    results["errors"][name] = float(metric.compute())
  return results


def rounded(results):
  if isinstance(results, dict):
    return {name: rounded(each) for name, each in results.items()}
  return [rounded(x) for x in results] if isinstance(results, list) else float(f"{float(results):.8g}")


def main() -> None:
  warnings.simplefilter("ignore")
  torch.manual_seed(0)
  sets = {"digits": digits(), "mnist": mnist(Path(sys.argv[1]))}
  lines = [f" {json.dumps(name)}: {json.dumps(rounded(computed(*each)))}" for name, each in sets.items()]
  print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
  main()

"""What `python -m jaxreg.conformance` says of the public losses of Optax and Keras.

    python benchmarks/conformance.py [--peer-python PYTHON]

Of each library these are the losses of predictions and labels that give a value for each example or label.
Where they want labels of -1 and 1, or probabilities, they get these. Keras runs on JAX in `--peer-python`,
which needs Keras, JAX and Optax.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
from _report import Report, flags

from jaxreg import conformance


def optax_losses() -> Iterator[tuple[str, str, Callable]]:
  from optax import losses

  signed = lambda f: lambda x, labels: f(x, 2 * labels - 1)
  # The `where` of these four says which classes or components count, not which examples.
  of_logits = lambda f: lambda x, labels: f(jax.nn.log_softmax(x), labels)
  all_classes = lambda f: lambda x, labels: f(x, labels)
  names = {
    "classes": "softmax_cross_entropy_with_integer_labels multiclass_hinge_loss multiclass_perceptron_loss "
    "multiclass_sparsemax_loss",
    "probabilities": "softmax_cross_entropy safe_softmax_cross_entropy poly_loss_cross_entropy kl_divergence "
    "generalized_kl_divergence",
    "binary": "sigmoid_binary_cross_entropy sigmoid_focal_loss sparsemax_loss hinge_loss",
    "numbers": "squared_error l2_loss huber_loss log_cosh cosine_distance",
  }
  for targets, of_kind in names.items():
    for name in of_kind.split():
      function = getattr(losses, name)
      function = of_logits(function) if "divergence" in name else function
      function = all_classes(function) if name in ("poly_loss_cross_entropy", "cosine_distance") else function
      yield name, targets, signed(function) if name == "hinge_loss" else function


def keras_losses() -> Iterator[tuple[str, str, Callable]]:
  from keras import losses

  logits = {"from_logits": True}
  softmax = {"activation": jax.nn.softmax}
  rows = {
    "classes": {"sparse_categorical_crossentropy": logits},
    "probabilities": {
      **{"categorical_crossentropy": logits, "categorical_focal_crossentropy": logits},
      **{"kl_divergence": softmax, "categorical_hinge": {}},
    },
    "binary": {"binary_crossentropy": logits, "binary_focal_crossentropy": logits},
    "numbers": {name: {} for name in ("mean_squared_error", "huber", "log_cosh", "cosine_similarity")},
  }

  def bound(function: Callable, options: dict) -> Callable:
    options = dict(options)
    activation = options.pop("activation", lambda x: x)
    return lambda y_true, y_pred: function(y_true, activation(y_pred), **options)

  for targets, of_kind in rows.items():
    for name, options in of_kind.items():
      yield name, targets, bound(getattr(losses, name), options)


LIBRARIES = {"optax": optax_losses, "keras": keras_losses}


def rows(library: str) -> Iterator[list[str]]:
  version = importlib.metadata.version(library)
  for name, targets, function in LIBRARIES[library]():
    found = conformance.check(function, targets=targets)
    failed = [f"{result.name}: {shown(result.what)}" for result in found if result.passes is False]
    ran = sum(result.passes is not None for result in found)
    yield [f"{library} {version}, `{name}`", targets, f"{ran - len(failed)} of {ran}", "; ".join(failed)]


def shown(text: str) -> str:
  return text.replace("|", "/").replace("<", "(").replace(">", ")")[:90]


def main() -> None:
  parser = flags(__doc__, rounds=1)
  parser.add_argument("--peer-python", default=sys.executable, help="a Python with Keras")
  parser.add_argument("--library", choices=LIBRARIES, help="only print its rows, a JSON list a line")
  options = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", 8)
  jax.config.update("jax_disable_most_optimizations", True)
  if options.library:
    for row in rows(options.library):
      print(json.dumps(row), flush=True)
    return
  report = Report(options.json)
  report.table("conformance", "function", "labels", "passes", "fails")
  for row in rows("optax"):
    report.row(*row)
  command = [options.peer_python, __file__, "--library", "keras"]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
    for line in peer.stdout or ():
      if line.startswith("["):
        report.row(*json.loads(line))
  if peer.returncode:
    print(f"no rows of Keras: {options.peer_python} ended with status {peer.returncode}", file=sys.stderr)
  report.close()


if __name__ == "__main__":
  main()

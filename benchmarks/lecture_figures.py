"""Draws the figures of the two lectures, one by its name or all of them, into docs/figures.

    python benchmarks/lecture_figures.py penalties
    python benchmarks/lecture_figures.py all --data DIR     # DIR: the four idx files of MNIST

The numbers that docs/lecture.md quotes are printed.
"""

import argparse
import time
from pathlib import Path

import _lecture_closed_forms as closed_forms
import _lecture_curves as curves
import _lecture_minima as minima
import _lecture_networks as networks
import _lecture_sizes as sizes

FIGURES = {
  "penalties": closed_forms.penalties,
  "early_stopping": closed_forms.early_stopping,
  "ellipses": closed_forms.ellipses,
  "ensemble": networks.ensemble,
  "learning_curves": curves.learning_curves,
  "gradient_variance": curves.gradient_variance,
}
ON_MNIST = {
  "fgsm": networks.fgsm,
  "autoencoder": networks.autoencoder,
  "mc_samples": networks.mc_samples,
  "weight_noise": minima.weight_noise,
  "network_sizes": sizes.network_sizes,
}
OUT = Path(__file__).resolve().parent.parent / "docs/figures"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("name", choices=[*FIGURES, *ON_MNIST, "all"])
  parser.add_argument("--data", default="data/mnist", help="folder of the four idx files of MNIST")
  parser.add_argument("--out", type=Path, default=OUT)
  arguments = parser.parse_args()
  arguments.out.mkdir(parents=True, exist_ok=True)
  for name in [*FIGURES, *ON_MNIST] if arguments.name == "all" else [arguments.name]:
    began, cpu = time.perf_counter(), time.process_time()
    print(f"{name}:", flush=True)
    figure = FIGURES[name]() if name in FIGURES else ON_MNIST[name](arguments.data)
    file = arguments.out / f"lecture_{name}.png"
    figure.savefig(file, dpi=100)
    spent = f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of processors"
    print(f"{file} ({spent})", flush=True)


if __name__ == "__main__":
  main()

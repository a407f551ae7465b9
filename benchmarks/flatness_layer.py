"""Curvature, noise covariance and interval flatness beside PyTorch, on the network of the paper on dropout.

    python benchmarks/flatness_layer.py [--rounds 5] [--parts hessian,convolution,noise,intervals,memory]
      [--steps 300] [--peer-python PYTHON] [--clock wall|cpu] [--quick]

The network of `flatness.py` and the 2550 parameters between its hidden layers; `convolution` has another
network. What is marked `~` timed some of its rows, samples or directions and was scaled up. The load of the
machine is printed with each part; on a busy one `--clock cpu` counts the seconds of all cores instead.
"""

from flatness import OF_ONE, main

if __name__ == "__main__":
  main(__doc__, OF_ONE, "wall")

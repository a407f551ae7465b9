"""Gradients and Hessian products of convolutions in a loop over chunks of a batch: JAX's function and ours.

    python benchmarks/convolutions_in_loops.py [--rounds 5] [--onednn]

Three residual 3x3 convolutions with 16 channels, on 64 images of 32x32 pixels: all at once, and by `lax.map`
over 2 chunks. The forms are measured in turn. It writes the record `convolutions_in_loops`, and with oneDNN
`convolutions_in_loops_onednn`.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from _clock import now  # noqa: E402
from _records import Found  # noqa: E402
from _report import flags, ratios  # noqa: E402

from jaxreg._cpu.onednn import request_onednn  # noqa: E402
from jaxreg.models import convolution  # noqa: E402

NUMBER, CHUNKS = 64, 2
FUNCTIONS = {"lax.conv_general_dilated": lax.conv_general_dilated, "models.convolution": convolution}


def products(convolve):
  """The gradient and the Hessian product of a network, as functions of kernels and images."""

  def loss(kernels, x):
    for kernel in kernels:
      x = jax.nn.relu(x + convolve(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return jnp.mean(x**2)

  gradient = jax.grad(loss)
  return {
    "gradient": gradient,
    "Hessian product": lambda kernels, x: jax.jvp(lambda k: gradient(k, x), (kernels,), (kernels,))[1],
  }


def by_chunks(product):
  def mean(kernels, x):
    chunks = x.reshape(CHUNKS, NUMBER // CHUNKS, *x.shape[1:])
    return jax.tree.map(lambda part: part.mean(0), lax.map(lambda chunk: product(kernels, chunk), chunks))

  return mean


def main() -> None:
  parser = flags(__doc__, rounds=5)
  parser.add_argument("--onednn", action="store_true", help="leave convolutions to oneDNN, where JAX has it")
  options = parser.parse_args()
  if options.onednn and not request_onednn():  # XLA reads its flags at the first use of a device
    parser.error("this version of JAX, or XLA_FLAGS, has no oneDNN")
  kernels = [0.1 * jax.random.normal(jax.random.key(layer), (3, 3, 16, 16)) for layer in range(3)]
  x = jax.random.normal(jax.random.key(3), (NUMBER, 32, 32, 16))
  found = Found()
  for what in ("gradient", "Hessian product"):
    forms = {}
    for name, convolve in FUNCTIONS.items():
      product = products(convolve)[what]
      forms[name, "whole"], forms[name, "loop"] = jax.jit(product), jax.jit(by_chunks(product))
    times: dict[tuple[str, str], list[float]] = {form: [] for form in forms}
    for _ in range(2 if options.quick else options.rounds + 1):
      for form, run in forms.items():
        start = now()
        jax.block_until_ready(run(kernels, x))
        times[form].append(now() - start)
    times = {form: values[1:] for form, values in times.items()}  # the first compiles
    for name in FUNCTIONS:
      for form in ("whole", "loop"):
        found.add(name, f"{what}, {form}, ms", [1e3 * value for value in times[name, form]], 0)
      found.add(name, f"{what}, loop / whole", ratios(times[name, "loop"], times[name, "whole"]), 1)
  if not options.quick:
    name = "convolutions_in_loops"
    both = (f"{name}_onednn", " --onednn") if options.onednn else (name, "")
    found.write(both[0], f"python benchmarks/{name}.py{both[1]}")


if __name__ == "__main__":
  main()

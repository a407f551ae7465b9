"""PyHessian's README with jaxreg: `python examples/pyhessian_readme.py`.

Top eigenvalues with their vectors, the trace, the density of all eigenvalues and its figure, and the loss
along the top eigenvector. All with errors, of every layer too, and over all batches of a loader.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxreg import flatness, losses, plots


def loss_fn(params, batch, *, key):
  hidden = jax.nn.relu(batch["inputs"] @ params["hidden"]["kernel"])
  return losses.softmax_cross_entropy(hidden @ params["last"]["kernel"], batch["labels"]).mean()


keys = jax.random.split(jax.random.key(0), 8)
draw = lambda key, *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
params = {"hidden": {"kernel": draw(keys[0], 8, 6)}, "last": {"kernel": draw(keys[1], 6, 3)}}
loader = [{"inputs": draw(key, 32, 8), "labels": jnp.arange(32) % 3} for key in keys[2:4]]
folder = Path(tempfile.mkdtemp())

# The eight lines.
hessian = flatness.Curvature(loss_fn, params, loader)
top = hessian.top_eigenpairs(key=keys[4], num_pairs=2)
trace = hessian.trace(key=keys[5])
density = hessian.density(key=keys[6], num_steps=30)
plots.density({"hessian": density}).savefig(folder / "density.png")
along = flatness.subset(params).merge(top.vectors[0])  # a tree like the parameters
profile = flatness.loss_profile(loss_fn, params, along, jnp.linspace(-0.5, 0.5, 21), loader[0])
layers = flatness.layerwise(hessian, key=keys[7], num_steps=10)

print("top eigenvalues", top.values, "trace", trace.mean, "+-", trace.standard_error)
print("layers", dict(zip(layers.names, layers.top_eigenvalues.tolist(), strict=True)))
print("loss along the first eigenvector", profile[0], "to", profile[-1], f"figure in {folder}")

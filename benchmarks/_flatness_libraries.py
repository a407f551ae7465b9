"""What curvlinops and hessian-eigenthings have of a matrix: products, KFAC, trace, eigenpairs, density.

`library` is the name of one of the two, `matrix` is `hessian` or `gauss_newton`.
"""

import curvlinops
import hessian_eigenthings as eigenthings
import numpy as np
import torch
from _clock import now
from scipy.sparse.linalg import eigsh


def operator(problem, library, matrix):
  """Kept with the problem, as its products are what is timed."""
  if (library, matrix) not in problem.operators:
    problem.operators[library, matrix] = OPERATORS[library, matrix](problem)
  return problem.operators[library, matrix]


def of_curvlinops(make, **options):
  return lambda problem: make(
    problem.model, problem.criterion, problem.subset, problem.batches, check_deterministic=False, **options
  )


hessian = of_curvlinops(curvlinops.HessianLinearOperator)
# As the other side has it: the exact Hessian in the outputs, and a layer's weight and bias together.
kronecker = of_curvlinops(curvlinops.KFACLinearOperator, fisher_type="type-2", separate_weight_and_bias=False)
OPERATORS = {
  ("curvlinops", "hessian"): hessian,
  ("curvlinops", "gauss_newton"): of_curvlinops(curvlinops.GGNLinearOperator),
  ("hessian-eigenthings", "hessian"): lambda problem: eigenthings.HessianOperator(
    problem.model, problem.batches, eigenthings.supervised_loss(problem.criterion)
  ),
  ("hessian-eigenthings", "gauss_newton"): lambda problem: eigenthings.GGNOperator(
    problem.model,
    problem.batches,
    eigenthings.supervised_forward,
    eigenthings.supervised_loss_of_output(problem.criterion),
  ),
}


def vector_of(problem, path):
  return problem.theirs(torch.from_numpy(np.load(path)).to(problem.inputs.dtype))


def product(problem, library, matrix, vector):
  vector, made = vector_of(problem, vector), operator(problem, library, matrix)
  began = now()
  found = made @ vector if library == "curvlinops" else made.matvec(vector)
  return now() - began, {}, found[problem.order]


def kfac(problem, vector, damping=None):
  """Builds the factors and multiplies by the matrix, or with damping by its inverse."""
  vector = vector_of(problem, vector)
  began = now()
  made = kronecker(problem)
  if damping is not None:
    made = curvlinops.KFACInverseLinearOperator(made, damping=damping, use_exact_damping=True)
  found = made @ vector
  return now() - began, {}, found[problem.order]


def trace(problem, library, num):
  began = now()
  made = operator(problem, library, "hessian")
  if library == "curvlinops":
    found = curvlinops.hutchinson_trace(made, num)
  else:
    found = torch.tensor(eigenthings.hutchinson(made, num_samples=num).estimate)
  return now() - began, {}, found


def eigenpairs(problem, library, num, tol, steps=None):
  """Rows of vectors with their values before them; only hessian-eigenthings is told the `steps`."""
  began = now()
  made = operator(problem, library, "hessian")
  if library == "curvlinops":
    values, vectors = eigsh(made.to_scipy(), k=num, which="LA", tol=tol)
    values, vectors = torch.from_numpy(values[::-1].copy()), torch.from_numpy(vectors.T[::-1].copy())
  else:
    found = eigenthings.lanczos(made, k=num, max_iter=steps, which="LA", reorthogonalize=True)
    values, vectors = found.eigenvalues, found.eigenvectors
  return now() - began, {}, torch.cat([values[:, None], vectors[:, problem.order]], dim=1)


def density(problem, library, probes, steps, ends):
  """The eigenvalues of all probes and their weights, from which both make their density.

  curvlinops is told the `ends` of the spectrum; its own search for them takes many times the rest.
  """
  began = now()
  made = operator(problem, library, "hessian")
  if library == "curvlinops":
    cached = curvlinops.LanczosApproximateSpectrumCached(made, steps, boundaries=ends)
    cached.approximate_spectrum(num_repeats=probes)
    pairs = [(values, vectors[0] ** 2) for values, vectors in cached._get_lanczos_iters(probes)]
    found = [torch.cat(part) for part in zip(*pairs, strict=True)]
  else:
    result = eigenthings.spectral_density(made, num_runs=probes, lanczos_steps=steps)
    found = result.raw_eigenvalues.reshape(-1), result.raw_weights.reshape(-1)
  return now() - began, {}, torch.stack(list(found))

"""The lectures' claim that noise on the weights leads to flat minima."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _lecture_training import dense, init, mnist, run, spread, train
from matplotlib.figure import Figure

from jaxreg import flatness, noise, plots

SEEDS, DIRECTIONS = 5, 8
STD = 0.05


def weight_noise(folder: str) -> Figure:
  """784-32-10 with tanh and a squared error, as in the lecture, on 1000 images; with noise and without."""
  examples, test = mnist(folder, num_train=1000)
  alphas = jnp.linspace(-0.5, 0.5, 21)
  profiles, falls, traces = {}, {}, {}
  for label, std in (("no noise", 0.0), (f"weight noise {STD}", STD)):

    def loss_fn(params, batch, *, key, std=std):
      # Only in training: with no key the loss is clean.
      noisy = params if key is None else noise.weight_noise(key, params, std=std)
      return squared_error(noisy, batch)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    params = jax.vmap(lambda key: init(key, (784, 32, 10), gain=1.0))(keys)
    options = {"key": jax.random.key(1), "steps": 6000, "chunk": 500}
    times = list(train(loss_fn, params, examples, **options, name=label))
    some = [params for step, params in times if step in (500, 1000, 1500, 2000, 3000, 4000, 6000)]
    falls[label], traces[label] = np.array(
      [[measure(run(params, n), examples) for params in some] for n in range(SEEDS)]
    ).transpose(2, 0, 1)
    final = [run(some[-1], n) for n in range(SEEDS)]
    profiles[label] = np.array([rise(one, examples, alphas) for one in final])
    report(label, final, falls[label][:, -1], traces[label][:, -1], profiles[label], examples, test)
  at_loss(falls, traces)
  return plots.flat_minima(alphas, profiles, falls, traces)


def predict(params, x):
  return dense(params["Dense_1"], jnp.tanh(dense(params["Dense_0"], x)))


def squared_error(params, batch):
  wanted = jax.nn.one_hot(batch["labels"], 10)
  return ((predict(params, batch["inputs"]) - wanted) ** 2).sum(axis=-1).mean()


def clean(params, batch, *, key=None):
  return squared_error(params, batch)


def measure(params, batch) -> tuple[float, float]:
  """The clean training loss and the trace of its Hessian, from 16 probes."""
  hessian = flatness.hvp(clean, params, batch)
  trace = flatness.operator_trace(hessian, hessian.like, key=jax.random.key(3), num=16)
  return float(clean(params, batch)), float(trace.mean)


def rise(params, batch, alphas) -> np.ndarray:
  """The mean rise along random directions, each kernel's part as long as the kernel."""
  along = [
    flatness.loss_profile(clean, params, flatness.filter_normalized_direction(key, params), alphas, batch)
    for key in jax.random.split(jax.random.key(4), DIRECTIONS)
  ]
  return np.mean(along, axis=0) - float(clean(params, batch))


def report(label, final, fall, trace, profile, examples, test) -> None:
  gradients = [jax.grad(clean)(one, examples) for one in final]
  norms = [float(optax.tree.norm(gradient)) for gradient in gradients]
  sizes = [float(optax.tree.norm(one)) for one in final]
  wrong = [100 * float((predict(one, test["inputs"]).argmax(-1) != test["labels"]).mean()) for one in final]
  print(f"  {label}: training loss {spread(fall, '', 5)}, trace {spread(trace, '', 1)},")
  print(f"    gradient {spread(norms, '', 4)}, parameters {spread(sizes)}, test error {spread(wrong, ' %')},")
  print(
    f"    rise at 0.1 and 0.5: {spread(profile[:, 12], '', 4)}, {spread(profile[:, -1], '', 2)}", flush=True
  )


def at_loss(falls, traces) -> None:
  """The trace where the run without noise has the loss at which the one with noise ends."""
  (plain_losses, noisy_losses), (plain, noisy) = falls.values(), traces.values()
  found = []
  for n in range(SEEDS):
    order = np.argsort(plain_losses[n])
    end = np.log(noisy_losses[n, -1])
    inside = plain_losses[n].min() <= noisy_losses[n, -1] <= plain_losses[n].max()
    found.append(np.exp(np.interp(end, np.log(plain_losses[n][order]), np.log(plain[n][order]))))
    if not inside:
      print(f"  run {n}: no such loss was seen without noise")
  print(f"  without noise, at the training loss with noise: trace {spread(found, '', 1)}")
  print(f"  its ratio to the trace with noise: {spread(np.array(found) / noisy[:, -1])}")

"""The lectures' claim that noise on the weights leads to flat minima."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from benchmarks._records import Found
from jaxreg import flatness, noise
from papers._small_networks import dense, init, mnist, run, train
from papers.regularization import plots

SEEDS, DIRECTIONS = 5, 8
STD = 0.05


def weight_noise(found: Found, folder: str) -> Figure:
  """784-32-10 with tanh and a squared error, as in the lecture, on 1000 images; with noise and without."""
  examples, test = mnist(folder, num_train=1000)
  alphas = jnp.linspace(-0.5, 0.5, 21)
  profiles, falls, traces, end = {}, {}, {}, None
  keys = jax.random.split(jax.random.key(0), SEEDS)
  start = jax.vmap(lambda key: init(key, (784, 32, 10), gain=1.0))(keys)
  for number, (label, std, steps) in enumerate(
    (("no noise", 0.0, 6000), ("weight noise", STD, 6000), ("after that, no noise", 0.0, 4500))
  ):

    def loss_fn(params, batch, *, key, std=std):
      return squared_error(noise.weight_noise(key, params, std=std), batch)

    # The third training continues the second.
    params = end if number == 2 else start
    options = {"key": jax.random.key(1 + number // 2), "steps": steps, "chunk": 500}
    times = [params for _, params in train(loss_fn, params, examples, **options, name=label)]
    end, some = times[-1], times[:3] + times[3::2] + times[-1:]
    measured = [[measure(run(params, n), examples) for params in some] for n in range(SEEDS)]
    falls[label], traces[label] = np.array(measured).transpose(2, 0, 1)
    final = [run(end, n) for n in range(SEEDS)]
    profiles[label] = np.array([rise(one, examples, alphas) for one in final])
    report(found, label, final, falls[label][:, -1], traces[label][:, -1], profiles[label], examples, test)
  plain, noisy, after = traces.values()
  found.add("weight noise", "times flatter", plain[:, -1] / noisy[:, -1])
  found.add("after that, no noise", "times flatter", plain[:, -1] / after[:, -1])
  title = f"Networks 784-32-10, tanh, squared error, {len(examples['labels'])} images of MNIST"
  return plots.flat_minima(alphas, profiles, falls, traces, title=title)


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
  trace = flatness.operator_trace(hessian, hessian.like, key=jax.random.key(3), num_samples=16)
  return float(clean(params, batch)), float(trace.mean)


def rise(params, batch, alphas) -> np.ndarray:
  """The mean rise along random directions, each kernel's part as long as the kernel."""
  along = [
    flatness.loss_profile(clean, params, flatness.filter_normalized_direction(key, params), alphas, batch)
    for key in jax.random.split(jax.random.key(4), DIRECTIONS)
  ]
  return np.mean(along, axis=0) - float(clean(params, batch))


def report(found, label, final, fall, trace, profile, examples, test) -> None:
  gradients = [jax.grad(clean)(one, examples) for one in final]
  norms = [float(optax.tree.norm(gradient)) for gradient in gradients]
  wrong = [100 * float((predict(one, test["inputs"]).argmax(-1) != test["labels"]).mean()) for one in final]
  for quantity, values, digits in (
    ("training loss", fall, 4),
    ("trace", trace, 0),
    ("rise at 0.1", profile[:, 12], 3),
    ("gradient's norm", norms, 3),
    ("test error, %", wrong, 2),
  ):
    found.add(label, quantity, values, digits)

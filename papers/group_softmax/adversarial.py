"""How adversarial the grouping rules are on a trained head: the mean loss under each, and under a search.

    python run.py --config configs/group_softmax_digits.py --config.method.group_softmax.loss.num_groups=1
    python -m papers.group_softmax.adversarial runs/group_softmax_digits-...

With one group the run is plain softmax. On test examples, for both types: the loss of the softmax, the mean
over random groupings, each rule, and the largest that exchanges of two features reach from the best of these
(a lower bound of the maximum of Eq. A.27). The means go into
benchmarks/records/group_softmax_adversarial.json.
"""

import argparse
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._records import Found
from jaxreg import losses
from jaxreg._group_scores import GROUPINGS, feature_groups
from jaxreg.train import RunError, base_config
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.finished.load import load
from jaxreg.train.finished.restore import restore_config
from papers import group_softmax
from papers._command import one_line_errors

RULES = ("discriminative", "interleaved", "posterior", "rival")


@one_line_errors()
def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("folder", type=Path)
  parser.add_argument("--groups", default="2,8,32")
  parser.add_argument("--examples", type=int, default=50)
  parser.add_argument("--num_random", type=int, default=100)
  parser.add_argument("--num_steps", type=int, default=20000)
  options = parser.parse_args()
  config = restore_config(base_config(), options.folder)
  if config.method.name != "group_softmax":
    raise RunError(f"{options.folder}: the run must be one of 'group_softmax', got {config.method.name!r}")
  test = load_data(config).test
  inputs, labels = test.inputs[: options.examples], jnp.asarray(test.labels[: options.examples])
  head = load(options.folder).outputs(inputs)
  found = Found()
  for kind in ("I", "II"):
    for number in map(int, options.groups.split(",")):
      means = attained(head, labels, kind, number, options.num_random, options.num_steps)
      for rule, value in zip(("softmax", "random", *RULES, "search"), means, strict=True):
        found.add(f"{kind}, {number} groups", rule, value)
  found.write("group_softmax_adversarial", "python -m papers.group_softmax.adversarial WORKDIR")


def attained(head, labels, kind, number, num_random, num_steps) -> list[float]:
  """Mean losses: of the softmax, random groupings, the rules, and the search."""
  features, kernel, bias = head["features"], head["kernel"], head["bias"]
  power = float(number if kind == "I" else 1)
  loss = jax.jit(
    functools.partial(losses.group_softmax, num_groups=number, kind=kind), static_argnames="grouping"
  )
  softmax = losses.softmax_cross_entropy(features @ kernel + bias, labels)
  rules = [GROUPINGS[name] for name in RULES]
  of_rules = [loss(features, kernel, bias, labels, grouping=rule) for rule in rules]

  @jax.jit
  def random(key):
    rule = functools.partial(GROUPINGS["random"], key)
    return losses.group_softmax(features, kernel, bias, labels, num_groups=number, kind=kind, grouping=rule)

  of_random = jnp.mean(
    jnp.stack([random(key) for key in jax.random.split(jax.random.key(0), num_random)]), axis=0
  )
  # The search starts from the rule with the largest loss.
  groups = jnp.stack(
    [
      feature_groups(rule(features, kernel, bias, labels, num_groups=number), num_groups=number)
      for rule in rules
    ]
  )
  start = jnp.take_along_axis(groups, jnp.stack(of_rules).argmax(axis=0)[None, :, None], axis=0)[0]
  search = functools.partial(
    group_softmax.search_grouping, num_groups=number, power=power, num_steps=num_steps
  )
  keys = jax.random.split(jax.random.key(1), len(labels))
  found, _ = jax.jit(jax.vmap(search, in_axes=(0, 0, None, None, 0, 0)))(
    keys, features, kernel, bias, labels, start.astype(jnp.int32)
  )
  return [float(np.mean(x)) for x in (softmax, of_random, *of_rules, found)]


if __name__ == "__main__":
  main()

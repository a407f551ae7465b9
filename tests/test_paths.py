"""Parameters by name, over every kind of tree that module systems make."""

import collections
import dataclasses
import functools
import re

import chex
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxreg import constraints, flatness, noise, objective, optim, paths, penalties

TREE = {
  "Dense_0": {"kernel": 1.0, "bias": 2.0},
  "BatchNorm_0": {"scale": 3.0, "bias": 4.0},
  "embed": {"embedding": 5.0},
  "head": {
    "classifier": {"kernel": 6.0, "bias": 7.0},
    "prior": {"kernel": 8.0, "bias": 9.0},
    "residual": {"kernel": 10.0, "bias": 11.0},
  },
}
NAMES = [
  "BatchNorm_0/bias",
  "BatchNorm_0/scale",
  "Dense_0/bias",
  "Dense_0/kernel",
  "embed/embedding",
  "head/classifier/bias",
  "head/classifier/kernel",
  "head/prior/bias",
  "head/prior/kernel",
  "head/residual/bias",
  "head/residual/kernel",
]


def chosen(mask):
  """The names where a mask over `TREE` is true; its structure must be the tree's and its leaves bools."""
  assert jax.tree.structure(mask) == jax.tree.structure(TREE)
  assert all(type(leaf) is bool for leaf in jax.tree.leaves(mask))
  return {name for name, leaf in zip(NAMES, jax.tree.leaves(mask), strict=True) if leaf}


def test_names_in_flattening_order():
  assert paths.leaf_names(TREE) == NAMES


def test_names_of_lists_tuples_and_dataclasses():
  @jax.tree_util.register_dataclass
  @dataclasses.dataclass
  class Layer:
    kernel: float
    bias: float

  pair = collections.namedtuple("Pair", ["left", "right"])
  assert paths.leaf_names([Layer(1.0, 2.0), (3.0,)]) == ["0/kernel", "0/bias", "1/0"]
  assert paths.leaf_names(pair({"a": 1.0}, 2.0)) == ["left/a", "right"]
  assert paths.leaf_names({}) == []
  assert paths.leaf_names({"a": None, "b": 1.0}) == ["b"]


def test_names_in_linen_nnx_and_equinox():
  linen = jax.eval_shape(nn.Dense(2).init, jax.random.key(0), jnp.ones((1, 3)))["params"]
  assert paths.leaf_names(linen) == ["bias", "kernel"]
  _, state = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
  assert paths.leaf_names(nnx.to_pure_dict(state)) == ["bias", "kernel"]
  assert paths.leaf_names(state) == paths.leaf_names(nnx.Linear(3, 2, rngs=nnx.Rngs(0))) == ["bias", "kernel"]
  assert paths.leaf_names({"value": 1.0, "layer": {"value": 2.0}}) == ["layer/value", "value"]
  assert jax.tree.leaves(paths.kernels_only(state)) == [False, True]
  assert paths.leaf_names(eqx.filter(eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.is_array)) == [
    "weight",
    "bias",
  ]


@pytest.mark.parametrize(
  ("include", "names"),
  [
    ("*", set(NAMES)),
    ("*/kernel", {n for n in NAMES if n.endswith("/kernel")}),
    ("head/*", {n for n in NAMES if n.startswith("head/")}),
    ("head/*/bias", {"head/classifier/bias", "head/prior/bias", "head/residual/bias"}),
    ("kernel", set()),  # a glob is on the whole name
    ("DENSE_0/*", set()),  # and minds the case
    ("Dense_?/kernel", {"Dense_0/kernel"}),
    (re.compile("prior"), {"head/prior/bias", "head/prior/kernel"}),
    (re.compile(r"^(Dense|Batch)"), set(NAMES[:4])),
    (lambda name: name.count("/") == 2, set(NAMES[5:])),
    (("Dense_0/*", re.compile("residual")), set(NAMES[2:4]) | set(NAMES[9:])),
    ([], set()),
  ],
)
def test_select(include, names):
  assert chosen(paths.select(TREE, include)) == names


def test_exclude_wins():
  assert chosen(paths.select(TREE, "head/*", exclude="*/bias")) == {
    n for n in NAMES[5:] if n.endswith("kernel")
  }
  assert chosen(paths.select(TREE, exclude=("*/bias", "*/scale"))) == {
    n for n in NAMES if n.endswith(("kernel", "embedding"))
  }
  assert chosen(paths.select(TREE, exclude="*")) == set()


def test_select_from_an_iterator():
  """Any iterable of patterns, as the signature says, also one that can be read only once."""
  patterns = ("Dense_0/*", "head/prior/*")
  assert chosen(paths.select(TREE, iter(patterns))) == chosen(paths.select(TREE, patterns)) != set()


def test_select_refuses_other_patterns():
  for pattern in (3, None, ("*/bias", 3.5), b"*"):
    with pytest.raises(TypeError, match="pattern"):
      paths.select(TREE, pattern)


def test_everything():
  assert chosen(paths.everything(TREE)) == set(NAMES)


def test_kernels_only_leaves_biases_and_scales_out():
  assert chosen(paths.kernels_only(TREE)) == {n for n in NAMES if n.endswith(("/kernel", "/embedding"))}
  assert paths.kernels_only({"kernel": 1.0, "bias": 2.0, "my_kernel": 3.0}) == {
    "kernel": True,
    "bias": False,
    "my_kernel": False,
  }


@pytest.mark.thorough
def test_kernels_only_takes_the_weights_of_an_equinox_model():
  """Named `weight` all: of layers, cells and embeddings it is a kernel, of a normalisation it is a scale."""
  keys = jax.random.split(jax.random.key(0), 4)
  model = {
    "conv": eqx.nn.Conv2d(2, 5, 3, key=keys[0]),
    "norm": eqx.nn.GroupNorm(1, 5),
    "cell": eqx.nn.GRUCell(5, 4, key=keys[1]),
    "embed": eqx.nn.Embedding(7, 4, key=keys[2]),
    "mlp": eqx.nn.MLP(4, 2, 3, 1, key=keys[3]),
  }
  want = {"conv/weight", "cell/weight_ih", "cell/weight_hh", "embed/weight"}
  want |= {"mlp/layers/0/weight", "mlp/layers/1/weight"}
  for tree in (model, eqx.filter(model, eqx.is_array)):
    names = paths.leaf_names(tree)
    assert {n for n, taken in zip(names, paths.chosen(tree, paths.kernels_only)) if taken} == want
  assert "norm/weight" in names


@pytest.mark.parametrize(
  ("mask", "names"),
  [
    (None, {n for n in NAMES if n.endswith(("/kernel", "/embedding"))}),
    ("*", set(NAMES)),
    ("head/*", set(NAMES[5:])),
    (re.compile("prior"), {"head/prior/bias", "head/prior/kernel"}),
    (("Dense_0/*", re.compile("residual")), set(NAMES[2:4]) | set(NAMES[9:])),
    (["Dense_0/*", "head/prior/*"], set(NAMES[2:4]) | set(NAMES[7:9])),
    (paths.everything, set(NAMES)),
    (paths.select(TREE, "*/bias"), {n for n in NAMES if n.endswith("/bias")}),
  ],
)
def test_one_meaning_of_mask(mask, names):
  assert {n for n, taken in zip(NAMES, paths.chosen(TREE, mask), strict=True) if taken} == names


def test_none_is_the_default_of_the_function():
  assert paths.chosen(TREE, None, default="head/*") == paths.chosen(TREE, "head/*")


def test_a_glob_selects_an_array_without_a_name():
  assert paths.chosen(jnp.ones(3), "*") == [True]


@pytest.mark.parametrize(
  ("mask", "message"),
  [
    (None, r'there are b, w\. kernels_only.* kernel or embedding.*mask="\*" or globs$'),
    (lambda params: paths.select(params, "v"), r"there are b, w$"),
    ("W", r"^mask: 'W' selects no parameter; there are b, w$"),
    (("w", "v*"), r"^mask: 'v\*' selects no parameter; there are b, w$"),
    ((), "got a tuple for a dict, without b, w$"),
    ({"w": True}, "structure of params.* got a dict for a dict, without b$"),
    ([True, False], "got a list for a dict, without b, w and with 0, 1$"),
    (eqx.nn.Linear(2, 2, key=jax.random.key(0)), "got a Linear for a dict, without b, w and with"),
  ],
)
def test_chosen_says_what_to_give_instead(mask, message):
  with pytest.raises(ValueError, match=message) as raised:
    paths.chosen({"w": 1.0, "b": 2.0}, mask)
  assert "\n" not in str(raised.value)


def test_an_array_without_a_name_is_told_so():
  with pytest.raises(ValueError, match=r"params is a single array, which has no name\. kernels_only.*mask="):
    penalties.l2(jnp.ones(3))


def test_messages_take_one_line():
  model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
  for use in (
    lambda: objective.compose(lambda params, batch, *, key: 0.0, {"model": model}),  # type: ignore[arg-type]
    lambda: objective.compose({"model": model}, {}),  # type: ignore[arg-type]
    lambda: optim.sam(model),  # type: ignore[arg-type]
    lambda: paths.select(model, {"a": 1}.values()),
    lambda: paths.select({"a": 1}, (model.layers[0].weight,)),
  ):
    with pytest.raises(TypeError, match="got ") as raised:
      use()
    assert "\n" not in str(raised.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "use",
  [
    penalties.l2,
    penalties.orthogonality,
    lambda params, mask: penalties.l2_sp(params, reference=jax.tree.map(jnp.zeros_like, params), mask=mask),
    functools.partial(constraints.max_norm, limit=0.1),
    functools.partial(constraints.prox_l1, step=0.1, weight=1.0),
    lambda params, mask: noise.weight_noise(jax.random.key(0), params, std=0.1, mask=mask),
    functools.partial(noise.scale_weights, rate=0.5),
    lambda params, mask: noise.dropconnect_params(jax.random.key(0), params, rate=0.5, mask=mask),
    lambda params, mask: _a_step(
      constraints.proximal(functools.partial(constraints.prox_non_negative, mask=mask), 0.1), params
    ),
  ],
)
def test_a_module_of_bools_is_a_mask_and_is_not_called(use):
  """Equinox's models can be called: those with parameters, and those with the bools of a mask."""
  params = eqx.filter(eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), eqx.is_array)
  pattern = "layers/0/weight"
  got, want = (
    use(params, mask=paths.select(params, pattern)),
    use(params, mask=lambda p: paths.select(p, pattern)),
  )
  chex.assert_trees_all_equal(got, want)
  if jax.tree.structure(got) == jax.tree.structure(params):
    moved = [bool((a != b).any()) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(params))]
    assert moved == [name == pattern for name in paths.leaf_names(params)]


def _a_step(tx, params):
  updates = jax.tree.map(jnp.zeros_like, params)
  return optax.apply_updates(params, tx.update(updates, tx.init(params), params)[0])


def test_masks_that_are_called():
  """Functions, and partial functions of either kind: JAX's is a tree, whose leaves are its arguments."""
  select = lambda pattern, params: paths.select(params, pattern)
  whole = lambda params: select("w", params)
  partial = jax.tree_util.Partial(functools.partial(select, "w"))
  for mask in (whole, functools.partial(select, "w"), partial):
    assert paths.chosen({"w": 1.0, "b": 2.0}, mask) == [False, True]


def test_a_function_among_the_selected_leaves_is_named():
  model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
  for use in (lambda m: penalties.l2(m, mask=paths.everything), flatness.subset):
    with pytest.raises(
      TypeError, match=r"params/activation must be an array, got a function.*eqx\.filter\(model"
    ):
      use(model)
  penalties.l2(model)  # which takes the weights alone


def test_no_branches_leaves_prior_and_residual_out():
  assert chosen(paths.no_branches(TREE)) == set(NAMES[:7])
  alone = {"prior": {"kernel": 1.0}, "my_prior": {"kernel": 1.0}, "residual_block": {"kernel": 1.0}}
  assert jax.tree.leaves(paths.no_branches(alone)) == [True, False, True]


def test_masks_of_abstract_trees():
  abstract = jax.eval_shape(lambda: jax.tree.map(jnp.float32, TREE))
  assert chosen(paths.kernels_only(abstract)) == chosen(paths.kernels_only(TREE))


def test_scales_of_stacked_layers_are_no_kernels():
  stacked = {"norm": {"weight": jnp.ones((3, 5))}, "linear": {"weight": jnp.ones((3, 5, 4))}}
  mask = paths.kernels_only({"stacked": stacked, "norm": {"weight": jnp.ones(5)}})
  assert mask["stacked"] == {"norm": {"weight": False}, "linear": {"weight": True}}
  assert mask["norm"] == {"weight": False}

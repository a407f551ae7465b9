"""The convolution of the networks: its values, its derivatives, and the programs that compute them."""

import contextlib
import itertools
import os
import re
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg._cpu import convolution as programs
from jaxreg._cpu.onednn import FLAGS
from jaxreg.models import convolution

NHWC = ("NHWC", "HWIO", "NHWC")
# Channels in and out, and options.
CASES = {
  "wide": ((24, 24), {"padding": "SAME"}),
  "narrow": ((3, 8), {"padding": "SAME"}),
  "valid": ((20, 24), {"padding": "VALID"}),
  "strided": ((16, 24), {"window_strides": (2, 2), "padding": ((1, 1), (1, 1))}),
  "uneven": ((24, 8), {"window_strides": (3, 2), "padding": ((0, 2), (3, 1))}),
  "cropped": ((24, 24), {"padding": ((-1, 0), (-1, -2))}),
  "padded by more than the kernel": ((24, 24), {"padding": ((5, 0), (1, 4))}),
  "padded and dilated": ((24, 24), {"padding": ((5, 0), (0, 4)), "window_strides": (2, 3)}),
  "window dilated": ((24, 24), {"padding": "SAME", "rhs_dilation": (2, 1)}),
  "input dilated": ((24, 24), {"padding": ((2, 1), (1, 2)), "lhs_dilation": (2, 3)}),
  "both dilated": ((8, 24), {"padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 1), "rhs_dilation": (2, 2)}),
}


def arguments(channels=(24, 24), *, size=(3, 2), images=(8, 7, 6), seed=0):
  generator = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(generator.standard_normal(shape), jnp.float32)
  return draw(*images, channels[0]), draw(*size, *channels)


def options_of(options):
  return {"window_strides": (1, 1), "dimension_numbers": NHWC, **options}


def by_definition(x, kernel, *, window_strides, padding, lhs_dilation=(1, 1), rhs_dilation=(1, 1), **_):
  """Float64 NumPy: for each place of the kernel a slice of the padded images, times the weights there."""
  x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
  window = [(side - 1) * dilation + 1 for side, dilation in zip(kernel.shape, rhs_dilation)]
  if isinstance(padding, str):
    total = [side - 1 if padding == "SAME" else 0 for side in window]
    padding = [(number // 2, number - number // 2) for number in total]
  spread = np.zeros(
    (len(x), *((side - 1) * by + 1 for side, by in zip(x.shape[1:], lhs_dilation)), x.shape[-1])
  )
  spread[:, :: lhs_dilation[0], :: lhs_dilation[1]] = x
  padded = np.pad(spread, [(0, 0), *((max(low, 0), max(high, 0)) for low, high in padding), (0, 0)])
  crops = [slice(max(-low, 0), side - max(-high, 0)) for (low, high), side in zip(padding, padded.shape[1:])]
  padded = padded[:, crops[0], crops[1]]
  number = [(side - whole) // by + 1 for side, whole, by in zip(padded.shape[1:], window, window_strides)]
  total = np.zeros((len(x), *number, kernel.shape[-1]))
  for place in itertools.product(*map(range, kernel.shape[:2])):
    rows, columns = (
      slice(at * far, at * far + (many - 1) * by + 1, by)
      for at, far, many, by in zip(place, rhs_dilation, number, window_strides)
    )
    total += padded[:, rows, columns] @ kernel[place]
  return total


@pytest.fixture
def onednn(request, monkeypatch):
  """The forms for oneDNN, whichever library computes them here."""
  if request.param:
    monkeypatch.setattr(programs, "uses_onednn", lambda: True)


ONEDNN = pytest.mark.parametrize("onednn", [False, True], ids=["by XLA", "by oneDNN"], indirect=True)


@pytest.mark.thorough
@ONEDNN
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_the_definition(name, onednn):
  check_by_definition(*CASES[name])


@pytest.mark.parametrize("onednn", [True], indirect=True)
def test_the_gradient_of_a_kernel_by_onednn_from_parts_of_a_batch(onednn, monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  check_by_definition((24, 24), {"padding": ((0, 1), (1, 0)), "window_strides": (1, 2)}, images=48)


def check_by_definition(channels, options, images=8):
  options = options_of(options)
  x, kernel = arguments(channels, images=(images, 7, 6))
  ours = lambda x, kernel: convolution(x, kernel, **options)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.abs(b).max())
  y, pull = jax.vjp(ours, x, kernel)
  close(y, by_definition(x, kernel, **options))
  # The convolution is linear in each argument, so its derivatives are values at other arguments.
  dx, dkernel = arguments(channels, images=(images, 7, 6), seed=1)
  moved = jax.jvp(ours, (x, kernel), (dx, dkernel))[1]
  expected = by_definition(dx, kernel, **options) + by_definition(x, dkernel, **options)
  close(moved, expected)
  # <cotangent, J d> = <J^T cotangent, d>, where J d is the definition's, for single entries and for random d.
  cotangent = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
  of_x, of_kernel = (np.asarray(part, np.float64) for part in pull(cotangent))
  for place in [(0, 0, 0, 0), (1, 6, 5, 2), (1, 3, 2, 1)]:
    one = np.zeros(x.shape)
    one[place] = 1
    exact = np.vdot(cotangent, by_definition(one, kernel, **options))
    np.testing.assert_allclose(of_x[place], exact, rtol=1e-6, atol=1e-6 * np.abs(of_x).max())
  for place in [(0, 0, 0, 0), (2, 1, 2, 7), (1, 0, 1, 3)]:
    one = np.zeros(kernel.shape)
    one[place] = 1
    exact = np.vdot(cotangent, by_definition(x, one, **options))
    np.testing.assert_allclose(of_kernel[place], exact, rtol=1e-6, atol=1e-6 * np.abs(of_kernel).max())
  whole = np.vdot(of_x, dx) + np.vdot(of_kernel, dkernel)
  np.testing.assert_allclose(whole, np.vdot(cotangent, expected), rtol=1e-5, atol=1e-4)


@pytest.mark.thorough
@ONEDNN
@pytest.mark.parametrize("name", CASES)
def test_products_with_the_hessian_are_those_of_jax(name, onednn):
  channels, options = CASES[name]
  options = options_of(options)
  x, kernel = arguments(channels)

  def product(convolve):
    loss = lambda x, kernel: jnp.sum(jnp.sin(convolve(0.1 * x, kernel, **options)))
    return jax.jvp(jax.grad(loss, (0, 1)), (x, kernel), arguments(channels, seed=1))[1]

  for ours, theirs in zip(product(convolution), product(lax.conv_general_dilated)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=5e-6 * np.abs(theirs).max())


@pytest.mark.thorough
def test_third_derivatives_by_reverse_over_forward_over_reverse():
  x, kernel = arguments()

  def third(convolve):
    loss = lambda x, kernel: jnp.sum(jnp.sin(convolve(0.1 * x, kernel, **options_of({"padding": "SAME"}))))
    product = lambda *at: jax.jvp(jax.grad(loss, (0, 1)), at, arguments(seed=1))[1]
    return jax.grad(lambda *at: sum(jnp.sum(jnp.cos(part)) for part in product(*at)), (0, 1))(x, kernel)

  for ours, theirs in zip(third(convolution), third(lax.conv_general_dilated)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.thorough
@pytest.mark.parametrize("over", [(0, 0), (0, None), (None, 0)], ids=["both", "images", "kernels"])
def test_vmap_is_a_loop(over):
  options = options_of({"padding": "SAME"})
  x, kernel = (jnp.stack(parts) for parts in zip(*(arguments(seed=seed) for seed in range(3))))
  some = lambda number: [value if axis is None else value[number] for value, axis in zip((x, kernel), over)]
  x, kernel = (value[0] if axis is None else value for value, axis in zip((x, kernel), over))
  of = lambda x, kernel: jnp.sum(jnp.sin(convolution(x, kernel, **options)))
  found = jax.vmap(jax.value_and_grad(of, (0, 1)), over)(x, kernel)
  for number in range(3):
    single = jax.value_and_grad(of, (0, 1))(*some(number))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(single)):
      np.testing.assert_allclose(ours[number], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_sharded_images_are_summed_once(axes):
  mesh = jax.make_mesh((8,), ("data",), axis_types=(axes,))
  x, kernel = arguments(images=(16, 8, 8))
  of = lambda kernel, x: jnp.sum(jnp.sin(convolution(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC)))
  one = jax.grad(of)(kernel, x)
  with jax.set_mesh(mesh):
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    whole = jax.device_put(kernel, NamedSharding(mesh, PartitionSpec()))
    program = jax.jit(jax.grad(of)).lower(whole, placed).compile()
    np.testing.assert_allclose(program(whole, placed), one, rtol=1e-5, atol=1e-4)
  collectives = re.findall(
    r"(all-\w+|collective-\w+|reduce-scatter)\S* = |= \S+ (all-[a-z]+)\(", program.as_text()
  )
  assert all("all-reduce" in name for pair in collectives for name in pair if name)


@pytest.mark.thorough
@pytest.mark.parametrize("inside", [True, False], ids=["in set_mesh", "without it"])
@pytest.mark.parametrize(
  "split",
  [("data",), (None, "data"), ("data", "model"), ("data", None, "model"), (None, None, "data")],
  ids=str,
)
def test_gradients_of_each_example_on_explicit_axes(split, inside):
  mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
  x, kernel = arguments((3, 4), images=(4, 2, 8, 6))
  of = lambda kernel, x: jnp.sum(jnp.sin(convolution(x, kernel, (2, 1), "SAME", dimension_numbers=NHWC)))
  call = jax.jit(jax.vmap(jax.grad(of, (0, 1)), (None, 0)))
  one = call(kernel, x)
  placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*split)))
  whole = jax.device_put(kernel, NamedSharding(mesh, PartitionSpec()))
  with jax.set_mesh(mesh) if inside else contextlib.nullcontext():
    got = call(whole, placed)
  for ours, theirs, rest in zip(got, one, ((), split[1:])):
    assert ours.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(split[0], *rest)), ours.ndim)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_other_types_and_shapes_are_left_to_jax(dtype):
  x, kernel = (value.astype(dtype) for value in arguments())
  options = options_of({"padding": "SAME"})
  ours, theirs = (f(x, kernel, **options) for f in (convolution, lax.conv_general_dilated))
  assert ours.dtype == dtype
  np.testing.assert_array_equal(ours.astype(jnp.float32), theirs.astype(jnp.float32))
  x, kernel = arguments((8, 24))
  grouped = options_of({"padding": "SAME", "feature_group_count": 3})
  x = jnp.tile(x, 3)
  np.testing.assert_array_equal(
    convolution(x, kernel, **grouped), lax.conv_general_dilated(x, kernel, **grouped)
  )
  line, weights = jnp.ones((2, 9, 24)), jnp.ones((3, 24, 24))
  one = {"window_strides": (2,), "padding": "VALID", "dimension_numbers": ("NWC", "WIO", "NWC")}
  np.testing.assert_array_equal(
    convolution(line, weights, **one), lax.conv_general_dilated(line, weights, **one)
  )


@pytest.mark.parametrize(
  ("images", "kernel", "options"),
  [
    ((4, 2, 2, 3), (5, 5, 3, 5), {"padding": "VALID"}),
    ((4, 6, 6, 3), (4, 4, 3, 5), {"padding": "VALID", "rhs_dilation": (2, 2)}),
    ((4, 0, 6, 3), (3, 3, 3, 5), {"padding": "SAME"}),
    ((4, 3, 3, 3), (1, 1, 3, 5), {"padding": ((-2, -1), (0, 0))}),
    ((4, 3, 3, 3), (1, 1, 3, 0), {"padding": "VALID"}),
    ((4, 3, 3, 0), (1, 1, 0, 5), {"padding": "VALID"}),
  ],
  ids=["large kernel", "dilated", "no height", "cropped", "no features", "no channels"],
)
def test_empty_arrays_have_gradients_of_zeros(images, kernel, options):
  at = jnp.ones(images), jnp.ones(kernel)
  of = lambda x, kernel: convolution(x, kernel, **options_of(options)).sum()
  value, found = jax.jit(jax.value_and_grad(of, (0, 1)))(*at)
  assert value == 0
  for gradient, x in zip(found, at):
    np.testing.assert_array_equal(gradient, np.zeros(x.shape))


@pytest.mark.parametrize("dtypes", [(jnp.int32, None), (jnp.int8, jnp.int32), (bool, jnp.int32)])
def test_integers(dtypes):
  dtype, result = dtypes
  x, kernel = (jnp.round(value).astype(dtype) for value in arguments((3, 4)))
  options = options_of({"padding": "SAME"})
  y = convolution(x, kernel, preferred_element_type=result, **options)
  assert y.dtype == jnp.int32
  np.testing.assert_array_equal(y, by_definition(x, kernel, **options))


def test_it_is_linear_in_each_argument():
  x, kernel = arguments((3, 4))
  options = options_of({"padding": ((2, 1), (1, 2)), "lhs_dilation": np.array([2, 3])})
  y = by_definition(x, kernel, **options)
  of_x = jax.linear_transpose(lambda x: convolution(x, kernel, **options), x)(jnp.float32(y))
  of_kernel = jax.linear_transpose(lambda kernel: convolution(x, kernel, **options), kernel)(jnp.float32(y))
  for found, at in zip((*of_x, *of_kernel), (x, kernel)):  # <T' y, x> = <y, T x> = |y|^2
    np.testing.assert_allclose(np.vdot(np.float64(found), at), np.sum(y**2), rtol=1e-6)


def test_another_layout():
  x, kernel = arguments()
  straight = convolution(x, kernel, (2, 1), "SAME", dimension_numbers=NHWC)
  turned = convolution(x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), (2, 1), "SAME")
  np.testing.assert_allclose(turned.transpose(0, 2, 3, 1), straight, rtol=1e-5, atol=1e-5)


def test_wrong_arguments_are_told_as_by_jax():
  x, kernel = arguments()
  with pytest.raises((TypeError, ValueError), match="feature"):
    convolution(x[..., :5], kernel, (1, 1), "SAME", dimension_numbers=NHWC)
  for padding in (1, (1, 1)):
    with pytest.raises(
      ValueError, match=r"padding .* should be a string or a sequence of \(low, high\) pairs"
    ):
      convolution(x, kernel, (1, 1), padding, dimension_numbers=NHWC)


@pytest.mark.thorough
def test_layers_of_linen_nnx_and_equinox():
  x = jax.random.normal(jax.random.key(0), (2, 6, 6, 24))
  value = lambda model: lambda params: jnp.sum(jnp.sin(model.apply(params, x)))
  params = nn.Conv(8, (3, 3)).init(jax.random.key(1), x)
  plain, ours = (nn.Conv(8, (3, 3), **more) for more in ({}, {"conv_general_dilated": convolution}))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
    *(jax.value_and_grad(value(model))(params) for model in (ours, plain)),
  )

  layer = nnx.Conv(24, 8, (3, 3), conv_general_dilated=convolution, rngs=nnx.Rngs(0))
  same = nnx.Conv(24, 8, (3, 3), rngs=nnx.Rngs(0))
  gradient = nnx.grad(lambda layer: jnp.sum(jnp.sin(layer(x))))
  for a, b in zip(*(jax.tree.leaves(gradient(each)) for each in (layer, same))):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

  class Conv2d(eqx.nn.Conv2d):
    def __call__(self, x, *, key=None):
      return convolution(x[None], self.weight, self.stride, self.padding, None, self.dilation)[0] + self.bias

  make = lambda kind: kind(24, 8, 3, padding=1, key=jax.random.key(2))
  of = lambda layer: jnp.sum(jnp.sin(jax.vmap(layer)(x.transpose(0, 3, 1, 2))))
  for a, b in zip(*(jax.tree.leaves(eqx.filter_grad(of)(make(kind))) for kind in (Conv2d, eqx.nn.Conv2d))):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def stack(convolve):
  def loss(kernels, x):
    for kernel in kernels:
      x = jax.nn.relu(x + convolve(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC))
    return jnp.sum(x**2)

  return jax.jit(jax.grad(loss))


def inputs(convolve):
  """How many activations each transposing loop reads, in the gradient of six residual blocks."""
  kernels, x = [jnp.ones((3, 3, 4, 4))] * 6, jnp.ones((8, 6, 6, 4))
  text = stack(convolve).lower(kernels, x).compile().as_text()
  loops = re.findall(r"^%fused\S* \((.*)\) -> f32\[4,6,6,8\]", text, re.MULTILINE)
  return [loop.count("f32[8,6,6,4]") for loop in loops]


def test_the_gradient_of_a_kernel_does_not_compute_the_blocks_before_it_again():
  assert max(inputs(jax.lax.conv_general_dilated)) == 6
  assert max(inputs(convolution)) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_within_loops_all_convolutions_have_the_order_of_axes_that_xla_has_fast_programs_for(dtype):
  with jax.enable_x64(dtype == jnp.float64):
    check_orders(*(value.astype(dtype) for value in arguments()))


def check_orders(x, kernel):

  def orders(convolve):
    loss = lambda kernel, x: jnp.sum(jnp.sin(convolve(x, kernel, (2, 1), "SAME", dimension_numbers=NHWC)))
    product = lambda x: jax.jvp(jax.grad(loss, (0, 1)), (kernel, x), (kernel, x))
    text = jax.jit(lambda x: lax.map(product, x)).lower(x[None].repeat(3, 0)).compile().as_text()
    return set(re.findall(r"dim_labels=(\S+?),? ", text))

  assert orders(convolution) == {"b01f_01io->b01f"}
  assert len(orders(lax.conv_general_dilated)) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_images_that_shard_map_divides(axes):
  mesh = jax.make_mesh((8,), ("data",), axis_types=(axes,))
  x, kernel = arguments(images=(16, 8, 8))
  of = lambda kernel, x: jnp.sum(jnp.sin(convolution(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC)))
  product = lambda kernel, x: jax.jvp(lambda kernel: jax.grad(of)(kernel, x), (kernel,), (kernel,))[1]
  by_hand = lambda kernel, x: lax.psum(product(lax.pcast(kernel, "data", to="varying"), x), "data")
  # By default JAX sums the gradient of what the devices share.
  for value, call in ((jax.grad(of), jax.grad(of)), (product, product), (product, by_hand)):
    with jax.set_mesh(mesh):
      each = jax.shard_map(call, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=PartitionSpec())
      got = jax.jit(each)(kernel, jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))))
    np.testing.assert_allclose(got, value(kernel, x), rtol=1e-5, atol=1e-3)


@pytest.mark.thorough
def test_a_kernel_that_shard_map_divides_with_shared_images():
  mesh = jax.make_mesh((8,), ("model",))
  x, kernel = arguments(channels=(8, 24))
  of = lambda x, kernel: jnp.sum(jnp.sin(convolution(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC)))
  features = PartitionSpec(None, None, None, "model")
  with jax.set_mesh(mesh):
    each = jax.shard_map(jax.grad(of), in_specs=(PartitionSpec(), features), out_specs=PartitionSpec())
    got = jax.jit(each)(x, jax.device_put(kernel, NamedSharding(mesh, features)))
  np.testing.assert_allclose(got, jax.grad(of)(x, kernel), rtol=1e-5, atol=1e-4)


def test_a_program_may_be_exported_for_every_number_of_images():
  x, kernel = arguments(images=(3, 7, 6))
  of = lambda kernel, x: jnp.sum(convolution(x, kernel, (2, 1), "SAME", dimension_numbers=NHWC) ** 2)
  (number,) = jax.export.symbolic_shape("number")
  shapes = [jax.ShapeDtypeStruct(size, jnp.float32) for size in (kernel.shape, (number, *x.shape[1:]))]
  program = jax.export.export(jax.jit(jax.value_and_grad(of)))(*shapes)
  loss, gradient = program.call(kernel, x)
  options = {"window_strides": (2, 1), "padding": ((1, 1), (0, 1))}
  y = by_definition(x, kernel, **options)
  np.testing.assert_allclose(loss, np.sum(y**2), rtol=1e-5)
  moved = np.vdot(2 * y, by_definition(x, np.ones(kernel.shape), **options))
  np.testing.assert_allclose(np.sum(gradient), moved, rtol=1e-5)


@pytest.mark.parametrize("padding", [((-3, 0), (-2, 3)), ((1, -1), (0, 0))])
def test_padding_that_adds_and_cuts_is_refused(padding):
  x, kernel = arguments()
  with pytest.raises(
    ValueError, match="padding must not add at one end of an axis and cut at the other, got"
  ):
    convolution(x, kernel, (2, 2), padding, dimension_numbers=NHWC)


def test_memory_is_that_of_jax():
  kernels, x = [jnp.ones((3, 3, 16, 16))] * 4, jnp.ones((32, 16, 16, 16))
  temporary = lambda convolve: (
    stack(convolve).lower(kernels, x).compile().memory_analysis().temp_size_in_bytes
  )
  assert temporary(convolution) <= 1.15 * temporary(lax.conv_general_dilated)


@pytest.mark.thorough
def test_onednn_is_requested_of_a_jax_that_has_it_and_computes_all_three():
  """In a process of its own, because XLA reads its flags once."""
  program = """
import os
from jaxreg._cpu.onednn import request_onednn
asked = request_onednn()
import jax, jax.numpy as jnp, numpy as np
from jaxreg.models import convolution
x = jax.random.normal(jax.random.key(0), (32, 9, 9, 24))
k = jax.random.normal(jax.random.key(1), (3, 3, 24, 40))
window = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
step = lambda f: jax.value_and_grad(lambda x, k: jnp.sum(jnp.sin(f(x, k, **window))), (0, 1))
ours = jax.jit(step(convolution))
text = ours.lower(x, k).compile().as_text()
with jax.enable_x64(True):
  exact = step(jax.lax.conv_general_dilated)(x.astype(jnp.float64), k.astype(jnp.float64))
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
jax.tree.map(close, ours(x, k), exact)
print(asked, text.count("__onednn$convolution"), os.environ.get("XLA_FLAGS", ""))
"""
  run = lambda **more: subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=plain | more
  )
  plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  asked, number, *flags = run().stdout.split()
  if asked == "True":
    assert (int(number) >= 3, flags) == (True, [*FLAGS])
  else:
    assert (number, flags) == ("0", [])
  mine = "--xla_cpu_experimental_onednn_custom_call=false"
  assert run(XLA_FLAGS=mine).stdout.split() == ["False", "0", mine]

"""Eager calls share compiled programs, and read in each call what the function captures."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import compilations
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg import _loops, constraints
from jaxreg._loops import in_one_program


def solved(target, **options):
  """The least squares solution, which every start and step reaches, for a target that a closure captures."""
  loss_fn = lambda params: jnp.square(params - target).sum()
  return constraints.proximal_gradient(loss_fn, jnp.zeros(3), kept, num_steps=60, **options).params


def kept(params, step):
  return params


def zero_of(target):
  """A function that is 0, whose derivative captures the target."""

  @jax.custom_jvp
  def zero(params):
    return 0 * (params * target).sum()

  @zero.defjvp
  def zero_jvp(primals, tangents):
    return zero(*primals), 0 * (tangents[0] * target).sum()

  return zero


def test_what_a_function_captures_is_read_in_each_call():
  """The same function object: an array is replaced, a NumPy array changes in place, a number changes."""
  captured = {"array": jnp.ones(3), "numpy": np.ones(3, np.float32), "number": 1.0}

  def function(x):
    return captured["array"] * x + captured["numpy"] * captured["number"]

  for array, entry, number in ((1, 1, 1), (2, 1, 1), (2, 5, 1), (2, 5, -1)):
    captured["array"], captured["number"] = jnp.full(3, float(array)), float(number)
    captured["numpy"][0] = entry
    got = in_one_program(function, jnp.full(3, 3.0))
    np.testing.assert_array_equal(got, 3 * array + np.array([entry, 1, 1]) * number)


@pytest.mark.parametrize("captured", ["an array", "a NumPy array", "within a jitted function"])
def test_large_captured_arrays_are_compared_or_passed(captured):
  """Two equal programs with other data, large enough that a printed text would leave entries out."""
  for scale in (1.0, 2.0, 3.0):
    data = np.full((300, 300), scale, np.float32)
    data[150, 150] = -scale
    data = jnp.asarray(data) if captured == "an array" else data
    function = functools.partial(jnp.add, data)
    if captured == "within a jitted function":
      function = jax.jit(functools.partial(lambda data, x: x + data, data))
    np.testing.assert_array_equal(in_one_program(function, jnp.zeros(())), data)


@pytest.mark.parametrize("within", [lambda f: f, jax.jit, lambda f: lambda x: jax.lax.cond(x > 0, f, f, x)])
def test_python_functions_that_a_program_calls_are_those_of_the_call(within):
  def tripled(scale):
    host = lambda x: np.asarray(scale * x)
    called = lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)
    return in_one_program(within(called), jnp.float32(3))

  assert (tripled(1.0), tripled(2.0)) == (3, 6)


def test_what_a_program_prints_is_printed_in_each_call(capsys):
  for number in (1, 2, 2):
    in_one_program(lambda x, n=number: jax.debug.print(f"{n} {{}}", x), jnp.float32(3))
  jax.effects_barrier()
  assert capsys.readouterr().out == "1 3.0\n2 3.0\n2 3.0\n"


def test_a_function_may_be_named_as_one_that_calls_python():
  def doubled(x):
    @jax.jit
    def no_callback_here(x):
      return 2 * x

    return in_one_program(lambda x: no_callback_here(x), x)

  assert doubled(jnp.float32(3)) == 6
  assert compilations(lambda: doubled(jnp.float32(4))) == 0


def test_the_structure_of_the_result_is_that_of_the_call():
  """Equal programs with other names."""
  assert in_one_program(lambda x: {"a": x + 1, "b": x}, jnp.float32(1)) == {"a": 2, "b": 1}
  assert in_one_program(lambda x: (x + 1, [x]), jnp.float32(1)) == (2, [1])


def test_no_data_are_kept_and_few_programs():
  targets = [jnp.full(3, float(number)) for number in range(3)]
  places = [weakref.ref(target) for target in targets]
  while targets:
    in_one_program(zero_of(targets[-1]), jnp.ones(3))
    solved(targets.pop())
  gc.collect()
  assert [place() for place in places] == [None] * 3
  for number in range(_loops.MAX_PROGRAMS + 2):
    in_one_program(functools.partial(jnp.add, number), jnp.zeros(2))
  assert len(_loops._programs) <= _loops.MAX_PROGRAMS


def test_derivatives_and_programs_around_a_call():
  target = jnp.arange(3.0)
  want = np.eye(3)
  np.testing.assert_allclose(jax.jacfwd(solved)(target), want, atol=1e-5)
  np.testing.assert_allclose(jax.jit(jax.jacfwd(solved))(target), want, atol=1e-5)
  rows = jnp.stack([target, -target])
  np.testing.assert_allclose(jax.vmap(solved)(rows), rows, atol=1e-5)
  with jax.disable_jit():
    np.testing.assert_allclose(solved(target), target, atol=1e-5)


def test_shapes_dtypes_devices_and_meshes_have_programs_of_their_own():
  function = lambda x: jax.lax.fori_loop(0, 3, lambda _, x: x + 1, x)
  mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
  backwards = jax.sharding.Mesh(mesh.devices[::-1], ("data",), axis_types=(AxisType.Explicit,))
  split = [NamedSharding(each, PartitionSpec("data")) for each in (mesh, backwards)]
  places = [*map(jax.sharding.SingleDeviceSharding, jax.devices()[:2]), *split]
  for dtype in (jnp.float32, jnp.bfloat16, jnp.int32):
    for place in places:
      x = jax.device_put(jnp.zeros(4, dtype), place)
      for _ in range(2):
        got = in_one_program(function, x)
        assert (got.dtype, got.sharding) == (dtype, place)
        np.testing.assert_array_equal(got, 3)
      assert compilations(lambda x=x: in_one_program(function, x)) == 0


def test_results_that_are_nan_are_reported_where_one_asks_for_it():
  with jax.debug_nans(True), pytest.raises(FloatingPointError):
    in_one_program(lambda x: jnp.log(x), jnp.float32(-1))


def test_keys_are_passed_and_captured():
  key = jax.random.key(0)
  want = jax.random.normal(jax.random.key(0), (2,))
  np.testing.assert_array_equal(
    in_one_program(lambda x: jax.random.normal(key, (2,)) + x, jnp.zeros(2)), want
  )
  draw = lambda key: jax.random.normal(key, (2,))
  np.testing.assert_array_equal(in_one_program(draw, jax.random.key(0)), want)

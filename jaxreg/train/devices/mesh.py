"""Arranges the devices in a mesh of two axes."""

import os

import jax
from jax.sharding import AxisType

from jaxreg.train.errors import RunError, one_line


def check_platform() -> None:
  """Checks that JAX finds a device, before anything is read."""
  try:
    jax.local_devices()
  except (RuntimeError, AssertionError) as error:  # without a message, if the platform is not installed
    given = os.environ.get("JAX_PLATFORMS")
    where = f"JAX_PLATFORMS={given}" if given else "JAX"
    reason = one_line(error) if str(error) else "it is not installed"
    raise RunError(f"{where}: no device can be used ({reason})") from error


def make_mesh(model: int = 1, axes: str = "auto") -> jax.sharding.Mesh:
  """All devices in two axes: `data`, which splits batches, and `model`, of `model` devices.

  With `axes="explicit"`, JAX keeps the sharding of every array in its type, and guesses none.
  """
  devices = jax.device_count()
  if devices % model:
    raise RunError(f"mesh.model: must divide the number of devices, {devices}, got {model}")
  types = (AxisType.Explicit if axes == "explicit" else AxisType.Auto,) * 2
  return jax.make_mesh((devices // model, model), ("data", "model"), axis_types=types)

"""oneDNN for the convolutions of a CPU, which XLA has, but takes only if its flags say so."""

import importlib.metadata
import os
import platform

# With the second flag YNNPACK leaves convolutions to oneDNN.
FLAGS = (
  "--xla_cpu_experimental_onednn_custom_call=true",
  "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)


def has_onednn() -> bool:
  """Whether XLA knows the flags, which are experimental; XLA ends a program whose flags it does not know."""
  return importlib.metadata.version("jaxlib").startswith("0.12.") and platform.machine() == "x86_64"


def request_onednn() -> bool:
  """Asks XLA for oneDNN by `XLA_FLAGS`, which XLA reads at its first use; returns whether it did.

  If `XLA_FLAGS` names one of the two libraries already, nothing changes.
  """
  flags = os.environ.get("XLA_FLAGS", "")
  if not has_onednn() or "onednn" in flags or "ynn" in flags:
    return False
  os.environ["XLA_FLAGS"] = " ".join([flags, *FLAGS]).strip()
  return True


def uses_onednn() -> bool:
  """Whether XLA leaves float32 convolutions on a CPU to oneDNN."""
  return {*FLAGS} <= {*os.environ.get("XLA_FLAGS", "").split()}

"""The parts of `accelerator.py`, each `measure(report, *, rounds, quick)` of a process of its own.

`quick` means sizes that a CPU can do. The folder of the other benchmarks is on the path.
"""

from typing import Any

from _steps_jax import FIELDS

# The trainer's host is one dispatch ahead of the metrics that it reads.
AHEAD = 1
# Image, batch size, fields: as on CPUs, and toys in their place.
MLP, LENET = "MLP, batch 128", "LeNet, batch 50"
CASES: dict[str, Any] = {MLP: FIELDS["MLP"], LENET: FIELDS["LeNet"]}
TOYS: dict[str, Any] = {"MLP, toy": ((8, 8, 1), 8, {"model.name": "MLP", "model.MLP.widths": (8,)})}

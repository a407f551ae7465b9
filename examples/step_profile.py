"""Draws one step from the profile in a run's folder: when each of its phases is at work.

Command: python examples/step_profile.py runs/NAME [FILE.png]
The run was trained with `--config.profile.steps=3`, on one process with `parallel = "jit"` and one seed. The
profiler knows the names of the compiled step's operations. Their phases stand in the text of that program,
which is compiled again.
"""

import re
import sys
from pathlib import Path

import jax
from matplotlib.figure import Figure

from jaxreg import train
from jaxreg._cpu.onednn import request_onednn
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.assemble.run_parts import make_run, replicas_of
from jaxreg.train.devices.wrap import make_step
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.run.initial_state import initial_states

HOST = ("input", "save", "evaluate")
DEVICE = ("augment", "forward", "loss", "backward", "update", "other")
SCOPE = re.compile(r"\b(augment|forward|loss|update)\b")


def phases(workdir):
  """Returns the name of the compiled step, and the phase of each of its operations."""
  config = restore_config(train.base_config(), workdir)
  if config.onednn:
    request_onednn()  # before the first use of a device, as the run did
  dataset = load_data(config)
  program = build(config, dataset.describe())
  run = make_run(config, dataset, program, replicas_of(config, program))
  step, place = make_step(program.train_step, run.replicas.mesh, layout=run.replicas.layout)
  arrays = run.data["train"].arrays
  batch = place(run.data["train"].batch(run.order(0)[0]))
  text = step.lower(initial_states(run, None)[0], arrays, batch).compile().as_text()
  named = re.findall(r'%([^\s=]+) = .*op_name="([^"]*)"', text)
  module = re.match(r"HloModule ([^,\s]+)", text)[1]
  return module, {operation: phase_of(name) for operation, name in named}


def phase_of(name):
  """Returns the innermost phase of a name such as `jit(one)/transpose(jvp(loss))/forward/Conv_0`."""
  scopes = SCOPE.findall(name)
  if "transpose(" in name and scopes and scopes[-1] in ("forward", "loss"):
    return "backward"
  return scopes[-1] if scopes else "other"


def spans(file, module, phase):
  """Returns each phase's `(start, end)` in nanoseconds, and the time between the last two dispatches."""
  steps, found = [], {name: [] for name in (*HOST, *DEVICE)}
  for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
    for line in plane.lines:
      for event in line.events:
        stats = dict(event.stats)
        name = event.name
        if stats.get("hlo_module") == module:
          operation, _, _ = str(stats.get("hlo_op")).partition("__")  # an operation__TARGET calls a library
          name = phase.get(operation, "other")
        span = (event.start_ns, event.start_ns + event.duration_ns)
        if name == "train":
          steps.append(event.start_ns)
        elif name in found:
          found[name].append(span)
  start, end = sorted(steps)[-2:]
  return {name: joined(within(each, start, end)) for name, each in found.items()}, (start, end)


def within(each, start, end):
  return [(max(a, start), min(b, end)) for a, b in each if a < end and b > start]


def joined(each):
  """Joins spans that overlap, as those of several threads."""
  result = []
  for start, end in sorted(each):
    if result and start <= result[-1][1]:
      result[-1][1] = max(end, result[-1][1])
    else:
      result.append([start, end])
  return result


def draw(found, step, title):
  figure = Figure(figsize=(6.2, 2.9), layout="constrained")
  axis = figure.subplots()
  shown = [name for name in (*HOST, *DEVICE) if found[name]]
  for place, name in enumerate(shown):
    bars = [((start - step[0]) / 1e6, (end - start) / 1e6) for start, end in found[name]]
    axis.broken_barh(bars, (place - 0.35, 0.7), color="tab:orange" if name in HOST else "tab:blue")
  busy = [sum(end - start for start, end in found[name]) / 1e6 for name in shown]
  axis.set_yticks(range(len(shown)), [f"{name}, {value:.1f} ms" for name, value in zip(shown, busy)])
  axis.invert_yaxis()
  axis.set_xlim(0, (step[1] - step[0]) / 1e6)
  axis.set_xlabel("ms since the step was dispatched (orange: host, blue: device)")
  axis.set_title(title, fontsize="medium", loc="left")
  axis.spines[["top", "right"]].set_visible(False)
  axis.grid(alpha=0.3, axis="x")
  return figure


def main(workdir, target="step_profile.png"):
  files = sorted(Path(workdir).glob("profile/plugins/profile/*/process-0.xplane.pb"))
  if not files:
    sys.exit(f"{workdir} has no profile; train with --config.profile.steps=3")
  found, step = spans(files[-1], *phases(Path(workdir)))
  model = restore_config(train.base_config(), Path(workdir)).model.name
  draw(found, step, f"a step of {model}").savefig(target, dpi=120)
  return found, step


if __name__ == "__main__":
  main(*sys.argv[1:])

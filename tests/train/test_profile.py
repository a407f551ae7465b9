"""A profile of some steps: the trace in the work directory, and a run that is the same without it."""

import collections
import importlib.util

import jax
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data

STEPS = 6 * runs.STEPS_PER_EPOCH


def events(workdir, steps):
  """How often each name is in the trace, and the numbers of its steps."""
  file = workdir / "profile" / "plugins" / "profile" / steps / "process-0.xplane.pb"
  data = jax.profiler.ProfileData.from_file(str(file))
  found = [event for plane in data.planes for line in plane.lines for event in line.events]
  numbers = [dict(event.stats)["step_num"] for event in found if event.name == "train"]
  return collections.Counter(event.name for event in found), numbers


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_a_window_has_its_steps_and_phases_and_changes_nothing(finished_run, tmp_path, capsys):
  """The window has the evaluation and the save after step 8."""
  workdir = tmp_path / "run"
  results = train.train(runs.make_config({"profile.start": 7, "profile.steps": 4}), workdir)
  names, numbers = events(workdir, "steps-7-10")
  assert numbers == [7, 8, 9, 10]
  assert (names["input"], names["evaluate"], names["save"] > 0) == (4, 1, True)
  assert f"profile of steps 7 to 10: xprof --logdir {workdir}/profile\n" in capsys.readouterr().err
  assert results == runs.table(finished_run / "results.json")
  assert runs.records(workdir) == runs.records(finished_run)
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(finished_run))
  assert len(list((workdir / "profile").rglob("*.pb"))) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
@pytest.mark.parametrize(
  ("start", "steps", "folders"),
  [(23, 9, ["steps-23-24"]), (25, 3, []), (1, 1, ["steps-1-1"])],
)
def test_a_window_at_the_end_and_one_behind_it(tmp_path, start, steps, folders):
  workdir = tmp_path / "run"
  train.train(runs.make_config({"profile.start": start, "profile.steps": steps}), workdir)
  assert [folder.name for folder in (workdir / "profile").glob("plugins/profile/*")] == folders


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_a_run_that_stops_in_its_window_writes_what_there_is(tmp_path, monkeypatch):
  workdir, config = tmp_path / "run", runs.make_config({"profile.start": 4, "profile.steps": 10})
  undo = runs.interrupt_at(monkeypatch, 6)
  with pytest.raises(train.Interrupted):
    train.train(config, workdir)
  undo()
  assert events(workdir, "steps-4-6")[1] == [4, 5, 6]
  train.train(config, workdir)
  assert events(workdir, "steps-7-13")[1] == [*range(7, 14)]


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_whole_dispatches_are_profiled(tmp_path):
  fields = {"profile.start": 6, "profile.steps": 1, "steps_per_dispatch": 4}
  train.train(runs.make_config(fields), tmp_path / "run")
  assert events(tmp_path / "run", "steps-5-8")[1] == [8]


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_a_profile_that_cannot_be_written_costs_a_line(finished_run, tmp_path, monkeypatch, capsys):
  def full(file, content):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr("jaxreg.train.run.profile.write_bytes", full)
  results = train.train(runs.make_config({"profile.start": 3, "profile.steps": 2}), tmp_path / "run")
  assert results == runs.table(finished_run / "results.json")
  (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
  assert line.endswith(
    "profile cannot be written ([Errno 28] No space left on device); the run goes on without a profile"
  )


@pytest.mark.parametrize("chunk_size", [0, 16])
def test_the_compiled_step_names_its_phases(chunk_size):
  fields = {"augment.names": ("mixup",)} if not chunk_size else {}
  config = runs.make_config({"method.name": "softmax", "method.chunk_size": chunk_size, **fields})
  program = build(config, load_data(config).describe())
  batch = {
    "inputs": jax.ShapeDtypeStruct((32, 8, 8, 1), "uint8"),
    "labels": jax.ShapeDtypeStruct((32,), "int32"),
  }
  text = jax.jit(program.train_step).lower(program.abstract, batch).compile().as_text()
  for phase in ("augment", "loss", "forward", "update"):
    assert f"{phase}/" in text or f"{phase})/" in text, phase


@pytest.mark.thorough
@pytest.mark.usefixtures("light_runs")
def test_the_example_draws_the_phases_of_a_step(tmp_path):
  spec = importlib.util.spec_from_file_location("step_profile", runs.ROOT / "examples" / "step_profile.py")
  example = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(example)
  with pytest.raises(SystemExit, match="has no profile; train with"):
    example.main(str(tmp_path), str(tmp_path / "step.png"))
  train.train(runs.make_config({"profile.start": 10, "profile.steps": 2}), tmp_path / "run")
  spans, (start, end) = example.main(str(tmp_path / "run"), str(tmp_path / "step.png"))
  assert (tmp_path / "step.png").stat().st_size > 1000
  for name in ("input", "forward", "backward", "loss", "update"):
    assert spans[name], name
    assert all(start <= a <= b <= end for a, b in spans[name]), name
  assert example.phase_of("jit(one)/jvp(loss)/forward/Dense_0/dot_general") == "forward"
  assert example.phase_of("jit(one)/transpose(jvp(loss))/forward/Dense_0/dot_general") == "backward"
  assert example.phase_of("jit(one)/update/sub") == "update"
  assert example.phase_of("jit(one)/gather") == "other"

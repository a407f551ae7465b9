"""What a run leaves behind to read."""

import errno
import itertools
import json
import re
import shutil
import types

import numpy as np
import pytest
import runs
import terminal
from PIL import Image

from jaxreg import train
from jaxreg.train.config.choices import flatten
from jaxreg.train.run.log import Log, progress
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.run.results import save_figures
from jaxreg.train.run.workdir import FORMAT

STEPS = 6 * runs.STEPS_PER_EPOCH


@pytest.mark.thorough
def test_what_a_run_leaves_behind(finished_copy, asked_figures):
  ((_, *arguments),) = asked_figures
  save_figures(finished_copy, *arguments)
  names = {path.name for path in finished_copy.iterdir()}
  assert names == {
    "checkpoints",
    "config.json",
    "data.json",
    "environment.json",
    "figures",
    "manifests",
    "metrics.jsonl",
    "reliability.json",
    "results.json",
    "lock",
    "tensorboard",
    "times.json",
  }
  figures = {path.name for path in (finished_copy / "figures").iterdir()}
  assert figures == {"curves.png", "terms.png", "diagnostics.png", "retain_maps.png", "reliability.png"} | {
    "goodput.png"
  }
  for name in figures:
    with Image.open(finished_copy / "figures" / name) as image:
      assert min(image.size) > 100
      assert len(set(image.convert("L").resize((64, 64)).getdata())) > 4  # not blank
  sums = {k: np.array(v) for k, v in runs.table(finished_copy / "reliability.json").items()}
  results = runs.table(finished_copy / "results.json")
  gap = np.abs(sums["confidence"] - sums["correct"]).sum() / sums["count"].sum()
  assert gap == pytest.approx(results["test/ece"], rel=1e-5)
  environment = runs.table(finished_copy / "environment.json")
  assert {"jax", "flax", "optax", "numpy", "python", "jaxreg"} <= environment.keys()
  assert len(environment["devices"]) == 8
  config = runs.table(finished_copy / "config.json")
  assert config["model.MLP.widths"] == [8]
  assert len(config.pop("run")) == 32
  assert config == json.loads(json.dumps({"format": FORMAT, **flatten(runs.make_config())}))


@pytest.mark.thorough
def test_the_figure_of_terms_has_the_regularizers(tmp_path, light_runs, monkeypatch):
  asked = []
  monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *arguments: asked.append(arguments[3]))
  fields = {"method.name": "softmax", "regularizers.names": ("l2", "l1"), "epochs": 1}
  train.train(runs.make_config(fields), tmp_path / "run")
  assert asked == [("nll", "l2", "l1")]


@pytest.mark.thorough
def test_tensorboard_has_the_scalars(finished_run):
  (file,) = (finished_run / "tensorboard").glob("events.out.tfevents.*")
  content = file.read_bytes()
  for name in ("train/loss", "train/kl", "val/error", "test/error"):
    assert name.encode() in content


def test_records_of_a_run(finished_run):
  records = read_records(finished_run)
  of_training = [r for r in records if "train/loss" in r]
  assert [r["step"] for r in of_training] == list(range(1, STEPS + 1))
  for record in of_training:
    assert record["epoch"] == record["step"] / runs.STEPS_PER_EPOCH
    terms = sum(record[f"train/{name}"] for name in ("nll", "kl", "neg_entropy", "auxiliary"))
    assert record["train/loss"] == pytest.approx(terms, rel=1e-6, abs=1e-6)
    assert record["step"] == 1 or record["train/examples_per_second"] > 0  # the first one compiles
    assert 0 <= record["train/accuracy"] <= 1
    assert record["train/learning_rate"] == pytest.approx(1e-2, rel=1e-6)
    assert record["train/grad_norm"] > 0
  assert [r["step"] for r in records if "val/error" in r] == list(range(4, STEPS + 1, 4))
  (test_record,) = [r for r in records if "test/error" in r]
  assert records[-1] is test_record
  results = runs.table(finished_run / "results.json")
  recorded = {k: v for k, v in {**records[-2], **test_record}.items() if k != "epoch"}
  assert recorded == results


def write(workdir, start, steps, **values):
  with Log(workdir, start=start, total=10, steps_per_epoch=5) as log:
    for step in steps:
      log.write(step, {"train/loss": float(step), **values})


def steps_in(workdir):
  return [record["step"] for record in read_records(workdir)]


def test_records_after_the_restored_step_are_cut(tmp_path):
  write(tmp_path, 0, range(1, 8))
  write(tmp_path, 4, [5, 6])
  assert steps_in(tmp_path) == [1, 2, 3, 4, 5, 6]
  write(tmp_path, 0, [1])
  assert steps_in(tmp_path) == [1]


def test_the_test_record_is_dropped_when_the_run_goes_on(tmp_path):
  write(tmp_path, 0, [1, 2])
  write(tmp_path, 2, [2], **{"test/error": 0.5})
  assert steps_in(tmp_path) == [1, 2, 2]
  write(tmp_path, 2, [3])
  assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("rest", ["", "{", '{"step": 3, "train/lo', '{"step": 3}'])
def test_a_truncated_last_line_is_left_out(tmp_path, rest):
  write(tmp_path, 0, [1, 2])
  file = tmp_path / "metrics.jsonl"
  file.write_text(file.read_text() + rest)
  write(tmp_path, 2, [3])
  assert steps_in(tmp_path) == [1, 2, 3]
  assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize(
  "damage", [b"{", b"3", b'{"loss": 1}', b'{"step": "x"}', b"\xff\xfe", b'{"step": 2}']
)
def test_a_damaged_line_is_left_out_and_said(tmp_path, capsys, damage):
  write(tmp_path, 0, [1, 2, 3])
  file = tmp_path / "metrics.jsonl"
  first, _, third = file.read_bytes().splitlines()
  file.write_bytes(b"\n".join([first, damage, third, b""]))
  capsys.readouterr()
  write(tmp_path, 3, [4])
  assert f"{file}: 1 damaged lines are left out" in capsys.readouterr().err
  assert steps_in(tmp_path) == [1, 3, 4]


def test_a_record_that_cannot_be_written_is_told(tmp_path, monkeypatch):
  def full(file, text):
    raise OSError(errno.ENOSPC, "No space left on device")

  with Log(tmp_path, start=0, total=10, steps_per_epoch=5) as log:
    monkeypatch.setattr("jaxreg.train.run.metrics_file.write_text", full)
    with pytest.raises(train.RunError, match=r"metrics\.jsonl: cannot be written \(.*No space left"):
      log.write(1, {"train/loss": 1.0})
    monkeypatch.undo()


def test_a_folder_in_the_place_of_the_records_is_told(tmp_path):
  (tmp_path / "metrics.jsonl").mkdir()
  message = r"metrics\.jsonl: cannot be written \(.*Is a directory.*\); the checkpoints are kept$"
  with pytest.raises(train.RunError, match=message):
    Log(tmp_path, start=0, total=10, steps_per_epoch=5)
  assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_records_of_nothing(tmp_path):
  assert read_records(tmp_path / "nowhere") == []


def test_lines_for_people_go_to_stderr(tmp_path, capsys):
  with Log(tmp_path, start=0, total=10, steps_per_epoch=5) as log:
    log.say("hello")
    log.step()
    log.write(5, {"train/loss": 1.25, "train/accuracy": 0.5, "train/examples_per_second": 1000.0})
    log.write(10, {"val/error": 0.125, "val/nll": 0.5})
  out, err = capsys.readouterr()
  assert out == ""
  lines = err.splitlines()
  assert lines[0] == "hello"
  assert lines[1].startswith("step 5/10  epoch 1.0  loss 1.2500  accuracy 50.00%  examples/s 1000  0:00 left")
  assert lines[2:] == ["step 10/10  epoch 2.0  val error 12.50%  val NLL 0.5000"]


def test_records_that_are_removed_under_the_run_are_written_again(tmp_path):
  with Log(tmp_path, start=0, total=10, steps_per_epoch=5) as log:
    log.write(1, {"train/loss": 1.0})
    (tmp_path / "metrics.jsonl").unlink()
    log.write(2, {"train/loss": 0.5})
  assert steps_in(tmp_path) == [1, 2]


def test_records_are_there_before_a_checkpoint_and_after_a_second(tmp_path, monkeypatch):
  clock = [0.0]
  monkeypatch.setattr("jaxreg.train.run.metrics_file.time", types.SimpleNamespace(monotonic=lambda: clock[0]))
  with Log(tmp_path, start=0, total=10, steps_per_epoch=5) as log:
    log.write(1, {"train/loss": 1.0})
    log.write(2, {"train/loss": 1.0})
    assert steps_in(tmp_path) == [1]
    log.flush()
    assert steps_in(tmp_path) == [1, 2]
    clock[0] += 1.5
    log.write(3, {"train/loss": 1.0})
    assert steps_in(tmp_path) == [1, 2, 3]


def test_a_run_that_is_not_there_any_more_begins_no_records_again(tmp_path, monkeypatch):
  """Another run may have begun in this folder."""
  monkeypatch.setattr("jaxreg.train.run.metrics_file.ON_DISK", 0.0)
  folders = iter([True])

  def gone():
    if not next(folders, False):
      raise train.RunError("gone")

  log = Log(tmp_path / "run", start=0, total=10, steps_per_epoch=5, check_there=gone)
  log.write(1, {"train/loss": 1.0})
  shutil.rmtree(tmp_path / "run")
  (tmp_path / "run").mkdir()
  with pytest.raises(train.RunError, match=r"^gone$"):
    log.write(2, {"train/loss": 1.0})
  assert not list((tmp_path / "run").iterdir())


def test_in_a_log_each_step_has_one_line(tmp_path, capsys, monkeypatch):
  """Steps 2 and 4 are evaluated; at 4 a training record is due, and at 2 the means so far are shown."""
  now = itertools.count()
  monkeypatch.setattr("jaxreg.train.run.log.time.monotonic", lambda: next(now))
  with Log(tmp_path, start=0, total=4, steps_per_epoch=2, eval_every=2) as log:
    log.write(1, {"train/loss": 4.0})
    log.show(2, {"train/loss": 2.0})
    log.write(2, {"val/error": 0.25})
    log.write(4, {"train/loss": 1.0})
    log.write(4, {"val/error": 0.125})
    log.write(4, {"test/error": 0.5})
  lines = [re.sub(r"  \d:\d\d left", "", line) for line in capsys.readouterr().err.splitlines()]
  assert lines == [
    "step 1/4  epoch 0.5  loss 4.0000",
    "step 2/4  epoch 1.0  loss 2.0000  val error 25.00%",
    "step 4/4  epoch 2.0  loss 1.0000  val error 12.50%",
    "test error 50.00%",
  ]
  assert [sorted(record)[2] for record in read_records(tmp_path)] == [
    *("train/loss", "val/error", "train/loss", "val/error", "test/error")
  ]


def test_a_line_that_waits_for_an_evaluation_is_written_when_none_comes(tmp_path, capsys):
  with Log(tmp_path, start=0, total=4, steps_per_epoch=2, eval_every=2) as log:
    log.write(2, {"train/loss": 2.0})
  assert capsys.readouterr().err.startswith("step 2/4  epoch 1.0  loss 2.0000")


@pytest.mark.parametrize("total", [60, 1600, 10**5])
@pytest.mark.parametrize("part", ["", "row 2 of 3: dropmax", "run 13 of 88: a row with a long name, x=0.1"])
def test_a_bar_shows_its_numbers_whole_at_80_columns(tmp_path, monkeypatch, total, part):
  with terminal.Terminal() as shown, monkeypatch.context() as patch:
    patch.setattr("sys.stderr", shown.file)
    patch.setattr("tqdm.std.tqdm.format_interval", staticmethod(lambda t: "17:23:51"))
    with Log(tmp_path, start=total // 2, total=total, steps_per_epoch=5, part=part) as log:
      log.write(total // 2, {"train/loss": 123.4567, "val/error": 0.125})
  drawn = [text for text in re.split(r"[\r\n]|\x1b\[\w", shown.output.decode()) if "%" in text]
  assert drawn
  assert max(map(len, drawn)) <= 80
  assert ("loss 123.4567" if part else "loss 123.4567  val error 12.50%") in drawn[-1]
  assert part[:15] in drawn[-1]


def of_a_run(workdir, start, total, **options):
  with Log(workdir, start=start, total=total, steps_per_epoch=5, eval_every=2, **options) as log:
    log.say("training, in runs/digits", routine=True)
    log.say("a warning")
    for step in range(start + 1, total + 1):
      log.step()
      log.write(step, {"train/loss": 1.25, "train/accuracy": 0.5, "train/examples_per_second": 1000.0})
      if step % 2 == 0:
        log.write(step, {"val/error": 0.125, "val/nll": 0.5})
    log.write(total, {"test/error": 0.5})


@pytest.mark.parametrize(("start", "total", "tenths"), [(0, 60, 10), (30, 60, 5), (0, 6, 3)])
def test_a_terminal_shows_a_bar_and_a_line_for_each_tenth(tmp_path, monkeypatch, start, total, tenths):
  with terminal.Terminal() as shown, monkeypatch.context() as patch:
    patch.setattr("sys.stderr", shown.file)
    of_a_run(tmp_path, start, total)
  *lines, bar = shown.lines
  assert lines[:2] == ["training, in runs/digits", "a warning"]
  assert len(lines) == 2 + tenths
  last = f"step {total}/{total}  epoch {total / 5}  loss 1.2500  val error 12.50%  val NLL 0.5000"
  assert lines[-1] == last
  assert bar.startswith("100%|")
  assert "loss 1.2500  val error 12.50%" in bar


def test_a_part_of_a_longer_job_leaves_nothing_but_warnings_on_a_terminal(tmp_path, monkeypatch):
  with terminal.Terminal() as shown, monkeypatch.context() as patch:
    patch.setattr("sys.stderr", shown.file)
    of_a_run(tmp_path, 0, 60, part="run 3 of 8: a row with a long name, learning_rate=0.1")
    progress("compare: run 4 of 8")
  assert shown.lines == ["a warning"]
  assert b"run 3 of 8: a row with a...: " in shown.output


@pytest.mark.parametrize(
  ("part", "step_seconds", "expected"),
  [("", 0.1, 21), ("", 10.0, 21), ("", 600.0, 300), ("run 3 of 8", 0.1, 2), ("run 3 of 8", 10.0, 21)],
)
def test_a_log_has_about_twenty_plain_lines(tmp_path, capsys, monkeypatch, part, step_seconds, expected):
  """Runs of 300 steps: a minute, an hour and two days; a part has a line a minute at most."""
  now = itertools.count(0, step_seconds / 4)
  monkeypatch.setattr("jaxreg.train.run.log.time.monotonic", lambda: next(now))
  of_a_run(tmp_path, 0, 300, part=part)
  progress("compare: run 4 of 8")
  lines = capsys.readouterr().err.splitlines()
  assert abs(len(lines) - (2 + expected + 1 + 1)) <= 3, len(lines)
  assert lines[2].startswith("step 1/300 ")
  assert lines[-3].startswith("step 300/300 ")
  assert all(line.isprintable() for line in lines)
  assert lines[-1] == "compare: run 4 of 8"

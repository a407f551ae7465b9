"""The scripts of `benchmarks/`: what they make of their flags."""

import gzip
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxreg import flatness, train
from jaxreg.train import cli

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
PARTS = {path.stem for path in (FOLDER / "_accelerator").glob("[a-z]*.py")}


def test_seeds_are_a_number_or_a_list():
  spec = importlib.util.spec_from_file_location("benchmark_seeds", FOLDER / "seeds.py")
  assert spec
  assert spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  for text, want in (("3", [0, 1, 2]), ("0,2", [0, 2]), ("1,", [1])):
    assert module._seeds(text) == want
  with pytest.raises(SystemExit, match=r"--seeds: give a number of seeds.*got 'two'"):
    module._seeds("two")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_script_takes_every_flag_that_it_reads(path):
  text = path.read_text()
  named = {name.replace("-", "_") for name in re.findall(r'"-{0,2}([a-z-]+)"', text)}
  named |= {"rounds", "quick", "json"} if re.search(r"\bflags\(", text) else set()
  named |= {*re.findall(r"\b(?:as )?options\.(\w+)(?: =|:$)", text, re.MULTILINE)}
  assert {*re.findall(r"\boptions\.(\w+)\b(?!\()", text)} <= named


def test_a_peer_measures_the_package_of_its_checkout_and_keeps_the_path(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent)
  peer = importlib.import_module("benchmarks._peer")
  (tmp_path / "jaxreg.py").touch()  # as an installed one
  monkeypatch.setenv("PYTHONPATH", f"{tmp_path}")
  script = tmp_path / "scripts" / "peer.py"
  script.parent.mkdir()
  script.write_text(
    "import importlib.util, json, sys\n"
    "for line in sys.stdin:\n"
    "  found = importlib.util.find_spec('jaxreg').origin, sys.path\n"
    "  print(json.dumps({'seconds': 1, 'notes': found}), flush=True)\n"
  )
  for python, kept in ((sys.executable, True), (tmp_path / "python", False)):
    if not kept:
      python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
      python.chmod(0o755)
    one = peer.Peer(python, script)
    one.ask("where")
    one.close()
    origin, path = one.notes["where"]
    assert origin == str(FOLDER.parent / "jaxreg" / "__init__.py")
    assert (str(tmp_path) in path) == kept


def test_each_measurement_is_a_script(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command = importlib.import_module("benchmarks.__main__")
  assert {path.stem for path in FOLDER.glob("[a-z]*.py")} >= {*command.NAMES, *command.NAMED}


def test_the_page_takes_all_tables_of_a_measurement(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command = importlib.import_module("benchmarks.__main__")
  tables = {name: {"columns": [name, "ms"], "rows": [["a", "1"]]} for name in ("one", "two")}
  found = {"date": "D", "machine": {"cores": 2, "processor": "P"}, "versions": {"python": "3", "jax": "0"}}
  results = {"accelerator": {**found, "device": "GPU", "tables": tables}}
  before, after = "<!-- tables accelerator -->\n", "<!-- end -->\n"
  page = command.render(f"{before}nothing yet\n{after}", results)
  assert page == (
    f"{before}| one | ms |\n| --- | --- |\n| a | 1 |\n\n| two | ms |\n| --- | --- |\n| a | 1 |\n\n"
    f"`python -m benchmarks accelerator`, D: GPU, 2 cores of P, Python 3,\njax 0.\n{after}"
  )
  assert command.render(page, results) == page
  assert command.render(page, {}) == page


def test_a_caption_has_the_load_of_a_busy_machine(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command = importlib.import_module("benchmarks.__main__")
  for load, text in ((2.0, ""), (2.1, ", load 2.1")):
    machine = {"cores": 2, "processor": "P", "load": load}
    found = {"date": "D", "machine": machine, "versions": {"python": "3", "jax": "0"}}
    assert command.caption("steps", found) == (
      f"`python -m benchmarks steps`, D: 2 cores of P{text}, Python 3,\njax 0."
    )


def test_the_commands_of_report_cards_find_no_compiled_programs(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER)
  report_card, caches = importlib.import_module("report_card"), []

  def run(command, *, env, **_):
    caches.append(env["XDG_CACHE_HOME"])
    assert list(Path(caches[-1]).iterdir()) == []
    assert env["JAX_COMPILATION_CACHE_DIR"] == "", "else it decides"

  monkeypatch.setattr(report_card.subprocess, "run", run)
  report_card._run("train")
  report_card._run("report")
  assert len(set(caches)) == 2


def test_a_measurement_that_does_not_exist_is_one_line(monkeypatch, capsys):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command = importlib.import_module("benchmarks.__main__")
  monkeypatch.setattr("sys.argv", ["benchmarks", "step"])
  with pytest.raises(SystemExit, match="2"):
    command.main()
  assert "there is no measurement step; there are steps, products" in capsys.readouterr().err


def test_the_density_of_known_eigenvalues_integrates_to_their_weights(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER)
  smooth = importlib.import_module("pyhessian_readme").smooth
  values, weights, grid = np.array([0.0, 2.0]), np.array([0.25, 0.75]), np.linspace(-1, 3, 4001)
  density = smooth(values, weights, grid, 0.1)
  np.testing.assert_allclose(density, stats.norm(values, 0.1).pdf(grid[:, None]) @ weights, rtol=1e-12)
  np.testing.assert_allclose(density.sum() * (grid[1] - grid[0]), 1, rtol=1e-6)


def test_the_accelerator_is_measured_only_if_it_is_named(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER.parent)
  command, ran = importlib.import_module("benchmarks.__main__"), []
  monkeypatch.setattr(command, "run", lambda name, options: ran.append(name) or True)
  for names in ([], ["accelerator"]):
    monkeypatch.setattr("sys.argv", ["benchmarks", *names, "--quick"])
    assert command.main() == 0
  assert ran == [*command.NAMES, "accelerator"]


@pytest.fixture
def accelerator(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER)
  return importlib.import_module("accelerator")


@pytest.mark.parametrize(
  ("program", "seconds", "outcome"),
  [
    ("", 60, "ok"),
    ("import sys; sys.exit('one\\nno memory | left\\n')", 60, "failed: no memory / left"),
    ("import os; os._exit(3)", 60, "failed: status 3"),
    ("import time; time.sleep(60)", 0.2, "stopped after its 0 s"),
  ],
)
def test_a_part_that_fails_or_hangs_is_a_line(accelerator, tmp_path, program, seconds, outcome):
  path = tmp_path / "found.json"
  path.write_text('{"tables": {}}')
  ended = accelerator.limited([sys.executable, "-S", "-c", program], path, seconds)
  assert ended.outcome == outcome
  assert ended.found == {"tables": {}}
  assert ended.seconds < 50


def test_a_part_ends_with_what_it_started(accelerator):
  command = ["sh", "-c", "sleep 60 & echo started; wait"]
  began = time.monotonic()
  with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
    assert process.stdout
    assert process.stdout.readline() == b"started\n"
    accelerator.end_group(process)
    assert process.stdout.read() == b"", "it ends when `sleep` does, too"
  assert time.monotonic() - began < 50


def test_the_table_of_the_toolbox_is_the_record_and_the_ratio_of_the_times(monkeypatch):
  monkeypatch.syspath_prepend(FOLDER)
  module = importlib.import_module("toolbox")
  found = json.loads(module.RECORD.read_text())
  report = importlib.import_module("_report").Report(None)
  times = {"none": {}, "dropout": {"none": [1.0, 2.0], "row": [1.5, 2.6]}, "not in the record": {}}
  module.tell(report, found, times)
  first, second = report.tables["toolbox"]["rows"]
  runs = [100 * np.array(found["rows"][label]["runs"]["test/error"]) for label in ("none", "dropout")]

  def cell(runs):
    half = stats.t.ppf(0.975, len(runs) - 1) * stats.sem(runs)
    return f"{runs.mean():.2f} ± {half:.2f}"

  assert [first[0], first[1], first[4], first[6]] == ["none", cell(runs[0]), "", ""]
  assert [second[0], second[1], second[4]] == ["dropout", cell(runs[1]), cell(runs[1] - runs[0])]
  assert second[5:] == ["dropout_rate 0.5", "1.40 (1.30 to 1.50)"]


@pytest.mark.parametrize("quick", [True, False])
def test_the_reduced_form_says_that_it_is_reduced(accelerator, monkeypatch, capsys, quick):
  monkeypatch.setattr(accelerator, "device", lambda: ("cpu" if quick else "gpu", 1, "D"))
  monkeypatch.setattr(accelerator.signal, "signal", lambda *_: None)
  monkeypatch.setattr("sys.argv", ["accelerator.py", "--parts", "", *["--quick"] * quick])
  monkeypatch.setattr(accelerator, "PARTS", {"": 0})
  monkeypatch.setattr(accelerator, "limited", lambda *_: accelerator.Ended(0.0, "ok", {}))
  accelerator.main()
  assert ("reduced: toy sizes" in capsys.readouterr().out) == quick


@pytest.mark.thorough
def test_the_seconds_to_an_accuracy_count_from_the_start(monkeypatch, tmp_path, accelerator):
  cifar10 = importlib.import_module("_accelerator.cifar10")
  assert accelerator
  program = (
    "import json, pathlib, sys, time\n"
    "folder = pathlib.Path(sys.argv[1]); folder.mkdir()\n"
    "with open(folder / 'metrics.jsonl', 'w', buffering=1) as file:\n"
    "  for error in (0.5, 0.06, 0.07):\n"
    "    time.sleep(0.4); print(json.dumps({'val/error': error}), file=file)\n"
    "time.sleep(0.4)\n"
  )
  command = [sys.executable, "-S", "-c", program, str(tmp_path / "run")]
  seconds, reached = cifar10.watched(command, tmp_path)
  assert reached
  assert 0.8 <= reached <= seconds - 0.4
  monkeypatch.setattr(cifar10, "TARGET", 0.99)
  (tmp_path / "run" / "metrics.jsonl").unlink()
  (tmp_path / "run").rmdir()
  assert cifar10.watched(command, tmp_path)[1] is None


def test_parts_share_the_time_and_the_rest_goes_on(accelerator, tmp_path, monkeypatch):
  took, limits, clock = {"a": 25.0, "b": 5.0, "c": 1.0}, [], [0.0]

  def limited(command, path, seconds, environment):
    part = command[command.index("--inside") + 1]
    limits.append(round(seconds))
    clock[0] += took[part]
    found = {"tables": {f"accelerator_{part}": {"columns": ["x"], "rows": []}}, "numbers": {part: 1}}
    return accelerator.Ended(took[part], "failed: no memory" if part == "a" else "ok", found)

  monkeypatch.setattr(accelerator, "PARTS", {"a": 30, "b": 10, "c": 20})
  monkeypatch.setattr(accelerator, "LOOK", 0)
  monkeypatch.setattr(accelerator, "device", lambda: ("gpu", 1, "GPU of a test"))
  monkeypatch.setattr(accelerator, "limited", limited)
  monkeypatch.setattr(accelerator.time, "monotonic", lambda: clock[0])
  monkeypatch.setattr(accelerator.signal, "signal", lambda *_: None)
  monkeypatch.setattr("sys.argv", ["accelerator.py", "--json", str(tmp_path / "found.json")])
  accelerator.main()
  found = json.loads((tmp_path / "found.json").read_text())
  assert limits == [30, 15, 30], "what a part leaves, the next may take"
  assert found["device"] == "GPU of a test"
  assert found["numbers"] == {"a": 1, "b": 1, "c": 1}
  assert list(found["tables"]) == [f"accelerator_{name}" for name in ("a", "b", "c", "parts")]
  assert found["tables"]["accelerator_parts"]["rows"] == [
    ["a", "25", "failed: no memory"],
    ["b", "5", "ok"],
    ["c", "1", "ok"],
  ]


def test_all_parts_take_less_than_45_minutes(accelerator):
  assert accelerator.LOOK + sum(accelerator.PARTS.values()) <= 45 * 60
  assert set(accelerator.PARTS) == PARTS


def test_a_cpu_is_no_accelerator(accelerator, monkeypatch):
  monkeypatch.setattr(accelerator, "device", lambda: ("cpu", 1, "cpu"))
  monkeypatch.setattr(accelerator.signal, "signal", lambda *_: None)
  monkeypatch.setattr("sys.argv", ["accelerator.py"])
  with pytest.raises(SystemExit, match="JAX finds no GPU or TPU here; --quick runs toy sizes on the CPU"):
    accelerator.main()


@pytest.mark.thorough
@pytest.mark.parametrize("part", sorted(PARTS - {"group_softmax"}))  # which has a process of its own below
def test_a_part_measures_toys_on_a_cpu(accelerator, tmp_path, monkeypatch, part):
  monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # as here, for the processes that it starts
  if part == "resume":  # three runs; as processes they would take most of the time of these tests

    def finish(command):
      call = cli.parse(command[2:], FOLDER.parent / "configs")
      train.train(call.config, call.workdir)

    monkeypatch.setattr(importlib.import_module("_accelerator.resume"), "finish", finish)
    monkeypatch.setattr("jaxreg.train.run.results.save_figures", lambda *_: [])
  path = tmp_path / "found.json"
  assert accelerator.measure(part, path, 2, True) == 0
  found = json.loads(path.read_text())
  for name, table in found["tables"].items():
    assert name.startswith("accelerator_")
    assert table["rows"]
    assert not [row for row in table["rows"] if len(row) != len(table["columns"]) or "failed" in str(row)]
  if part == "agreement":
    assert {row[-1] for row in found["tables"]["accelerator_agreement"]["rows"]} == {"yes"}
  if part == "resume":
    (row,) = found["tables"]["accelerator_resume"]["rows"]
    assert row[-2:] == ["0", "0"]
    assert int(row[1]) > 1000


@pytest.fixture
def language_model(tmp_path, monkeypatch):
  """The script and a study of a decoder with some 2000 parameters, on random words."""
  monkeypatch.syspath_prepend(FOLDER)
  module = importlib.import_module("language_model")
  rng = np.random.default_rng(0)
  words = [f"word{number}" for number in range(49)]
  for name in ("train", "valid"):
    with gzip.open(tmp_path / f"wt2.{name}.txt.gz", "wt") as text:
      text.write("".join(" ".join([*words, *rng.choice(words, 8)]) + "\n" for _ in range(40)))
  sizes = module.SIZES | module.QUICK | {"vocabulary": 50, "width": 8, "products": 40, "probes": 20}

  def study(name):
    (tmp_path / name).mkdir()
    return module.Study(sizes, tmp_path / name, tmp_path)

  return module, study


@pytest.mark.thorough
def test_the_spectrum_of_a_language_model_is_that_of_its_dense_hessian(language_model):
  module, study = language_model
  study = study("one")
  for stage in module.STAGES:
    module.run(study, stage)
  results = {stage: json.loads((study.workdir / f"{stage}.json").read_text()) for stage in module.STAGES}
  curvature = study.curvature()
  part = flatness.subset(curvature.operator.params, "*")
  batch = study.batch(study.tokens()["train"], 0, study.sizes["sequences"])

  def loss(flat):
    params = part.merge(flat)
    features = study.net.apply({"params": {**params, "output": None}}, batch["inputs"])
    logits = features @ params["output"]["kernel"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

  matrix = np.asarray(jax.jit(jax.hessian(loss))(part.flat), np.float64)
  values = np.linalg.eigvalsh(matrix)[::-1][: module.PAIRS]
  sizes = results["traces"]["sizes"]
  owners = [module.layer_of(name) for name in curvature.names for _ in range(_size(curvature, name))]
  assert sum(sizes) == len(owners) == results["training"]["parameters"]
  for ending in ("", "_2"):
    pairs, traces = results[f"eigenpairs{ending}"], results[f"traces{ending}"]
    np.testing.assert_allclose(pairs["values"], values, rtol=1e-2)
    for layer, mean, error in zip(traces["names"], traces["traces"], traces["errors"], strict=True):
      exact = np.diagonal(matrix)[np.array(owners) == layer].sum()
      assert abs(mean - exact) <= 5 * error
  one, two = (results[f"eigenpairs{ending}"]["memory"]["arguments"] for ending in ("", "_2"))
  assert two < 0.55 * one
  record = module.recorded(results)
  assert record.rows["eigenvalue 1"]["runs"]["one device"] == results["eigenpairs"]["values"][:1]
  assert module.figure(results).axes[1].patches


def _size(curvature, name):
  return dict(zip(curvature.names, map(jnp.size, jax.tree.leaves(curvature.operator.params))))[name]


@pytest.mark.thorough
def test_the_training_of_the_language_model_goes_on_after_an_interruption(language_model, monkeypatch):
  module, study = language_model
  whole, stopped = study("whole"), study("stopped")
  whole.training()
  write = module.write

  def interrupted(file, content):
    write(file, content)
    raise KeyboardInterrupt

  monkeypatch.setattr(module, "write", interrupted)
  with pytest.raises(KeyboardInterrupt):
    stopped.training()
  assert not (stopped.workdir / "params.msgpack").exists()
  monkeypatch.setattr(module, "write", write)
  stopped.training()
  one, two = ((study.workdir / "params.msgpack").read_bytes() for study in (whole, stopped))
  assert one == two


@pytest.mark.thorough
def test_parts_that_differ_are_seen(accelerator):
  """A mask with one other entry, a loss that is off, an array with one other bit."""
  agreement = importlib.import_module("_accelerator.agreement")
  report = importlib.import_module("_report").Report(None)
  report.table("agreement", "", "", "", "")
  theirs = {"masks": np.ones(4, bool), "losses": np.ones(3), "losses near": np.ones(3)}
  ours = {
    "masks": np.array([True, True, False, True]),
    "losses": np.array([1, 1, 1.001]),
    "losses near": theirs["losses near"] + 5e-5,
  }
  agreement.compare(report, ours, theirs)
  assert [row[-1] for row in report.tables["agreement"]["rows"]] == ["NO", "NO", "yes"]
  resume = importlib.import_module("_accelerator.resume")
  one = {"a": np.float32([0, 1]), "b": jax.random.key(0)}
  assert resume.difference(one, one) == (4, 0)
  assert resume.difference(one, {**one, "a": np.float32([-0.0, 1])}) == (4, 1)
  assert resume.difference(one, {**one, "b": jax.random.key(1)}) == (4, 1)


@pytest.mark.thorough
def test_a_measurement_is_scaled_up_from_its_first_to_its_last_record(accelerator):
  epochs = importlib.import_module("_accelerator.epochs")
  assert epochs.scaled([(10.0, 50), (12.0, 100), (20.0, 250)], 1050) == (60.0, 200)


@pytest.mark.thorough
def test_one_part_in_a_process_of_its_own(tmp_path):
  path = tmp_path / "found.json"
  command = [sys.executable, str(FOLDER / "accelerator.py"), "--quick", "--parts=group_softmax"]
  done = subprocess.run([*command, f"--json={path}"], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  tables = json.loads(path.read_text())["tables"]
  assert [row[::2] for row in tables["accelerator_parts"]["rows"]] == [["group_softmax", "ok"]]
  assert len(tables["accelerator_group_softmax"]["rows"]) == 4

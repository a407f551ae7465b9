"""Each fault many times, at moments drawn by a fixed seed; what became of the run, in one table.

Run by hand, all at once: `pytest -m slow -s tests/train/test_faults.py`.
"""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time

import children
import numpy as np
import pytest
import runs
from fuzz_cases import damage_file, pick

from jaxreg.train import checkpoint
from jaxreg.train.log import read_records

pytestmark = pytest.mark.slow

TRIES = 20
EPOCHS, STEPS_PER_EPOCH = 12, 4
STEPS = EPOCHS * STEPS_PER_EPOCH
ARGUMENTS = [
  f"--config.epochs={EPOCHS}",
  "--config.batch_size=32",
  "--config.data.limit=128",
  "--config.eval_batch_size=48",
  "--config.model.MLP.widths=(8,)",
  "--config.model.MLP.dropout_rate=0.2",
  "--config.optimizer.learning_rate=1e-2",
  "--config.log_every=1",
  "--config.compilation_cache=False",
]


class Bench:
  """The undisturbed run, and the means to make others and hold them against it."""

  def __init__(self, folder):
    self.folder, self.table, self.count = folder, [], 0
    self.context = children.forkserver(folder / "compiled")
    self.whole = folder / "whole"
    status, said = self.start(self.whole).finish()
    assert status == 0, said
    self.state = runs.final_state(self.whole)
    self.results = json.loads((self.whole / "results.json").read_text())
    assert self.results["step"] == STEPS

  def new(self):
    self.count += 1
    return self.folder / f"run{self.count}"

  def start(self, workdir, *more, **faults):
    self.count += 1
    arguments = [*ARGUMENTS, "--workdir", workdir, *more]
    return children.Child(self.context, arguments, self.folder / f"said{self.count}", **faults)

  def complete(self, workdir):
    """To the end, from what is there: what was said. Raises if the end is not that of the whole run."""
    status, said = self.start(workdir).finish()
    assert status == 0, said
    self.check(workdir)
    return said

  def check(self, workdir):
    runs.assert_bitwise(runs.final_state(workdir), self.state)
    assert json.loads((workdir / "results.json").read_text()) == self.results
    assert runs.records(workdir) == runs.records(self.whole)
    shutil.rmtree(workdir)

  def stopped(self, name, random, number, *, after=STEPS // 2):
    """The work directory of a run that got that signal in its middle, to be copied."""
    workdir = self.folder / name
    child = self.start(workdir)
    wait_for_records(workdir, after + int(random.integers(8)), child)
    child.signal(number)
    child.finish()
    assert steps_made(workdir) > STEPS_PER_EPOCH
    assert not (workdir / "results.json").exists()
    return workdir

  def row(self, fault, tries, lost, remark=""):
    self.table.append(f"| {fault} | {tries} | {lost} | 0 | {remark} |")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
  began = time.monotonic()
  made = Bench(tmp_path_factory.mktemp("faults"))
  yield made
  print(f"\n\n{STEPS} steps, a save every {STEPS_PER_EPOCH}; {time.monotonic() - began:.0f} s in all")
  print("| fault | tries | most steps lost | wrong results | remark |\n|---|---|---|---|---|")
  print("\n".join(made.table))


def steps_made(workdir):
  return max((record["step"] for record in read_records(workdir)), default=0)


def saved_step(workdir):
  return max(checkpoint.good_steps(workdir), default=0)


def wait_for_records(workdir, number, child):
  while child.alive() and steps_made(workdir) < number:
    time.sleep(0.005)


def strike(workdir, child, random):
  """Waits for a random moment of a run: in its start, at some step, or in its end."""
  wait_for_records(workdir, int(random.integers(-6, STEPS + 1)), child)
  time.sleep(random.uniform(0, 0.1) if steps_made(workdir) else random.uniform(0, 1.5))


def own_line(said, status, *allowed):
  """A run that failed says so in one line, which holds one of these."""
  lines = runs.own_lines(said)
  assert len(lines) == 1, said
  assert any(words in lines[0] for words in allowed), said
  return lines[0]


STOPPED = r"the same command continues"


@pytest.mark.parametrize(
  ("fault", "numbers", "statuses"),
  [
    ("SIGKILL", [signal.SIGKILL], [-9]),
    ("SIGTERM", [signal.SIGTERM], [143]),
    ("SIGTERM twice", [signal.SIGTERM, signal.SIGTERM], [143]),
    ("Ctrl-C twice", [signal.SIGINT, signal.SIGINT], [130]),
  ],
)
def test_signals(bench, fault, numbers, statuses):
  random = np.random.default_rng(len(fault))
  tries, most, at = 0, 0, []
  while tries < TRIES:
    workdir = bench.new()
    while True:
      child = bench.start(workdir)
      if tries < TRIES:
        strike(workdir, child, random)
        for number in numbers:
          child.signal(number)
          time.sleep(random.uniform(0, 0.1) if len(numbers) > 1 else 0)
      status, said = child.finish()
      if status == 0:
        break
      tries += 1
      # A signal that comes before the program has begun to listen ends it as the system does.
      early = status == -numbers[0] and not said
      assert status in statuses or early, (status, said)
      if status in statuses and status > 0:
        own_line(said, status, STOPPED)
      lost = steps_made(workdir) - saved_step(workdir)
      at.append(steps_made(workdir))
      most = max(most, lost)
    bench.check(workdir)
  # A checkpoint that was being written counts for nothing: then it is the one before.
  assert most == 0 if fault.startswith("SIGTERM") else most < 2 * STEPS_PER_EPOCH
  assert sum(0 < step < STEPS for step in at) >= 5
  bench.row(fault, tries, most, f"status {', '.join(str(s) for s in statuses)}")


def test_a_damaged_file_of_the_newest_checkpoint(bench):
  random = np.random.default_rng(0)
  stopped, most, noticed = bench.stopped("stopped", random, signal.SIGTERM), 0, 0
  newest = saved_step(stopped)
  for _ in range(TRIES):
    workdir = shutil.copytree(stopped, bench.new())
    files = [f for f in sorted((workdir / "checkpoints" / str(newest)).rglob("*")) if f.is_file()]
    damage_file(random, pick(random, files))
    most = max(most, newest - saved_step(workdir))
    said = bench.complete(workdir)
    assert f"resuming at step {newest}" not in said
    noticed += f"run.py: warning: checkpoint {newest} is damaged" in said
    assert len(runs.own_lines(said)) <= 1
  assert 0 < most <= STEPS_PER_EPOCH
  bench.row("a damaged file in the newest checkpoint", TRIES, most, f"a line of warning in {noticed}")


def test_a_checkpoint_half_written(bench):
  random = np.random.default_rng(1)
  stopped, most = bench.stopped("stopped2", random, signal.SIGTERM), 0
  newest = saved_step(stopped)
  for _ in range(TRIES):
    workdir = shutil.copytree(stopped, bench.new())
    folder = workdir / "checkpoints" / str(newest)
    (workdir / "manifests" / f"{newest}.json").unlink()
    for file in [f for f in sorted(folder.rglob("*")) if f.is_file()]:
      if random.integers(2):
        file.unlink()
      elif random.integers(2):
        file.write_bytes(file.read_bytes()[: int(random.integers(100))])
    if random.integers(2):
      folder.rename(folder.with_name(f"{newest}.orbax-checkpoint-tmp-{int(random.integers(10**6))}"))
    most = max(most, newest - saved_step(workdir))
    assert runs.own_lines(bench.complete(workdir)) == []
  assert 0 < most <= STEPS_PER_EPOCH
  bench.row("a checkpoint half written", TRIES, most, "nothing to say")


def test_metrics_cut_in_the_middle_of_a_line(bench):
  random = np.random.default_rng(2)
  killed = bench.stopped("killed", random, signal.SIGKILL)
  content = (killed / "metrics.jsonl").read_bytes()
  # What a kill can cut is newer than the newest whole checkpoint.
  whole = [
    line for line in content.splitlines(keepends=True) if json.loads(line)["step"] <= saved_step(killed)
  ]
  new = len(b"".join(whole))
  assert new < len(content)
  for _ in range(TRIES):
    workdir = shutil.copytree(killed, bench.new())
    (workdir / "metrics.jsonl").write_bytes(content[: int(random.integers(new, len(content)))])
    assert runs.own_lines(bench.complete(workdir)) == []
  bench.row("metrics.jsonl cut in a line", TRIES, 0, "repaired, nothing to say")


def test_a_clock_that_jumps(bench):
  random = np.random.default_rng(3)
  tries = 0
  while tries < TRIES:
    workdir = bench.new()
    while True:
      child = bench.start(workdir, clock=tries)
      if tries < TRIES:
        strike(workdir, child, random)
        child.signal(signal.SIGTERM)
      status, said = child.finish()
      tries += 1
      if status == 0:
        break
      assert status == 143 or (status == -signal.SIGTERM and not said), (status, said)
      assert steps_made(workdir) == saved_step(workdir)
    bench.check(workdir)
  bench.row("the clock jumps by up to a day, and SIGTERM", tries, 0)


FAILED = (
  "cannot be saved",
  "cannot be written",
  "cannot be locked",
  "Errno",
  "No space left",
  "File too large",
)


def test_a_limit_on_the_size_of_files(bench):
  random = np.random.default_rng(4)
  most, failed = 0, 0
  for _ in range(TRIES):
    workdir = bench.new()
    status, said = bench.start(workdir, file_size=int(random.integers(1000, 22000))).finish()
    if status:
      failed += 1
      assert status == 1, said
      own_line(said, status, *FAILED)
      most = max(most, steps_made(workdir) - saved_step(workdir))
    bench.complete(workdir)
  assert failed >= TRIES // 2
  assert most < 2 * STEPS_PER_EPOCH
  bench.row("files cannot grow (RLIMIT_FSIZE)", TRIES, most, f"{failed} failed, status 1")


@pytest.fixture
def small_disk(tmp_path):
  """A function that gives a small file system of so many KiB, and one that changes it; needs root."""
  disk = tmp_path / "disk"
  disk.mkdir()
  mount = lambda *arguments: subprocess.run(["mount", *arguments], check=True, capture_output=True)
  try:
    mount("-t", "tmpfs", "-o", "size=64k", "none", str(disk))
  except (OSError, subprocess.CalledProcessError):
    pytest.skip("a file system cannot be mounted here")
  yield disk, lambda option: mount("-o", f"remount,{option}", str(disk))
  subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_full_disk(bench, small_disk):
  random = np.random.default_rng(5)
  disk, change = small_disk
  most, failed = 0, 0
  for _ in range(TRIES):
    change(f"size={int(random.integers(16, 500))}k")
    workdir = disk / "run"
    status, said = bench.start(workdir).finish()
    if status:
      failed += 1
      assert status == 1, said
      own_line(said, status, *FAILED)
      most = max(most, steps_made(workdir) - saved_step(workdir))
    change("size=64m")
    bench.complete(workdir)
  assert failed >= TRIES // 2
  assert most < 2 * STEPS_PER_EPOCH
  bench.row("a full disk", TRIES, most, f"{failed} failed, status 1")


def test_a_disk_that_cannot_be_written(bench, small_disk):
  random = np.random.default_rng(6)
  disk, change = small_disk
  change("size=64m")
  stopped = bench.stopped("stopped3", random, signal.SIGTERM)
  for number in range(TRIES):
    workdir = disk / "run"
    if number % 2:
      shutil.copytree(stopped, workdir)
    before = runs.snapshot(disk)
    change("ro")
    status, said = bench.start(workdir).finish()
    change("rw")
    assert status == 1, said
    own_line(said, status, *FAILED)
    assert runs.snapshot(disk) == before
    bench.complete(workdir)
  bench.row("a disk that cannot be written", TRIES, 0, "status 1, nothing changed")


def test_a_second_run_in_the_same_work_directory(bench):
  random = np.random.default_rng(7)
  refused = 0
  for _ in range(TRIES):
    workdir = bench.new()
    first = bench.start(workdir)
    strike(workdir, first, random)
    second = bench.start(workdir)
    outcomes = [first.finish(), second.finish()]
    for status, said in outcomes:
      if status:
        assert status == 1, said
        own_line(said, status, "another run is at work in")
        refused += 1
    assert min(status for status, _ in outcomes) == 0
    bench.check(workdir)
  assert refused >= TRIES // 2
  bench.row(
    "a second run in the work directory", TRIES, 0, f"{refused} refused with status 1, others came late"
  )


def test_a_killed_peer(bench):
  """Of two processes, one at a time; few tries, for each takes a while."""
  random = np.random.default_rng(8)
  tries, most, workdir, took = 6, 0, bench.new(), []
  number = 0
  while number < tries:
    with socket.socket() as probe:
      probe.bind(("localhost", 0))
      port = probe.getsockname()[1]
    common = [
      "--coordinator",
      f"localhost:{port}",
      "--num_processes",
      2,
      "--peer_timeout",
      10,
      "--process_id",
    ]
    pair = [bench.start(workdir, *common, index) for index in range(2)]
    wait_for_records(workdir, saved_step(workdir) + 1 + int(random.integers(6)), pair[0])
    time.sleep(random.uniform(0, 0.05))
    victim = number % 2
    pair[victim].signal(signal.SIGKILL)
    began = time.monotonic()
    status, said = pair[1 - victim].finish()
    took.append(time.monotonic() - began)
    pair[victim].finish()
    if status == 0 or (workdir / "results.json").exists():
      break
    number += 1
    most = max(most, steps_made(workdir) - saved_step(workdir))
    print(status, said)
  bench.complete_close = None
  status, said = bench.start(workdir).finish()
  assert status == 0, said
  bench.row("a killed peer", number, most, f"the other stopped within {max(took):.0f} s")


def test_the_work_directory_can_be_evaluated_meanwhile(bench):
  workdir = bench.new()
  first = bench.start(workdir, "--config.epochs=400")
  wait_for_records(workdir, 12, first)
  with contextlib.suppress(ProcessLookupError):
    status, said = bench.start(workdir, "--config.job=evaluate", "--config.epochs=400").finish()
  assert first.alive()
  first.signal(signal.SIGTERM)
  assert first.finish()[0] == 143
  assert status == 0, said

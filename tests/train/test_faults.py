"""Each fault many times, at moments drawn by a fixed seed; what became of the run, in one table.

Run by hand, all at once: `pytest -m slow -s tests/train/test_faults.py`.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import warnings

import chex
import children
import numpy as np
import pytest
import runs
from fuzz_cases import damage_file, pick

from jaxreg.command import run as main
from jaxreg.train.data import batches
from jaxreg.train.jobs import train as training
from jaxreg.train.run import manifest, results
from jaxreg.train.run.metrics_file import read_records

pytestmark = pytest.mark.slow

TRIES = int(os.environ.get("FAULT_TRIES", "20"))
HANG = 60  # seconds from the start of a process, or of a call in this process, to its end
STEPS_PER_EPOCH = runs.STEPS_PER_EPOCH
STEPS = 6 * STEPS_PER_EPOCH
STOPPED = "the same command continues"
FAILED = ("cannot be saved", "cannot be written", "cannot be locked", "cannot be opened", "Errno")


def steps_made(workdir):
  return max((record["step"] for record in read_records(workdir)), default=0)


def saved_step(workdir):
  return max(manifest.good_steps(workdir), default=0)


def own_line(said, *allowed):
  """A run that failed says so in one line, which holds one of these."""
  lines = [line for line in runs.own_lines(said) if not line.startswith("run.py: warning")]
  assert len(lines) == 1, said
  assert any(words in lines[0] for words in allowed), said


class Bench:
  """Undisturbed runs, and the means to make others and hold them against it."""

  def __init__(self, folder):
    self.folder, self.table, self.count, self.wholes, self.kept = folder, [], 0, {}, runs.Kept()
    self.took, self.children = [], []  # seconds of the calls, and the processes, since the last row

  def new(self):
    self.count += 1
    return self.folder / f"run{self.count}"

  def final_state(self, workdir):
    state = runs.final_state(workdir, STEPS, build=self.kept.build)
    return [state[name] for name in ("step", "key", "params", "opt_state")]

  def whole(self, kind, run):
    """What an undisturbed run of this kind leaves; made by `run(workdir)`."""
    if kind not in self.wholes:
      status, said = run(workdir := self.folder / f"whole-{kind}")
      assert status == 0, said
      self.wholes[kind] = (
        self.final_state(workdir),
        runs.table(workdir / "results.json"),
        runs.records(workdir),
      )
      assert self.wholes[kind][1]["step"] == STEPS
    return self.wholes[kind]

  def check(self, workdir, whole):
    """A finished run is the undisturbed one, bit by bit."""
    state, results, records = whole
    runs.assert_bitwise(self.final_state(workdir), state)
    assert runs.table(workdir / "results.json") == results
    assert runs.records(workdir) == records
    shutil.rmtree(workdir)

  def row(self, fault, tries, lost, remark=""):
    longest = max([*self.took, *(child.took for child in self.children)])
    self.took.clear()
    self.children.clear()
    self.table.append(f"| {fault} | {tries} | {lost} | 0 | {longest:.0f} s | {remark} |")
    print(self.table[-1])
    assert longest < HANG


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
  began = time.monotonic()
  made = Bench(tmp_path_factory.mktemp("faults"))
  yield made
  print(f"\n\n{STEPS} steps, a save every {STEPS_PER_EPOCH}; {time.monotonic() - began:.0f} s in all")
  print("| fault | tries | most steps lost | wrong results | longest | remark |\n|---|---|---|---|---|---|")
  print("\n".join(made.table))


class Here:
  """`run.py` in this process, whose compiled functions are kept from run to run.

  Attributes:
    before: what is called before each step, with its number.
  """

  def __init__(self, bench, patch):
    self.bench, self.before = bench, lambda step: None
    indices, data = batches.batch_indices, training.load_data(runs.make_config())
    bench.kept.apply(patch)
    runs.on_devices(patch, 1)

    def hooked(seed, index, **options):
      self.before(index + 1)
      return indices(seed, index, **options)

    patch.setattr(training, "load_data", lambda config: data)
    for name, value in {
      "save_figures": lambda *_: [],
      "outputs_over": lambda *shown: {"log_probs": np.full((len(shown[3]), 10), np.log(0.1), np.float32)},
    }.items():
      patch.setattr(results, name, value)
    patch.setattr(batches, "batch_indices", hooked)

  def __call__(self, workdir, *more):
    """The exit status, and what was said on stderr."""
    said = io.StringIO()
    with (
      contextlib.redirect_stderr(said),
      contextlib.redirect_stdout(io.StringIO()),
      warnings.catch_warnings(),
    ):
      warnings.simplefilter("always", UserWarning)
      warnings.showwarning = lambda message, *_, **__: print(f"run.py: warning: {message}", file=said)
      began = time.monotonic()
      status = main([*runs.FLAGS, "--workdir", str(workdir), *map(str, more)])
      self.bench.took.append(time.monotonic() - began)
    return status, said.getvalue()

  def complete(self, workdir):
    """To the end, from what is there; what was said."""
    self.before = lambda step: None
    status, said = self(workdir)
    assert status == 0, said
    self.bench.check(workdir, self.whole)
    return said

  @property
  def whole(self):
    return self.bench.whole("here", self)

  def stopped(self, step):
    """A work directory stopped at that step by SIGTERM."""
    self.before = lambda at: os.kill(os.getpid(), signal.SIGTERM) if at == step else None
    status, said = self(workdir := self.bench.new())
    self.before = lambda at: None
    assert status == 143, said
    assert saved_step(workdir) == step
    return workdir


@pytest.fixture(scope="module")
def here(bench):
  with pytest.MonkeyPatch.context() as patch:
    yield Here(bench, patch)


def test_sigterm(bench, here):
  """At any moment of the loop: in a step, in an evaluation, in a save."""
  random = np.random.default_rng(0)
  began = time.monotonic()
  here.whole  # noqa: B018
  here.complete(_run(here, bench.new()))
  began = time.monotonic()
  here.complete(_run(here, bench.new()))
  duration = time.monotonic() - began
  late, at = [], []
  previous = signal.signal(signal.SIGTERM, lambda *_: late.append(1))  # outside of the loop
  while len(at) < TRIES:
    workdir = bench.new()
    while True:
      timer = threading.Timer(random.uniform(0, duration), os.kill, (os.getpid(), signal.SIGTERM))
      timer.start()
      status, said = here(workdir)
      timer.cancel()
      timer.join()
      if status == 0:
        break
      assert status == 143, said
      own_line(said, STOPPED)
      at.append(saved_step(workdir))
      assert steps_made(workdir) <= at[-1]
      if len(at) >= TRIES:
        status, said = here(workdir)
        assert status == 0, said
        break
    bench.check(workdir, here.whole)
  signal.signal(signal.SIGTERM, previous)
  print(at)
  assert len(set(at)) > 5
  bench.row("SIGTERM", TRIES, 0, "status 143, at steps " + ", ".join(map(str, sorted(set(at)))))


def _run(here, workdir):
  status, said = here(workdir)
  assert status == 0, said
  return workdir


def test_a_damaged_file_of_the_newest_checkpoint(bench, here):
  random = np.random.default_rng(1)
  newest, most, noticed = 14, 0, 0
  stopped = here.stopped(newest)
  for _ in range(TRIES):
    workdir = shutil.copytree(stopped, bench.new())
    files = [f for f in sorted((workdir / "checkpoints" / str(newest)).rglob("*")) if f.is_file()]
    damage_file(random, pick(random, files))
    most = max(most, newest - saved_step(workdir))
    said = here.complete(workdir)
    assert f"resuming at step {newest}" not in said
    noticed += f"run.py: warning: checkpoint {newest} is damaged" in said
    assert len(runs.own_lines(said)) <= 1
  assert 0 < most <= STEPS_PER_EPOCH
  bench.row("a damaged file in the newest checkpoint", TRIES, most, f"a warning in {noticed}, else removed")


def test_a_checkpoint_half_written(bench, here):
  random = np.random.default_rng(2)
  newest, most = 14, 0
  stopped = here.stopped(newest)
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
    assert runs.own_lines(here.complete(workdir)) == []
  assert 0 < most <= STEPS_PER_EPOCH
  bench.row("a checkpoint half written", TRIES, most, "nothing to say")


def test_metrics_cut_in_the_middle_of_a_line(bench, here):
  """As by a kill: of what is newer than the newest whole checkpoint."""
  random = np.random.default_rng(3)
  stopped = here.stopped(14)
  content = (stopped / "metrics.jsonl").read_bytes()
  shutil.rmtree(stopped / "checkpoints" / "14")
  old = [
    line for line in content.splitlines(keepends=True) if json.loads(line)["step"] <= saved_step(stopped)
  ]
  for _ in range(TRIES):
    workdir = shutil.copytree(stopped, bench.new())
    length = int(random.integers(len(b"".join(old)), len(content)))
    (workdir / "metrics.jsonl").write_bytes(content[:length])
    assert runs.own_lines(here.complete(workdir)) == []
  bench.row("`metrics.jsonl` cut in a line", TRIES, 0, "repaired, nothing to say")


def test_a_flipped_bit_in_records_and_tables(bench, here):
  """A damaged record is left out; a damaged table is refused, and with the old one the run goes on."""
  random = np.random.default_rng(9)
  stopped = here.stopped(14)
  state, results, records = here.whole
  refused = 0
  for number in range(TRIES):
    workdir = shutil.copytree(stopped, bench.new())
    file = workdir / ("metrics.jsonl", "config.json", "data.json", "environment.json")[number % 4]
    content = file.read_bytes()
    runs.flip(file, int(random.integers(len(content))), int(random.integers(8)))
    status, said = here(workdir)
    if status:
      refused += 1
      own_line(said, "is damaged", "belongs to another configuration", "was made with other data")
      file.write_bytes(content)
      status, said = here(workdir)
    assert status == 0, said
    runs.assert_bitwise(bench.final_state(workdir), state)
    assert runs.table(workdir / "results.json") == results
    found = runs.records(workdir)
    assert len(records) - len(found) <= (2 if file.suffix == ".jsonl" else 0)  # of a line's end, two
    assert all(record in records for record in found)
    shutil.rmtree(workdir)
  assert refused >= TRIES // 4
  bench.row("a flipped bit in records and tables", TRIES, 0, f"{refused} refused, or told in one line")


ODD = {
  "empty": b"",
  "cut": None,  # half of what was there
  "binary": bytes(range(256)),
  "of another shape": b'[{"step": [1]}]\n',
  "of wrong values": b'{"step": "x", "files": 3, "metrics": {"a": "b"}, "sizes": 1, "epochs": {}}\n',
  "a folder": None,
  "a pipe": None,
}
STATE = (
  "config.json",
  "data.json",
  "environment.json",
  "metrics.jsonl",
  "manifests/14.json",
  "results.json",
  "lock",
)


def contents(folder):
  """Without what each run that opens the folder writes: its token, its times, and a file of TensorBoard's."""
  found, own = runs.snapshot(folder).items(), ("lock", "times.json", "tensorboard")
  return {path: content for path, (_, content) in found if path.split("/")[0] not in own}


def make_odd(file, how):
  content = file.read_bytes()
  file.unlink()
  if how == "a folder":
    file.mkdir()
  elif how == "a pipe":
    os.mkfifo(file)
  else:
    file.write_bytes(content[: len(content) // 2] if how == "cut" else ODD[how])


def test_odd_state_files(bench, here):
  """Whatever is in the place of a file, the run ends in one line and changes nothing, or is the same run."""
  random = np.random.default_rng(12)
  stopped, refused = here.stopped(14), 0
  finished = _run(here, bench.new())
  cases = [(file, how) for how in ODD for file in STATE]
  for case in random.permutation(len(cases))[:TRIES]:
    name, how = cases[case]
    workdir = shutil.copytree(finished if name == "results.json" else stopped, bench.new())
    good = shutil.copytree(workdir, bench.new())
    make_odd(workdir / name, how)
    status, said = here(workdir)
    print(name, how, status, runs.own_lines(said))
    if status:
      refused += 1
      assert status == 1, said
      own_line(said, "is damaged", "no config.json", "no data.json", "belongs to", "cannot be", "version")
      odd = workdir / name
      odd.rmdir() if how == "a folder" else odd.unlink()
      shutil.copy(good / name, odd)
      assert contents(workdir) == contents(good)
      here.complete(workdir)
    else:
      runs.assert_bitwise(bench.final_state(workdir), here.whole[0])
      assert runs.table(workdir / "results.json") == here.whole[1]
      shutil.rmtree(workdir)
    shutil.rmtree(good)
  bench.row(
    "an odd state file",
    min(TRIES, len(cases)),
    0,
    f"{refused} refused, status 1; the others told in one line",
  )


def cannot_grow(bench, here, fault, limit, workdir=None):
  """Runs in a `limit` each time, and then without: many fail, in one line, and lose few steps."""
  here.whole  # noqa: B018
  most, failed = 0, 0
  for _ in range(TRIES):
    folder = workdir or bench.new()
    with limit():
      status, said = here(folder)
    if status:
      failed += 1
      assert status == 1, said
      own_line(said, *FAILED)
      most = max(most, steps_made(folder) - saved_step(folder))
    here.complete(folder)
  assert failed >= TRIES // 2
  assert most <= STEPS_PER_EPOCH
  bench.row(fault, TRIES, most, f"{failed} failed, with status 1")


def test_a_limit_on_the_size_of_files(bench, here):
  random = np.random.default_rng(5)
  limit = lambda: children.limited_files(int(random.integers(1000, 22000)))
  cannot_grow(bench, here, "files cannot grow (RLIMIT_FSIZE)", limit)


@pytest.fixture
def small_disk(tmp_path):
  """A small file system, and a function that changes its options; needs root."""
  disk = tmp_path / "disk"
  disk.mkdir()
  mount = lambda *arguments: subprocess.run(["mount", *arguments], check=True, capture_output=True)
  try:
    mount("-t", "tmpfs", "-o", "size=64m", "none", str(disk))
  except (OSError, subprocess.CalledProcessError):
    pytest.skip("a file system cannot be mounted here")
  yield disk, lambda option: mount("-o", f"remount,{option}", str(disk))
  subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_full_disk(bench, here, small_disk):
  random = np.random.default_rng(6)
  disk, change = small_disk

  @contextlib.contextmanager
  def limit():
    change(f"size={int(random.integers(16, 400))}k")
    yield
    change("size=64m")

  cannot_grow(bench, here, "a full disk", limit, disk / "run")


def test_a_disk_that_cannot_be_written(bench, here, small_disk):
  random = np.random.default_rng(7)
  disk, change = small_disk
  for number in range(TRIES):
    workdir = disk / "run"
    if number % 2:
      shutil.move(here.stopped(int(random.integers(1, STEPS))), workdir)
    before = runs.snapshot(disk)
    change("ro")
    status, said = here(workdir)
    change("rw")
    assert status == 1, said
    own_line(said, *FAILED)
    assert runs.snapshot(disk) == before
    here.complete(workdir)
  bench.row("a disk that cannot be written", TRIES, 0, "status 1, nothing changed")


def test_a_second_run_in_the_same_work_directory(bench, here):
  random = np.random.default_rng(8)
  for _ in range(TRIES):
    workdir, outcomes = bench.new(), []
    at = int(random.integers(1, STEPS + 1))
    second = ["--config.seed=1"] if random.integers(2) else []

    def meanwhile(step, at=at, second=second, workdir=workdir, outcomes=outcomes):
      if step == at:
        outcomes.append(here(workdir, *second))

    here.before = meanwhile
    status, said = here(workdir)
    assert status == 0, said
    ((refused, words),) = outcomes
    assert refused == 1, words
    own_line(words, "another run is at work in", "belongs to another configuration")
    bench.check(workdir, here.whole)
  bench.row("a second run in the work directory", TRIES, 0, "the second: status 1")


def test_a_folder_that_is_removed_or_moved(bench, here):
  """In a step, in an evaluation or in a save; by a rename, as that of a removed one begins here too."""
  random = np.random.default_rng(10)
  here.whole  # noqa: B018
  ended = 0
  for number in range(TRIES):
    workdir, elsewhere = bench.new(), bench.new()
    at, delay = int(random.integers(1, STEPS)), random.uniform(0, 0.1)
    timers = []

    def away(step, at=at, delay=delay, workdir=workdir, elsewhere=elsewhere, timers=timers):
      if step == at:
        timers.append(threading.Timer(delay, workdir.rename, [elsewhere]))
        timers[0].start()

    here.before = away
    status, said = here(workdir)
    here.before = lambda step: None
    timers[0].join()
    if status:
      ended += 1
      assert status == 1, said
      own_line(said, "was removed or moved under this run")
    if number % 2:
      here.complete(elsewhere)
    else:
      shutil.rmtree(elsewhere)
      here.complete(workdir)
  assert ended >= TRIES // 2
  bench.row("a folder removed or moved", TRIES, 0, f"status 1 in {ended}, the others had ended")


class Children:
  """`run.py` in processes of its own."""

  def __init__(self, bench):
    self.bench = bench
    self.context = children.forkserver(bench.folder / "compiled")

  def start(self, workdir, *more, clock=None):
    self.bench.count += 1
    arguments = [*runs.FLAGS, "--workdir", workdir, *more]
    said = self.bench.folder / f"said{self.bench.count}"
    self.bench.children.append(children.Child(self.context, arguments, said, clock))
    return self.bench.children[-1]

  @property
  def whole(self):
    return self.bench.whole("child", lambda workdir: self.start(workdir).finish())


@pytest.fixture(scope="module")
def apart(bench):
  return Children(bench)


def wait_for_records(workdir, number, child):
  while child.alive() and steps_made(workdir) < number:
    time.sleep(0.005)


@pytest.mark.parametrize(
  ("fault", "numbers", "wanted"),
  [
    ("SIGKILL", [signal.SIGKILL], -9),
    ("SIGTERM twice, to a process", [signal.SIGTERM, signal.SIGTERM], 143),
    ("Ctrl-C twice, to a process", [signal.SIGINT, signal.SIGINT], 130),
  ],
)
def test_signals(bench, apart, fault, numbers, wanted):
  random = np.random.default_rng(wanted + 9)
  whole = apart.whole
  tries, most, at = 0, 0, []
  while tries < TRIES:
    workdir = bench.new()
    while True:
      child = apart.start(workdir)
      if tries < TRIES:
        # At some step; or, at times, in the start; and beyond the last, in the end.
        there = steps_made(workdir)
        wait_for_records(workdir, int(random.integers(min(there, STEPS - 1) - 3, STEPS + 2)), child)
        time.sleep(random.uniform(0, 0.1))
        for number in numbers:
          child.signal(number)
          time.sleep(random.uniform(0, 0.1) if len(numbers) > 1 else 0)
      status, said = child.finish()
      if status == 0:
        break
      tries += 1
      # One that comes before the program has begun ends it as the system does, without a word.
      assert status in (wanted, -numbers[0]), (status, said)
      if status > 0 and said:
        own_line(said, STOPPED)
      at.append(steps_made(workdir))
      lost = at[-1] - saved_step(workdir)
      assert lost <= (0 if numbers[0] == signal.SIGTERM else STEPS_PER_EPOCH)
      most = max(most, lost)
    bench.check(workdir, whole)
  print(fault, at)
  assert len(set(at) - {0, STEPS}) >= 5
  bench.row(fault, tries, most, f"status {wanted}")


def test_a_clock_that_jumps(bench, apart):
  """Orbax waits by that clock: a jump in a save may end the run, which then says so and goes on."""
  random = np.random.default_rng(4)
  most, failed = 0, 0
  for number in range(TRIES):
    workdir = bench.new()
    child = apart.start(workdir, clock=number)
    wait_for_records(workdir, int(random.integers(1, STEPS)), child)
    child.signal(signal.SIGTERM)
    status, said = child.finish()
    lost = steps_made(workdir) - saved_step(workdir)
    if status == 1:
      failed += 1
      own_line(said, "a checkpoint cannot be saved")
    else:
      assert (status, lost) == (143, 0), said
    most = max(most, lost)
    status, said = apart.start(workdir).finish()
    assert status == 0, said
    bench.check(workdir, apart.whole)
  assert failed
  assert most <= STEPS_PER_EPOCH
  bench.row("the clock jumps by up to a day, and SIGTERM", TRIES, most, f"{failed} failed, with status 1")


def test_a_killed_peer(bench, apart):
  """Of two processes, one or the other; few tries, for each takes a while."""
  random = np.random.default_rng(9)
  workdir, after, most, statuses = bench.new(), [], 0, []
  for number in range(TRIES):
    common = ["--coordinator", f"localhost:{runs.free_port()}", "--num_processes", 2, "--peer_timeout", 10]
    pair = [apart.start(workdir, *common, "--process_id", index) for index in range(2)]
    # Both are at work when the first one says so; before, a peer is waited for, as long as JAX waits: 300 s.
    while pair[0].alive() and "\nstep " not in pair[0].said.read_text():
      time.sleep(0.005)
    time.sleep(random.uniform(0, 0.3))
    assert pair[0].alive()
    pair[number % 2].signal(signal.SIGKILL)
    began = time.monotonic()
    status, said = pair[1 - number % 2].finish()
    after.append(time.monotonic() - began)
    pair[number % 2].finish()
    print(number, status, said)
    statuses.append(status)
    # Whichever is faster: the broken connection, told in one line, or JAX's own service, which aborts.
    assert status == 1 or status == -signal.SIGABRT
    assert status != 1 or len(runs.own_lines(said)) == 1
    assert not (workdir / "results.json").exists()
    most = max(most, steps_made(workdir) - saved_step(workdir))
  assert most <= STEPS_PER_EPOCH
  status, said = apart.start(workdir).finish()
  assert status == 0, said
  # Two processes add up in another order than one: not bit by bit.
  (_, _, params, _), ours = apart.whole[0], bench.final_state(workdir)[2]
  chex.assert_trees_all_close(ours, params, rtol=0, atol=1e-5)
  remark = f"the other stopped within {max(after):.0f} s, status {', '.join(map(str, sorted(set(statuses))))}"
  bench.row("a killed peer", TRIES, most, remark)


def test_launch_mistakes(bench, apart):
  """Ids given twice, numbers that differ, processes that do not come: each ends within the time given."""
  random = np.random.default_rng(11)
  mistakes = [
    [(2, 0)],
    [(2, 1)],
    [(2, 0), (2, 0)],
    [(3, 0), (3, 1), (3, 1)],
    [(2, 0), (3, 1)],
    [(3, 2), (3, 1)],
  ]
  aborted = 0
  for number in range(TRIES):
    workdir, port = bench.new(), runs.free_port()
    processes = list(mistakes[number % len(mistakes)])
    random.shuffle(processes)
    twice = len({*processes}) < len(processes)
    common = ["--coordinator", f"localhost:{port}", "--start_timeout", 8]
    started = []
    for many, index in processes:
      started.append(apart.start(workdir, *common, "--num_processes", many, "--process_id", index))
      time.sleep(random.uniform(0, 0.5))
    for child in started:
      status, said = child.finish()
      # JAX's service aborts the processes that it has connected when a number comes a second time.
      assert status == 1 or (twice and status == -signal.SIGABRT), said
      if status == 1:
        own_line(said, "--num_processes")
      aborted += status != 1
    assert not workdir.exists()
  bench.row("launch mistakes", TRIES, 0, f"{aborted} processes aborted by JAX, status 134; else status 1")


def test_folders_that_are_not_shared(bench, apart):
  for _ in range(TRIES):
    common = ["--coordinator", f"localhost:{runs.free_port()}", "--num_processes", 2, "--process_id"]
    for child in [apart.start(bench.new(), *common, index) for index in range(2)]:
      status, said = child.finish()
      assert status == 1, said
      own_line(said, "is not the folder of process 0")
  bench.row("folders that are not shared", TRIES, 0, "status 1 in all")

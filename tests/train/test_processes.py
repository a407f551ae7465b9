"""How processes find each other, and how one process is as if there were no such thing."""

import shutil
import subprocess
import sys

import jax
import pytest
import runs

from jaxreg import train
from jaxreg.train.devices import processes
from jaxreg.train.run import lock

VARIABLES = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri")


@pytest.fixture
def calls(monkeypatch):
  """What `jax.distributed.initialize` was called with; an environment that says nothing."""
  for name in (*processes.LAUNCHERS, *VARIABLES):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(processes, "same", lambda what, value: None)
  made = []
  monkeypatch.setattr(jax.distributed, "initialize", lambda *arguments, **_: made.append(arguments))
  return made


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (("host:1", None, None), r"^--num_processes, --process_id: must be given too, with --coordinator$"),
    ((None, 2, 0), r"^--coordinator: must be given too"),
    (("host:1", 2, None), r"^--process_id: must be given too"),
    (("host", 2, 0), r"^--coordinator: must be host:port, got 'host'$"),
    (("host:x", 2, 0), r"^--coordinator: must be host:port, got 'host:x'$"),
    (("host:0", 2, 0), r"^--coordinator: must be host:port, got 'host:0'$"),
    (("host:65536", 2, 0), r"^--coordinator: must be host:port, got 'host:65536'$"),
    ((":1", 2, 0), r"^--coordinator: must be host:port, got ':1'$"),
    (("host:1", 0, 0), r"^--num_processes: must be at least 1, got 0$"),
    (("host:1", 2, 2), r"^--process_id: must be at least 0 and below --num_processes=2, got 2$"),
    (("host:1", 2, -1), r"^--process_id: must be at least 0 and below --num_processes=2, got -1$"),
  ],
)
def test_a_mistake_is_one_line(calls, given, message):
  with pytest.raises(train.RunError, match=message):
    processes.start(*given)
  assert not calls


def test_the_times_are_handed_on(calls, monkeypatch):
  made = []
  monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: made.append(options))
  processes.start("host:1", 2, 1)
  processes.start("host:1", 2, 1, peer_timeout=7, start_timeout=400)
  assert [options["heartbeat_timeout_seconds"] for options in made] == [100, 7]
  # Our own line comes first: JAX would abort the program.
  assert [options["initialization_timeout"] > limit for options, limit in zip(made, (45, 400))] == [True] * 2
  for name in ("peer_timeout", "start_timeout"):
    with pytest.raises(train.RunError, match=rf"^--{name}: must be at least 1 second, got 0$"):
      processes.start("host:1", 2, 1, **{name: 0})
  assert len(made) == 2


def test_flags_and_variables(calls, monkeypatch):
  processes.start(None, None, None)
  assert calls == []
  processes.start("host:1", 2, 1)
  monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "other:2")
  monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
  monkeypatch.setenv("JAX_PROCESS_ID", "3")
  processes.start(None, None, None)
  processes.start("host:1", 8, 0)
  assert calls == [("host:1", 2, 1), ("other:2", 4, 3), ("host:1", 8, 0)]


@pytest.mark.parametrize("name", ["JAX_NUM_PROCESSES", "JAX_PROCESS_ID"])
def test_mistakes_in_variables_are_one_line_too(calls, monkeypatch, name):
  monkeypatch.setenv(name, "1")
  with pytest.raises(train.RunError, match=r"^--coordinator, .*: must be given too, with --(num_)?process"):
    processes.start(None, None, None)
  monkeypatch.setenv(name, "two")
  with pytest.raises(train.RunError, match=rf"^{name}: must be an integer, got 'two'$"):
    processes.start("host:1", None, None)
  assert not calls


@pytest.mark.parametrize(
  ("name", "several", "alone"),
  [
    ("SLURM_STEP_NUM_TASKS", "2", "1"),
    ("SLURM_STEP_NUM_TASKS", "3", "2(x3)"),
    ("OMPI_COMM_WORLD_SIZE", "16", "x"),
    ("TPU_WORKER_HOSTNAMES", "a,b", "localhost"),
    ("TPU_PROCESS_ADDRESSES", "a:1,b:1", ""),
  ],
)
def test_launchers_are_noticed(calls, monkeypatch, name, several, alone):
  monkeypatch.setenv(name, alone)
  processes.start(None, None, None)
  assert calls == []
  monkeypatch.setenv(name, several)
  processes.start(None, None, None)
  assert calls == [(None, None, None)]  # JAX reads the rest from the environment


@pytest.mark.parametrize(
  ("launcher", "detect", "start"),
  [("SLURM_STEP_NUM_TASKS", False, "SLURM_STEP_NUM_TASKS=2: "), (None, True, "--distributed: ")],
)
def test_a_launcher_that_does_not_tell_where_to_meet(calls, monkeypatch, launcher, detect, start):
  def refuse(*arguments, **_):
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(jax.distributed, "initialize", refuse)
  if launcher:
    monkeypatch.setenv(launcher, "2")
  with pytest.raises(
    train.RunError, match=rf"^{start}JAX does not learn where .* give --coordinator, "
  ) as told:
    processes.start(None, None, None, distributed=detect)
  assert str(told.value).endswith(f"--process_id{f', or unset {launcher}' if launcher else ''}")


def test_processes_that_cannot_meet_are_told(calls, monkeypatch):
  def refuse(*arguments, **_):
    raise RuntimeError("DEADLINE_EXCEEDED:\nnobody came")

  monkeypatch.setattr(jax.distributed, "initialize", refuse)
  with pytest.raises(
    train.RunError, match=r"^--coordinator: .*cannot meet \(DEADLINE_EXCEEDED: nobody came\)"
  ):
    processes.start("host:1", 2, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("launch", [(2, 0), (2, 1)])
def test_processes_that_do_not_come_are_told_in_one_line(launch):
  number, index = launch
  code = "import jax\nfrom jaxreg.train.devices import processes\n"
  code += f"processes.start('localhost:{runs.free_port()}', {number}, {index}, start_timeout=2)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  line = "run.py: error: --num_processes: not all processes came within 2 seconds, or they disagree on "
  line += "their number\n"
  assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_an_error_that_follows_from_a_loss_is_told_as_the_loss(monkeypatch):
  gone = ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer [127.0.0.1]:45960")
  assert processes.lost(gone) is None  # one process has no peers
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  assert processes.lost(gone).startswith("another process is gone; the same commands continue from the last")
  assert processes.lost(ValueError("data.npz: no such file")) is None


def test_one_process_is_as_if_there_were_no_such_thing():
  assert processes.is_first()
  assert processes.exchange({"a": [1, None]}) == [{"a": [1, None]}]
  assert processes.first(lambda: 3) == 3
  marker = object()
  assert processes.everywhere(lambda: marker) is marker
  processes.same("config", {"a": 1})

  def fail():
    raise ValueError("its own kind")

  for agree in (processes.first, processes.everywhere):
    with pytest.raises(ValueError, match=r"^its own kind$"):
      agree(fail)


def test_what_another_process_says_is_heard(monkeypatch):
  """This one is the second of three."""
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  heard = []

  def exchange(answers):
    def answer(value):
      heard.append(value)
      return [answers[0], value, answers[2]]

    return answer

  fine = ([], None)
  monkeypatch.setattr(processes, "exchange", exchange([([7], None), None, fine]))
  assert processes.first(lambda: pytest.fail("only the first is to call")) == 7
  failed = ([], "data: not there")
  monkeypatch.setattr(processes, "exchange", exchange([fine, None, failed]))
  with pytest.raises(train.RunError, match=r"^process 2: data: not there$"):
    processes.everywhere(lambda: 1)
  with pytest.raises(KeyError, match="own"):
    processes.everywhere(lambda: {}["own"])
  assert heard == [fine, ([None], None), ([], "'own'")]
  monkeypatch.setattr(processes, "exchange", lambda value: [1, 1, 2])
  with pytest.raises(train.RunError, match=r"^config: process 2 has another value than process 0"):
    processes.same("config", 1)


def test_a_work_directory_of_another_disk_is_told(tmp_path, monkeypatch):
  """As two machines have folders of one name, of which one may have been copied from the other."""
  monkeypatch.setattr(lock, "SLOW", 0)
  ours, theirs = tmp_path / "ours", tmp_path / "theirs"
  ours.mkdir()
  theirs.mkdir()
  with lock.locked(ours) as token:
    lock.check_shared(ours, token)
    with pytest.raises(train.RunError, match=r"^--workdir: .*theirs is not the folder of process 0"):
      lock.check_shared(theirs, token)
    shutil.copy(ours / "lock", theirs)
  with lock.locked(ours) as token, pytest.raises(train.RunError, match="is not the folder of process 0"):
    lock.check_shared(theirs, token)

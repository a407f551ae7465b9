"""How processes find each other, and how one process is as if there were no such thing."""

import shutil

import jax
import pytest

from jaxreg import train
from jaxreg.train.devices import launchers, processes
from jaxreg.train.run import lock


@pytest.fixture
def calls(monkeypatch):
  """What `jax.distributed.initialize` was called with; an environment that says nothing."""
  for name in (*launchers.LAUNCHERS, "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", *SLURM, *OPEN_MPI):
    monkeypatch.delenv(name, raising=False)
  made = Calls()
  monkeypatch.setattr(processes, "_meet", lambda *arguments, **_: made.met.append(arguments))
  monkeypatch.setattr(jax.distributed, "initialize", lambda *arguments, **_: made.append(arguments))
  return made


class Calls(list):
  """Of JAX; `met` has those of our own meeting before it."""

  def __init__(self):
    super().__init__()
    self.met = []


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


def test_the_times_are_handed_on(monkeypatch):
  met, made = [], []
  monkeypatch.setattr(processes, "_meet", lambda *_, **options: met.append(tuple(options.values())))
  monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: made.append(options))
  processes.start("host:1", 2, 1)
  processes.start("host:1", 2, 1, peer_timeout=7, start_timeout=400)
  assert met == [(45, 100), (400, 7)]
  assert [options["heartbeat_timeout_seconds"] for options in made] == [100, 7]
  assert [options["initialization_timeout"] for options in made] == [300, 400]
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
  message = rf"^{name}={several}: no launcher tells where .* meet; give --coordinator, .*, or unset {name}$"
  with pytest.raises(train.RunError, match=message):
    processes.start(None, None, None)
  assert calls == []


SLURM = {"SLURM_JOB_ID": "70001", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
SLURM |= {"SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}


@pytest.mark.parametrize(
  "variables",
  [
    *(
      SLURM | {"SLURM_STEP_NODELIST": nodes}
      for nodes in ("n1", "n1,m2", "n[001-015],m2", "n[001,007-015]", "n-x[7]")
    ),
    SLURM | {"SLURM_STEP_NODELIST": "n1", "JAX_COORDINATOR_PORT": "1234"},
    OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.108.0.1:34911"},
    OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620::2]:43370"},
  ],
)
def test_processes_of_a_launcher_meet_as_numbered_ones_do(calls, monkeypatch, variables):
  """JAX's own reading of the variables is the oracle."""
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  processes.start(None, None, None)
  coordinator, *numbers = launchers.asked(timeout=5)
  host, _, port = coordinator.rpartition(":")
  host = f"[{host}]" if ":" in host else host
  host = "n-x7" if "n-x" in host else host  # JAX keeps the bracket of a list of one
  assert calls == calls.met == [(f"{host}:{port}", *numbers)]


def test_where_jax_alone_knows_the_launcher_its_answer_is_taken(calls, monkeypatch):
  """As on a TPU pod; here the launcher is one that both know."""
  for name, value in (SLURM | {"SLURM_STEP_NODELIST": "n1"}).items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(launchers, "detected", lambda: None)
  processes.start(None, None, None)
  assert calls == calls.met == [launchers.asked(timeout=5)]
  monkeypatch.setenv("SLURM_PROCID", "three")
  with pytest.raises(train.RunError, match=r"^--coordinator: the launcher does not tell .*'three'\)$"):
    processes.start(None, None, None)
  monkeypatch.setattr(launchers, "asked", lambda timeout: None)  # JAX's detection has moved
  calls.clear()
  calls.met.clear()
  processes.start(None, None, None)
  assert (calls, calls.met) == ([(None, None, None)], [])


def test_a_launcher_that_is_not_there_is_told(calls):
  with pytest.raises(train.RunError, match=r"^--distributed: no launcher tells .* --process_id$"):
    processes.start(None, None, None, detect=True)
  assert calls == []


def test_processes_that_cannot_meet_are_told(calls, monkeypatch):
  def refuse(*arguments, **_):
    raise RuntimeError("DEADLINE_EXCEEDED:\nnobody came")

  monkeypatch.setattr(processes, "_meet", lambda *_, **__: None)
  monkeypatch.setattr(jax.distributed, "initialize", refuse)
  with pytest.raises(
    train.RunError, match=r"^--coordinator: .*cannot meet \(DEADLINE_EXCEEDED: nobody came\)"
  ):
    processes.start("host:1", 2, 0)


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

  fine = {"result": None, "error": None}
  monkeypatch.setattr(processes, "exchange", exchange([{"result": 7, "error": None}, None, fine]))
  assert processes.first(lambda: pytest.fail("only the first is to call")) == 7
  failed = {"result": None, "error": "data: not there"}
  monkeypatch.setattr(processes, "exchange", exchange([fine, None, failed]))
  with pytest.raises(train.RunError, match=r"^process 2: data: not there$"):
    processes.everywhere(lambda: 1)
  with pytest.raises(KeyError, match="own"):
    processes.everywhere(lambda: {}["own"])
  assert heard == [fine, fine, {"result": None, "error": "'own'"}]
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

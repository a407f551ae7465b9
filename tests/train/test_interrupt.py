"""What a signal does, and what several processes ask JAX's service, so that they stop at the same step."""

import os
import signal
import subprocess
import sys

import jax
import pytest
import runs
from jax.experimental import multihost_utils

from jaxreg.train.run.interrupt import Interrupt, Interrupted
from jaxreg.train.run.signals import SIGNALS


@pytest.fixture
def service(monkeypatch):
  """As JAX's: it says yes to one number only; `service.agreed` is that number."""

  class Service:
    agreed = None

    def __init__(self):
      self.asked = []

    def __call__(self, number):
      self.asked.append(number)
      return number == self.agreed

  made = Service()
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", made)
  monkeypatch.setattr(Interrupt, "_asked", None)
  return made


@pytest.mark.parametrize("agreed", range(5, 14))
def test_no_number_is_left_out_by_dispatches_of_several_steps(service, agreed):
  """Whatever number the service fixes, the run stops at the end of the dispatch that holds it."""
  interrupt, service.agreed = Interrupt(), agreed
  dispatches = [range(5, 8), range(8, 9), range(9, 12), range(12, 15)]
  stops = [interrupt.stops(steps) for steps in dispatches]
  assert stops == [agreed in steps for steps in dispatches]
  assert interrupt.received == 15
  assert not interrupt.requested()


def test_the_next_run_of_a_process_goes_on_with_the_next_number(service):
  """A signal between two runs, as a comparison makes them: the number after the last one is asked for."""
  Interrupt().stops(range(1, 4))
  service.agreed = 4
  assert Interrupt().stops(range(1, 2))
  assert service.asked == [1, 2, 3, 4]


def test_a_second_ctrl_c_does_what_the_program_says(monkeypatch):
  """`run.py` ends then: an exception would be lost where one happens to be in a destructor."""
  before = signal.getsignal(signal.SIGINT)
  with Interrupt() as interrupt:
    signal.raise_signal(signal.SIGINT)
    assert interrupt.received == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    received = []
    monkeypatch.setattr(Interrupt, "again", staticmethod(lambda number, frame: received.append(number)))
    signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGINT]
  assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_stops_the_run(number):
  before = signal.getsignal(number)
  with Interrupt() as interrupt:
    assert not interrupt.requested()
    signal.raise_signal(number)
    assert interrupt.requested()
    assert interrupt.received == number
  assert signal.getsignal(number) is before


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("later", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_the_first_of_several_signals_counts(first, later):
  """SLURM sends USR1, and TERM as the time ends; a job that is cancelled is not requeued by a later USR1."""
  with Interrupt() as interrupt:
    signal.raise_signal(first)
    signal.raise_signal(later)
  stopped = Interrupted(interrupt.received, 7)
  assert (stopped.signal, stopped.status) == (first, 128 + first)


def test_nohup_keeps_its_meaning():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with Interrupt() as interrupt:
      signal.raise_signal(signal.SIGHUP)
      assert not interrupt.requested()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


def test_ctrl_c_at_the_first_import_is_no_traceback(tmp_path):
  (tmp_path / "logging.py").write_text("import os\nos.kill(os.getpid(), 2)\nraise ImportError\n")
  process = subprocess.run(
    [sys.executable, runs.ROOT / "run.py"],
    env={**os.environ, "PYTHONPATH": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert (process.returncode, process.stderr) == (-signal.SIGINT, "")

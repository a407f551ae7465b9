"""How processes meet, and what each hears of another that ends: here threads, on sockets of this machine."""

import re
import socket
import threading
import time

import pytest
import runs

from jaxreg import train
from jaxreg.train.devices import meeting


def launch(*processes, timeout=0.5):
  """What `meet` gives or raises in each, which is (--num_processes, --process_id); and how long it took."""
  port, results, began = runs.free_port(), [None] * len(processes), time.monotonic()

  def one(index, number, process_id):
    try:
      results[index] = meeting.meet(f"localhost:{port}", number, process_id, timeout=timeout, silence=20)
    except train.RunError as error:
      results[index] = str(error)

  threads = [threading.Thread(target=one, args=(i, *given)) for i, given in enumerate(processes)]
  for thread in threads:
    thread.start()
    time.sleep(0.05)
  for thread in threads:
    thread.join()
  return results, time.monotonic() - began


MISSING = r"^--num_processes=\d: in 0.5 seconds nothing came from process 1$"
NOT_THERE = r"^--coordinator: process 0 at localhost:\d+ did not meet this one within 0.5 seconds \(.+\)$"
TAKEN = r"^--coordinator: port \d+ cannot be used \(.+\); is another process 0 at work\?$"
TWICE = r"^--process_id: 1 is given twice; start all with different ones$"
DIFFER = r"^--num_processes: process \d has 3, process 0 has 2$"
MET = None


@pytest.mark.parametrize(
  ("processes", "expected"),
  [
    ([(1, 0)], [MET]),
    ([(2, 0), (2, 1)], [MET, MET]),
    ([(2, 1), (2, 0)], [MET, MET]),
    ([(3, 2), (3, 0), (3, 1)], [MET, MET, MET]),
    ([(2, 0)], [MISSING]),
    ([(2, 1)], [NOT_THERE]),
    ([(3, 0), (3, 2)], [MISSING, MISSING]),
    ([(2, 0), (2, 0)], [MISSING, TAKEN]),
    ([(3, 0), (3, 1), (3, 1)], [TWICE, TWICE, TWICE]),
    ([(2, 0), (2, 1), (2, 1)], [MET, MET, NOT_THERE]),
    ([(2, 0), (3, 1)], [DIFFER, DIFFER]),
    ([(2, 0), (3, 2), (2, 1)], [DIFFER, DIFFER, NOT_THERE]),
    ([(2, 0), (2, 1), (3, 2)], [MET, MET, NOT_THERE]),
  ],
)
def test_a_launch_mistake_is_one_line_in_every_process(processes, expected):
  results, took = launch(*processes)
  for result, pattern in zip(results, expected, strict=True):
    if pattern is MET:
      assert isinstance(result, meeting.Lines)
    else:
      assert re.match(pattern, result)
  assert took < 2
  for result in results:
    if isinstance(result, meeting.Lines):
      result.leave()


def test_what_is_no_process_of_ours_is_not_counted():
  port, met = runs.free_port(), []
  options = {"timeout": 5, "silence": 20}
  first = threading.Thread(target=lambda: met.append(meeting.meet(f"localhost:{port}", 2, 0, **options)))
  first.start()
  for words in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"id": "x"}\n', b"x" * 9999, b""):
    while True:
      try:
        with socket.create_connection(("localhost", port)) as line:
          line.sendall(words)
        break
      except ConnectionRefusedError:
        time.sleep(0.01)
  met.append(meeting.meet(f"localhost:{port}", 2, 1, **options))
  first.join()
  for lines in met:
    lines.leave()


@pytest.fixture
def three(monkeypatch, capsys):
  """The lines of three processes, and `ended(number)`: once so many were ended, their statuses and words."""
  statuses = []
  monkeypatch.setattr(meeting.Lines, "end", staticmethod(statuses.append))
  monkeypatch.setattr(meeting, "GRACE", 0.2)
  lines, _ = launch((3, 0), (3, 1), (3, 2), timeout=5)

  def ended(number, after=0.0):
    time.sleep(after)
    deadline = time.monotonic() + 5
    while len(statuses) < number and time.monotonic() < deadline:
      time.sleep(0.01)
    return statuses, sorted(capsys.readouterr().err.splitlines())

  yield lines, ended
  for one in lines:
    one.leave()


def hang_up(lines):
  """As the kernel does for a process that is killed."""
  lines._left = True  # its own thread is gone with it
  for line in lines._lines.values():
    line.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("who", [0, 1])
def test_one_that_is_killed_ends_the_others_at_once_with_one_line_each(three, who):
  lines, ended = three
  hang_up(lines[who])
  words = f"run.py: error: process {who} is gone; the same commands continue from the last checkpoint"
  assert ended(2) == ([1, 1], [words, words])


def test_an_error_that_follows_from_a_loss_is_told_as_the_loss(three, monkeypatch):
  """As that of a save, which waits for all processes."""
  lines, ended = three

  def save(*_):
    threading.Timer(0.2, hang_up, [lines[1]]).start()
    raise train.RunError("a checkpoint cannot be saved")

  run = runs.load_run("run_for_a_loss")
  monkeypatch.setattr(run.processes, "_lines", lines[0])
  monkeypatch.setitem(run.JOBS, "train", save)
  monkeypatch.setattr(run.processes, "wait_for_others", lambda: False)
  assert run.main(["--config.epochs=1"]) == 1
  assert any("run.py: error: process 1 is gone" in line for line in ended(2)[1])
  assert lines[0]._left


@pytest.mark.parametrize("who", [0, 1])
def test_one_that_fails_alone_ends_the_others_with_its_line(three, who):
  lines, ended = three
  lines[who].leave("the disk is full")
  words = f"run.py: error: process {who}: the disk is full"
  assert ended(2) == ([1, 1], [words, words])


def test_those_that_end_by_themselves_say_their_own_line(three):
  lines, ended = three
  for one in lines:
    one.leave("all of us")
  for one in lines:
    hang_up(one)
  assert ended(0, after=0.5) == ([], [])
  began = time.monotonic()
  for one in lines:
    one.wait()
  assert time.monotonic() - began < 1


def test_one_that_leaves_in_peace_is_not_missed(three):
  lines, ended = three
  lines[2].leave()
  hang_up(lines[2])
  assert ended(0, after=0.5) == ([], [])

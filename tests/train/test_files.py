"""Paths as people give them, names as terminals get them, and packed files that promise too much."""

import gzip
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import runs
import zips

from jaxreg._atomic_files import replaced
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import bounded_files, sources
from jaxreg.train.errors import NothingToSave, RunError, printable
from jaxreg.train.finished.load import load
from jaxreg.train.jobs.compare import compare
from jaxreg.train.run.folder_name import default_workdir
from jaxreg.train.run.lock import check_there, locked
from jaxreg.train.run.workdir import claim
from jaxreg.train.user_paths import local_path, user_path


@pytest.mark.parametrize(
  ("given", "meant"),
  [
    ("runs/a", "runs/a"),
    ("~/a", "/home/me/a"),
    ("file:///a/b%20c", "/a/b c"),
    ("file:/a", "/a"),
    ("file://localhost/a", "/a"),
    ("C:/a", "C:/a"),
    ("a:b/c", "a:b/c"),
  ],
)
def test_a_path_is_what_people_mean(monkeypatch, given, meant):
  monkeypatch.setenv("HOME", "/home/me")
  assert str(local_path(given, "--workdir")) == meant


@pytest.mark.parametrize("name", ["lr[0.1]", "a\\b", "a*b", "what?"])
def test_a_path_that_orbax_reads_in_its_own_way_is_refused(tmp_path, name, monkeypatch):
  """No checkpoint there could be read again; the name may be one of a folder above."""
  fields, data = flatten(runs.make_config()), sources.digits().describe()
  (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path / name)
  for workdir in (tmp_path / name, tmp_path / name / "run", Path("run")):
    with pytest.raises(RunError, match=r"^--workdir: Orbax reads .* give a path without \* \? \[ \\$"):
      claim(workdir, fields, data, 24)
  with pytest.raises(RunError, match=r"^--workdir: Orbax reads .*"):
    compare(runs.make_config({"job": "compare"}), tmp_path / name)
  assert not list((tmp_path / name).iterdir())
  assert not set(default_workdir(f"{name}.py", {}).name) & set("[\\*?")


def test_a_path_that_is_not_utf8_is_refused(tmp_path):
  fields, data = flatten(runs.make_config()), sources.digits().describe()
  with pytest.raises(RunError, match=r"^--workdir: '/.*/a\\udcff\\udcfe' is not UTF-8 text"):
    claim(tmp_path / os.fsdecode(b"a\xff\xfe"), fields, data, 24)
  assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["lr[0.1]", "a*b", "what?", "{a},b #'$%20"])
def test_a_run_that_was_moved_to_such_a_path_can_be_read(finished_run, tmp_path, name):
  shutil.copytree(finished_run, tmp_path / name)
  images = np.zeros((1, 8, 8, 1), np.uint8)
  np.testing.assert_array_equal(load(tmp_path / name)(images), load(finished_run)(images))


REPLACED = {
  "removed": Path.unlink,
  "other bytes": lambda lock: lock.write_text("another run"),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
def test_a_run_notices_that_its_lock_was_replaced(tmp_path, replace):
  """A second run could lock the new file, while the first one holds the old one."""
  (tmp_path / "config.json").write_text("{}")
  with locked(tmp_path) as token:
    check_there(tmp_path, token)
    replace(tmp_path / "lock")
    with pytest.raises(NothingToSave, match=r"^--workdir: .*lock was removed or replaced under this run"):
      check_there(tmp_path, token)


@pytest.mark.parametrize(
  "given", ["gs://", "gs://Bucket/a", "s3://bucket/run", "gs:/bucket", "hdfs://a", "~nobody-here/a"]
)
def test_a_path_elsewhere_is_refused_in_one_line(given):
  of_data = lambda: runs.read_source("npz", path=given)
  for call in (lambda: user_path(given, "--workdir"), lambda: load(given), of_data):
    with pytest.raises(RunError, match=r"^(--workdir|workdir|data\.npz\.path): (got|must be) ") as refused:
      call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("Größe 1.5 µm", "Größe 1.5 µm"),
    ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
    ("a\nrun.py: done", "a\\nrun.py: done"),
    ("\u202egnp.exe", "\\u202egnp.exe"),
    ("\udcff", "\\udcff"),
  ],
)
def test_what_a_terminal_would_act_on_is_escaped(text, shown):
  assert printable(text) == shown
  assert printable(text).encode()


@pytest.fixture
def little_memory(monkeypatch):
  monkeypatch.setattr(bounded_files, "most_bytes", lambda: 10**6)


def test_an_archive_that_promises_too_much_is_refused(tmp_path, little_memory):
  arrays = {"x_train": np.zeros(2 * 10**6, np.uint8), "y_train": np.zeros(2, np.int64)}
  np.savez_compressed(tmp_path / "data.npz", **arrays)
  assert (tmp_path / "data.npz").stat().st_size < 10**4
  with pytest.raises(RunError, match="it unpacks to more than 1000000 bytes"):
    runs.read_source("npz", path=str(tmp_path / "data.npz"))


def test_an_encrypted_archive_is_refused_by_its_member(tmp_path):
  file = tmp_path / "data.npz"
  np.savez(file, x_train=np.zeros(3, np.uint8), y_train=np.zeros(3, np.int64))
  file.write_bytes(zips.encrypted(file.read_bytes()))
  with pytest.raises(RunError, match=r"x_train\.npy is encrypted") as told:
    runs.read_source("npz", path=str(file))
  assert "\n" not in str(told.value)


def test_an_array_of_an_impossible_shape_is_refused(tmp_path):
  head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % 10**17
  npy = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
  with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
    archive.writestr("x_train.npy", npy)
  with pytest.raises(RunError, match="cannot be read"):
    runs.read_source("npz", path=str(tmp_path / "data.npz"))


def test_gzipped_files_that_unpack_to_too_much_are_refused(tmp_path, little_memory):
  packed = gzip.compress(bytes(2 * 10**6))
  assert len(packed) < 10**4
  header = bytes([0, 0, 8, 3]) + np.array([2000, 100, 10], ">u4").tobytes()
  (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(2 * 10**6)))
  with pytest.raises(RunError, match=r"data\.idx\.path: .*it unpacks to more than 1000000 bytes"):
    runs.read_source("idx", path=str(tmp_path))
  (tmp_path / "train.en.gz").write_bytes(packed)
  with pytest.raises(RunError, match=r"data\.parallel_text\.path: .*it unpacks to more than 1000000 bytes"):
    runs.read_source("parallel_text", path=str(tmp_path))


@pytest.mark.parametrize("mask", [0o077, 0o027])
def test_the_umask_says_who_may_read_a_cache(tmp_path, mask):
  before = os.umask(mask)
  try:
    with replaced(tmp_path / "a.npz") as stream:
      np.savez(stream, x=np.zeros(2))
  finally:
    os.umask(before)
  assert [(file.name, file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == [
    ("a.npz", 0o666 & ~mask)
  ]

"""A flipped bit in a file of a run is noticed wherever the file is read again."""

import json

import pytest
import runs

from jaxreg import train
from jaxreg._atomic_files import write_json
from jaxreg.train.config.choices import flatten
from jaxreg.train.data import sources
from jaxreg.train.finished.restore import restore_config
from jaxreg.train.run import manifest, metrics_file
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.sealed_tables import parse_table, sealed

RECORD = {"step": 12, "epoch": 3.0, "train/loss": 0.1234567, "val/error": float("nan")}


def flips(content):
  """The content with each of its bits flipped, one at a time."""
  for position in range(len(content)):
    for bit in range(8):
      damaged = bytearray(content)
      damaged[position] ^= 1 << bit
      yield bytes(damaged)


def test_no_flipped_bit_of_a_record_passes_for_another_value():
  line = json.dumps(sealed(RECORD)).encode()
  whole = metrics_file._parse(line, "")
  assert repr(whole) == repr(RECORD)
  read = [metrics_file._parse(damaged, "") for damaged in flips(line)]
  assert {repr(record) for record in read if record is not None} <= {repr(RECORD)}
  assert read.count(None) > 0.9 * len(read)


@pytest.mark.thorough
def test_no_flipped_bit_of_the_results_passes_for_another_value(tmp_path):
  results = {"step": 12, "test/error": 0.0625, "replicas": {"seed": [0, 1], "test/error": [0.0625, 0.0625]}}
  file = tmp_path / "results.json"
  write_json(file, sealed(results))
  for damaged in flips(file.read_bytes()):
    file.write_bytes(damaged)
    try:
      assert workdirs.read(tmp_path, "results.json") == results
    except train.RunError as error:
      assert "remove it, and the same command makes it again" in str(error)  # noqa: PT017


def test_a_table_stays_plain_json_and_one_without_checksum_is_read(tmp_path):
  """As earlier versions wrote it, and as other people's tools read it."""
  table = {"b": 1, "a": [1.5, None], "c": {"d": "e"}, "f": (1, 2)}
  text = json.dumps(sealed(table), indent=2)
  assert list(json.loads(text)) == ["b", "a", "c", "f", "seal"]
  assert parse_table(text) == parse_table(json.dumps(table)) == json.loads(json.dumps(table))
  # The order of the fields and the layout mean nothing, as in JSON.
  assert parse_table(json.dumps(json.loads(text), sort_keys=True)) == parse_table(text)


def change(file, old, new):
  content = file.read_text()
  assert content.count(old) == 1
  file.write_text(content.replace(old, new))


def test_a_flipped_scale_is_refused(finished_copy):
  """It would divide the inputs by another number, and predict without a word."""
  change(finished_copy / "data.json", '"scale": 16.0', '"scale": 56.0')
  with pytest.raises(
    train.RunError, match=r"data\.json is damaged \(it does not match its own checksum, or it "
  ):
    train.load(finished_copy)


@pytest.mark.thorough
def test_a_flipped_result_is_not_reported(finished_copy):
  error = runs.table(finished_copy / "results.json")["test/error"]
  change(finished_copy / "results.json", f'"test/error": {error}', '"test/error": 0.0')
  with pytest.raises(train.RunError, match=r"results\.json is damaged .* the same command makes it again"):
    train.train(runs.make_config(), finished_copy)


def claim(workdir):
  return workdirs.claim(workdir, flatten(runs.make_config()), workdirs.read_data(workdir), 24)


@pytest.mark.thorough
def test_other_versions_are_told_in_one_line(finished_copy):
  assert claim(finished_copy) is None
  file = finished_copy / "environment.json"
  now = runs.table(file)
  runs.reseal(file, {**now, "jax": "0.1.2", "devices": ["a", "b"]})
  remark = claim(finished_copy)
  assert "\n" not in remark
  assert f"devices was 2 times a, is 8 times {now['devices'][0]}" in remark
  assert f"jax was 0.1.2, is {now['jax']}" in remark
  assert "numpy" not in remark
  runs.flip(file)
  assert "environment.json is damaged" in claim(finished_copy)


WHOLE = {"files": {}, "metrics": None, "sums": None}
SHAPES = {
  "no checksum": WHOLE,
  "no files": sealed({"metrics": None}),
  "a list of files": sealed({**WHOLE, "files": ["a"]}),
  "metrics that are a list": sealed({**WHOLE, "metrics": [1]}),
  "metrics that are no numbers": sealed({**WHOLE, "metrics": {"val/nll": "low"}}),
}


@pytest.mark.parametrize("table", SHAPES.values(), ids=SHAPES)
def test_a_manifest_of_another_shape_is_damage(tmp_path, table):
  (tmp_path / "checkpoints" / "4").mkdir(parents=True)
  write_json(tmp_path / "manifests" / "4.json", table)
  assert manifest.good_steps(tmp_path) == {}


@pytest.mark.parametrize("version", [0, 1, 2, None, "3"])
def test_a_work_directory_of_another_format_is_refused(finished_copy, version):
  file = finished_copy / "config.json"
  write_json(file, sealed({**runs.table(file), "format": version}))
  for call in (lambda: train.load(finished_copy), lambda: claim(finished_copy)):
    with pytest.raises(train.RunError, match=r"^workdir: .* is of another version of jaxreg \(format"):
      call()


def test_rows_and_rules_are_the_same_values_after_a_work_directory(tmp_path):
  rows = {"a, 0.5": {"method.name": "softmax", "model.MLP.widths": (4, 4)}}
  fields = {"optimizer.mahalanobis.metric": (("*bias", 4.0), ("*", 2.0)), "compare.rows": rows}
  config = runs.make_config({"optimizer.name": "mahalanobis", **fields})
  data = sources.digits().describe()
  workdirs.claim(tmp_path / "run", flatten(config), data, 24)
  assert workdirs.check_same(tmp_path / "run", flatten(config), data) == {}
  restored = restore_config(train.base_config(), tmp_path / "run")
  assert restored.optimizer.mahalanobis.metric == fields["optimizer.mahalanobis.metric"]
  assert workdirs.read_config(tmp_path / "run")["compare.rows"] == json.loads(json.dumps(rows))


def test_a_field_that_is_gone_is_refused_only_if_it_was_read(monkeypatch):
  saved = {**flatten(runs.make_config()), "seed": 5, "model.LeNet.gone": 1}
  monkeypatch.setattr("jaxreg.train.run.workdir.read_config", lambda _: saved)
  assert restore_config(train.base_config(), "there").seed == 5
  saved["model.MLP.gone"] = 1
  with pytest.raises(train.RunError, match=r"had a field model\.MLP\.gone"):
    restore_config(train.base_config(), "there")

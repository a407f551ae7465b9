"""A student of another run: what it learns, what needs the teacher, what is refused."""

import shutil

import numpy as np
import pytest
import runs

from jaxreg import train

FIELDS = {"regularizers.names": ("distillation",), "model.MLP.widths": (4,), "method.name": "softmax"}


@pytest.mark.thorough
def test_a_student_learns_from_a_run_and_predicts_without_it(finished_run, tmp_path, no_figures):
  teacher, workdir = tmp_path / "teacher", tmp_path / "student"
  shutil.copytree(finished_run, teacher)
  fields = {**FIELDS, "teacher.workdir": str(teacher), "epochs": 8}
  fields["regularizers.distillation.weight"] = 100.0
  results = train.train(runs.make_config(fields), workdir)
  assert np.isfinite(results["test/nll"])
  found = [record["train/distillation"] for record in runs.records(workdir) if "train/distillation" in record]
  assert found[-1] < 0.7 * found[0]
  shutil.rmtree(teacher)
  images = np.zeros((2, *train.load(workdir).input_shape), np.float32)
  assert np.isfinite(train.load(workdir)(images)).all()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"teacher.workdir": "nowhere"}, "teacher.workdir: nowhere has no config.json"),
    ({}, r"teacher\.workdir: goes together with distillation"),
    ({"teacher.workdir": "nowhere", "regularizers.names": ()}, r"teacher\.workdir: goes together"),
  ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.train(runs.make_config({**FIELDS, **fields}), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_a_loop_of_ones_own_must_give_the_teacher_as_a_function():
  config = train.base_config()
  config.update_from_flattened_dict({**FIELDS, "teacher.workdir": "unread"})
  with pytest.raises(train.RunError, match="give it a function teacher"):
    train.make_program(config, input_shape=(3,), num_classes=2, num_examples=64)

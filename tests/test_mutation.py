"""Every mutation of `mutation.py` is caught by the test that claims it."""

import mutation
import pytest

pytestmark = pytest.mark.slow


def test_the_unmutated_copy_passes(tmp_path):
  """So that a failure below is the mutation's."""
  done = mutation.run(tmp_path, sorted({m.test for m in mutation.MUTATIONS}))
  assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("changed", mutation.MUTATIONS, ids=lambda m: f"{m.file}: {m.name}")
def test_mutation_is_caught(changed, tmp_path):
  done = mutation.run(tmp_path, [changed.test], changed)
  # 1 is pytest's status for failed tests; 2 to 5 would be a test that could not be run.
  assert done.returncode == 1, done.stdout + done.stderr

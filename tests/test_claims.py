"""The pages of claims are what the markers of the tests say."""

import json
import subprocess
import sys

import claims


def test_the_pages_are_current():
  # In a process of its own: pytest does not collect twice in one.
  code = "import claims, json; print(json.dumps(claims.collect()))"
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=claims.ROOT / "tests", capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout + done.stderr
  pages = json.loads(done.stdout.splitlines()[-1])
  there = {file.stem: file.read_text() for file in claims.FOLDER.glob("*.md")}
  assert pages == there, "run python tests/claims.py"
  assert pages["dropmax"].count("\n| ") >= 15

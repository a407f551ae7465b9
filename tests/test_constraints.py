"""`constraints.txt`, with which CI installs, has a version for every requirement."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def test_every_requirement_has_a_version_that_it_allows():
  lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
  pinned = {name: version for name, version in (line.split("==") for line in lines)}
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = ("data", "report", "text", "train", "test", "dev")
  asked = project["dependencies"] + [r for name in extras for r in project["optional-dependencies"][name]]
  requirements = [each for each in map(Requirement, asked) if each.name != "jaxreg"]
  assert len(requirements) > 20
  for each in requirements:
    assert each.specifier.contains(pinned[each.name.lower().replace("_", "-")]), each
  assert "PIP_CONSTRAINT" in (ROOT / ".ci" / "run").read_text()

"""The guides: their Python runs, page by page, and their commands can be read."""

import re
import shlex
from pathlib import Path

import jax
import pytest

from jaxreg.train import cli

ROOT = Path(__file__).resolve().parent.parent
GUIDES = [ROOT / "docs/index.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
OWN = "my_things:"  # objects of a module that the reader writes; see test_yours.py


@pytest.mark.thorough
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_snippets_of_a_guide_run(guide, tmp_path, monkeypatch):
  """In their order, in one namespace and in a folder of their own."""
  monkeypatch.chdir(tmp_path)
  blocks = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
  assert blocks
  namespace = {"__name__": "guide"}
  with jax.numpy_rank_promotion("allow"):  # as a reader runs them
    for number, code in enumerate(blocks):
      exec(compile(code, f"{guide.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_s_commands_can_be_read_and_its_links_exist(guide, monkeypatch):
  monkeypatch.chdir(ROOT)
  text = guide.read_text()
  for command in re.findall(r"^python run\.py *([^#\n]*)", text.replace("\\\n", ""), re.MULTILINE):
    if OWN not in command and not command.startswith("merge"):  # which reads the runs' configuration
      cli.parse(shlex.split(command), ROOT / "configs")
  links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
  assert {link for link in links if link and not (guide.parent / link).exists()} == set()
  for path in re.findall(r"`python (benchmarks/\w+\.py)", text):
    assert (ROOT / path).is_file()

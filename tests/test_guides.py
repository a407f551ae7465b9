"""The guides: their Python runs, page by page, and their commands can be read."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxreg.train import cli

ROOT = Path(__file__).resolve().parent.parent
GUIDES = [ROOT / "docs/index.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
OWN = "my_things:"  # objects of a module that the reader writes; see test_yours.py


def load_outputs():
  spec = importlib.util.spec_from_file_location("guide_outputs", ROOT / "docs/outputs.py")
  assert spec
  assert spec.loader
  spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
  return module


outputs = load_outputs()


@pytest.mark.thorough
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_python_of_a_guide_prints_what_stands_below_it(guide, tmp_path, monkeypatch):
  """In their order, in one namespace and in a folder of their own."""
  monkeypatch.chdir(tmp_path)
  with jax.numpy_rank_promotion("allow"):  # as a reader runs them
    printed = outputs.run(guide, {"__name__": "guide"})
  assert printed
  for number, (output, shown) in enumerate(printed):
    assert outputs.same(output, shown), (number, output, shown)


@pytest.mark.thorough
def test_a_random_loss_of_keras_keeps_penalties_and_weights():
  """Examples of weight 0 leave the penalty, 1e-4 times half the sum of squares."""
  with jax.numpy_rank_promotion("allow"):
    guide: dict[str, Any] = {"__name__": "guide"}
    outputs.run(ROOT / "docs/guides/keras.md", guide)
    model, x, y = guide["dropped"], guide["x"], guide["y"]
    loss = model.evaluate(x, y, sample_weight=np.zeros(len(y)), verbose=0)
  kernel = np.asarray(model.layers[0].kernel, np.float64)
  np.testing.assert_allclose(loss, 1e-4 * (kernel**2).sum() / 2, rtol=1e-5)


@pytest.mark.parametrize(
  ("printed", "same"),
  [
    ("error 3.52 %, 7 of 9\n", True),
    ("error 3.57 %, 7 of 9\n", True),
    ("error 4.52 %, 7 of 9\n", False),
    ("error -3.52 %, 7 of 9\n", False),
    ("error 3.52 %, 7 of 12\n", False),
    ("errors 3.52 %, 7 of 9\n", False),
    ("error 3.52 %\n", False),
    ("", False),
  ],
)
def test_outputs_are_the_same_up_to_the_last_digits(printed, same):
  """Results depend on the processor and on the version of JAX."""
  assert outputs.same(printed, "error 3.52 %, 7 of 9\n") == same


def test_outputs_are_written_below_the_code_and_figures_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(outputs, "DOCS", tmp_path)
  (tmp_path / "figures").mkdir()
  guide = tmp_path / "guide.md"
  code = (
    'from pathlib import Path\n\nprint(6 * 7)\n_ = [Path(f"{name}.png").write_text("") for name in "ab"]\n'
  )
  page = "Before.\n\n```python\n%s```\n%s\n![Seen.](../figures/a.png)\n\n```python\nx = 1\n```\n"
  for old in ("", "\n```text\n41\n```\n"):
    guide.write_text(page % (code, old))
    outputs.write(guide)
    assert guide.read_text() == page % (code, "\n```text\n42\n```\n")
  assert [file.name for file in (tmp_path / "figures").iterdir()] == ["a.png"]


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

"""The outputs of the guides: what a block of Python prints stands below it, in a block `text`.

    python docs/outputs.py curvature calibrate    runs these guides, without names all, and writes the outputs

The blocks of a guide run in one namespace. A figure that a guide saves and shows goes to `docs/figures`.
`tests/test_guides.py` compares the outputs with the pages.
"""

import contextlib
import io
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def run(guide: Path, namespace: dict[str, Any]) -> list[tuple[str, str]]:
  """Runs the Python of a guide; returns what each block prints, and what the guide shows below it."""
  outputs: list[tuple[str, str]] = []
  for number, (code, shown) in enumerate(BLOCK.findall(guide.read_text())):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      exec(compile(code, f"{guide.name}, block {number}", "exec"), namespace)
    outputs.append((printed.getvalue(), shown))
  return outputs


def same(printed: str, shown: str) -> bool:
  """Compares two outputs; a number with a decimal point may differ by 5 % and by 2 in its last digit."""
  for new, old in zip(NUMBER.findall(printed), NUMBER.findall(shown)):
    digits = len(old.partition(".")[2])
    if new != old and not (
      digits and abs(float(new) - float(old)) <= 0.05 * abs(float(old)) + 2 * 0.1**digits
    ):
      return False
  return NUMBER.sub("0", printed).split() == NUMBER.sub("0", shown).split()


def write(guide: Path) -> None:
  """Runs a guide in an empty folder; writes its outputs and the figures that it shows."""
  text, end, parts = guide.read_text(), 0, []
  with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    outputs = run(guide, {"__name__": "guide"})
    for figure in Path(folder).glob("*.png"):
      if f"figures/{figure.name})" in text:
        shutil.copy(figure, DOCS / "figures")
  for block, (printed, _) in zip(BLOCK.finditer(text), outputs, strict=True):
    output = f"\n```text\n{printed}```\n" if printed else ""
    parts += [text[end : block.start()], f"```python\n{block[1]}```\n{output}"]
    end = block.end()
  guide.write_text("".join([*parts, text[end:]]))


if __name__ == "__main__":
  for guide in sorted((DOCS / "guides").glob("*.md")):
    if guide.stem in sys.argv[1:] or not sys.argv[1:]:
      write(guide)

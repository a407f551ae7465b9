"""The gallery: every figure of the pages, its title, its text and the command that makes it.

`conf.py` writes it and its thumbnails into `docs/gallery/`. The page of a figure is read: the heading above
it is its title, the alternative text its caption, and the last paragraph above it that has commands has the
figure's. NAME in a command stands for the code with which a paragraph above the figure begins.
"""

import re
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
FIGURE = re.compile(r"!\[([^\]]+)\]\(([^)\s]+\.png)\)")
COMMAND = re.compile(r"`(python [^`]+)`|^(python (?:.*\\\n)*.*)", re.MULTILINE)


class Figure(NamedTuple):
  """A figure: its title, file, what one sees, the commands that make it, and the page, as Sphinx calls it."""

  title: str
  file: Path
  seen: str
  commands: list[str]
  page: str


def sections() -> dict[str, list[Figure]]:
  """The figures by the title of the page that shows them first: the papers, then the other pages."""
  found: dict[str, list[Figure]] = {}
  known: set[Path] = set()
  folders = ("papers/*/README.md", "docs/*.md", "docs/guides/*.md")
  for page in [page for folder in folders for page in sorted(ROOT.glob(folder))]:
    if page.name != "index.md":
      text = page.read_text()
      new = [figure for figure in _figures(page, text) if figure.file not in known]
      known |= {figure.file for figure in new}
      found |= {text.partition("\n")[0].lstrip("# "): new} if new else {}
  return found


def _figures(page: Path, text: str) -> list[Figure]:
  name = str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/").removesuffix("/README")
  found: list[Figure] = []
  title, name_of = "", "NAME"
  commands: list[str] = []
  for block in re.split(r"\n\s*\n", text):
    if block.startswith("#"):
      title = block.partition("\n")[0].lstrip("# ").partition(": `")[0]
    if figures := FIGURE.findall(block):
      own = [re.sub(r"\bNAME\b", name_of, each) for each in commands]
      found += [
        Figure(title, (page.parent / file).resolve(), " ".join(seen.split()), own, name)
        for seen, file in figures
      ]
    else:
      name_of = code[1] if (code := re.match(r"`(\w+)`", block)) else name_of
      commands = [
        " ".join("".join(each).replace("\\\n", "").split()) for each in COMMAND.findall(block)
      ] or commands
  return found


def page() -> str:
  """The text of `docs/gallery/index.rst`."""
  lines = [
    *("Gallery", "=======", ""),
    "Every figure of these pages that a command of jaxreg makes. A click shows it in full. DIR is a folder "
    "with the data that the configuration names.",
  ]
  for title, figures in sections().items():
    lines += ["", title, "-" * len(title), "", ".. container:: gallery", ""]
    for figure in figures:
      lines += [
        *(f"   .. figure:: {figure.file.name}", f"      :target: ../_static/{figure.file.name}"),
        *(f"      :alt: {figure.seen}", "", f"      **{figure.title}**", ""),
        *(f"      {figure.seen} :doc:`More </{figure.page}>`.", ""),
        *("      .. code-block:: sh", "", *(f"         {command}" for command in figure.commands), ""),
      ]
  return "\n".join(lines) + "\n"


def write(docs: Path) -> None:
  """Writes the page, and a thumbnail of each figure that is newer than its thumbnail."""
  folder = docs / "gallery"
  folder.mkdir(exist_ok=True)
  if not (file := folder / "index.rst").exists() or file.read_text() != page():
    file.write_text(page())
  for figure in (figure for figures in sections().values() for figure in figures):
    thumbnail = folder / figure.file.name
    if not thumbnail.exists() or thumbnail.stat().st_mtime < figure.file.stat().st_mtime:
      image = Image.open(figure.file).convert("RGB")
      image.thumbnail((640, 480))
      image.save(thumbnail, optimize=True)

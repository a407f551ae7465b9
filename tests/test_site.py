"""The site: one page for each public name, a gallery of all figures. `sphinx-build -W` checks the rest."""

import importlib
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

import jaxreg
from jaxreg.train import cli

DOCS = Path(__file__).resolve().parent.parent / "docs"


def load(name):
  spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / f"{name}.py")
  assert spec
  assert spec.loader
  sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


reference, gallery = load("reference"), load("gallery")


def test_every_public_name_is_on_exactly_one_page():
  pages = reference.pages()
  public = {f"{f}.{n}" for f in jaxreg.__all__ for n in importlib.import_module(f"jaxreg.{f}").__all__}
  directive = re.compile(r"^\.\. (?:auto\w+:: jaxreg\.|py:data:: )([\w.]+)$", re.MULTILINE)
  described = []
  for path, text in pages.items():
    folder = path.split("/")[1]
    described += [name if "." in name else f"{folder}.{name}" for name in directive.findall(text)]
  assert sorted(described) == sorted(public)
  assert len(pages) == len(public) + len(jaxreg.__all__) + 1
  assert len({path.lower() for path in pages}) == len(pages)  # on a disk that knows no capitals


def test_the_table_of_a_folder_has_a_line_for_each_name():
  for folder, names in reference.public().items():
    text = reference.pages()[f"reference/{folder}/index.rst"]
    lines = re.findall(r"^   \* - :doc:`(\w+) <[\w-]+>`\n     - (\S.*)$", text, re.MULTILINE)
    assert [name for name, _ in lines] == names
    assert text.index("list-table") < text.index("toctree")


@pytest.mark.parametrize(
  ("text", "folder", "at", "name"),
  [
    ("losses.focal", "", "", "losses.focal"),
    ("jaxreg.losses.focal", "", "", "losses.focal"),
    ("losses.focal(logits, labels)", "", "", "losses.focal"),
    (".focal", "losses", "", "losses.focal"),
    (".focal", "", "", None),
    ("focal", "", "losses", "losses.focal"),
    ("focal", "", "noise", None),
    ("losses.focus", "", "", None),
    ("a * b", "", "losses", None),
  ],
)
def test_code_that_names_something_public_is_a_link(text, folder, at, name):
  assert reference.linked(text, folder, at) == name


def figures():
  return [figure for section in gallery.SECTIONS.values() for figure in section]


def test_the_gallery_has_every_figure_once():
  assert sorted(f.name for f in figures()) == sorted(file.stem for file in (DOCS / "figures").glob("*.png"))
  for figure in figures():
    assert f"figures/{figure.name}.png" in (DOCS / f"{figure.page}.md").read_text(), figure
    assert 1 < figure.seen.count(". ") + figure.seen.endswith(".") <= 4, figure


@pytest.mark.parametrize("command", sorted({line for f in figures() for line in f.command.splitlines()}))
def test_a_command_of_the_gallery_can_be_read(command, monkeypatch):
  monkeypatch.chdir(DOCS.parent)
  if command.startswith("python run.py "):
    assert cli.parse(shlex.split(command)[2:], DOCS.parent / "configs").config
  else:
    assert Path(command.split()[1]).is_file()


def test_thumbnails_are_made_of_the_figures(tmp_path):
  (tmp_path / "figures").symlink_to(DOCS / "figures")
  gallery.write(tmp_path)
  thumbnails = {file.stem for file in (tmp_path / "gallery").glob("*.png")}
  assert thumbnails == set(re.findall(r"figure:: (\w+)\.png", gallery.page()))

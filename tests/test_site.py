"""The site: one page for each public name, a gallery of all figures. `sphinx-build -W` checks the rest."""

import functools
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import textwrap
import types
from pathlib import Path

import cases_losses
import contract
import jax
import numpy as np
import pytest
from PIL import Image

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


reference, gallery, llms = load("reference"), load("gallery"), load("llms")
pages = functools.cache(reference.pages)  # each call reads every docstring


def test_every_public_name_is_on_exactly_one_page():
  public = {f"{f}.{n}" for f in jaxreg.__all__ for n in importlib.import_module(f"jaxreg.{f}").__all__}
  directive = re.compile(r"^\.\. (?:auto\w+:: jaxreg\.|py:data:: )([\w.]+)$", re.MULTILINE)
  described = []
  for path, text in pages().items():
    folder = path.split("/")[1]
    described += [name if "." in name else f"{folder}.{name}" for name in directive.findall(text)]
  assert sorted(described) == sorted(public)
  assert len(pages()) == len(public) + len(jaxreg.__all__) + 1
  assert len({path.lower() for path in pages()}) == len(pages())  # on a disk that knows no capitals


def test_the_table_of_a_folder_has_a_line_for_each_name():
  for folder, names in reference.public().items():
    text = pages()[f"reference/{folder}/index.rst"]
    lines = re.findall(r"^   \* - :doc:`(\w+) <[\w-]+>`\n     - (\S.*)$", text, re.MULTILINE)
    assert sorted(name for name, _ in lines) == sorted(names)


def test_the_first_page_of_the_reference_links_every_loss():
  groups = reference.groups("losses")
  assert set(groups) == set(reference.TASKS), "a task without a name"
  overview = pages()["reference/index.rst"]
  for heading, names in reference.groups("losses").items():
    assert heading in overview
    assert all(f":doc:`{name} <losses/{name}>`" in overview for name in names)


def test_a_new_loss_stands_under_classification(monkeypatch):
  names = {"losses": [*reference.public()["losses"], "hinge"]}
  monkeypatch.setattr(reference, "public", lambda: names)
  assert "hinge" in reference.groups("losses")["Classification"]


def test_a_function_s_page_has_its_words_and_the_guides_that_name_it():
  page = pages()["reference/losses/label_smoothing.rst"]
  guides = set(re.findall(r"</guides/(\w+)>", page))
  naming = {
    g.stem
    for g in (DOCS / "guides").glob("*.md")
    if re.search(r"\blabel_smoothing\(|`\S*label_smoothing`", g.read_text())
  }
  assert guides
  assert guides == naming
  assert "Guides" not in pages()["reference/noise/shake_drop.rst"]


@pytest.mark.parametrize("name", reference.public()["losses"])
def test_the_page_of_a_loss_has_its_oracle_in_plain_numpy(name):
  """The code of the page runs alone and gives what the oracle of the case gives."""
  page = pages()[f"reference/losses/{name}.rst"]
  text, found, code = page.partition("\nIn plain NumPy\n")[2].partition(".. code-block:: python\n")
  assert found, f"give losses.{name} a case in tests/cases_losses.py with an oracle in NumPy"
  namespace = {}
  exec(textwrap.dedent(code), namespace)
  assert "oracles" not in code
  every = (*contract.CASES, *cases_losses.CASES)
  names = (f"losses.{name}", f"losses.{name.removesuffix('_terms')}")  # terms without a case show their sum
  cases = [case for each in dict.fromkeys(names) for case in every if case.function == each]
  if not cases:
    assert callable(namespace[name])  # called in the test that `ELSEWHERE` names, as `oracles.name`
    return
  assert all(option in text for option in cases[0].options if option not in contract.GROUPS)
  function = [value for value in namespace.values() if inspect.isfunction(value)][-1]

  def called(oracle):
    inputs = {
      key: value if key == "key" else jax.device_get(value) for key, value in contract.make(cases[0]).items()
    }
    return oracle(types.SimpleNamespace(**inputs, dtype=np.float32))

  jax.tree.map(np.testing.assert_array_equal, called(function), called(cases[0].oracle))


def classes():
  for folder, names in reference.public().items():
    for name in names:
      found = getattr(importlib.import_module(f"jaxreg.{folder}"), name)
      if inspect.isclass(found) and f"{folder}.{name}" not in reference.DATA:
        yield folder, name, found


@pytest.mark.parametrize(
  ("name", "wanted"),
  [
    ("flatness.Curvature", {"__call__", "like", "trace", "top_eigenpairs", "solve", "fisher"}),
    ("flatness.KroneckerBlock", {"__call__", "like", "matrix", "trace", "solve"}),
    ("train.Dataset", {"splits", "limited", "nbytes", "checked"}),
    ("train.Estimator", {"fit", "predict", "score"}),
    ("models.Transformer", {"__call__", "encode", "decode"}),
    ("typing.LossFn", {"__call__"}),
  ],
)
def test_the_page_of_a_class_shows_its_methods(name, wanted):
  folder, _, owner = name.partition(".")
  page = pages()[f"reference/{folder}/{reference.file_of(folder, owner)}.rst"]
  shown = re.findall(
    rf"^   \.\. auto(?:method|property):: jaxreg\.{folder}\.{owner}\.(\w+)$", page, re.MULTILINE
  )
  assert wanted <= set(shown)
  assert len(shown) == len(set(shown))


def test_every_method_of_every_class_is_shown_and_says_what_it_does():
  """What a class defines itself, and not by overriding a method of another package's class."""
  for folder, name, found in classes():
    page = pages()[f"reference/{folder}/{reference.file_of(folder, name)}.rst"]
    theirs = {key for base in found.__mro__ if not base.__module__.startswith("jaxreg") for key in dir(base)}
    for key, value in list(vars(found).items()):  # a read fills caches in them
      if callable(value) and not key.startswith("_") and key not in theirs and not inspect.isclass(value):
        if f"{key}" in getattr(found, "__annotations__", {}):
          continue  # a field whose default is a function
        assert f"jaxreg.{folder}.{name}.{key}\n" in page, (name, key)
        assert inspect.getdoc(getattr(found, key)), (name, key)


def test_every_example_of_a_docstring_is_code():
  """Else the page has it as one line of prose."""
  for folder, names in reference.public().items():
    for name in names:
      if f"{folder}.{name}" not in reference.DATA:
        doc = inspect.getdoc(getattr(importlib.import_module(f"jaxreg.{folder}"), name)) or ""
        example = re.search(r"^Examples?:\n((?:\n| +.*\n?)+)", doc, re.MULTILINE)
        assert not example or re.search(r"^ +>>> ", example[1], re.MULTILINE), f"{folder}.{name}"


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
    ("flatness.Curvature.trace", "", "", "flatness.Curvature.trace"),
    ("Curvature.trace(key=key)", "", "flatness", "flatness.Curvature.trace"),
    ("Curvature.trace", "flatness", "", None),
    ("flatness.Curvature.race", "", "", None),
    ("a * b", "", "losses", None),
  ],
)
def test_code_that_names_something_public_is_a_link(text, folder, at, name):
  assert reference.linked(text, folder, at) == name


def figures():
  return [figure for section in gallery.sections().values() for figure in section]


def test_the_gallery_has_every_figure_once():
  assert sorted(f.file for f in figures()) == sorted((DOCS / "figures").glob("*.png"))
  for figure in figures():
    assert figure.seen
    assert figure.commands, f"{figure.page} gives no command above {figure.file.name}"


def test_a_figure_takes_the_text_and_the_commands_above_it(tmp_path, monkeypatch):
  (tmp_path / "docs").mkdir()
  text = """# A page

`python one.py a
--b`, then `python two.py`, and `other`.

Words.

![First.](one.png) ![Second.](two.png)

```sh
python three.py NAME \\
  --c
```

## Part

`some`: this.

![Third.](three.png)
"""
  (tmp_path / "docs/it.md").write_text(text)
  (tmp_path / "docs/also.md").write_text("# Also\n\n![Again.](one.png)\n".replace("one", "four"))
  monkeypatch.setattr(gallery, "ROOT", tmp_path)
  both = ["python one.py a --b", "python two.py"]
  file = lambda name: tmp_path / f"docs/{name}.png"
  assert gallery.sections() == {
    "Also": [("Also", file("four"), "Again.", [], "also")],
    "A page": [
      ("A page", file("one"), "First.", both, "it"),
      ("A page", file("two"), "Second.", both, "it"),
      ("Part", file("three"), "Third.", ["python three.py some --c"], "it"),
    ],
  }


@pytest.mark.parametrize("command", sorted({command for f in figures() for command in f.commands}))
def test_a_command_of_the_gallery_can_be_read(command, monkeypatch):
  monkeypatch.chdir(DOCS.parent)
  _, program, *rest = shlex.split(command)
  if program == "run.py" and rest[0] == "merge":  # its configuration is the runs', which are not here
    assert "--workdir" in rest
  elif program == "run.py":
    assert cli.parse(rest, DOCS.parent / "configs").config
  else:
    module = rest[0].replace(".", "/") if program == "-m" else program.removesuffix(".py")
    assert Path(f"{module}.py").is_file() or Path(module, "__main__.py").is_file()


def test_a_thumbnail_is_made_of_a_figure(tmp_path, monkeypatch):
  (tmp_path / "docs").mkdir()
  (tmp_path / "docs/it.md").write_text("# A page\n\n`python run.py`\n\n![Seen.](wide.png)\n")
  Image.new("RGB", (1280, 320)).save(tmp_path / "docs/wide.png")
  monkeypatch.setattr(gallery, "ROOT", tmp_path)
  gallery.write(tmp_path / "docs")
  assert Image.open(tmp_path / "docs/gallery/wide.png").size == (640, 160)
  assert ".. figure:: wide.png\n" in (tmp_path / "docs/gallery/index.rst").read_text()


def test_llms_txt_links_a_markdown_file_of_each_page_and_name(tmp_path):
  llms.write(tmp_path)
  index = (tmp_path / "llms.txt").read_text()
  links = re.findall(r"^- \[.+?\]\((.+?)\): .+$", index, re.MULTILINE)
  assert len(links) == len(set(links)) > 300
  assert all((tmp_path / link).is_file() for link in links)
  for folder, names in reference.public().items():
    assert {f"reference/{folder}/{reference.file_of(folder, name)}.md" for name in names} <= set(links)
  assert {"guides/choose.md", "running.md", "functions.md"} <= set(links)
  focal = (tmp_path / "reference/losses/focal.md").read_text()
  assert focal.startswith("# jaxreg.losses.focal\n\n```python\nfocal(logits")
  assert inspect.getdoc(jaxreg.losses.focal) in focal

"""The site: `pip install -e '.[docs]' && sphinx-build -W docs docs/_build`.

The pages of the reference with the table of methods, of the gallery and of the tutorials are written before
Sphinx reads the rest; none of them is committed. `JAXREG_DOCS_INTERSPHINX=1` links names of JAX, Optax, Flax
and others to their sites, which takes a network. `-D plot_gallery=0` does not run the tutorials.
"""

import ast
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.domains.python import PythonDomain
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]  # this checkout, whatever is installed

import gallery  # noqa: E402
import llms  # noqa: E402
import method_table  # noqa: E402
import notebooks  # noqa: E402
import reference  # noqa: E402

import jaxreg  # noqa: E402

project = "jaxreg"
author = "The jaxreg authors"
copyright = author
version = release = jaxreg.__version__
REPOSITORY = os.environ.get("GITHUB_REPOSITORY")  # of the workflow that builds the site
CLONE = f"https://github.com/{REPOSITORY}" if REPOSITORY else "<this repository>"

extensions = [
  "myst_parser",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.intersphinx",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
  "sphinx.ext.mathjax",
  "sphinx-mathjax-offline",  # MathJax's files in the site, so that no page needs another host
  "sphinx_gallery.gen_gallery",
]
sphinx_gallery_conf = {
  "examples_dirs": "../examples/tutorials",
  "gallery_dirs": "tutorials",
  "filename_pattern": ".*",
  "download_all_examples": False,
  "write_computation_times": False,
  "show_signature": False,
  "abort_on_example_error": True,
  "first_notebook_cell": notebooks.first_cell(REPOSITORY, release),
}
exclude_patterns = ["_build", "**/README.*"]
default_role = "literal"
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures, most of them of other packages

html_theme = "furo"
html_title = f"jaxreg {release}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static", "figures"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False

copybutton_selector = "div:not(.highlight-text, .highlight-none) > div.highlight > pre"  # code, not outputs
copybutton_prompt_text = ">>> "
maximum_signature_line_length = 80
python_display_short_literal_types = True
autodoc_class_signature = "mixed"
autodoc_default_options = {"member-order": "bysource", "no-index-entry": True}  # the search has the titles
napoleon_numpy_docstring = False
napoleon_use_ivar = True

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

intersphinx_mapping = {}
if os.environ.get("JAXREG_DOCS_INTERSPHINX"):
  intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "jax": ("https://docs.jax.dev/en/latest", None),
    "optax": ("https://optax.readthedocs.io/en/latest", None),
    "flax": ("https://flax.readthedocs.io/en/latest", None),
  }
linkcheck_retries = 2
linkcheck_timeout = 20
# Publishers that answer no program, and anchors that a page's script makes.
linkcheck_ignore = [r"https://doi\.org/.*", r"https://colab\.research\.google\.com/.*"]
linkcheck_anchors = False
ELSEWHERE = re.compile(r"(?:jax|optax|flax|numpy)\.[\w.]+")

ROOT_PAGES = ("CHANGELOG", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")


class Links(SphinxTransform):
  """Makes links of the code in a text that names something public: `losses.focal`, then `.poly_loss`."""

  default_priority = 500

  def apply(self) -> None:
    parts = self.env.docname.split("/")
    at = parts[1] if parts[0] == "reference" and len(parts) == 3 else ""
    folder, parent = "", None
    for literal in list(self.document.findall(nodes.literal)):
      if isinstance(literal.parent, nodes.reference | nodes.title | addnodes.pending_xref):
        continue
      folder = folder if literal.parent is parent else ""
      parent = literal.parent
      text = literal.astext()
      name = reference.linked(text, folder, at)
      if name:
        folder = name.partition(".")[0]
      target = f"jaxreg.{name}" if name else text
      own = at and name == f"{at}.{parts[2].removesuffix('-class')}"
      if own or not (name or (intersphinx_mapping and ELSEWHERE.fullmatch(text))):
        continue
      link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=target, refexplicit=True)
      link["refdoc"] = self.env.docname
      literal.replace_self(link)
      link += literal


# The words that people look for, by the page that the search shows first.
WORDS = {"running": ("resume", "install"), "guides/quickstart": ("start",)}


class SearchWords(SphinxTransform):
  """Gives the page of a name the words of the name, `label smoothing`, and other pages those of `WORDS`."""

  default_priority = 500

  def apply(self) -> None:
    page, words = self.env.docname, WORDS.get(self.env.docname, ())
    if re.fullmatch(r"reference/\w+/(?!index)\w+(-class)?", page) and "_" in page.strip("_"):
      words = (page.rpartition("/")[2].removesuffix("-class").replace("_", " "),)
    # With the page as target, a result is one row with that of the text.
    self.document.append(addnodes.index(entries=[("single", each, "", "main", None) for each in words]))


class Names(PythonDomain):
  """Keeps names out of the search, which has their pages already."""

  def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
    for name, shown, kind, page, anchor, _ in super().get_objects():
      yield name, shown, kind, page, anchor, -1


class LineBreaks(SphinxPostTransform):
  """Lets a long name in a table break behind its dots, underscores and signs."""

  default_priority = 500
  formats = ("html",)

  def run(self, **kwargs: Any) -> None:
    for entry in self.document.findall(nodes.entry):
      for literal in list(entry.findall(nodes.literal)):
        parts = re.split(r"(?<=\w[._=:/])(?=\w)|(?<=[a-z])(?=[A-Z])", literal.astext())
        literal.children = [nodes.Text(parts[0])]
        for part in parts[1:]:
          literal += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]


NUMBER = re.compile(r"[-\u2212]?\d[\d.,]*(?: ±\s[\d.,]+)?(?:\s%)?")


class Numbers(SphinxTransform):
  """Keeps a number, its spread and its unit on one line: `4.54 ± 0.28 %`."""

  default_priority = 510

  def apply(self) -> None:
    for text in list(self.document.findall(nodes.Text)):
      if isinstance(text.parent, nodes.FixedTextElement | nodes.literal | nodes.math):
        continue
      parts, end = [], 0
      for found in NUMBER.finditer(text):
        if not re.search(r"\s", found[0]):
          continue
        parts += [nodes.Text(text[end : found.start()]), nodes.inline("", found[0], classes=["number"])]
        end = found.end()
      if parts:
        text.parent.replace(text, [part for part in (*parts, nodes.Text(text[end:])) if part.astext()])


def ready_for_napoleon(app, what, name, obj, options, lines: list[str]) -> None:
  """Marks titles of papers, which are in single backticks, and keeps `Returns` from being read as a type."""
  section = ""
  for number, line in enumerate(lines):
    if line and not line.startswith(" "):
      section = line
    elif section == "References:":
      lines[number] = re.sub(r"`([^`]+)`", r"*\1*", line)
    elif section == "Returns:":
      lines[number] = re.sub(r"^ +", r"\g<0>: ", line)  # an empty type: text before a colon is none
      section = ""


def write_root_pages() -> None:
  """The pages at the root of the repository that belong to the site, with links from `docs/about/`."""
  (DOCS / "about").mkdir(exist_ok=True)
  for name in ROOT_PAGES:
    text = (DOCS.parent / f"{name}.md").read_text()
    text = re.sub(r"\]\((?=docs/)docs/", "](../", text)
    text = re.sub(r"\]\((?!https?:|#|\.\./)", "](../../", text)
    (DOCS / f"about/{name.lower()}.md").write_text(text)


def write_measurements() -> None:
  """The page of all measurements, whose links are seen from `docs/about/`."""
  text = (DOCS.parent / "benchmarks/README.md").read_text()
  text = text.replace("](../benchmarks/", "](../../benchmarks/").replace("](../docs/", "](../")
  (DOCS / "about/measurements.md").write_text(text)


def write_papers() -> None:
  """The pages of `papers/`, whose links are seen from `docs/papers/`, one folder deeper than `docs/`."""
  (DOCS / "papers").mkdir(exist_ok=True)
  for file in DOCS.parent.glob("papers/*/README.md"):
    text = file.read_text().replace("](../../docs/", "](../")
    text = re.sub(r"\]\(\.\./(\w+)/README\.md", r"](\1.md", text)
    (DOCS / f"papers/{file.parent.name}.md").write_text(text)


def links_to_root_pages(app, docname: str, source: list[str]) -> None:
  up = "../" * docname.count("/")
  for name in ROOT_PAGES:
    source[0] = re.sub(rf"\]\((\.\./)+{name}\.md", f"]({up}about/{name.lower()}.md", source[0])
  source[0] = re.sub(r"\]\((?:\.\./)+benchmarks/README\.md", rf"]({up}about/measurements.md", source[0])
  source[0] = re.sub(r"\]\((?:\.\./)+papers/(\w+)/README\.md", rf"]({up}papers/\1.md", source[0])


def name_the_clone(app, docname: str, source: list[str]) -> None:
  source[0] = source[0].replace("<this repository>", CLONE)


def link_to_colab(app, docname: str, source: list[str]) -> None:
  """Below the title of a tutorial; GitHub's workflow knows the repository and fills a branch of notebooks."""
  if REPOSITORY and re.fullmatch(r"tutorials/(?!index|sg_)\w+", docname):
    url = notebooks.colab(REPOSITORY, Path(docname).name)
    source[0] = re.sub(r"(?m)^(=+)$", rf"\1\n\n`Open in Colab <{url}>`__", source[0], count=1)


def as_written(app, what, name, obj, options, signature, returned):
  """A signature as the source has it, with the names of types instead of what they stand for."""
  if what not in ("function", "method"):
    return None
  node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(obj)))).body[0]
  if not isinstance(node, ast.FunctionDef):
    return None
  if what == "method":
    node.args.args = node.args.args[1:]
  result = inspect.signature(obj).return_annotation  # of the sum of a loss's terms, not of the terms
  written = result if isinstance(result, str) else node.returns and ast.unparse(node.returns)
  return f"({ast.unparse(node.args)})", written


def write_for_machines(app, exception) -> None:
  if exception is None and app.builder.format == "html":
    llms.write(Path(app.outdir))


def setup(app) -> None:
  write_root_pages()
  write_measurements()
  write_papers()
  gallery.write(DOCS)
  reference.write(DOCS)
  method_table.write(DOCS)
  app.add_domain(Names, override=True)
  app.add_transform(Links)
  app.add_transform(SearchWords)
  app.add_post_transform(LineBreaks)
  app.add_transform(Numbers)
  app.connect("build-finished", write_for_machines)
  app.connect("source-read", links_to_root_pages)
  app.connect("source-read", link_to_colab)
  app.connect("source-read", name_the_clone)
  app.connect("autodoc-process-docstring", ready_for_napoleon, priority=100)  # before napoleon
  app.connect("autodoc-process-signature", as_written)

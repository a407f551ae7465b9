"""The site for machines that read: `llms.txt`, and a Markdown file for each page and each public name.

`conf.py` writes them into the finished site. A page is its own source. A name's file has its signature and
its docstring.
"""

import contextlib
import inspect
import re
from pathlib import Path

import reference

DOCS = Path(__file__).resolve().parent
HEAD = """# jaxreg

> Regularization for JAX: losses, penalties, noise, augmentation, optimizers and curvature as pure functions
> with explicit keys, for any model, and a trainer built of these functions.

Each link is Markdown. A function's file has its signature, equation, shapes, errors, example and sources.
"""


def pages() -> dict[str, str]:
  """The Markdown pages of the site by their paths, without those that the build left out."""
  left_out = re.compile(r"_build/|_static/|/README\.md$")
  files = {str(file.relative_to(DOCS)): file for file in sorted(DOCS.rglob("*.md"))}
  return {path: file.read_text() for path, file in files.items() if not left_out.search(path)}


def names() -> dict[str, str]:
  """The file of each public name: `{"reference/losses/focal.md": ...}`."""
  texts = {}
  for folder, each in reference.public().items():
    for name in each:
      value = reference.public_object(folder, name)
      signature = name
      with contextlib.suppress(TypeError, ValueError):  # of types and tables
        signature += str(inspect.signature(value))
      words = reference.DATA.get(f"{folder}.{name}") or inspect.getdoc(value) or ""
      text = f"# jaxreg.{folder}.{name}\n\n```python\n{signature}\n```\n\n{words}\n"
      texts[f"reference/{folder}/{reference.file_of(folder, name)}.md"] = text
  return texts


def index(pages: dict[str, str], names: dict[str, str]) -> str:
  """The text of `llms.txt`: a line for each page and each name."""
  lines = [HEAD, "## Pages", ""]
  for path, text in pages.items():
    title, _, rest = text.partition("\n")
    lines.append(f"- [{title.removeprefix('# ')}]({path}): {_first_sentence(rest)}")
  folder = ""
  for path, text in names.items():
    _, own, _ = path.split("/")
    if own != folder:
      folder = own
      lines += ["", f"## jaxreg.{folder}", ""]
    name = text.partition("\n")[0].rpartition(".")[2]
    lines.append(f"- [{name}]({path}): {reference.first_sentence(f'{folder}.{name}')}")
  return "\n".join(lines) + "\n"


def write(site: Path) -> None:
  """Writes all files into the finished site."""
  texts, functions = pages(), names()
  for path, text in {**texts, **functions, "llms.txt": index(texts, functions)}.items():
    (site / path).parent.mkdir(parents=True, exist_ok=True)
    (site / path).write_text(text)


def _first_sentence(text: str) -> str:
  """The first sentence of a page's text, which is no heading, code, figure or comment."""
  for paragraph in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split("\n\n"):
    words = " ".join(paragraph.split())
    if words and words[0] not in "#`!|<:{":
      return re.split(r"(?<=[.?!]) ", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words))[0]
  return ""

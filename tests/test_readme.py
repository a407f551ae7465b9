"""What the README and the pages behind it show runs and exists."""

import importlib
import inspect
import itertools
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import cases_losses
import jax
import numpy as np
import optax
import oracles
import pytest
import test_contract
from flax import nnx
from test_guides import outputs

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SPEED, COMPARISON = ((ROOT / f"docs/{name}.md").read_text() for name in ("speed", "comparison"))
PAPERS = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("papers/*/README.md"))
COMMANDS = ("docs/running.md", "docs/devices.md")


def blocks(page):
  return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), enumerate(blocks("docs/flatness.md")))
def test_a_snippet_runs(number, code, tmp_path, monkeypatch):
  """In a namespace and a folder of its own."""
  monkeypatch.chdir(tmp_path)
  exec(compile(code, f"docs/flatness.md, python block {number}", "exec"), {"__name__": "snippet"})


def test_the_idea_of_the_first_screen_runs_and_prints_its_table(capsys):
  """In the quickstart's namespace, whose table it shows."""
  code = blocks("README.md")[0]
  [table] = re.findall(r"^```\n(term .*?)^```$", README, re.DOTALL | re.MULTILINE)
  index = (ROOT / "docs/index.md").read_text()
  assert code in index
  assert table in index
  names = {}
  printed = outputs.run(ROOT / "docs/guides/quickstart.md", names)
  assert (table, True) in [(shown, outputs.same(output, shown)) for output, shown in printed]
  exec(code, names | {"key": jax.random.key(99)})
  assert outputs.same(capsys.readouterr().out, table)


@pytest.mark.thorough
def test_the_swap_of_the_first_screen_is_one_line_and_gives_the_loss_it_names():
  """Both sides of the change run; the new loss is that of Liu et al. in NumPy, as `cases_losses` has it."""
  [diff] = re.findall(r"^```diff\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
  lines = diff.splitlines()
  rng, weights = np.random.default_rng(0), np.eye(6, 4, dtype=np.float32)
  batch = {"inputs": rng.normal(size=(8, 6)).astype(np.float32), "labels": np.arange(8) % 4}
  found = {}
  for sign in "-+":
    graph, params = nnx.split(nnx.Linear(6, 4, use_bias=False, rngs=nnx.Rngs(0)))
    params = jax.tree.map(lambda _: weights, params)
    names = {"graph": graph, "nnx": nnx, "optax": optax}
    exec("\n".join(line[1:] for line in lines if line[0] in (" ", sign)), names)
    found[sign] = names["loss_fn"](params, batch)
  logits = batch["inputs"].astype(np.float64) @ weights
  given = SimpleNamespace(logits=logits, labels=batch["labels"])
  want = oracles.cross_entropy(logits, batch["labels"]).mean()
  np.testing.assert_allclose(found["-"], want, rtol=1e-5)
  np.testing.assert_allclose(found["+"], cases_losses.large_margin(given, 0.3).mean(), rtol=1e-5)
  assert [line[:8] for line in lines if line[0] != " "] == ["+from ja", "-  retur", "+  retur"]


def test_the_readme_counts_no_more_than_there_is():
  """Functions with an oracle in the contract, and claims with a test."""
  [functions] = re.findall(r"More than (\d+) functions", README)
  [claimed] = re.findall(r"more than (\d+) claims", README)
  tested = {case.function for case in test_contract.CASES if case.oracle and "._" not in case.function}
  rows = [line for page in PAPERS for line in table((ROOT / page).read_text(), "| where | claim |")]
  assert len(tested) > int(functions)
  assert len(rows) > int(claimed)


def test_every_example_is_listed():
  listed = set(re.findall(r"examples/(\w+\.py)", (ROOT / "docs/functions.md").read_text()))
  assert listed == {script.name for script in (ROOT / "examples").glob("*.py")}


def table(page, header):
  """The rows of the table that begins with this line."""
  lines = page.splitlines()
  first = next((n for n, line in enumerate(lines) if line.startswith(header)), None)
  assert first is not None, f"no table {header!r}"
  return list(itertools.takewhile(lambda line: line.startswith("|"), lines[first + 2 :]))


def names_in(cell):
  """`penalties.l1`, `.l2` as full names; what is a path stays one."""
  folder, found = None, []
  for code in re.findall("`(.*?)`", cell):
    if code.startswith("."):
      assert folder, f"{code} follows no folder in {cell!r}"
      code = folder + code
    folder = code.partition(".")[0]
    found.append(code)
  return found


@pytest.mark.parametrize("header", ["| feature |", "| curvature |"])
def test_what_the_tables_of_features_call_jaxreg_s_exists(header):
  rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table(COMPARISON, header)]
  assert len({len(row) for row in rows}) == 1
  for feature, ours, *_ in rows:
    if feature.startswith("**"):
      continue
    names = names_in(ours)
    assert names or ours.startswith("\N{EN DASH}"), (
      f"{feature}: {ours!r} names no function and does not say none"
    )
    for name in names:
      folder, _, function = name.partition(".")
      if function:
        assert function in importlib.import_module(f"jaxreg.{folder}").__all__, f"no {name}"
      else:
        assert (ROOT / name).exists(), f"no {name}"


def test_paths_that_the_page_about_speed_names_exist():
  named = set(re.findall(r"(?:configs|benchmarks|jaxreg|tests)/[\w/]+\.py", SPEED))
  assert named
  assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize(
  "page", ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")), *PAPERS]
)
def test_files_that_a_page_links_exist(page):
  text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
  links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
  missing = {link for link in links if link and not ((ROOT / page).parent / link).exists()}
  assert missing == set()


@pytest.mark.parametrize("page", COMMANDS)
def test_commands_that_a_page_shows_can_be_read(page, monkeypatch):
  from jaxreg.train import cli

  monkeypatch.chdir(ROOT)
  text = (ROOT / page).read_text().replace("\\\n", "")
  commands = re.findall(r"^python run\.py *([^#\n]*)", text, re.MULTILINE)
  assert commands
  for command in commands:
    if not re.search(r"evaluate|^report|^merge", command):  # which read the work directory
      cli.parse(shlex.split(command), ROOT / "configs")


def commands_of_papers():
  """The commands of all pages that run a module of `papers`, by their words after `python -m`."""
  for file in [
    ROOT / "README.md",
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("docs/guides/*.md"),
    *ROOT.glob("papers/*/README.md"),
  ]:
    for command in re.findall(r"python -m (papers\.[^`\n#]*)", file.read_text()):
      yield command.strip()


@pytest.mark.parametrize("command", sorted({*commands_of_papers()}))
def test_a_command_of_the_papers_names_a_script_and_one_of_its_figures(command):
  name, *arguments = shlex.split(command)
  if (ROOT / name.replace(".", "/") / "__main__.py").is_file():
    settings = importlib.import_module(f"{name}._settings").SETTINGS
    for setting, *flags in [arguments] if arguments else []:
      variants = [flag[2:].replace("-", "_") for flag in flags if not flag.startswith("--config.")]
      assert set(variants) <= {*settings[setting], "record"}
    return
  module = importlib.import_module(name)
  assert "__main__" in (ROOT / f"{name.replace('.', '/')}.py").read_text()
  if hasattr(module, "FIGURES"):
    figure, *rest = arguments
    assert figure in (*module.FIGURES, "NAME", "all") or (
      figure in module.ON_MNIST and rest == ["--data", "DIR"]
    )
  elif arguments:
    assert arguments[0].startswith(("runs/", "--", "WORKDIR"))
  else:
    assert not re.search(r'add_argument\("\w', inspect.getsource(module)), "it needs a folder"

"""The page of one card, or of several models side by side: one HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxreg._atomic_files import write_bytes, write_text
from jaxreg._extras import needs
from jaxreg.reports._figures import DRAWN
from jaxreg.reports._store import FIGURES, PAGE, Table, below, number_of
from jaxreg.reports._verdict import compared, mean_of, verdict

TITLES = {
  "errors": "Errors",
  "residuals": "Residuals",
  "calibration": "Calibration",
  "selective": "Selective prediction",
  "conformal": "Conformal prediction",
  "ood": "Out of distribution",
  "corruptions": "Corruptions",
  "adversarial": "Adversarial robustness",
  "flatness": "Flatness",
  "noise": "The model's noise",
}
DPI = 200  # twice as many points as the page has, for sharp screens and print
# By label, the tables and arrays of the seeds.
Cards = Mapping[str, Sequence[tuple[Table, Mapping[str, np.ndarray]]]]


def write_page(folder: Path, cards: Cards, title: str, drawn: dict[str, Table], **first_table: Any) -> None:
  """Writes the page and `figures/*.png`; sections that are done are added to those `drawn` already.

  `first_table` has the rows of `differences`, and the number of the `tested` ones.
  """
  try:
    import jinja2
  except ModuleNotFoundError as error:
    raise needs("the page of a report", error, "report") from error
  if os.path.islink(folder / FIGURES):  # a bucket has no links
    raise ValueError(f"{folder / FIGURES} is a link, and nothing is written through it; put a folder there")
  first, _ = next(iter(cards.values()))[0]
  for name in first["asked"]:
    if name not in drawn and not (section := _section(folder, name, cards))["reason"]:
      drawn[name] = section
  sections = [drawn.get(name) or _section(folder, name, cards) for name in first["asked"]]
  environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
  template = environment.from_string((Path(__file__).parent / "page.html").read_text())
  tables = {label: [table for table, _ in each] for label, each in cards.items()}
  seeds = {label: len(each) for label, each in cards.items()}
  words = {
    "verdict": " ".join(
      compared(tables, len(first_table["differences"]), first_table["tested"])
      if len(tables) > 1
      else verdict(first)
    ),
    "title": title,
    "about": first["about"],
  }
  page = template.render(**words, seeds=seeds, sections=sections, **first_table)
  write_text(folder / PAGE, page)


def _section(folder: Path, name: str, cards: Cards) -> Table:
  """Returns what the template shows of a section, or the reason why it is not there."""
  entries = [[table["sections"].get(name) for table, _ in seeds] for seeds in cards.values()]
  shown: Table = {"name": name, "title": TITLES[name], "reason": "", "rows": [], "figures": []}
  every = [entry for seeds in entries for entry in seeds]
  for entry in every:
    if entry is None or entry["status"] != "done":
      return {**shown, "reason": "not computed yet" if entry is None else entry["reason"]}
  first = entries[0][0]
  shown |= {key: first[key] for key in ("sentence", "cost", "function")}
  shown["seconds"] = sum(entry["seconds"] for entry in every)
  for key, number in first["numbers"].items():
    cells = [_cell([entry["numbers"].get(key) for entry in seeds]) for seeds in entries]
    shown["rows"].append({"title": number["title"], "cells": cells})
  by_label = {label: [below(x, f"{name}/") for _, x in seeds] for label, seeds in cards.items()}
  by_label = by_label if len(by_label) > 1 else {"": next(iter(by_label.values()))}
  for each, figure in DRAWN[name](by_label).items():
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    write_bytes(folder / FIGURES / f"{_file_name(f'{name} {each}')}.png", stream.getvalue())
    source = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
    text = f"{TITLES[name]}: {each}"
    shown["figures"].append({"source": source, "text": text, "photo": "mistakes" in each})
  return shown


def _file_name(name: str) -> str:
  """Makes the name of a file; a hash tells apart names with replaced letters other than spaces."""
  safe = "".join(letter if letter.isalnum() else "_" for letter in name)
  digits = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
  return safe if name.replace(" ", "").isalnum() else f"{safe}-{digits}"


def _cell(entries: Sequence[Table | None]) -> tuple[str, str]:
  """Formats a number and its interval; of several seeds the mean, the minimum and the maximum."""
  numbers = [number_of(entry) for entry in entries if entry is not None]
  if not numbers:
    return "", ""
  one = mean_of(numbers)
  return one.text(one.value), one.interval

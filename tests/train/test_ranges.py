"""The page's table of the values that are refused is that of the checks."""

import re

import runs

from jaxreg.train.config.ranges import RANGES


def test_the_page_has_every_range():
  """A row has an interval and its fields, in the order of the checks."""
  rows = re.findall(
    r"^\| `([\[(][^`]+[\])])` \| (.*) \|$", (runs.ROOT / "docs" / "faults.md").read_text(), re.M
  )
  shown = {interval: re.findall(r"`([^`]+)`", fields) for interval, fields in rows}
  wanted = {}
  for field, interval in RANGES.items():
    wanted.setdefault(interval, []).append(field)
  assert shown == wanted, "\n" + "\n".join(
    f"| `{interval}` | {', '.join(f'`{field}`' for field in fields)} |" for interval, fields in wanted.items()
  )

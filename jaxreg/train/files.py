"""Files that are whole, whatever happens while they are written."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(file: Path, value: Any) -> None:
  """Writes JSON so that the file is either the old one or the new one, whatever happens."""
  file.parent.mkdir(parents=True, exist_ok=True)
  partial = file.with_name(file.name + ".partial")
  with open(partial, "w") as stream:
    json.dump(value, stream, indent=2)
    stream.write("\n")
    stream.flush()
    os.fsync(stream.fileno())
  partial.replace(file)

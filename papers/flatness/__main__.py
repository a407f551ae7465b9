"""The paper's measurements: trains the networks of a setting, measures them and draws the figures.

    python -m papers.flatness fnn_mnist --profile --config.data.idx.path=DIR

The settings are fnn_mnist, resnet20_cifar100, transformer_multi30k and vgg9_cifar10, each with variants;
`--help` after a setting lists them. `flatness.json` and `figures/` are written into `--out`, beside a folder
for each network. `--record` also writes the record `benchmarks/records/flatness_SETTING_VARIANT.json`, in
which seeds are runs. Further flags go to `run.py`. What has been trained or computed is not computed again.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jaxreg.train
from jaxreg._atomic_files import write_figures, write_json
from jaxreg.train.errors import RunError, one_line
from papers._command import one_line_errors
from papers.flatness._analyses import ANALYSES, Network
from papers.flatness._figures import compare_profiles, lines, make_figures, recorded
from papers.flatness._settings import SETTINGS, Fields, Setting

ROOT = Path(__file__).resolve().parents[2]


@one_line_errors()
def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    prog="python -m papers.flatness", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
  )
  commands = parser.add_subparsers(dest="setting", required=True)
  for name, variants in SETTINGS.items():
    command = commands.add_parser(name, allow_abbrev=False)
    command.add_argument("--out", type=Path, help="default: runs/flatness_SETTING[_VARIANT]")
    command.add_argument("--record", action="store_true", help="also write a record for the page")
    group = command.add_mutually_exclusive_group()
    for variant in filter(None, variants):
      flag = f"--{variant.replace('_', '-')}"
      group.add_argument(flag, dest="variant", action="store_const", const=variant, default="")
  arguments, flags = parser.parse_known_args(argv)
  if wrong := [flag for flag in flags if not flag.startswith("--config.")]:
    parser.error(f"unexpected argument {wrong[0]!r}; fields of run.py are given as --config.FIELD=VALUE")
  variant = getattr(arguments, "variant", "")
  name = "_".join(filter(None, ("flatness", arguments.setting, variant)))
  out = arguments.out or Path("runs") / name
  results = measure(SETTINGS[arguments.setting][variant], out, flags)
  if arguments.record:
    variant_flag = f" --{variant.replace('_', '-')}" * bool(variant)
    recorded(results).write(name, f"python -m papers.flatness {arguments.setting}{variant_flag} --record")


def measure(setting: Setting, out: Path, flags: list[str]) -> dict[str, Any]:
  """Trains and analyses the rows of a setting; writes the results below `out`, prints and returns them."""
  arrays: dict[str, dict[str, Any]] = {}
  results: dict[str, dict[str, Any]] = {}
  for label, row in setting.rows.items():
    folder = out / "rows" / re.sub(r"[^0-9A-Za-z.]+", "_", label)
    _train(setting.config, row.fields, folder, flags)
    print(f"flatness: {label}", flush=True)
    try:
      network = Network(jaxreg.train.load(folder), setting)
      results[label] = {"step": network.run.step, "parameters": network.size, "train/loss": network.loss()}
      arrays[label] = {}
      for name in row.analyses:
        arrays[label][name], results[label][name] = ANALYSES[name](network)
    except (ValueError, TypeError) as error:
      raise RunError(f"{label}: {one_line(error)}") from error
  profiles = {label: each["profile"] for label, each in arrays.items() if "profile" in each}
  for label, compared in compare_profiles(profiles).items():
    results[label]["profile"] = compared
  write_figures(out / "figures", make_figures(arrays, title=setting.title))
  write_json(out / "flatness.json", results)
  print(lines(results))
  print(f"in {out}: flatness.json, figures, and a folder for each network")
  return results


def _train(config: str, fields: Fields, folder: Path, flags: list[str]) -> None:
  """Trains a network by `run.py`, or ends the program with its status."""
  command = [sys.executable, ROOT / "run.py", "--config", ROOT / "configs" / config, "--workdir", folder]
  command += [f"--config.{field}={value}" for field, value in fields.items()]
  if status := subprocess.run([*map(str, command), *flags]).returncode:
    sys.exit(status)  # run.py has said why


if __name__ == "__main__":
  main()

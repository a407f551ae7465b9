"""The verdict of a card in words: a few sentences, all from the numbers of its sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxreg.reports._numbers import Number, in_percent
from jaxreg.reports._store import Table, number_of

Numbers = Mapping[str, Number]
NO_GRADIENT = 0.05  # share of the examples from which on the attacks say little


def verdict(card: Table) -> list[str]:
  """Returns the sentences on one card; sections that it lacks have none."""
  return [_first(card), *filter(None, (say(card, _numbers(card, name)) for name, say in SENTENCES.items()))]


def compared(cards: Mapping[str, Sequence[Table]], real: int, tested: int) -> list[str]:
  """Returns the sentences on several models, of which `real` among `tested` differences remain."""
  (label, (first, *_)), *others = cards.items()
  what = f"{label} is compared with {_listed([each for each, _ in others])} on {first['examples']} examples."
  sentences = [what]
  for section, name in (("errors", "error"), ("residuals", "rmse")):
    entries = {label: [_numbers(each, section).get(name) for each in seeds] for label, seeds in cards.items()}
    if all(None not in each for each in entries.values()):
      means = {label: mean_of([n for n in each if n is not None]) for label, each in entries.items()}
      shown = _listed([f"{_with_interval(number)} for {label}" for label, number in means.items()])
      sentences.append(f"The {next(iter(means.values())).title} is {shown}.")
  if not real:
    return [*sentences, f"None of {tested} differences is larger than chance allows."]
  verb = "is" if real == 1 else "are"
  return [
    *sentences,
    f"Of {tested} differences, {real} {verb} larger than chance allows, and the first table has them.",
  ]


def mean_of(numbers: Sequence[Number]) -> Number:
  """Returns a number, or the mean of several seeds with their minimum and maximum."""
  first, values = numbers[0], [each.value for each in numbers]
  if len(numbers) == 1:
    return first
  return first._replace(value=float(np.mean(values)), low=min(values), high=max(values))


def _numbers(card: Table, section: str) -> Numbers:
  """Returns the numbers of a section that is done; none of another."""
  entry = card["sections"].get(section, {})
  return {name: number_of(each) for name, each in entry.get("numbers", {}).items()}


def _with_interval(number: Number, note: str = "") -> str:
  shown = number.text(number.value)
  return f"{shown} ({note}{number.interval})" if number.interval else shown


def _listed(texts: Sequence[str]) -> str:
  return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _first(card: Table) -> str:
  title, size = card["title"], f"{card['examples']} examples"
  if errors := _numbers(card, "errors"):
    return f"The error of “{title}” is {_with_interval(errors['error'], '95 % interval ')} on {size}."
  if residuals := _numbers(card, "residuals"):
    rmse, r2 = residuals["rmse"], residuals["r2"]
    shown = _with_interval(rmse, "95 % interval ")
    return f"The RMSE of “{title}” is {shown} on {size}, and R2 is {_with_interval(r2)}."
  return f"“{title}” is measured on {size}."


def _calibration(card: Table, numbers: Numbers) -> str:
  if "ece" not in numbers:
    return ""
  ece, shown = numbers["ece"], _with_interval(numbers["ece"])
  if not ece.low:
    return f"No miscalibration can be seen: a calibrated model may have its ECE of {shown} by chance."
  temperature, tempered = numbers["temperature"], numbers["tempered_ece"]
  kind = "overconfident" if temperature.value > 1 else "underconfident"
  return (
    f"It is not calibrated: the ECE is {shown}. The best temperature is "
    f"{temperature.text(temperature.value)}, so it is {kind}; at this temperature the ECE is "
    f"{tempered.text(tempered.value)}."
  )


def _conformal(card: Table, numbers: Numbers) -> str:
  return _intervals(card, numbers) if "conformal_width" in numbers else _sets(card, numbers)


def _sets(card: Table, numbers: Numbers) -> str:
  if "conformal_size" not in numbers:
    return ""
  coverage, size = numbers["conformal_coverage"], numbers["conformal_size"]
  return (
    f"Conformal sets that are to hold the label in {in_percent(1 - card['alpha'])} of the examples hold it "
    f"in {_with_interval(coverage)}, with {size.text(size.value)} classes on average."
  )


def _intervals(card: Table, numbers: Numbers) -> str:
  sentences: list[str] = []
  if "predicted_coverage" in numbers:
    coverage, levels = numbers["predicted_coverage"], card["levels"]
    nominal = levels[-1] - levels[0] if levels else 1 - card["alpha"]
    low, high = coverage.low or 0.0, 1.0 if coverage.high is None else coverage.high
    kind = "too narrow" if high < nominal else "too wide" if low > nominal else "not seen to be wrong"
    sentences.append(
      f"Its own intervals are {kind}: they are to hold {in_percent(nominal)} of the targets, and hold "
      f"{_with_interval(coverage)}."
    )
  coverage, width = numbers["conformal_coverage"], numbers["conformal_width"]
  sentences.append(
    f"Conformal intervals that are to hold {in_percent(1 - card['alpha'])} hold {_with_interval(coverage)}, "
    f"with a mean width of {width.text(width.value)}."
  )
  return " ".join(sentences)


def _ood(card: Table, numbers: Numbers) -> str:
  sets = {name.removesuffix("/auroc"): each for name, each in numbers.items() if name.endswith("/auroc")}
  if not sets:
    return ""
  shown = _listed([f"{each.text(each.value)} for {name}" for name, each in sets.items()])
  return f"Its confidence tells inputs of no class from the data with an AUROC of {shown}; 50 % is guessing."


def _harm(card: Table, attacks: Numbers) -> str:
  """Says what corruptions and attacks do, in one sentence."""
  corrupted = _numbers(card, "corruptions").get("all")
  harm = [f"{corrupted.text(corrupted.value)} on corrupted images"] if corrupted else []
  radii = [name for name in attacks if name.startswith("eps ")]
  for name in dict.fromkeys((radii[0], radii[-1]) if radii else ()):
    harm.append(f"{attacks[name].text(attacks[name].value)} under attacks at {name}")
  if not harm:
    return ""
  sentence = f"The error is {_listed(harm)}."
  if (silent := attacks.get("no_gradient")) and silent.value > NO_GRADIENT:
    sentence += f" The true error may be higher, because {silent.text(silent.value)} of the gradients are 0."
  return sentence


def _flatness(card: Table, numbers: Numbers) -> str:
  if not numbers:
    return ""
  loss, rise = numbers["loss"], numbers["rise"]
  values = [each for name, each in numbers.items() if name.startswith("eigenvalue/")]
  largest, smallest = max(values, key=_value), min(values, key=_value)
  saddle = smallest.high is not None and smallest.high < 0
  negative = f", and {smallest.text(smallest.value)} is one, so this is no minimum" if saddle else ""
  return (
    f"The loss of {loss.text(loss.value)} changes by {_with_interval(rise)} along random directions as long "
    f"as the layers, and the largest eigenvalue of its Hessian is {largest.text(largest.value)}{negative}."
  )


def _value(number: Number) -> float:
  return number.value


SENTENCES: dict[str, Callable[[Table, Numbers], str]] = {
  "calibration": _calibration,
  "conformal": _conformal,
  "ood": _ood,
  "adversarial": _harm,
  "flatness": _flatness,
}

"""Writes the claims of the sources, and their tests, from the tests' markers: `docs/claims/<source>.md`.

    python tests/claims.py

A test of a claim is marked `@pytest.mark.claim(source, where, text)`. If the source is wrong, as printed or
as derived, the marker has `status="erratum"`, and the test asserts the correction. A claim that no test of
seconds can decide is a row of `MEASURED`, with the measured numbers.
"""

import ast
import collections
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "claims"
STATUS = {"holds": "holds", "erratum": "**erratum**: the test asserts the correction"}

TITLES = {
  "dropmax": "Lee et al., DropMax: Adaptive Variational Softmax, 2018",
  "adaptive_sgd": "Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague: "
  "injected noises, dropout, adaptive SGD methods",
  "flatness": "Zhang, Zhou & Xu, Dropout in training neural networks: flatness of solution and noise "
  "structure, 2021",
  "group_softmax": "Kobayashi, Group Softmax Loss with Discriminative Feature Grouping, 2021",
  "regularization": "Na, Regularization for Deep Learning, lecture, Chonbuk National University",
}

# (where in the source, claim, what was measured).
MEASURED = {
  "adaptive_sgd": [
    (
      "Stationary Points in High Dimensions",
      "the index of stationary points grows with the loss; at low losses there are minima only",
      "holds for 344 points of a 4-4-1 network: the correlation is 0.88 (docs/sgd.md)",
    ),
    (
      "Stationary Points in High Dimensions",
      "small indices grow as (loss / c - 1)^(3/2) above a critical loss c (Pennington and Bahri, 2017)",
      "not decided by the same points: up to an index of 0.15, the power 3/2 and a straight line leave root "
      "mean square errors of 0.0252 and 0.0251 (docs/sgd.md)",
    ),
    (
      "expected loss and its estimate from a batch",
      "dropout raises the variance of the stochastic gradient",
      "holds for networks 64-128-10 on digits, 5 runs: masks multiply the variance of one example's gradient "
      "by 2.12 ± 0.03 at the start, and a training with dropout ends with 2.87 ± 0.15 times the variance "
      "(docs/lecture.md)",
    ),
    (
      "Stationary Points in High Dimensions",
      "with growing width, the losses of many trials approach each other, and the training error reaches 0",
      "holds from 8 units on, for two spirals and 200 trials: with 2, 4, 6, 8, 12 and 32 units, the losses' "
      "standard deviations are 0.023, 0.059, 0.090, 0.035, 0.00027 and 0.00006, and 0, 0, 26, 94, 100 and "
      "100 % of the trials have no training error (docs/sgd.md)",
    ),
    (
      "Path-SGD",
      "Path-SGD has no substantial advantage",
      "holds against SGD from a balanced start, not from an unbalanced one (MNIST-5K, 3 seeds): the test "
      "errors of Path-SGD and SGD are 5.28 ± 0.61 and 5.74 ± 0.57 %, then 5.27 ± 0.71 and 7.83 ± 0.99 %; "
      "Adam's are 4.62 ± 0.42 and 5.14 ± 0.19 % (docs/sgd.md)",
    ),
    (
      "effect on features",
      "with dropout the features are sparser and less co-adapted",
      "holds for an autoencoder of MNIST with 256 units, 3 runs: 46.7 ± 0.2 against 6.6 ± 0.4 % of the "
      "activations are zero, and the mean absolute correlation of pairs of units is 0.123 ± 0.000 against "
      "0.224 ± 0.007; the reconstruction is worse (docs/lecture.md)",
    ),
    (
      "testing",
      "sampling generalises slightly better than weight scaling",
      "**does not hold** for networks 784-256-256-10 on 10000 images of MNIST, 5 runs: with 64 samples the "
      "test error is larger by 0.04 ± 0.10 % and the NLL by 0.0088 ± 0.0013 (docs/lecture.md)",
    ),
  ],
  "regularization": [
    (
      "early stopping",
      "the training loss falls on, and the validation loss turns up",
      "holds for networks 64-128-10 on digits, a fifth of the labels drawn anew, 5 runs: from the copy that "
      "is kept to the end, the training NLL falls from 0.67 ± 0.09 to 0.16 ± 0.01, and the validation NLL "
      "grows from 0.34 ± 0.02 to 0.46 ± 0.02 (docs/lecture.md)",
    ),
    (
      "noise robustness",
      "weight noise leads to flat minima",
      "holds for networks 784-32-10 on 1000 images of MNIST, 5 runs: the trace of the clean loss's Hessian "
      "is smaller by a factor of 2.67 ± 0.16, and by 1.80 ± 0.10 after more training without noise "
      "(docs/lecture.md)",
    ),
  ],
  "dropmax": [
    (
      "table 1, MNIST-1K",
      "DropMax has a lower test error than softmax (5.32 against 7.09 %)",
      "holds with LeNet and the released schedule, 5 seeds: 3.61 ± 0.13 against 4.54 ± 0.28 %; on the "
      "schedule of the appendix with every one of 3 seeds: 3.11 ± 0.26 against 3.87 ± 0.70 % "
      "(docs/results.md)",
    ),
    (
      "poster, calibration",
      "DropMax is better calibrated than softmax",
      "holds on MNIST-1K (ECE 0.99 ± 0.13 against 1.69 ± 0.13 %), not on digits (2.86 ± 0.35 against "
      "1.44 ± 0.28 %), where it is underconfident (docs/results.md)",
    ),
    (
      "table 1, CIFAR",
      "DropMax has a lower test error than softmax",
      "not reproduced: on 8 % of CIFAR-10, with 560 steps and clipped gradients, DropMax loses in 3 of 3 "
      "seeds: 49.33 ± 5.66 against 44.52 ± 5.09 % with ResNet-20, 49.58 ± 1.60 against 48.10 ± 3.13 % with "
      "ResNet-8, and with 1680 steps of ResNet-20 34.77 ± 3.08 against 33.12 ± 1.15 %; as printed, it "
      "collapses (docs/results.md). On the whole set, with ResNet-8 and 30 epochs, it is not seen: "
      "20.51 ± 1.29 against 19.96 ± 1.04 %, 0.55 ± 2.27 points more in 3 paired seeds",
    ),
    (
      "table 1, CIFAR",
      "DropMax has a lower test error than random DropMax",
      "holds on the whole of CIFAR-10 with ResNet-8, 30 epochs and clipped gradients: 20.51 ± 1.29 against "
      "23.22 ± 0.55 %, 2.71 ± 1.56 points less in 3 paired seeds (docs/results.md)",
    ),
  ],
  "flatness": [
    (
      "figure 1",
      "with dropout the minimum is flatter",
      "holds for a small transformer at 0.5 along each of 5 directions (the rise is 6.5 without dropout, "
      "5.3, 4.2 and 3.5 with keep probabilities of 0.9, 0.8 and 0.7), but at 1 along 1, 0 and 0; for "
      "ResNet-20 on 4000 images of CIFAR-10 at 0.5 along 4 of 5 directions (6.5 ± 2.0 against 10.2 ± 5.4) "
      "and at 1 along each, but not close to the minimum; **not** for VGG-9 at the paper's size, at 0.5 "
      "along 1 of 5 (8.7 ± 4.4 against 5.8 ± 2.1), but with dropout it fits its images badly; for the "
      "network on MNIST not at 0.5 (0.0072 against 0.0070), but at 1 along each direction. One seed each; "
      "ResNet-20 and the transformer are far below the paper's size (docs/flatness.md)",
    ),
    (
      "figure 2",
      "variance falls with interval flatness, for parameters and gradients, whatever the factor",
      "holds for the network on MNIST in all four settings, with correlations from -0.90 to -0.96, but for "
      "gradients it is not a power law: in the setting that was tested with three seeds the slope is -2.3 to "
      "-2.4 and, beyond a flatness of 11 to 13, -5.3 to -6.6 (one law: p below 1e-43). It does not hold "
      "among the first hundred components of a trajectory, which belong to its drift. For ResNet-20 on 4000 "
      "images of CIFAR-10, over 30 components, the slope is -5.2 for parameters, and -1.3 and then -3.2 for "
      "gradients (one law: p 9e-6). For a small transformer that keeps 0.9, at factor 1.1 over 30 "
      "components, it is -5.6 [-6.3, -4.9] for gradients; for its trajectory there is no clear sign "
      "(-2 [-39, 36]). With keep 0.8 and 0.7 nothing can be fitted. VGG-9: not measured (docs/flatness.md)",
    ),
    (
      "figure 3",
      "the projected variance grows as a power of the eigenvalue",
      "it grows for the network on MNIST: the slopes are 0.40 to 0.49 for parameters, 0.60 to 0.75 for "
      "gradients, and 0.00 for isotropic noise. For ResNet-20 on 4000 images of CIFAR-10, over all "
      "eigenpairs, they are 0.76 and then 0.55 for gradients (one law: p 8e-47), and 0.66 and then 0.15 for "
      "parameters. For a small transformer that keeps 0.9 they are 0.12 and then 0.70 for gradients, and "
      "parameters show no relation (-0.04 [-0.20, 0.12]); with keep 0.8 it is alike, with keep 0.7 it stops "
      "growing along the sharpest directions. On MNIST it is not a power: in the setting that was tested "
      "with three seeds the slope for gradients is 0.54 to 0.58 and then 0.86 to 0.88 (one law: p below "
      "1e-241), and for parameters 0.61 to 0.69 and then, along the sharpest directions, -0.25 to "
      "-0.05 (p below 1e-21). VGG-9: not measured (docs/flatness.md)",
    ),
    (
      "figure 4",
      "Tr(H Sigma) is much larger than with isotropic noise, during the whole training",
      "holds for the network on MNIST with three seeds. With noise between the hidden layers, as in section "
      "7, it is at least 15 times as large at the initialisation, and at least 56 times at 20 later points; "
      "with noise after the second, as in the appendix, at least 26 and 59 times (docs/flatness.md)",
    ),
  ],
  "group_softmax": [
    (
      "Eq. A.27",
      "on a trained head the discriminative grouping approximately maximises the loss",
      "holds with 2 groups (8.2 of at least 11.4 nats), not with 8 or more groups of type I (10.1 of at "
      "least 24.6 nats) (docs/group_softmax.md)",
    ),
    (
      "tables of results",
      "the loss has a lower error than softmax",
      "with 32 groups and 5 seeds: on MNIST-1K, type I has 3.91 ± 0.17 %, with random groups 4.31 ± 0.13 %, "
      "softmax 5.32 ± 0.28 %, and type II 5.63 ± 0.35 %; on MNIST-5K, the four have 1.78 ± 0.15, "
      "2.02 ± 0.10, 2.15 ± 0.15 and 2.96 ± 0.15 %; on digits there is no clear difference "
      "(docs/group_softmax.md)",
    ),
    (
      "table B.2",
      "type II gains most with few classes, and with few images per class",
      "not seen in a small experiment: an MLP with 8 groups on MNIST, with 2, 5 and 10 classes and 10 to 300 "
      "images per class (docs/group_softmax.md)",
    ),
  ],
}


def collect() -> dict[str, str]:
  """The pages, by source. The markers are read and not run, which takes a tenth of pytest's collection."""
  claims: dict[str, dict[tuple[str, str, str], list[str]]] = {}
  for file in sorted((ROOT / "tests").rglob("test_*.py")):
    body = ast.parse(file.read_text()).body
    for name, arguments, options in marked(body, texts(body)):
      source, where, text = arguments
      claim = (where, text, options.get("status", "holds"))
      test = f"{file.relative_to(ROOT)}::{name}"
      claims.setdefault(source, collections.defaultdict(list))[claim].append(test)
  return {source: page(source, found) for source, found in sorted(claims.items())}


def texts(body: list[ast.stmt]) -> dict[str, str]:
  """The constants of a module that are texts."""
  return {
    node.targets[0].id: node.value.value
    for node in body
    if isinstance(node, ast.Assign)
    and isinstance(node.targets[0], ast.Name)
    and isinstance(node.value, ast.Constant)
    and isinstance(node.value.value, str)
  }


def marked(body: list[ast.stmt], named: dict[str, str]) -> Iterator[tuple[str, list[str], dict[str, str]]]:
  """The name of each test with a claim, and the arguments of the marker."""
  value = lambda node: named[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)
  for node in body:
    if isinstance(node, ast.ClassDef):
      for name, *marker in marked(node.body, named):
        yield f"{node.name}::{name}", *marker
    elif isinstance(node, ast.FunctionDef):
      for mark in reversed(node.decorator_list):
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claim":
          yield node.name, [*map(value, mark.args)], {each.arg: value(each.value) for each in mark.keywords}


def page(source: str, claims: dict[tuple[str, str, str], list[str]]) -> str:
  lines = [
    f"# {TITLES[source]}",
    "",
    "Written by `python tests/claims.py` from the markers of the tests; a test fails when it is out of date.",
    "",
    "| where | claim | status | test |",
    "|---|---|---|---|",
  ]
  for (where, text, status), tests in sorted(claims.items(), key=lambda claim: _order(claim[0][0])):
    named = ", ".join(f"`{test.removeprefix('tests/').replace('::', ' ')}`" for test in tests)
    lines.append(f"| {where} | {text} | {STATUS[status]} | {named} |")
  if source in MEASURED:
    lines += [
      "",
      "Measured, and not asserted by a test:",
      "",
      "| where | claim | what came out |",
      "|---|---|---|",
    ]
    lines += [f"| {where} | {text} | {result} |" for where, text, result in MEASURED[source]]
  return "\n".join(lines) + "\n"


def _order(where: str) -> list[tuple[int, int | str]]:
  """`Eq. 9` before `Eq. 10`."""
  words = where.replace("-", " ").replace(",", " ").split()
  return [(0, int(word)) if word.isdigit() else (1, word) for word in words]


if __name__ == "__main__":
  FOLDER.mkdir(parents=True, exist_ok=True)
  for name, text in collect().items():
    (FOLDER / f"{name}.md").write_text(text)
    print(f"docs/claims/{name}.md: {text.count(chr(10)) - 6} lines")

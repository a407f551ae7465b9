"""The gallery: every figure of `docs/figures`, the command that makes it and what one sees.

`conf.py` writes the page and its thumbnails into `docs/gallery/`. A test fails when a figure has no row, when
a row has no figure, or when a command cannot be read. DIR is a folder with the data that the config names.
"""

from pathlib import Path
from typing import NamedTuple

from PIL import Image

RUN, DATA = "python run.py --config configs/", " --config.data.idx.path=DIR"
LECTURE = "python benchmarks/lecture_figures.py "
DROPMAX_FIGURES = f"{RUN}dropmax_figures.py:mnist1k{DATA}"
TRENDS = "\npython benchmarks/group_softmax_trends.py runs/compare_group_softmax-"


class Figure(NamedTuple):
  """A figure. `page` is the page that discusses it."""

  name: str
  command: str
  seen: str
  page: str


SECTIONS: dict[str, list[Figure]] = {
  "Methods compared": [
    Figure(
      "compare_dropmax_digits",
      f"{RUN}compare_dropmax_digits.py",
      "Test error, NLL and ECE of softmax and DropMax on scikit-learn's digits, five seeds each. DropMax "
      "has the smaller error and NLL, and the larger ECE.",
      "results",
    ),
    Figure(
      "compare_dropmax_mnist1k",
      f"{RUN}compare_dropmax_mnist1k.py{DATA}",
      "Eight methods on 1000 images of MNIST, five seeds each, every method searched alike. DropMax has the "
      "smallest error and NLL; random DropMax is the better calibrated.",
      "results",
    ),
    Figure(
      "compare_dropmax_mnist5k",
      f"{RUN}compare_dropmax_mnist5k.py{DATA}",
      "Softmax, random DropMax and DropMax on 5000 images of MNIST, three seeds each. DropMax has the "
      "smallest error and NLL.",
      "results",
    ),
    Figure(
      "compare_toolbox_mnist1k",
      f"{RUN}compare_toolbox_mnist1k.py{DATA}",
      "Eighty regularizers beside none on 1000 images of MNIST, five seeds each. Shifts, FixMatch and VAT "
      "lower the error most; the confidence penalty has by far the largest ECE.",
      "toolbox",
    ),
    Figure(
      "compare_toolbox_mnist1k_flipped",
      f"{RUN}compare_toolbox_mnist1k.py:flipped{DATA}",
      "The same with a fifth of the training labels flipped, six rows. Dropout and early stopping lower the "
      "error by six and five points, and raise the ECE to 31 and 23 %.",
      "toolbox",
    ),
    Figure(
      "compare_optimizers_mnist5k",
      f"{RUN}compare_optimizers_mnist5k.py{DATA}\n"
      "python benchmarks/optimizer_curves.py runs/compare_optimizers_mnist5k-HASH",
      "Training loss of eleven optimizers from a balanced and from an unbalanced start, mean of three seeds. "
      "Path-SGD's curve is the same in both; SGD's is not.",
      "sgd",
    ),
  ],
  "DropMax": [
    Figure(
      "convergence_mnist55k",
      f"{RUN}compare_dropmax_mnist55k.py{DATA}",
      "NLL and error over 41800 steps on MNIST-55K, one seed. DropMax begins more slowly, and ends lower and "
      "flatter.",
      "dropmax",
    ),
    Figure(
      "reliability_background",
      f"{RUN}compare_dropmax_mnist1k_variations.py{DATA}",
      "Accuracy against confidence on digits over random backgrounds, seed 0. Softmax lies under the "
      "diagonal, so it is overconfident; DropMax lies near it.",
      "dropmax",
    ),
    Figure(
      "reliability_rotation",
      f"{RUN}compare_dropmax_mnist1k_variations.py:rotation{DATA}",
      "The same with the digits turned by any angle. Both methods are overconfident, DropMax by far the "
      "less.",
      "dropmax",
    ),
    Figure(
      "dropmax_start",
      "python benchmarks/dropmax_start.py --config.data.tfds.data_dir=DIR",
      "The first 150 steps of ResNet-32 on CIFAR-10, as the paper's appendix says (left) and with clipped "
      "gradients (right). On the left the masks shut at once, and DropMax does not learn.",
      "dropmax",
    ),
    Figure(
      "gradients",
      DROPMAX_FIGURES,
      "Norm of the gradient in the logits over a training, on the tenth with the smallest margin and on 1000 "
      "training examples. DropMax's norm is the smaller throughout.",
      "dropmax",
    ),
    Figure(
      "contours",
      DROPMAX_FIGURES,
      "The largest class probability of a small network on three classes in the plane, with softmax and with "
      "wrong classes kept at random. With fewer classes kept, the uncertain regions become wider.",
      "dropmax",
    ),
    Figure(
      "monte_carlo",
      DROPMAX_FIGURES,
      "The target's probability over 1000 masks: under growing noise with all masks sampled, with the "
      "target's mask at its mean, and from easy to difficult examples. Masks spread it most where the "
      "example is difficult.",
      "dropmax",
    ),
    Figure(
      "predictive",
      DROPMAX_FIGURES,
      "All class probabilities over 1000 masks, for an easy 9 and for the same 9 with noise. On the easy "
      "digit every mask agrees; on the noisy one, masks move probability between 9 and 8.",
      "dropmax",
    ),
    Figure(
      "retain_maps",
      f"{RUN}dropmax_mnist.py:1k{DATA}",
      "Retain probabilities of each class: of easy examples, of difficult ones under prior and posterior, "
      "and class by class. On easy examples the prior keeps the true class; on difficult ones it keeps the "
      "predicted class.",
      "dropmax",
    ),
    Figure(
      "equilibrium",
      DROPMAX_FIGURES,
      "Where the retain probabilities of wrong classes settled, beside the curve on which KL and entropy "
      "balance. The points follow the curve's direction, mostly below it.",
      "dropmax",
    ),
  ],
  "Group softmax": [
    Figure(
      f"group_softmax_{name}",
      f"{RUN}compare_group_softmax.py:{name}{DATA if 'mnist' in name else ''}{TRENDS}{folder}",
      seen,
      "group_softmax",
    )
    for name, folder, seen in (
      (
        "digits",
        "digits",
        "Test error and NLL over the number of groups on digits, five seeds. No rule of grouping clearly "
        "has the smallest error; type II with many groups of the controls loses.",
      ),
      (
        "mnist1k",
        "mnist1k-HASH",
        "The same on 1000 images of MNIST with LeNet. Type I is better than softmax with any grouping, and "
        "the more groups the better.",
      ),
      (
        "mnist5k",
        "mnist5k-HASH",
        "The same on 5000 images. The order is that of 1000 images, with smaller differences; type II loses "
        "from 4 groups on.",
      ),
      (
        "cifar10",
        "cifar10",
        "The same on 3600 images of CIFAR-10, after 8 epochs. Every group softmax is worse than softmax, "
        "and the more groups the worse.",
      ),
    )
  ],
  "Flat minima and dropout's noise": [
    Figure(
      "flatness_fnn_mnist_profile",
      f"{RUN}flatness_fnn_mnist.py:profile{DATA}",
      "The training loss along filter-normalised directions, with dropout and without, in plain and "
      "logarithmic scale. Near the minimum dropout does not make this network flatter; farther away it "
      "does.",
      "flatness",
    ),
    Figure(
      "flatness_vgg9_cifar10_profile",
      f"{RUN}flatness_vgg9_cifar10.py",
      "The same for VGG-9 on 2048 images of CIFAR-10, the paper's size. With dropout it is not flatter, but "
      "it fits its images badly.",
      "flatness",
    ),
    Figure(
      "flatness_resnet20_cifar10_profile",
      f"{RUN}flatness_resnet20_cifar100.py:cifar10",
      "The same for ResNet-20 on 4000 images of CIFAR-10. Far from the minimum it is flatter with dropout "
      "along every direction. Close to it the network without dropout has the lower loss.",
      "flatness",
    ),
    Figure(
      "flatness_transformer_multi30k_profile",
      f"{RUN}flatness_transformer_multi30k.py:small --config.data.parallel_text.path=DIR",
      "The same for a small transformer on 512 sentences, with three keep probabilities. The more units are "
      "dropped, the wider the valley. Far outside it the order is reversed.",
      "flatness",
    ),
    Figure(
      "flatness_fnn_mnist_variance_flatness",
      f"{RUN}flatness_fnn_mnist.py{DATA}",
      "Variance of dropout's noise along its principal components over the width of the loss, for positions "
      "on the trajectory, gradients and isotropic noise. There is less noise where the loss is flat, but "
      "not by one power law.",
      "flatness",
    ),
    Figure(
      "flatness_fnn_mnist_one_setting_variance_flatness",
      f"{RUN}flatness_fnn_mnist.py:one_setting{DATA}",
      "One setting with three seeds, and two fitted slopes where a test rejects a single line. For gradients "
      "the relation becomes steeper where the loss is flatter.",
      "flatness",
    ),
    Figure(
      "flatness_fnn_mnist_one_setting_projected_variance",
      f"{RUN}flatness_fnn_mnist.py:one_setting{DATA}",
      "The variance along the Hessian's eigenvectors over their eigenvalues, in the same setting. Here, too, "
      "a test rejects a single line.",
      "flatness",
    ),
    Figure(
      "flatness_fnn_mnist_projected_variance",
      f"{RUN}flatness_fnn_mnist.py{DATA}",
      "Variance of the noise along the Hessian's eigenvectors over their eigenvalues. It grows with the "
      "curvature for trajectory and gradients, and not for isotropic noise.",
      "flatness",
    ),
    Figure(
      "flatness_fnn_mnist_alignment",
      f"{RUN}flatness_fnn_mnist.py:alignment{DATA}",
      "Trace of Hessian times noise covariance along trainings with three seeds, and its ratio to that of "
      "isotropic noise. The ratio is at least 15 at the initialisation, and 56 at every later point.",
      "flatness",
    ),
    Figure(
      "flatness_fnn_mnist_spectra",
      f"{RUN}flatness_fnn_mnist.py{DATA}",
      "Eigenvalues of the gradient's covariance from 1000 and 3000 samples and from draws for each example. "
      "With fewer samples the small eigenvalues come out too small.",
      "flatness",
    ),
    Figure(
      "flatness_resnet20_cifar10_variance_flatness",
      f"{RUN}flatness_resnet20_cifar100.py:cifar10",
      "Noise over flatness for one convolution of ResNet-20, 30 components, the loss over 4000 images. Both "
      "kinds of noise fall with flatness; the isotropic control does not.",
      "flatness",
    ),
    Figure(
      "flatness_resnet20_cifar10_projected_variance",
      f"{RUN}flatness_resnet20_cifar100.py:cifar10",
      "Noise over curvature for the same convolution, all eigenvectors of the Hessian over 4000 images. Both "
      "kinds of noise grow with the curvature; the isotropic control does not.",
      "flatness",
    ),
    Figure(
      "flatness_transformer_multi30k_variance_flatness",
      f"{RUN}flatness_transformer_multi30k.py:small --config.data.parallel_text.path=DIR",
      "Noise over flatness for the queries of a transformer, 30 components. The noise of gradients falls "
      "with flatness. On the trajectory the drift hides it.",
      "flatness",
    ),
    Figure(
      "flatness_transformer_multi30k_projected_variance",
      f"{RUN}flatness_transformer_multi30k.py:small --config.data.parallel_text.path=DIR",
      "Noise over curvature for the same queries, three keep probabilities. The noise of gradients grows "
      "with the curvature. Positions on the trajectory do not show it.",
      "flatness",
    ),
  ],
  "The lecture on regularization": [
    Figure(
      "lecture_penalties",
      f"{LECTURE}penalties",
      "A loss with two curvatures and its minima under growing L2 and L1 penalties. L1 ends with the first "
      "weight at exactly 0; L2 only shortens it.",
      "lecture",
    ),
    Figure(
      "lecture_early_stopping",
      f"{LECTURE}early_stopping",
      "The path of gradient descent beside the minima under a shrinking L2 penalty, and what both keep of "
      "each direction. The paths are alike, but not the same.",
      "lecture",
    ),
    Figure(
      "lecture_learning_curves",
      f"{LECTURE}learning_curves",
      "Training and validation NLL of digits, a fifth of the labels drawn anew. The training NLL falls to "
      "the end; the validation NLL turns up soon after the copy that early stopping keeps.",
      "lecture",
    ),
    Figure(
      "lecture_gradient_variance",
      f"{LECTURE}gradient_variance",
      "Variance of one example's gradient along a training, without and with dropout. Masks multiply it by "
      "2.1 at the start, and a training with dropout ends with 2.9 times as much.",
      "lecture",
    ),
    Figure(
      "lecture_ellipses",
      f"{LECTURE}ellipses",
      "Minima on the unit circle, and where three L2 penalties move them. The direction with little "
      "curvature shrinks first.",
      "lecture",
    ),
    Figure(
      "lecture_ensemble",
      f"{LECTURE}ensemble",
      "Mean, scatter and members of dropout's ensemble on a line with a gap. The scatter grows away from the "
      "points, but much less than the error.",
      "lecture",
    ),
    Figure(
      "lecture_fgsm",
      f"{LECTURE}fgsm --data DIR",
      "Six digits, the signs that FGSM adds, and what the network takes the sums for. The error rises to 90 "
      "% at a step of 0.1; random signs of that size do little.",
      "lecture",
    ),
    Figure(
      "lecture_autoencoder",
      f"{LECTURE}autoencoder --data DIR",
      "Features of an autoencoder without and with dropout, how often its units are active and how "
      "correlated they are. With dropout half of the activations are zero, and the units are half as "
      "correlated.",
      "lecture",
    ),
    Figure(
      "lecture_mc_samples",
      f"{LECTURE}mc_samples --data DIR",
      "Test error and NLL of MC dropout over the number of masks, beside weight scaling. From 32 masks on "
      "the errors are alike; the NLL stays above.",
      "lecture",
    ),
    Figure(
      "lecture_weight_noise",
      f"{LECTURE}weight_noise --data DIR",
      "The loss around networks trained with weight noise and without, and the Hessian's trace. With noise "
      "the minimum is flatter, and part of that remains when the noise ends.",
      "lecture",
    ),
    Figure(
      "lecture_network_sizes",
      f"{LECTURE}network_sizes --data DIR",
      "Training and test error of networks of 4 to 512 hidden units, and the test losses of 40 runs of each. "
      "The test error goes on falling where the training error is 0 already, and the runs end ever closer.",
      "sgd",
    ),
  ],
  "The geometry of SGD": [
    Figure(
      "sgd_unit_balls",
      "python benchmarks/sgd_figures.py balls",
      "The unit balls of six norms with the steepest step in each. The 1-norm moves one coordinate, the "
      "norm of the largest entry moves all alike.",
      "sgd",
    ),
    Figure(
      "sgd_coordinates",
      "python benchmarks/sgd_figures.py coordinates",
      "Gradient descent in x and in y, where x = A y, drawn in both coordinates. It takes two different "
      "paths.",
      "sgd",
    ),
    Figure(
      "sgd_index",
      "python benchmarks/sgd_figures.py index",
      "Share of negative eigenvalues at 344 stationary points of a small network, over their loss. At low "
      "losses there are only minima. A power of 3/2 and a straight line fit the small indices alike.",
      "sgd",
    ),
    Figure(
      "sgd_widths",
      "python benchmarks/sgd_figures.py widths",
      "Final training losses of 200 starts for each of six widths. Narrow networks end at many losses, wide "
      "ones at nearly none.",
      "sgd",
    ),
  ],
}


def page() -> str:
  """The text of `docs/gallery/index.rst`."""
  lines = [
    *("Gallery", "=======", ""),
    "Every figure of these pages that a command of jaxreg makes. A click shows it in full. DIR is a folder "
    "with the data that the configuration names, HASH the number that a run prints.",
  ]
  for title, figures in SECTIONS.items():
    lines += ["", title, "-" * len(title), "", ".. container:: gallery", ""]
    for figure in figures:
      lines += [
        *(f"   .. figure:: {figure.name}.png", f"      :target: ../_static/{figure.name}.png"),
        *(f"      :alt: {figure.seen}", "", f"      {figure.seen} :doc:`More </{figure.page}>`.", ""),
        *("      .. code-block:: sh", "", *(f"         {line}" for line in figure.command.splitlines()), ""),
      ]
  return "\n".join(lines) + "\n"


def write(docs: Path) -> None:
  """Writes the page, and a thumbnail of each figure that is newer than its thumbnail."""
  folder = docs / "gallery"
  folder.mkdir(exist_ok=True)
  if not (file := folder / "index.rst").exists() or file.read_text() != page():
    file.write_text(page())
  for figure in (figure for figures in SECTIONS.values() for figure in figures):
    source, thumbnail = docs / f"figures/{figure.name}.png", folder / f"{figure.name}.png"
    if not thumbnail.exists() or thumbnail.stat().st_mtime < source.stat().st_mtime:
      image = Image.open(source).convert("RGB")
      image.thumbnail((640, 480))
      image.save(thumbnail, optimize=True)

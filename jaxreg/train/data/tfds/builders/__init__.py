"""Prepares TFDS data sets: MNIST, CIFAR-10 and CIFAR-100 without TensorFlow, every other set with it."""

from jaxreg.train.data.tfds.builders._builders import BUILDERS
from jaxreg.train.data.tfds.builders._prepare import prepare

__all__ = ["BUILDERS", "prepare"]

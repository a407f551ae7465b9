"""Sets of TensorFlow Datasets, read and, for MNIST and CIFAR, prepared without TensorFlow.

`source` finds a prepared set, `builders` prepare one, `cache` keeps decoded arrays, `stream` reads images
that stay encoded.
May import: data.
"""

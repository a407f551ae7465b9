"""Data sets of TensorFlow Datasets: read without TensorFlow; MNIST and CIFAR are also prepared without it.

`source` finds a prepared set, `builders` prepare one, `cache` keeps decoded arrays, `stream` reads images
that stay encoded.
May import: data.
"""

"""Data sets of TensorFlow Datasets: read without TensorFlow; MNIST and CIFAR are also prepared without it.

`prepared` finds a prepared set and checks it, `records` reads its examples and keeps them in the user's
cache, and `builders` prepares a set that is missing.
"""

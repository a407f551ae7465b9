"""Data: the examples, their order, and the way of a batch to the devices.

`dataset` has the type that every source returns. `sources` has the sources that `data.name` can name; `tfds`
is one of them. `order` says which examples make a batch, `stream` decodes `images` ahead and cuts `crops` out
of them, and `placement` puts arrays on devices.
May import: nothing of the trainer but errors and keys.
"""

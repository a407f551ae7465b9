"""Data: what is read, in which order, and how a batch reaches the devices.

`dataset` is what every source gives; `sources` are what `data.name` can name, `tfds` among them. `order` says
which examples make a batch, `stream` decodes images ahead, `placement` puts arrays on devices.
May import: nothing of the trainer but errors and keys.
"""

"""Data: the examples, their order, and the way of a batch to the devices.

`dataset` has the type that every source returns, and `sources` what `data.name` can name; `tfds` is one of
them. `readable` finds images that cannot be decoded, and `scaling` inputs of a bad scale. `order` says which
examples make a batch, `stream` decodes `images` ahead and cuts `crops` out, and `placement` places arrays.
May import: nothing of the trainer but errors, files, keys, lookup and user_cache.
"""

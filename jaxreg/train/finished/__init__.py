"""Finished runs: what a work directory gives back after the training.

`restore` reads a run from its folder: its configuration, functions, data and states. `load` gives its
predictions, and `inputs` says which inputs these take. `reuse` makes a teacher of a run, or the beginning of
another run. `measures` and `laplace` judge the predictions, which are `predicted`.
"""

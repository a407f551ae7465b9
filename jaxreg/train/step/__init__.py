"""The step: pure functions of states, batches and keys, which compile under jit, vmap and pmap.

`step` trains and `predict` predicts. `objective` builds the function that a step minimises, from a row of
`methods`, from `terms`, and from the penalties and noise of `regularizers`. `program` holds the
functions of one run together.
May import: modules, methods, entries, keys, and data for the types of a batch.
No function here sees a configuration.
"""

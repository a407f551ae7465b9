"""The step: pure functions of states, batches and keys, which compile under jit, vmap and pmap.

`step` is the page to copy: the objective and the training step. `forward` runs the network and the method's
loss, `gradient` differentiates, `predict` predicts. `terms` and `regularizers` make what a configuration adds
to the loss. `program` holds the functions of one run together.
May import: modules, methods, entries, keys, and data for the types of a batch. No function here sees a
configuration.
"""

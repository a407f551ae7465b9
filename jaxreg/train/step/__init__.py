"""The step: pure functions of states, batches and keys, which compile under jit, vmap and pmap.

`step` is the page to copy: the objective and the training step. `forward` runs the network and the method's
loss, `gradient` differentiates, `predictions` predicts. `terms` and `regularizers` make what a configuration
adds to the loss. `program` holds the functions of one run together.
"""

"""The step: pure functions of states, batches and keys, which compile under jit, vmap and pmap.

`step` trains and `predict` predicts; `objective` is what a step minimises, made of a row of `methods`, of
`example_terms` and of what `named` finds; `program` holds the functions of one run together.
May import: data, for what a batch is. No function here sees a configuration.
"""

"""The step: pure functions of states, batches and keys, which compile under jit, vmap and pmap.

`step` trains and `predict` predicts; `objective` is what a step minimises, of a `methods` row, `example_terms`
and what `named` finds by name; `program` holds the functions of one run together.
May import: data, for what a batch is. No function here sees a configuration.
"""

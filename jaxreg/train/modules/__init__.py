"""Networks of any module system as a pair of pure functions, `init` and `apply`.

`linen`, `nnx`, `equinox` and `functions` have one adapter each; `adapt` chooses among them. Nothing else in
the trainer knows a module system.
May import: errors, keys, lookup.
"""

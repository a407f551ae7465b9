"""Networks of any module system as a pair of pure functions, `init` and `apply`.

`linen`, `nnx`, `equinox` and `functions` have one adapter each; `adapt` chooses among them. Only the heads of
`methods` are written in a module system, Linen.
"""

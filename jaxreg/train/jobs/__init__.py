"""The jobs: one file for each value of `config.job`, and `load_model` for other programs.

Each job is `(config, workdir) -> results`, and `summary` puts its results in a few lines. `train` begins
with an `initial_state`. `compare` and `flatness` train rows. `evaluate` and `report` begin with a
`restored_run`; `measures` and `laplace` are further measures.
May import: assemble and all below.
"""

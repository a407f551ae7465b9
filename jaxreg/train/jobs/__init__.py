"""The jobs: one file for each value of `config.job`, and `load` for programs of other people.

Each job is `(config, workdir) -> results`; `report` says the results in a few lines.
May import: build and all below.
"""

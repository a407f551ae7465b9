"""The jobs: one file for each value of `config.job`, `(config, workdir) -> results`.

May import: finished and all below.
"""

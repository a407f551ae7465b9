"""The jobs: one file for each value of `config.job`.

Each job is `(config, workdir) -> results`, and `summary` puts its results in a few lines.
May import: finished and all below.
"""

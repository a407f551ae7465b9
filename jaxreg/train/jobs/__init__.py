"""The jobs: one file for each value of `config.job`, and `load` for other programs.

Each job is `(config, workdir) -> results`. `report` puts the results of a job in a few lines.
May import: assemble and all below.
"""

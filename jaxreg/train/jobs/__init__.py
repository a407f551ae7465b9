"""The jobs: one file for each value of `config.job`, `(config, workdir) -> results`."""

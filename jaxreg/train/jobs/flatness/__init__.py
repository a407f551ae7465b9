"""`job = flatness`: the shape of the loss around a trained network.

`job` trains the rows and draws the results. `analysed_run` restores one run and makes a `network_at_point`,
which `analyses` measures; `array_cache` keeps arrays that took long to compute. `requirements` refuses runs
that cannot be measured.
May import: assemble and all below.
"""

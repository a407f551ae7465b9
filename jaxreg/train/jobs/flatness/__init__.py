"""`job = flatness`: the shape of the loss around a trained network.

`job` goes through the rows, `row` restores one run, and `network_at_point` makes its `subject`, which
`analyses` measures. `checks` refuses runs that cannot be measured, `figures` draws the results, and
`array_cache` keeps arrays that took long to compute.
May import: assemble and all below.
"""

"""`job = flatness`: the shape of the loss around a trained network.

`job` goes through the rows, and `row` restores one run. `analyses` measures the run at the point that
`network_at_point` describes. `checks` refuses runs that cannot be measured, `figures` draws the results, and
`array_cache` keeps arrays that took long to compute.
May import: build and all below.
"""

"""`job = flatness`: what the loss looks like round a trained network.

`job` goes through the rows, `row` restores one run, `analyses` measures it at the point that
`network_at_point` describes, `array_cache` keeps what took long.
May import: build and all below.
"""

"""Devices and processes: the wrappings of the pure step.

`mesh` arranges the devices, `compile` wraps a step in jit or pmap, `replicas` trains several seeds,
`sharding` splits states, and `processes` joins several processes.
May import: step, data.
"""

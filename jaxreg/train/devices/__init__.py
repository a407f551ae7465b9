"""Devices and processes: the wrappings of the pure step.

`sharding` arranges the devices and splits states, `wrap` wraps a step in jit or pmap, `replicas` trains
several seeds, and `processes` joins several processes. `topology` and `collectives` are for devices that are
not here.
"""

"""Devices and processes: the wrappings of the pure step.

`sharding` arranges the devices and splits states, `compile` wraps a step in jit or pmap, `replicas` trains
several seeds, and `processes` joins several processes.
May import: step, data.
"""

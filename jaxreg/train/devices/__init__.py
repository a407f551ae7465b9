"""Devices and processes: the wrappings of the pure step.

`mesh` arranges the devices, `compile` wraps a step in jit or pmap, `replicas` trains several seeds, and
`sharding` splits states. `processes` starts several processes, which `launchers` may have numbered; `meeting`
connects them.
May import: step, data.
"""

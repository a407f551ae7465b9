"""Devices and processes: the wrappings of the pure step.

`mesh` arranges the devices, `compile` wraps a step by jit or pmap, `replicas` trains several seeds,
`sharding` splits states; `processes` starts several processes, which meet by `meeting`.
May import: step, data.
"""

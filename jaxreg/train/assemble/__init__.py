"""Turns a configuration into pure functions. Nothing below sees a configuration.

`from_config` makes the pure functions of a run from a configuration and a description of the data.
`load_data` loads the data, and `run_parts` places a run on the devices. `compatibility` tests the
configuration against the data, the devices and the network.
"""

"""The door: the last room that sees a configuration.

`program` makes the pure functions of a run from a configuration and a description of the data.
`load_data` loads the data, `run` places a run on the devices, `saved` restores a run from its work directory.
`checks` tests the configuration against the data, the devices and the network.
May import: run, config, devices, step, data. Jobs import it; nothing below sees a configuration.
"""

"""The door: the last room that sees a configuration.

`program` makes the pure functions of a run from the sections of a configuration and what the data are;
`dataset` loads the data, `run` places a run on the devices, `saved` brings a run back from its folder.
May import: run, config, devices, step, data. Jobs import it; nothing below sees a configuration.
"""

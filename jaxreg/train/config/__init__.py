"""The configuration: its fields, their meaning, and their allowed values.

`fields` has the table of the fields, which is also their type; `choices` adds the options of what a
configuration names. `describe` says what a field means and may be, and `checks` checks it. `values` reads the
texts of flags and rows, and `loading` the config files.
May import: devices, step, data, for the choices that fields name.
"""

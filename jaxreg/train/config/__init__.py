"""The configuration: its fields, their meaning, and their allowed values.

`fields` has the defaults, and `describe` the text of `--help`. `checks` checks each field, `ranges` the
numbers, and `conflicts` several fields together. `choices` finds a field's choice, `defaults` its options,
`rows` parses the rows of a comparison, and `flat` flattens a configuration.
May import: devices, step, data, for the choices that fields name.
"""

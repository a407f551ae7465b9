"""The configuration: its fields, what they mean, and what they may hold.

`fields` has the defaults, `describe` the text of `--help`; `checks` looks at each field, `ranges` at numbers,
`conflicts` at several fields together.
May import: devices, step, data, for the choices that fields name.
"""

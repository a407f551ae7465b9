"""The configuration: its fields, their meaning, and their allowed values.

`fields` has the table of the fields, which is also their type. `values` has all of a single field: its type,
how a text is read, what is checked, and its help. `choices` adds the options of what a configuration names.
`rows` reads tables of fields, `flags` the command line, `config_files` the files. `checks` finds conflicts.
"""

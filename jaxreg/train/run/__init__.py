"""One run and its work directory: the loop, and all that it leaves on the disk.

`loop` trains, evaluates and saves; `checkpoint`, `manifest` and `restore` keep states, `workdir` and `lock`
the folder, `recorder`, `log` and `results` the numbers; `collapse`, `finite` and `watchdog` look after a run.
May import: devices, step, data, and the flat tables of config. A run holds numbers and functions.
"""

"""One run and its work directory: the loop, and everything that it writes to disk.

`loop` trains, evaluates and saves. `checkpoint`, `manifest` and `restore` keep states, `workdir` and `lock`
guard the folder, `recorder`, `log` and `results` write numbers. `collapse`, `finite` and `watchdog` watch a
run.
May import: devices, step, data, and the flat tables of config. A run holds numbers and functions.
"""

"""One run and its work directory: the loop, and everything that it writes to disk.

`loop` trains, evaluates and saves; `dispatch` says at which steps. `checkpoint` and `manifest` keep states,
`workdir` and `lock` guard the folder. `recorder`, `log`, `metrics_file` and `results` write numbers.
`initial_state` begins a run, `evaluation` evaluates it, and `health` watches it.
"""

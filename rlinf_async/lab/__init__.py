"""Tools beside training: a training run needs none of them, and no module outside of `lab` imports one.

Its commands read run directories (`report`, `trace`), predict (`plan`, by the loops on the clock of
`virtual`), and start runs to compare them (`bench`, `sweep`). `process` runs a
command in a process group, `cells` one run after the other, `table` prints results. `emulated` has
environments and policies that only take time, `demo` has simulators, policies and a warm start for first
trials. Entry points register all of it.
"""

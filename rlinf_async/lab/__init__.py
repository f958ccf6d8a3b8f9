"""The part that a training run never needs; nothing outside imports it.

Its commands read run directories (`report`, `trace`), predict (`plan`, by the loops on the clock of
`virtual`), and start runs to compare them (`bench`, `sweep`). `process` runs a
command apart, `cells` one cell after the other, `table` shows what came out. `emulated` has
environments and policies that only take their time, `demo` simulators, policies and a warm start to try
things out with. All of it is found by entry points.
"""

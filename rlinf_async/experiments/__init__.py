"""Runs side by side: `bench` compares schedules, `sweep` the settings of a user's own config.

What they share stands beside them: `process` runs a command apart, `cells` runs one cell after the other,
`table` and `chart` show what came out. `emulated` has environments and policies that only take their time.
"""

"""Experiments on what asynchrony does to learning: `python -m benchmarks.learning --help`."""

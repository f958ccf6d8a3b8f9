"""Experiments on the effect of asynchrony on learning: `python -m benchmarks.learning --help`."""
